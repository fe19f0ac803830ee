"""Do processes grow: memory, descriptors, threads, logs? Reads /proc on a clock; what it means is computed afterwards, without one.

A process that leaks has a floor that rises: a slope is the median of those between the lowest samples of the parts of a life (Theil and
Sen). The first flood of a life lifts the floor for good, because allocators keep what hundreds of connections once took, and each flood
leaves connections for a while: a life is looked at from after its first flood on, and not while one settles. Rule: a process that lived
too short for that says nothing, and is told to be so.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.processes import Process, family
from loadtest.processes import look as process

PAGE_BYTES = 4096
WARM_UP_S = 60.0  # of each process: until its allocator has what it needs (guess, not measured)
MIN_LIFE_S = 480.0  # after that, with a flood or two in it, or a step of the allocator is a slope (guess, not measured)
THIS = "this bench"  # whose records must not grow either
NUM_PARTS = 5  # of a life
SETTLED_S = 100.0  # after a flood has begun, which lasts ten seconds: clients keep their connections for 85 (measured)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    memory_bytes: int
    num_descriptors: int
    num_threads: int


@dataclass(slots=True)
class Lives:
    """Of all processes of one role: their samples, each life by itself. `floods`: when each began, by the samples' clock."""

    floods: list[float] = field(default_factory=list)
    of: dict[tuple[int, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def slope(self, value: Callable[[Sample], float]) -> float | None:
        """An hour's growth; None where none lived long enough."""
        slopes = [slope for life in self.of.values() for slope in _slopes(life, value, self.floods)]
        return statistics.median(slopes) * 3600 if slopes else None

    def longest(self) -> list[Sample]:
        return max(self.of.values(), key=lambda samples: samples[-1].at_s - samples[0].at_s)

    def latest(self) -> Sample:
        return max((samples[-1] for samples in self.of.values()), key=lambda sample: sample.at_s)

    def ends_of_longest(self) -> tuple[Sample, Sample]:
        """Its first and last sample that count for its growth, or of all."""
        life = self.longest()
        settled = _settled(life, self.floods) or life
        return settled[0], settled[-1]

    def longest_series(self) -> list[tuple[float, float, int, int]]:
        """A hundred samples at most: seconds since the first, MB, descriptors, threads."""
        life = self.longest()
        return [
            (round(one.at_s - life[0].at_s, 1), one.memory_bytes / 1e6, one.num_descriptors, one.num_threads)
            for one in life[:: max(1, len(life) // 100)]
        ]

    def highest(self) -> int:
        return max(sample.memory_bytes for life in self.of.values() for sample in life)


def _settled(life: Sequence[Sample], floods: Sequence[float]) -> list[Sample]:
    of_life = [at_s for at_s in floods if life[0].at_s <= at_s <= life[-1].at_s]
    begins_s = max([life[0].at_s + WARM_UP_S, *(at_s + SETTLED_S for at_s in of_life[:1])])
    return [
        sample
        for sample in life
        if sample.at_s >= begins_s and not any(at_s <= sample.at_s < at_s + SETTLED_S for at_s in of_life)
    ]


def _slopes(life: Sequence[Sample], value: Callable[[Sample], float], floods: Sequence[float] = ()) -> Iterator[float]:
    warm = _settled(life, floods)
    if not warm or warm[-1].at_s - warm[0].at_s < MIN_LIFE_S:
        return
    size = len(warm) / NUM_PARTS
    parts = [warm[round(number * size) : round((number + 1) * size)] for number in range(NUM_PARTS)]
    lowest = [min(part, key=value) for part in parts if part]
    for early, late in itertools.combinations(lowest, 2):
        yield (value(late) - value(early)) / (late.at_s - early.at_s)


def role(process: Process) -> str | None:
    """What it is to Tandem, by its command line; None for what is none of its servers."""
    if process.program == "triton_python_backend_stub":
        return f"stub of {Path(process.command[1]).parent.parent.name}"
    if process.program == "tritonserver":
        return "tritonserver"
    words = {"up": "tandem up", "triton": "pool's supervisor", "gateway": "gateway"}
    return words.get(process.command[3]) if process.command[1:3] == ("-m", "serving") else None


def look(process: Process, at_s: float) -> Sample | None:
    """None where it has ended."""
    folder = Path("/proc", str(process.pid))
    with suppress(OSError, IndexError, ValueError):
        status = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
        return Sample(at_s, pages * PAGE_BYTES, len(list((folder / "fd").iterdir())), int(status[17]))
    return None


def size_bytes(folders: Iterable[Path]) -> int:
    total = 0
    for folder in folders:
        for file in folder.rglob("*"):
            with suppress(OSError):
                total += file.stat().st_size if file.is_file() else 0
    return total


@dataclass(slots=True)
class Growth:
    """By role. `log_bytes`: (at_s, all of them); `floods`: when each began."""

    floods: list[float] = field(default_factory=list)
    roles: dict[str, Lives] = field(default_factory=dict)
    log_bytes: list[tuple[float, int]] = field(default_factory=list)
    seen: dict[tuple[int, int], Process] = field(default_factory=dict)

    def of_role(self, name: str) -> Lives:
        return self.roles.setdefault(name, Lives(self.floods))

    def log_slope(self) -> float | None:
        """Bytes an hour; None where the load was too short."""
        slopes = list(
            _slopes([Sample(at_s, size, 0, 0) for at_s, size in self.log_bytes], lambda one: one.memory_bytes)
        )
        return statistics.median(slopes) * 3600 if slopes else None

    def take(self, roots: Iterable[int], logs: Iterable[Path], at_s: float) -> None:
        for root in roots:
            for member in family(root):
                if (what := role(member)) and (sample := look(member, at_s)):
                    known = member.pid, member.started_ticks
                    self.seen[known] = member
                    self.of_role(what).of[known].append(sample)
        if (this := process(os.getpid())) and (sample := look(this, at_s)):
            self.of_role(THIS).of[this.pid, this.started_ticks].append(sample)
        self.log_bytes.append((at_s, size_bytes(logs)))


@contextmanager
def watched(roots: Sequence[int], logs: Sequence[Path], every_s: float, clock: Callable[[], float]) -> Iterator[Growth]:
    """Looks at the processes below these, beside the block."""
    growth, is_over = Growth(), threading.Event()

    def watch() -> None:
        while True:
            growth.take(roots, logs, clock())
            if is_over.wait(every_s):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield growth
    finally:
        is_over.set()
        thread.join()


VALUES: Mapping[str, Callable[[Sample], float]] = {
    "memory": lambda sample: sample.memory_bytes / 1e6,
    "descriptors": lambda sample: sample.num_descriptors,
    "threads": lambda sample: sample.num_threads,
}
