"""What becomes of more requests than can be answered: one gateway before two pools, and several before one pool?

How much is done in time, how much comes late, and how soon the others are refused is judged purely, from the shots. Capacity is what the
same generator gets out of the same pools in a closed loop, where nobody is in a hurry: each pool is asked by name, or the dear one would
not be asked at all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove import batching
from loadtest.bench.prove import promise as promises
from loadtest.bench.prove.emulated import (
    MODEL,
    Pool,
    Triton,
    attempts,
    digits,
    gateway,
    gateway_before,
    on_time,
    serves,
    triton,
    wait_until,
)
from loadtest.bench.prove.promise import Promise
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, infer, open_load, open_loop, probe
from loadtest.sending.sent_request import Shot, listed, percentile
from loadtest.target import Gateway
from serving.scheduling.curve import Curve

CAPACITY = AtLeast(0.90)  # of what the curves allow; the rest is what a gateway and a way over loopback cost
GOODPUT = AtLeast(0.90)
LATE = AtMost(0.01)
EXPIRED = AtMost(0.05)  # twice the 2.2 % that were measured, rounded: whoever is let in is promised an answer in time
REFUSED = AtMost(0.020, "s")
NONE = AtMost(0)


@dataclass(frozen=True, slots=True)
class Overload:
    """One trial. Ratios of the goodput to capacity, of late answers to all answers, of 504 to all that were let in."""

    goodput_rps: float
    goodput_ratio: float
    late_ratio: float
    expired_ratio: float
    refused_median_s: float | None
    refused_p99_s: float | None
    offered_ratio: float
    wrong: tuple[Shot, ...]  # neither answered nor honest


def overload(shots: Sequence[Shot], begin_s: float, end_s: float, deadline_s: float, capacity_rps: float) -> Overload:
    """Goodput counts answers that came between the two moments; everything else counts over all of the load."""
    answers = [shot for shot in shots if shot.is_answered]
    late = sum(shot.took_s > deadline_s for shot in answers)
    good = [s for s in answers if s.took_s <= deadline_s and begin_s <= s.ended_s < end_s]
    expired = sum(shot.status == 504 for shot in shots)
    refused = [shot.took_s for shot in shots if shot.is_refused]
    goodput_rps = len(good) / (end_s - begin_s)
    offered = sum(begin_s <= shot.due_s < end_s for shot in shots) / (end_s - begin_s)
    return Overload(
        goodput_rps=goodput_rps,
        goodput_ratio=goodput_rps / capacity_rps,
        late_ratio=late / len(answers) if answers else 1.0,
        expired_ratio=expired / (expired + len(answers)) if expired else 0.0,
        refused_median_s=median(refused) if refused else None,
        refused_p99_s=percentile(refused, 0.99),
        offered_ratio=offered / capacity_rps,
        wrong=tuple(shot for shot in shots if not shot.is_answered and not shot.is_honest),
    )


def capacity_verdict(name: str, measured_rps: float, by_curves_rps: float) -> Verdict:
    """All other lines are shares of the measured capacity, so a generator that sent too little would flatter every one of them."""
    note = f"{measured_rps:.0f} of {by_curves_rps:.0f} requests/s"
    return Verdict(f"{name}: capacity ÷ what the curves say", measured_rps / by_curves_rps, CAPACITY, note)


def overload_verdicts(name: str, trials: Sequence[Overload], capacity_text: str) -> list[Verdict]:
    """Judges the median trial and names the worst one; a wrong answer in any trial counts."""
    goodputs = [trial.goodput_ratio for trial in trials]
    lates = [trial.late_ratio for trial in trials]
    expired = [trial.expired_ratio for trial in trials]
    offered = median(trial.offered_ratio for trial in trials)
    wrong = [shot for trial in trials for shot in trial.wrong]
    rate = (
        f"{median(t.goodput_rps for t in trials):.0f} requests/s of {capacity_text}, offered {offered:.2f} times that"
    )
    return [
        Verdict(f"{name}: goodput ÷ capacity", median(goodputs), GOODPUT, f"{_worst(min(goodputs))}; {rate}"),
        Verdict(f"{name}: late ÷ answered", median(lates), LATE, _worst(max(lates))),
        Verdict(f"{name}: 504 ÷ let in", median(expired), EXPIRED, _worst(max(expired))),
        _refusals(name, trials),
        Verdict(f"{name}: answers that are neither 200 nor honest", len(wrong), NONE, listed(wrong)),
    ]


def _refusals(name: str, trials: Sequence[Overload]) -> Verdict:
    """A trial without refusals was no overload, so it has no value."""
    p99s = [trial.refused_p99_s for trial in trials if trial.refused_p99_s is not None]
    medians = [trial.refused_median_s for trial in trials if trial.refused_median_s is not None]
    if len(p99s) < len(trials):
        return Verdict(f"{name}: refusals, p99", None, REFUSED, "a trial without refusals")
    note = f"{_worst(max(p99s) * 1000, ' ms')}; median {median(medians) * 1000:.1f} ms"
    return Verdict(f"{name}: refusals, p99", median(p99s), REFUSED, note)


def _worst(value: float, unit: str = "") -> str:
    return f"worst trial {value:.3g}{unit}"


# One row takes 20 and 8 ms; full executions do 100 and 160 rows a second, which leaves two shared cores room for everything else.
CHEAP = Pool("emulated-cheap", ((1, 0.020), (8, 0.080), (32, 0.320)), price=1.0)
DEAR = Pool("emulated-dear", ((1, 0.008), (8, 0.050), (32, 0.200)), price=3.0)
SHARED = Pool("emulated-shared", ((1, 0.010), (8, 0.050), (32, 0.200)))

DEADLINE_S = 0.25  # three executions of the slowest pool
NUM_TRIALS = 3
TRIAL_S = 5.0
STEADY_S = 1.0  # of a trial, in which queues fill: not counted
CAPACITY_S = 5.0
NUM_CLIENTS = 32  # in the closed loop, each pool: two full executions, and two that wait
NUM_GATEWAYS = (
    1,
    2,
    4,
)  # before one pool; two cores carry four, because the pool's rate is far below what one could do
NUM_PROMISES = 5
PROMISE_LOAD_S = 2.5
BULK_ROWS, BULK_DEADLINE_S = (
    32,
    1.2,
)  # one takes the pools 320 and 200 ms: the door is shut for so long that a promise means something
BACKLOG_S = 1.5  # deadline of those that nobody is in a hurry for: the queue they make is as long as that
PROBE_PAUSE_S = 0.002
IN_TRITON = AtMost(1.25, "executions")  # one that runs; a quarter more is what `fill` takes for late


def hurried(here: Gateway, body: bytes, deadline_s: float, **headers: str) -> Request:
    given = {"Tandem-Deadline-Ms": f"{deadline_s * 1000:g}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return infer(here.url, MODEL, body, given)


def capacity(gateways: Sequence[Gateway], pools: Sequence[Pool]) -> float:
    """Requests a second that the pools answer together. Raises CannotMeasure.

    In a closed loop nothing is due, so nothing can be late: a generator that had no time shows in too small a capacity, which is judged.
    """
    body = digits()
    requests = [
        infer(here.url, MODEL, body, {"Tandem-Pool": pool.name}, kind=number)
        for number, (here, pool) in enumerate((here, pool) for pool in pools for here in gateways)
    ]
    load = closed_loop(requests, NUM_CLIENTS // len(gateways), STEADY_S + CAPACITY_S)
    if any(not shot.is_answered for shot in load.shots):
        raise CannotMeasure("requests without a deadline failed; see the log of the gateway")
    begin_s = load.began_s + STEADY_S
    rate = sum(begin_s <= shot.ended_s < begin_s + CAPACITY_S for shot in load.shots) / CAPACITY_S
    if not rate:
        raise CannotMeasure("the pools answered nothing within seconds")
    return rate


def trial(requests: Sequence[Request], rate_rps: float, capacity_rps: float, seed: int) -> Overload:
    """Raises GeneratorLag where the generator always lags."""

    def once(attempt: int) -> Overload:
        load = open_loop(requests, schedule(Arrivals("poisson", rate_rps), TRIAL_S, seed + attempt * NUM_TRIALS))
        begin_s, end_s = load.began_s + STEADY_S, load.began_s + TRIAL_S
        return overload(on_time(load, DEADLINE_S), begin_s, end_s, DEADLINE_S, capacity_rps)

    return attempts(once)


def one_gateway(folder: Path) -> Iterator[Verdict]:
    """Three times the capacity of two pools, and the Retry-After of refused requests. Raises CannotMeasure."""
    with gateway_before([CHEAP, DEAR], folder) as here:
        capacity_rps = capacity([here], [CHEAP, DEAR])
        yield capacity_verdict("one gateway, two pools", capacity_rps, CHEAP.rate_rps + DEAR.rate_rps)
        capacity_text = f"{capacity_rps:.0f} in a closed loop ({CHEAP.rate_rps + DEAR.rate_rps:.0f} by the curves)"
        request = hurried(here, digits(), DEADLINE_S)
        trials = [trial([request], 3 * capacity_rps, capacity_rps, seed) for seed in range(NUM_TRIALS)]
        yield from overload_verdicts("3 × overload, one gateway, two pools", trials, capacity_text)
        bulk = hurried(here, digits(BULK_ROWS), BULK_DEADLINE_S)
        yield promises.verdict(
            f"Retry-After-Ms, {BULK_ROWS} rows among their like: off by",
            _promises([bulk], bulk, 3 * capacity_rps / BULK_ROWS),
        )
        backlog = hurried(here, digits(), BACKLOG_S, Tandem_Priority="2")
        yield promises.verdict(
            "Retry-After-Ms, one row behind a long queue of a higher priority: off by",
            _promises([backlog], request, 3 * capacity_rps),
        )


def gateway_counts(folder: Path) -> Iterator[Verdict]:
    """Twice the capacity of one pool through 1, 2 and 4 gateways, which see of each other what Triton counts. Raises CannotMeasure."""
    yield from batching.verdicts(Curve(SHARED.points), NUM_GATEWAYS, 2, (GOODPUT, LATE, EXPIRED))
    with triton(SHARED, folder / "shared") as shared:
        for count in NUM_GATEWAYS:
            name = f"{count} gateway{'' if count == 1 else 's'}, one pool"
            with ExitStack() as running:
                starting = (
                    gateway({SHARED: shared.url}, folder, f"gateway-{n}-of-{count}") for n in range(1, count + 1)
                )
                here = [running.enter_context(it) for it in starting]
                _see(here)
                capacity_rps = capacity(here, [SHARED])
                yield from _before_one_pool(name, here, shared, capacity_rps)
                if count == NUM_GATEWAYS[-1]:
                    requests = [hurried(it, digits(), BACKLOG_S, Tandem_Priority="2") for it in here]
                    kept = _promises(requests, hurried(here[0], digits(), DEADLINE_S), 2 * capacity_rps)
                    what = "Retry-After-Ms of one of them, behind a long queue in each: off by"
                    yield promises.verdict(f"{name}: {what}", kept)


def _see(gateways: Sequence[Gateway]) -> None:
    wait_until(lambda: all(serves(it, SHARED) for it in gateways), "the pool is seen by every gateway")


def _before_one_pool(name: str, gateways: Sequence[Gateway], shared: Triton, capacity_rps: float) -> Iterator[Verdict]:
    yield capacity_verdict(name, capacity_rps, SHARED.rate_rps)
    capacity_text = f"{capacity_rps:.0f} in a closed loop ({SHARED.rate_rps:.0f} by the curve)"
    requests = [hurried(here, digits(), DEADLINE_S) for here in gateways]
    trials, waits = [], []
    for seed in range(NUM_TRIALS):
        before = shared.spent()
        trials.append(trial(requests, 2 * capacity_rps, capacity_rps, seed))
        waits.append(shared.spent().since(before).waited_ratio(SHARED))
    name = f"2 × overload, {name}"
    yield from overload_verdicts(name, trials, capacity_text)
    note = f"worst trial {max(waits):.2f}; by Triton's own statistics"
    yield Verdict(f"{name}: wait in Triton ÷ execution", median(waits), IN_TRITON, note)


def _promises(loads: Sequence[Request], request: Request, rate_rps: float) -> list[Promise | None]:
    return promises.enough((_after(loads, request, rate_rps, seed) for seed in range(3 * NUM_PROMISES)), NUM_PROMISES)


def _after(loads: Sequence[Request], request: Request, rate_rps: float, seed: int) -> list[Shot]:
    """Probes begin after the last arrival of the load, while its answers are still outstanding."""

    def once(attempt: int) -> list[Shot]:
        arrivals = list(schedule(Arrivals("poisson", rate_rps), PROMISE_LOAD_S, seed + attempt * 3 * NUM_PROMISES))
        with open_load(loads, arrivals) as running:
            time.sleep(max(0.0, running.began_s + arrivals[-1] - time.monotonic()))
            probes = probe(request, lambda shot: not shot.is_refused, PROBE_PAUSE_S)
        on_time(running, DEADLINE_S)
        return probes

    return attempts(once)
