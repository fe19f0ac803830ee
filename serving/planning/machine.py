"""Which machine was something measured on? What decides how fast nets run there, and nothing that names its owner."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CORES = 1_000_000  # more than any machine has: a mistake in a file


@dataclass(frozen=True, slots=True)
class Machine:
    """Of a load test: where the generator ran, and the server too if the gateway is on loopback."""

    processor: str
    instruction_sets: tuple[str, ...]
    num_cores: float  # that this process may use: affinity and cgroup limit
    system: str
    cards: tuple[str, ...] = ()  # names and driver, as nvidia-smi gives them

    def __post_init__(self) -> None:
        if not 0 <= self.num_cores <= MAX_CORES:
            raise ValueError(f"num_cores is 0 (nobody tells) or more, and at most {MAX_CORES}, not {self.num_cores}")
