"""Which machine was something measured on? What decides how fast nets run there, and nothing that names its owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Of a load test: where the generator ran, and the server too if the gateway is on loopback."""

    processor: str
    instruction_sets: tuple[str, ...]
    num_cores: float  # that this process may use: affinity and cgroup limit
    system: str
    cards: tuple[str, ...] = ()  # names and driver, as nvidia-smi gives them
