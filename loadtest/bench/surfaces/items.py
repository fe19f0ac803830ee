"""Images or texts through a surface beside the same in process: how many a second, and how much CPU time for each, in turns.

Served counts gateway, Triton and its stubs; in process counts this process, where ONNX Runtime is set up as Triton's backend sets it up
(the same release: both are pinned). The clients' own CPU time counts for neither, and yet is taken from the same cores: a throughput ratio
is what is left beside them. The model is one that `make models` made, FP32 alone. Rule: what is divided was measured in one round.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.surfaces.part import NUM_THREADS, KeyedStack, Part, Plan
from loadtest.bench.verdicts import AtLeast, Verdict, ends_text, spread_text
from loadtest.errors import CannotMeasure
from loadtest.profile.selection import linked
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop
from loadtest.sending.sent_request import Shot
from serving.http_client import address
from serving.measure.rounds import Spread, in_turn, ratio, spread
from serving.repository import Repository

RATIO_AIM = 0.9  # of the throughput in process: one tenth for protocol, keys, admission, transport and the clients
ANSWER_TIMEOUT_S = 60.0


def repository_of(models: Path, model: str, folder: Path) -> Path:
    """The repository. Raises CannotMeasure."""
    found = models / f"{model}-fp32"
    if not (found / "tandem.json").is_file():
        raise CannotMeasure(
            f'{model} is not in {models}: make models ARGS="--only {model}" makes it (installs torch, 6.2 GB)'
        )
    return linked(folder / "repository", [Repository(models).variant(found.name)])


class Session:
    """One model file, one run at a time, as one instance has it. Called with arrays by name, gives the first output."""

    def __init__(self, file: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]  # takes 0.2 s, which parts that need it wait for

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = NUM_THREADS
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._one_at_a_time = threading.Lock()

    def __call__(self, arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        with self._one_at_a_time:
            (first, *_) = self._session.run(None, arrays)
        given: NDArray[np.float32] = first
        return given


@dataclass(frozen=True, slots=True)
class Items:
    """A request, made beforehand, and how many images or texts are in it."""

    data: bytes
    num_items: int


@dataclass(slots=True)
class Side:
    rate: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # per item

    def add(self, num_items: int, duration_s: float, cpu_s: float) -> None:
        self.rate.append(num_items / duration_s)
        self.cpu_ms.append(cpu_s * 1000 / num_items)


@dataclass(slots=True)
class Comparison:
    """Round by round. `gateway_cpu_ms` is the gateway's part of what is served."""

    served: Side = field(default_factory=Side)
    alone: Side = field(default_factory=Side)
    gateway_cpu_ms: list[float] = field(default_factory=list)
    latency_p50_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> Spread:
        return ratio(self.served.rate, self.alone.rate)

    @property
    def added_cpu_ms(self) -> Spread:
        return spread([a - b for a, b in zip(self.served.cpu_ms, self.alone.cpu_ms, strict=True)])


def compare(
    plan: Plan, running: KeyedStack, requests: Sequence[Items], run_alone: Callable[[int], int], *, num_clients: int
) -> Comparison:
    """`run_alone` does the work of one request, by its number in the row, and says of how many items; so many at once as there are
    clients, so that here too one request is prepared while another is computed. Raises CannotMeasure.
    """
    comparison = Comparison()
    _send(requests, running.stack.gateway.url, num_clients, plan.warmup_s)
    run_alone(0)
    in_turn(
        {
            "served": lambda: _serve(plan, running, requests, comparison, num_clients),
            "alone": lambda: comparison.alone.add(*_alone(plan, len(requests), run_alone, num_clients)),
        },
        plan.num_rounds,
    )
    return comparison


def _serve(
    plan: Plan, running: KeyedStack, requests: Sequence[Items], comparison: Comparison, num_clients: int
) -> None:
    cpu_s, gateway_s = running.cpu_s(), running.gateway_cpu_s()
    began_s = time.perf_counter()
    shots = _send(requests, running.stack.gateway.url, num_clients, plan.round_s)
    duration_s = time.perf_counter() - began_s
    gateway_s, cpu_s = running.gateway_cpu_s() - gateway_s, running.cpu_s() - cpu_s
    num_items = sum(requests[shot.kind].num_items for shot in shots)
    comparison.served.add(num_items, duration_s, cpu_s)
    comparison.gateway_cpu_ms.append(gateway_s * 1000 / num_items)
    comparison.latency_p50_s.append(statistics.median(shot.took_s for shot in shots))


def _send(requests: Sequence[Items], url: str, num_clients: int, round_s: float) -> list[Shot]:
    """In a closed loop, the requests in turn; one that fails means that nothing was measured. Raises CannotMeasure."""
    to = address(url)
    whole = [Request(to, request.data, number) for number, request in enumerate(requests)]
    load = closed_loop(whole, num_clients, round_s, in_turn=True, time_limit_s=ANSWER_TIMEOUT_S)
    for shot in load.shots:
        if not shot.is_answered:
            raise CannotMeasure(f"a request to {url} failed: {shot} {shot.error}")
    return load.shots


def _alone(
    plan: Plan, num_requests: int, run_alone: Callable[[int], int], num_threads: int
) -> tuple[int, float, float]:
    """(items, seconds, CPU seconds)"""
    turn = itertools.cycle(range(num_requests))
    began_s, cpu_s = time.perf_counter(), time.process_time()

    def work(_: int) -> int:
        items = 0
        while time.perf_counter() - began_s < plan.round_s:
            items += run_alone(next(turn))
        return items

    with ThreadPoolExecutor(num_threads) as threads:
        num_items = sum(threads.map(work, range(num_threads)))
    return num_items, time.perf_counter() - began_s, time.process_time() - cpu_s


def part(title: str, what: str, comparison: Comparison, notes: Sequence[str]) -> Part:
    """`what`: texts or images."""
    rows = [(title, f"{what}/s", "CPU ms each", "")]
    for name, side in (("served", comparison.served), ("in process", comparison.alone)):
        rows.append((name, spread_text(spread(side.rate)), spread_text(spread(side.cpu_ms), 2), ""))
    lines = [
        f"of the served CPU the gateway's own: {spread_text(spread(comparison.gateway_cpu_ms), 2)} ms; p50 of a request "
        f"{spread_text(spread(comparison.latency_p50_s), 1, 1000)} ms",
        f"added CPU: {spread_text(comparison.added_cpu_ms, 2)} ms each",
    ]
    verdict = Verdict(
        f"served ÷ in process throughput, {title}",
        comparison.ratio.median,
        AtLeast(RATIO_AIM),
        ends_text(comparison.ratio),
    )
    values = {
        "served_per_s": comparison.served.rate,
        "in_process_per_s": comparison.alone.rate,
        "served_cpu_ms_each": comparison.served.cpu_ms,
        "in_process_cpu_ms_each": comparison.alone.cpu_ms,
        "gateway_cpu_ms_each": comparison.gateway_cpu_ms,
        "latency_p50_s": comparison.latency_p50_s,
        "ratio": comparison.ratio.to_json(),
        "added_cpu_ms_each": comparison.added_cpu_ms.to_json(),
    }
    return Part(title, rows, [verdict], [*lines, *notes], values)
