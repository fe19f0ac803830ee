"""How are the cores that this process may use shared out among model instances?

How many there are counts `serving/cores.py`. Rule: an instance is given its number of threads, because ONNX Runtime would start one
for each core of the machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """What every model of a pool gets: instances × threads = the cores of the pool, unless something else was asked for."""

    num_instances: int
    num_threads: int

    def __post_init__(self) -> None:
        if self.num_instances < 1 or self.num_threads < 1:
            raise ValueError(f"a model needs an instance and a thread, got {self}")


@dataclass(frozen=True, slots=True)
class TritonOverrides:
    """What is asked of a Triton by hand, for every model that it serves; None is as without it. Threads are an instance's."""

    instances: int | None = None
    threads: int | None = None
    queue_delay_us: int | None = None
    max_batch: int | None = None

    def flags(self) -> list[str]:
        """As options of `tandem triton`."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


NO_OVERRIDES = TritonOverrides()


def share(pool: str, num_cores: int, overrides: TritonOverrides = NO_OVERRIDES) -> Share:
    """On the CPU one instance that uses every core, more share them; on a GPU one thread, because the card computes."""
    num_instances = overrides.instances or 1
    num_threads = overrides.threads or (max(1, num_cores // num_instances) if pool == "cpu" else 1)
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
