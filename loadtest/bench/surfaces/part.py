"""What a part of this bench is given, what it is measured on, and what it hands back.

It is measured on a Triton and a gateway with keys, its gRPC port and its repository. Work is counted for whole families of processes,
because Triton computes in its stubs. Rule: a part that could not be measured says so in a note and has no verdict; it is never counted as
good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.verdicts import Verdict, table
from loadtest.processes import TANDEM, cpu_s, family, run_command
from loadtest.stack import Stack, stack
from serving.ports import free_ports

NUM_THREADS = 2  # of Triton's one instance, and of ONNX Runtime in process: what these figures are told for
KEYS_TIMEOUT_S = 30.0  # of a small Python process: under a second


@dataclass(frozen=True, slots=True)
class KeyedStack:
    """`key` opens the gateway's doors for inference; `grpc` is the authority of its gRPC port."""

    stack: Stack
    key: str
    grpc: str

    @property
    def key_header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def gateway_cpu_s(self) -> float:
        return family_cpu_s(self.stack.gateway.pid)

    def cpu_s(self) -> float:
        """Of everything that serves: the gateway, Triton, and what computes in it."""
        return self.gateway_cpu_s() + family_cpu_s(self.stack.triton.pid)


def family_cpu_s(pid: int) -> float:
    return sum(cpu_s(process.pid) for process in family(pid))


@contextmanager
def served(repository: Path, folder: Path) -> Iterator[KeyedStack]:
    """Raises CannotMeasure."""
    keys = folder / "keys.json"
    add = [*TANDEM, "keys", "add", "--keys", str(keys), "--name", "bench", "--scope", "infer"]
    key = run_command(add, "no API key could be made", KEYS_TIMEOUT_S).strip()
    (port,) = free_ports(1)
    options = ["--grpc-port", str(port), "--keys", str(keys), "--model-repository", str(repository)]
    triton = ["--instances", "1", "--threads", str(NUM_THREADS)]
    with stack(repository, folder, options=triton, gateway_options=options) as running:
        yield KeyedStack(running, key, f"127.0.0.1:{port}")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what is measured: all parts in about five minutes. `QUICK` shows that they work, and no more."""

    num_rounds: int = 5
    burst_s: int = 2  # of wrk, which takes whole seconds, and of calls of gRPC
    round_s: float = 3.0  # a request with 32 texts takes 0.2 s, so each round has enough of them
    warmup_s: float = 1.0


QUICK = Plan(num_rounds=1, burst_s=1, round_s=1.0, warmup_s=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """`folder` is the part's own, for logs and whatever it makes; `models` is the repository that has the trained models."""

    plan: Plan
    folder: Path
    models: Path


@dataclass(frozen=True, slots=True)
class Part:
    """`rows`: a table with its head; `values`: every round, for --json."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    values: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> str:
        return "\n".join([f"== {self.title}", *([table(self.rows)] if self.rows else []), *self.notes])

    def to_json(self) -> dict[str, object]:
        return {
            "title": self.title,
            "notes": list(self.notes),
            "values": dict(self.values),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }
