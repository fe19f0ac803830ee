"""How many processor cores may this process really use, and how are they shared out among model instances?

The least of what the scheduler allows (affinity) and what every cgroup above us allows (quota), version 1 and 2. Reading
is kept apart from counting, so that both are tested on a made-up tree. os.cpu_count() is wrong in a container: it counts
the machine, and ONNX Runtime would start a thread for each of its cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Whole cores of this process, at least 1. Half a core more is not another thread: it would only be throttled."""
    return whole_cores(len(os.sched_getaffinity(0)), cgroup_quota_cores(root))


def whole_cores(num_allowed: int, quota_cores: float | None) -> int:
    cores = float(num_allowed) if quota_cores is None else min(float(num_allowed), quota_cores)
    return max(1, int(cores))


def cgroup_quota_cores(root: Path = Path("/")) -> float | None:
    """The smallest quota, in cores, of the cgroups that this process is in; None where there is no limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            quotas += _walk(root / "sys/fs/cgroup", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in ("sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"):
                quotas += _walk(root / mount, path, _quota_v1)
    return min(quotas, default=None)


def _walk(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """The quotas of a cgroup and of all above it. In a container the path may lie outside of what is mounted."""
    folders = [PurePosixPath(path), *PurePosixPath(path).parents] if path.startswith("/") else []
    places = [mount / str(folder).lstrip("/") for folder in folders if ".." not in folder.parts]
    return [quota for place in [*places, mount] if (quota := read(place)) is not None]


def _quota_v2(folder: Path) -> float | None:
    """`cpu.max` is `QUOTA PERIOD` in microseconds, QUOTA may be `max`."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    """`cpu.cfs_quota_us` is -1 without a limit."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


@dataclass(frozen=True, slots=True)
class Share:
    """What every model of a pool gets: instances × threads = the cores of the pool, unless something else was asked for."""

    num_instances: int
    num_threads: int

    def __post_init__(self) -> None:
        if self.num_instances < 1 or self.num_threads < 1:
            raise ValueError(f"a model needs an instance and a thread, got {self}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a Triton by hand, for every model that it serves; None is as without it. Threads are an instance's."""

    instances: int | None = None
    threads: int | None = None
    queue_delay_us: int | None = None
    max_batch: int | None = None

    def flags(self) -> list[str]:
        """As options of `tandem triton`."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


NOTHING_ASKED = Asked()


def share(pool: str, num_cores: int, asked: Asked = NOTHING_ASKED) -> Share:
    """On the CPU one instance that uses every core, more share them; on a GPU one thread, because the card computes."""
    num_instances = asked.instances or 1
    num_threads = asked.threads or (max(1, num_cores // num_instances) if pool == "cpu" else 1)
    return Share(num_instances, num_threads)


def crowded(each: Share, num_cores: int) -> str | None:
    """What to say where instances and threads are more than there are cores."""
    total = each.num_instances * each.num_threads
    if total <= num_cores:
        return None
    return (
        f"warning: {each.num_instances} × {each.num_threads} threads of a model are more than the {num_cores} cores that may be "
        "used here; they wait for one another"
    )
