"""Stage 4: the bridge on real pools. The CPU answers while the card's Triton starts, traffic moves over, the card's Triton is killed.

The load is one that the CPU carries alone, so that nothing may be lost but what was under way at the kill. Judged as `make prove` judges
the same on emulated pools.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove import cold_gpu, pool_death
from loadtest.bench.prove.cold_gpu import Moments
from loadtest.bench.prove.emulated import Pool, attempts, digits, gateway, on_time, serves, state, triton, wait_until
from loadtest.bench.prove.overload import hurried
from loadtest.bench.verdicts import Outcome, Verdict
from loadtest.errors import CannotMeasure
from loadtest.gpu.ledger import Check
from loadtest.gpu.unit import Setup, Unit, UnitResult, environment
from loadtest.processes import TANDEM, family, running
from loadtest.sending.sender import open_load
from serving.export.scratch import scratch
from serving.ports import free_ports

DEADLINE_S = 1.0  # long enough for a second try at the other pool
RATE_RPS = 50.0  # of single digits: a core does thousands
CARD_PRICE = 0.01  # of the CPU's, so that all is to go there in the end
ALONE_S = 2.0
START_S = 90.0  # of Triton with a card: CUDA's libraries and a context (guess, not measured)
AFTER_S = 20.0  # of load from when the card's pool is ready: it takes ten seconds to take over
STEADY_S = 3.0
AWAY_S = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int


def units(setup: Setup) -> Iterator[Unit]:
    yield environment(setup)
    yield Unit("the card wakes, and is killed", partial(_bridge, setup))


def _bridge(setup: Setup) -> UnitResult:
    """Raises CannotMeasure."""
    with scratch("bridge") as folder:
        found = attempts(lambda attempt: _attempt(setup, folder / f"{attempt}", attempt))
    return UnitResult(checks(found), note="; ".join(" | ".join(verdict.cells()) for verdict in found))


def checks(found: Sequence[Verdict]) -> tuple[Check, ...]:
    """Each verdict is one: a value may miss its aim on a busy machine, and fails beyond twice of it."""
    return tuple(
        Check(verdict.name, verdict.outcome is not Outcome.FAILED, " ".join(verdict.cells()[1:])) for verdict in found
    )


def _attempt(setup: Setup, folder: Path, seed: int) -> list[Verdict]:
    folder.mkdir()
    cpu = Pool("cpu", (), price=1.0)
    card = replace(cold_gpu.GPU if setup.card.is_stand_in else Pool("gpu", ()), price=CARD_PRICE)
    (port,) = free_ports(1)
    is_over = threading.Event()
    with ExitStack() as stack:
        first = stack.enter_context(_triton(setup, "cpu", folder / "cpu"))
        urls = {cpu: first.url, card: f"http://127.0.0.1:{port}"}
        here = stack.enter_context(gateway(urls, folder, device=lambda pool: _device(setup, pool)))
        wait_until(lambda: serves(here, cpu), "the CPU pool is seen")
        request = hurried(here, digits(), DEADLINE_S)
        arrivals = schedule(Arrivals("poisson", RATE_RPS), ALONE_S + START_S + AFTER_S, seed)
        with open_load([request], takewhile(lambda _: not is_over.is_set(), arrivals)) as load:
            stack.callback(is_over.set)
            time.sleep(ALONE_S)
            woken = stack.enter_context(_card(setup, card, folder / "card", port))
            seen_s = wait_until(lambda: state(here, card) not in ("cold", "waking"), "the card's pool answers", START_S)
            ready_s = wait_until(lambda: state(here, card) == "ready", "the card's pool is warm")
            moved_s = ready_s + AFTER_S - STEADY_S - AWAY_S
            time.sleep(max(0.0, moved_s - time.monotonic()))
            if card.name not in {shot.pool for shot in load.so_far()[-20:]}:
                raise CannotMeasure("traffic did not move to the card")
            os.kill(_server(woken), signal.SIGKILL)
            killed_s = time.monotonic()
            time.sleep(AWAY_S + pool_death.END_S)
            is_over.set()
        shots = on_time(load, DEADLINE_S)
    end_s = max(shot.due_s for shot in shots)
    before = [shot for shot in shots if shot.ended_s < killed_s]
    after = [shot for shot in shots if shot.due_s >= moved_s - STEADY_S]
    woke = cold_gpu.verdicts("the card wakes", before, card.name, Moments(seen_s, ready_s, killed_s), DEADLINE_S)
    died = pool_death.verdicts("the card is killed", after, killed_s, DEADLINE_S, RATE_RPS, killed_s + AWAY_S, end_s)
    return [*woke, *died]


def _device(setup: Setup, pool: Pool) -> str:
    """A stand-in's card is an emulated one, because only a GPU is bridged."""
    return "cpu" if pool.name == "cpu" else "emulated" if setup.card.is_stand_in else "gpu"


@contextmanager
def _card(setup: Setup, pool: Pool, folder: Path, port: int) -> Iterator[Server]:
    """Raises CannotMeasure."""
    if not setup.card.is_stand_in:
        with _triton(setup, pool.name, folder, port) as server:
            yield server
        return
    with triton(pool, folder, port) as emulated:
        yield Server(emulated.url, emulated.pid)


def _server(woken: Server) -> int:
    """The tritonserver below it. Raises CannotMeasure."""
    found = [process.pid for process in family(woken.pid) if process.program == "tritonserver"]
    if len(found) != 1:
        raise CannotMeasure(f"{len(found)} processes of the card's pool look like tritonserver")
    return found[0]


@contextmanager
def _triton(setup: Setup, pool: str, folder: Path, port: int | None = None) -> Iterator[Server]:
    """Of the trained digits. Raises CannotMeasure."""
    folder.mkdir(parents=True)
    http, grpc, metrics = free_ports(3)
    ready = folder / "ready"
    command = [*TANDEM, "triton", "--pool", pool, "--no-measure", "--model-repository", str(setup.trained)]
    command += ["--http-port", str(port or http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command += ["--exit-timeout-s", "2", "--ready-file", str(ready)]
    with running(command, folder / "triton.log", ready.exists, START_S) as process:
        yield Server(f"http://127.0.0.1:{port or http}", process.pid)
