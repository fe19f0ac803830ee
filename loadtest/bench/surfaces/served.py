"""A Triton and a gateway with keys, its gRPC port and its repository, and the CPU time that both have taken together.

Rule: work is counted for whole families of processes, because Triton computes in its stubs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.surfaces.part import NUM_THREADS
from loadtest.processes import TANDEM, cpu_s, family, run_command
from loadtest.stack import Stack, stack
from serving.ports import free_ports

KEYS_TIMEOUT_S = 30.0  # of a small Python process: under a second


@dataclass(frozen=True, slots=True)
class Served:
    """`key` opens the gateway's doors for inference; `grpc` is the authority of its gRPC port."""

    stack: Stack
    key: str
    grpc: str

    @property
    def key_header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def gateway_cpu_s(self) -> float:
        return _family_cpu_s(self.stack.gateway.pid)

    def cpu_s(self) -> float:
        """Of everything that serves: the gateway, Triton, and what computes in it."""
        return self.gateway_cpu_s() + _family_cpu_s(self.stack.triton.pid)


def _family_cpu_s(pid: int) -> float:
    return sum(cpu_s(process.pid) for process in family(pid))


@contextmanager
def served(repository: Path, folder: Path) -> Iterator[Served]:
    """Raises CannotMeasure."""
    keys = folder / "keys.json"
    add = [*TANDEM, "keys", "add", "--keys", str(keys), "--name", "bench", "--scope", "infer"]
    key = run_command(add, "no API key could be made", KEYS_TIMEOUT_S).strip()
    (port,) = free_ports(1)
    options = ["--grpc-port", str(port), "--keys", str(keys), "--model-repository", str(repository)]
    triton = ["--instances", "1", "--threads", str(NUM_THREADS)]
    with stack(repository, folder, options=triton, gateway_options=options) as running:
        yield Served(running, key, f"127.0.0.1:{port}")
