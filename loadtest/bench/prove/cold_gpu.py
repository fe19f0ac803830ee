"""A GPU pool is cold when the gateway starts, and comes up under load: is the load carried meanwhile, and the handover not felt?

The load is one that the CPU pool carries alone. The GPU pool is the cheaper one, so that all of the load is to go there in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.attempts import attempts, on_time
from loadtest.bench.prove.emulated import Pool, digits, gateway, serves, state, triton, wait_until
from loadtest.bench.prove.judging.handover import Times, verdicts
from loadtest.bench.prove.overload import DEADLINE_S, hurried
from loadtest.bench.verdicts import Verdict
from loadtest.sending.sender import open_load
from serving.ports import free_ports

CPU = Pool("emulated-cpu", ((1, 0.020), (8, 0.080), (32, 0.320)), price=1.0)
GPU = Pool("emulated-gpu", ((1, 0.005), (32, 0.020)), price=2.0)  # a row costs half of what it costs on the CPU
RATE_RPS = 50.0  # half of what the CPU pool can do
ALONE_S = 2.0  # of load on the CPU before the GPU's Triton is started
LOAD_S = 24.0  # of which it takes Triton about 4 to start, 2 to be trusted and 10 to take over


def handover(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    yield from attempts(lambda attempt: _handover(folder / f"{attempt}", attempt))


def _handover(folder: Path, seed: int) -> list[Verdict]:
    """With processes of its own: a pool is cold but once. Raises Lagged."""
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
        times = Times(seen_s, ready_s, load.began_s + LOAD_S)
        return verdicts("GPU pool cold at start", on_time(load, DEADLINE_S), GPU.name, times, DEADLINE_S)
