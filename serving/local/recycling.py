"""When does a tritonserver want a new start because of its memory, and how do gateways hear of it?

Triton keeps some memory of every model that it loads again, for good. Once all its processes take more than the bound, and a new start
would give back enough of it, its index says so by a row (RESTART). A gateway that can do without this server sends it nothing more and
then loads that name, which fails with the word GRANTED: that is how the supervisor hears of it. Nobody grants it for the last server of
a model. Reading memory is here, asking and restarting in `supervisor.py`. Rule: what a server takes once its models are loaded it takes
after a new start, too, so that only what came since can be a reason for one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from serving.local.processes import PROC

REFUSING = """
import triton_python_backend_utils

class TritonPythonModel:
    def initialize(self, args):
        raise triton_python_backend_utils.TritonModelException({reason!r})
"""
RESTART = "tandem-restart"  # a name that no variant has: none ends in a precision
GRANTED = "granted"
SHORT = "tandem-memory"  # likewise: the row by which the index tells that a bound is too low
LOOK_S = 5.0  # a look reads the tables of its pages: milliseconds (guess, not measured)
OF_LIMIT = (
    0.85  # of the container's memory: at all of it the kernel kills, and versions need room beside each other (guess)
)
WORTH = 0.1  # of the bound, that a new start has to give back: models that fill the memory by themselves are not helped (guess)
WORTH_FULL = 0.25  # of what it takes at its start, where that reaches the bound: first requests alone are to be no reason (guess)
FULL = 0.97 / OF_LIMIT  # of the bound: where that is of the container's memory, the kernel kills soon after (guess)
LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
NO_LIMIT = 2**60
IN_VAIN = "its models alone take more memory than it may have"  # how it is told that no new start can help


class Growth:
    """Of one server, from look to look, in bytes: `own` of tritonserver, `whole` with the processes of its models."""

    def __init__(self, bound_bytes: int | None) -> None:
        self.bound_bytes = bound_bytes
        self._first: tuple[int, int] | None = None  # own and whole

    def started(self) -> None:
        """It is a new process: the next look says what it takes without having loaded anything again."""
        self._first = None

    def why(self, own: int, whole: int) -> str | None:
        """Why it wants a new start now; None where it does not."""
        if self._first is None:
            self._first = own, whole
        grown = own - self._first[0]
        if self.bound_bytes is None or whole <= self.bound_bytes or grown < self._least_bytes:
            return None
        return f"its processes take {whole >> 20} MiB, more than {self.bound_bytes >> 20} MiB; tritonserver grew by {grown >> 20} MiB"

    @property
    def _least_bytes(self) -> float:
        """That tritonserver has to have grown by."""
        assert self._first is not None
        assert self.bound_bytes is not None
        first, least = self._first[1], WORTH * self.bound_bytes
        if first + least <= self.bound_bytes:
            return least
        until_full = FULL * self.bound_bytes - first
        return min(WORTH_FULL * first, max(least, until_full)) if until_full > 0 else WORTH_FULL * first

    @property
    def in_vain(self) -> str | None:
        """Why a new start could not bring it below its bound, with the way out; None where it could, or nobody has looked yet."""
        if self._first is None or self.bound_bytes is None or self._first[1] <= self.bound_bytes:
            return None
        return (
            f"{IN_VAIN}: its processes take {self._first[1] >> 20} MiB of {self.bound_bytes >> 20} MiB, and it is started anew only "
            f"once tritonserver has grown by {int(self._least_bytes) >> 20} MiB. Give it more (--max-memory-mb, "
            "max_memory_mb of its pool, or the limit of its container), or fewer models, variants, versions or instances"
        )


def bound(max_memory_mb: int | None, files: Iterable[str] = LIMIT_FILES) -> int | None:
    """Bytes, as asked for, else a part of what this container may take; None where nothing is limited."""
    if max_memory_mb is not None:
        return max_memory_mb << 20
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            if (limit := int(Path(file).read_text())) < NO_LIMIT:
                return int(OF_LIMIT * limit)
    return None


def memory_bytes(pid: int, proc: Path = PROC) -> int:
    """Its own, and its part of what it shares; 0 of one that is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def write_model(folder: Path, name: str) -> None:
    """What the index lists, and what a gateway's load of RESTART finds in this repository, and fails with."""
    place = folder / name / "1"
    place.mkdir(parents=True, exist_ok=True)
    tensor = '{ name: "none" data_type: TYPE_FP32 dims: [1] }'
    config = [f'name: "{name}"', 'backend: "python"', f"input {tensor}", f"output {tensor}"]
    config.append("instance_group { kind: KIND_CPU count: 1 }")
    (folder / name / "config.pbtxt").write_text("\n".join(config) + "\n")
    (place / "model.py").write_text(REFUSING.format(reason=GRANTED))
