"""Several tenants before one pool: does each get its share, and does nobody who stays within it notice the others?

The same load is sent twice, with a key for each tenant and with one key for all, which is how it was without shares. The judging is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import attempts, digits, gateway, on_time, triton
from loadtest.bench.prove.overload import DEADLINE_S, SHARED, hurried
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.link import Request
from loadtest.sending.sender import open_loop
from loadtest.sending.sent_request import Shot, percentile
from loadtest.target import Gateway
from serving.keys.changes import add

IN_TIME = AtLeast(1.0)
RISE = AtMost(1.0, "largest executions")
JAIN = AtLeast(0.99)
GOODPUT = AtLeast(0.95)
SMALL_RPS = 5.0
FLOOD_TIMES = 3.0  # the capacity
NUM_TENANTS = 2, 10, 50
RUN_S, STEADY_S = 15.0, 1.0


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 where all are equal, one over their number where one has all."""
    every = list(values)
    squares = sum(value**2 for value in every)
    return sum(every) ** 2 / (len(every) * squares) if squares else 0.0


def in_time(shots: Iterable[Shot]) -> int:
    return sum(shot.is_answered and shot.took_s <= DEADLINE_S for shot in shots)


def small_verdicts(beside: Sequence[Shot], alone: Sequence[Shot], together: Sequence[Shot]) -> Iterator[Verdict]:
    """Of the small tenant's requests beside the flood, alone, and beside it with one key for all."""
    name = f"{SMALL_RPS:g}/s beside {FLOOD_TIMES:g} times the capacity"
    note = f"{in_time(beside)} of {len(beside)}; with one key for all {in_time(together)}"
    yield Verdict(f"{name}: answered in time", in_time(beside) / len(beside), IN_TIME, note)
    with_s, without_s = (percentile([s.took_s for s in shots if s.is_answered], 0.99) for shots in (beside, alone))
    if with_s is None or without_s is None:
        yield Verdict(f"{name}: p99 rises by", None, RISE, "nothing was answered")
        return
    largest_s = SHARED.seconds(SHARED.points[-1][0])
    note = f"{with_s * 1000:.0f} ms, alone {without_s * 1000:.0f} ms; the largest takes {largest_s * 1000:.0f} ms"
    yield Verdict(f"{name}: p99 rises by", (with_s - without_s) / largest_s, RISE, note)


def goodput_verdict(name: str, shared: Sequence[Shot], together: Sequence[Shot]) -> Verdict:
    before = in_time(together)
    note = f"{in_time(shared)} and {before} in time"
    return Verdict(f"{name}: in time ÷ with one key", in_time(shared) / before if before else None, GOODPUT, note)


def tenants(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    keys = folder / "keys.json"
    now = datetime.now(UTC)
    texts = [add(keys, f"tenant-{n}", frozenset({"infer"}), now).text for n in range(max(NUM_TENANTS))]
    with (
        triton(SHARED, folder / SHARED.name) as server,
        gateway({SHARED: server.url}, folder, options=("--keys", str(keys))) as here,
    ):
        requests = [_request(here, text) for text in texts]
        flood_rps = FLOOD_TIMES * SHARED.rate_rps
        alone = _run(requests, {1: SMALL_RPS}, 1)
        beside = _run(requests, {0: flood_rps, 1: SMALL_RPS}, 2)
        together = _run([requests[0]] * 2, {0: flood_rps, 1: SMALL_RPS}, 2)
        yield from small_verdicts(beside[1], alone[1], together[1])
        yield goodput_verdict("the same", [*beside[0], *beside[1]], [*together[0], *together[1]])
        for number in NUM_TENANTS:
            rates = dict.fromkeys(range(number), flood_rps / number)
            shared, same = _run(requests, rates, 3), _run([requests[0]] * number, rates, 3)
            name = f"{number} equal tenants at {FLOOD_TIMES:g} times the capacity"
            counts = [in_time(shots) for shots in shared]
            note = f"{min(counts)} to {max(counts)} in time; with one key {jain(map(in_time, same)):.3f}"
            yield Verdict(f"{name}: Jain's index", jain(counts), JAIN, note)
            yield goodput_verdict(name, _flat(shared), _flat(same))


def _request(here: Gateway, key: str) -> Request:
    return hurried(here, digits(), DEADLINE_S, Authorization=f"Bearer {key}")


def _run(requests: Sequence[Request], rates_rps: dict[int, float], seed: int) -> list[list[Shot]]:
    """Shots of each tenant by its number, the first second left out. Raises GeneratorLag where the generator always lags."""

    def once(attempt: int) -> list[list[Shot]]:
        due = sorted(
            (at, tenant)
            for tenant, rate_rps in rates_rps.items()
            for at in schedule(Arrivals("poisson", rate_rps), RUN_S, 1000 * (seed + 10 * attempt) + tenant)
        )
        sent = [Request(requests[t].address, requests[t].data, t) for _, t in due]
        load = open_loop(sent, [at for at, _ in due])
        shots: list[list[Shot]] = [[] for _ in range(max(rates_rps) + 1)]
        for shot in on_time(load, DEADLINE_S):
            if shot.due_s >= load.began_s + STEADY_S:
                shots[shot.kind].append(shot)
        if wrong := [s for own in shots for s in own if not s.is_answered and not s.is_honest]:
            raise CannotMeasure(f"{len(wrong)} answers are neither 200 nor honest, the first {wrong[0]}")
        return shots

    return attempts(once)


def _flat(shots: Sequence[Sequence[Shot]]) -> list[Shot]:
    return [shot for own in shots for shot in own]
