"""A GPU pool is cold when the gateway starts, and comes up under load: is the load carried meanwhile, and the handover not felt?

The load is one that the CPU pool carries alone. The GPU pool is the cheaper one, so that all of the load is to go there in the end.

The judging is pure: until the pool answers anything, until it counts as ready, and the handover after that, by the longest answer: of
800 a spike of seven would be in no p99.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import Pool, attempts, digits, gateway, on_time, serves, state, triton, wait_until
from loadtest.bench.prove.overload import DEADLINE_S, hurried
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.sending.sender import open_load
from loadtest.sending.sent_request import Shot, listed, percentile
from serving.ports import free_ports

NONE = AtMost(0)
SHARE = AtLeast(0.95)  # of the last requests: what is cheaper there is to go there
BRIDGED = AtLeast(1.0)
END_S = 2.0  # of the load, over which the share at the end is taken


@dataclass(frozen=True, slots=True)
class Moments:
    """On one clock. `seen_s`: the gateway saw the pool answer; `ready_s`: the pool may have requests; `end_s`: the load ended."""

    seen_s: float
    ready_s: float
    end_s: float


def verdicts(name: str, shots: Sequence[Shot], gpu: str, times: Moments, objective_s: float) -> list[Verdict]:
    errors = [shot for shot in shots if not shot.is_answered]
    answers = [shot for shot in shots if shot.is_answered]
    warming = [s for s in answers if s.ended_s < times.ready_s]
    bridged = sum(shot.reason == "bridged" and shot.pool != gpu for shot in warming)
    during = [shot.took_s for shot in answers if times.seen_s <= shot.due_s]
    before = percentile((shot.took_s for shot in answers if shot.ended_s < times.seen_s), 0.99)
    last = [shot for shot in answers if shot.due_s >= times.end_s - END_S]
    share = sum(shot.pool == gpu for shot in last) / len(last) if last else None
    reasons = Counter(shot.reason for shot in warming)
    words = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return [
        Verdict(f"{name}: anything but 200", len(errors), NONE, listed(errors) or f"{len(answers)} answered"),
        Verdict(
            f"{name}: bridged ÷ answered, until it is ready",
            bridged / len(warming) if warming else None,
            BRIDGED,
            f"{words or 'no answer'}",
        ),
        Verdict(
            f"{name}: longest from when the GPU pool is seen on",
            max(during, default=None),
            AtMost(objective_s, "s"),
            f"p99 {1000 * (percentile(during, 0.99) or 0.0):.0f} ms; on the CPU alone {1000 * (before or 0.0):.0f} ms",
        ),
        Verdict(f"{name}: share of the GPU pool at the end", share, SHARE, f"of {len(last)} answers"),
    ]


CPU = Pool("emulated-cpu", ((1, 0.020), (8, 0.080), (32, 0.320)), price=1.0)
GPU = Pool("emulated-gpu", ((1, 0.005), (32, 0.020)), price=2.0)  # a row costs half of what it costs on the CPU
RATE_RPS = 50.0  # half of what the CPU pool can do
ALONE_S = 2.0  # of load on the CPU before the GPU's Triton is started
LOAD_S = 24.0  # of which it takes Triton about 4 to start, 2 to be trusted and 10 to take over


def handover(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    yield from attempts(lambda attempt: _handover(folder / f"{attempt}", attempt))


def _handover(folder: Path, seed: int) -> list[Verdict]:
    """With processes of its own: a pool is cold but once. Raises GeneratorLag."""
    folder.mkdir()
    (port,) = free_ports(1)
    with ExitStack() as running:
        cpu = running.enter_context(triton(CPU, folder / "cpu"))
        here = running.enter_context(gateway({CPU: cpu.url, GPU: f"http://127.0.0.1:{port}"}, folder))
        wait_until(lambda: serves(here, CPU), "the CPU pool is seen")
        request = hurried(here, digits(), DEADLINE_S)
        with open_load([request], schedule(Arrivals("poisson", RATE_RPS), LOAD_S, seed)) as load:
            time.sleep(ALONE_S)
            running.enter_context(triton(GPU, folder / "gpu", port))
            seen_s = wait_until(lambda: state(here, GPU) not in ("cold", "waking"), "the GPU pool answers")
            ready_s = wait_until(lambda: state(here, GPU) == "ready", "the GPU pool is warm")
        times = Moments(seen_s, ready_s, load.began_s + LOAD_S)
        return verdicts("GPU pool cold at start", on_time(load, DEADLINE_S), GPU.name, times, DEADLINE_S)
