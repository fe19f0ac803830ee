"""How often does the judge of rollouts take back what is no worse, and how soon what is? Simulated rollouts, beside fixed thresholds.

Requests come in waves to servers with queues; the time of one has a heavy tail, servers have moods that last for seconds and slow spells of
up to 20 seconds, each by itself, and the whole machine has moods too, so that neither requests nor seconds are independent. Contents come
in runs: who asked for what is answered wrongly asks again. Every number of requests is the candidate's until the judgement.

Beside it, on the same blocks: fixed thresholds as Flagger's, looked at once a minute, absolute ones with its defaults, and relative ones
that would see what is planted here. Nothing is measured: this is arithmetic, and the same on every machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median

import numpy as np
import numpy.typing as npt

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict, table
from serving.control.evidence import Entry, Joined, read_line
from serving.control.stores import Store
from serving.decisions.rollout import FALSE_ROLLBACK_RATIO, Arm, Block, Judge, Losses, Outcome
from serving.measure.percentiles import between_ranks

Floats = npt.NDArray[np.float64]

NUM_SAME, NUM_PLANTED = 1_000, 10
LASTING_S, LASTING_SAME_S = 3_600, 1_800  # at most; of the same model, what was not decided by then is held
RATE_RPS = 160.0  # of both arms together, half each
NUM_REPLICAS = 4  # of each arm
SERVICE_S = 0.025  # busy for half of the time
COMPARED_RATIO = 0.25  # of the candidate's requests
LATE_RATIO = 0.02  # of what one of several gateways tells in a second


@dataclass(frozen=True, slots=True)
class Plant:
    """How a candidate differs from the primary. `on_replica`: its answers are wrong on one of them only."""

    name: str
    wrong_ratio: float = 0.0  # of answers, beside what another processor changes anyway
    on_replica: bool = False
    slower_ratio: float = 1.0
    stuck_ratio: float = 0.0  # of requests, that take ten times as long
    failed_ratio: float = 0.0
    dearer_ratio: float = 1.0


SAME = Plant("the same model")
PLANTED = (
    Plant("1 % wrong answers", wrong_ratio=0.01),
    Plant("5 % slower", slower_ratio=1.05),
    Plant("two of ten labels swapped", wrong_ratio=0.2),
    Plant("INT8 off on one of four replicas, 5 % wrong there", wrong_ratio=0.05, on_replica=True),
    Plant("2 % of requests take ten times as long", stuck_ratio=0.02),
    Plant("0.5 % more errors", failed_ratio=0.005),
    Plant("15 % dearer", dearer_ratio=1.15),
    Plant("every request fails", failed_ratio=1.0),
)


@dataclass(frozen=True, slots=True)
class World:
    """What requests and servers are like. Spells strike one server: `spell_s` long at most, one in `spell_every_s`."""

    service_sigma: float = 0.6  # of logarithms: the slowest of a hundred takes four times as long as usual
    counts_queues: bool = (
        False  # whether latency is that of clients, or the server's own time, which a gateway that keeps the queue sees
    )
    mood_sigma: float = 0.05  # of a server's own speed
    mood_s: float = 5.0
    spell_s: float = 20.0
    spell_every_s: float = 1_800.0
    spell_times: float = 2.0
    run_requests: float = 5.0  # that ask for the same, on average
    differing_ratio: float = 0.001  # of answers of the same model, by another processor's rounding
    failed_ratio: float = 0.0005


def blocks(seed: int, plant: Plant, world: World | None = None, lasting_s: int = LASTING_S) -> Iterator[Block]:
    """One a second."""
    world = world or World()
    generator = np.random.default_rng(seed)
    waves = np.exp(_wander(generator, lasting_s, 20.0, 0.25))
    machine = np.exp(_wander(generator, lasting_s, 60.0, 0.15))
    bursts = np.convolve(generator.random(lasting_s) < 1 / 300, np.ones(2), "full")[:lasting_s] * 0.05
    arms = [_arm(generator, waves, machine, bursts, SAME, world), _arm(generator, waves, machine, bursts, plant, world)]
    wrong = _answers(generator, arms[1], plant, world)
    for second in range(lasting_s):
        primary, candidate = (arm.at(second) for arm in arms)
        losses = [
            Losses("agreement", values, f"candidate-{replica}")
            for replica in range(NUM_REPLICAS)
            if len(values := wrong[replica].get(second, ()))
        ]
        yield Block(candidate, primary, losses)


@dataclass(frozen=True, slots=True)
class _Arm:
    """Of each replica, in the order in which requests came: latencies, whether they failed, and where seconds begin."""

    latencies_s: list[Floats]
    failed: list[npt.NDArray[np.bool_]]
    starts: list[npt.NDArray[np.int64]]
    cost_per_s: float

    def at(self, second: int) -> Arm:
        parts = [slice(starts[second], starts[second + 1]) for starts in self.starts]
        latencies_s = np.concatenate([own[part] for own, part in zip(self.latencies_s, parts, strict=True)])
        failed = np.concatenate([own[part] for own, part in zip(self.failed, parts, strict=True)])
        answered_s = latencies_s[~failed]
        return Arm(answered_s.tolist(), len(failed), int(failed.sum()), self.cost_per_s * float(len(failed)))


def _arm(
    generator: np.random.Generator, waves: Floats, machine: Floats, bursts: Floats, plant: Plant, world: World
) -> _Arm:
    arm = _Arm([], [], [], plant.dearer_ratio)
    lasting_s = len(waves)
    for _ in range(NUM_REPLICAS):
        num = generator.poisson(waves * RATE_RPS / 2 / NUM_REPLICAS)
        starts = np.concatenate([[0], num.cumsum()])
        second = np.repeat(np.arange(lasting_s), num)
        came_s = np.sort(second + generator.random(len(second)))
        mood = machine * np.exp(_wander(generator, lasting_s, world.mood_s, world.mood_sigma))
        mood *= _spells(generator, lasting_s, world)
        service_s = SERVICE_S * np.exp(world.service_sigma * generator.standard_normal(len(second)) - 0.18)
        service_s *= mood[second] * plant.slower_ratio
        service_s[generator.random(len(second)) < plant.stuck_ratio] *= 10
        arm.latencies_s.append(service_s + (_waits_s(came_s, service_s) if world.counts_queues else 0.0))
        failed_ratio = np.minimum(1.0, world.failed_ratio + bursts[second] + plant.failed_ratio)
        arm.failed.append(generator.random(len(second)) < failed_ratio)
        arm.starts.append(starts)
    return arm


def _answers(
    generator: np.random.Generator, arm: _Arm, plant: Plant, world: World
) -> list[Mapping[int, Sequence[float]]]:
    """Of each replica: second -> losses of those of its answers that are compared."""
    found: list[Mapping[int, Sequence[float]]] = []
    for replica, starts in enumerate(arm.starts):
        num = int(starts[-1])
        content = (generator.random(num) < 1 / world.run_requests).cumsum()
        own_ratio = 0.0 if plant.on_replica and replica else plant.wrong_ratio
        is_wrong = generator.random(num + 1) < world.differing_ratio + own_ratio
        compared = np.flatnonzero((generator.random(num) < COMPARED_RATIO) & ~arm.failed[replica])
        second = np.searchsorted(starts, compared, "right") - 1
        losses = is_wrong[content[compared]].astype(np.float64)
        firsts, begins = np.unique(second, return_index=True)
        groups = np.split(losses, begins[1:])
        found.append({int(at): own.tolist() for at, own in zip(firsts, groups, strict=False)})
    return found


def _wander(generator: np.random.Generator, num: int, lasting: float, sigma: float) -> Floats:
    """A value for each second that keeps about `lasting` of them: autoregressive, of mean 0."""
    keep = float(np.exp(-1 / lasting))
    steps = generator.standard_normal(num) * sigma * float(np.sqrt(1 - keep * keep))
    value, values = float(generator.standard_normal()) * sigma, np.empty(num)
    for at, step in enumerate(steps.tolist()):
        value = keep * value + step
        values[at] = value
    return values


def _spells(generator: np.random.Generator, num: int, world: World) -> Floats:
    times = np.ones(num)
    for begin in np.flatnonzero(generator.random(num) < 1 / world.spell_every_s):
        times[begin : begin + max(1, int(generator.random() * world.spell_s))] = world.spell_times
    return times


def _waits_s(came_s: Floats, service_s: Floats) -> Floats:
    """Of one server that takes them in turn (Lindley): the furthest that its work is ahead of those that came."""
    if not len(came_s):
        return np.zeros(0)
    ahead = np.concatenate([[0.0], service_s[:-1]]).cumsum() - came_s
    return np.asarray(ahead - np.minimum.accumulate(ahead))


# -- fixed thresholds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thresholds:
    """As Flagger: looked at once a minute, `max_failed` bad looks take it back, ten good ones promote it.

    Its defaults are a success of 99 % and p99 within 500 ms. `is_relative`: p99 and answers beside the primary's, which it does not do by
    itself: p99 of at most 1.05 times the primary's, and 0.5 % of answers that differ.
    """

    is_relative: bool
    interval_s: int = 60
    max_failed: int = 5
    num_good: int = 10

    @classmethod
    def longest_s(cls) -> int:
        return cls.interval_s * (cls.max_failed + cls.num_good)

    def outcome(self, of: Sequence[Block]) -> tuple[Outcome, int]:
        """With the candidate's requests until then."""
        failed = good = num = 0
        for start in range(0, len(of) - self.interval_s + 1, self.interval_s):
            window = of[start : start + self.interval_s]
            num += sum(block.candidate.num for block in window)
            is_good = self._is_good(window)
            failed, good = failed + (not is_good), good + is_good
            if failed >= self.max_failed:
                return "rolled_back", num
            if good >= self.num_good:
                return "promoted", num
        return "held", num

    def _is_good(self, window: Sequence[Block]) -> bool:
        arms = [_joined([getattr(block, name) for block in window]) for name in ("candidate", "primary")]
        ours_s, theirs_s = (np.asarray(arm.latencies_s) for arm in arms)
        if arms[0].num_failed > 0.01 * arms[0].num or not len(ours_s):
            return False
        p99_s = between_ranks(ours_s, 0.99)
        if not self.is_relative:
            return p99_s <= 0.5
        losses = [value for block in window for own in block.losses for value in own.values]
        return p99_s <= 1.05 * between_ranks(theirs_s, 0.99) and (not losses or float(np.mean(losses)) <= 0.005)


def _joined(arms: Sequence[Arm]) -> Arm:
    latencies_s = [value for arm in arms for value in arm.latencies_s]
    return Arm(latencies_s, sum(arm.num for arm in arms), sum(arm.num_failed for arm in arms))


# -- the bench ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Of one simulated rollout. `because`: by which measures it was taken back."""

    outcome: Outcome
    because: tuple[str, ...]
    num_candidate: int
    num_compared: int
    num_seconds: int
    fixed: tuple[tuple[Outcome, int], ...]  # Flagger's defaults, relative thresholds


def told_by(block: Block, num_gateways: int, generator: np.random.Generator) -> list[Block]:
    """What each of several gateways saw of it: requests go to any of them. Of latencies each tells its part."""

    def shared(values: Sequence[float]) -> list[list[float]]:
        whose = generator.integers(num_gateways, size=len(values))
        return [[value for value, it in zip(values, whose, strict=True) if it == own] for own in range(num_gateways)]

    def arms(arm: Arm) -> list[Arm]:
        failed = generator.multinomial(arm.num_failed, [1 / num_gateways] * num_gateways)
        each = 0.0 if arm.cost is None or not arm.num else arm.cost / arm.num
        parts = list(zip(shared(arm.latencies_s), (int(num) for num in failed), strict=True))
        return [Arm(own, len(own) + num, num, each * (len(own) + num)) for own, num in parts]

    losses = [(it, shared(it.values)) for it in block.losses]
    both = zip(arms(block.candidate), arms(block.primary), strict=True)
    return [
        Block(*pair, [Losses(it.metric, values[own], it.replica) for it, values in losses if values[own]])
        for own, pair in enumerate(both)
    ]


def logged(of: Iterable[Block], num_gateways: int, seed: int) -> Iterator[Block]:
    """The same as all gateways read it in the log that they share: each tells in any order, and now and then is a second late."""
    generator, joined = np.random.default_rng(seed), Joined()
    late: list[Entry] = []
    for number, block in enumerate(of, 1):
        told = [Entry(str(own), number, part) for own, part in enumerate(told_by(block, num_gateways, generator))]
        is_late = generator.random(num_gateways) < LATE_RATIO
        now = [told[own] for own in generator.permutation(num_gateways) if not is_late[own]]
        for entry in [*late, *now]:
            if (read := read_line(entry.line)) is not None:
                yield from joined.add(read)
        late = [told[own] for own in range(num_gateways) if is_late[own]]


def as_told(of: Iterable[Block], judge: Judge, store: type[Store]) -> Iterator[Block]:
    """Blocks as long as a gateway's are for that store, which end at once where answers or errors in them are proof.

    `judge`: who observes each before the next one is asked for.
    """
    so_far: list[Block] = []
    for block in of:
        so_far.append(block)
        length_s = store.block_s * 2 ** (judge.num_blocks // store.num_alike)
        if len(so_far) >= length_s or judge.would_be_sure([_told(so_far, 0)]):
            yield _told(so_far, store.num_latencies)
            so_far = []


def _told(of: Sequence[Block], num_latencies: int) -> Block:
    arms = []
    for each in ([block.candidate for block in of], [block.primary for block in of]):
        latencies_s = [value for arm in each for value in arm.latencies_s] if num_latencies else []
        every = -(-len(latencies_s) // max(1, num_latencies)) or 1
        cost = sum(arm.cost or 0.0 for arm in each)
        arms.append(
            Arm(latencies_s[::every], sum(it.num for it in each), sum(it.num_failed for it in each), cost or None)
        )
    losses: dict[tuple[str, str], list[float]] = {}
    for it in (it for block in of for it in block.losses):
        losses.setdefault((it.metric, it.replica), []).extend(it.values)
    return Block(arms[0], arms[1], [Losses(metric, values, name) for (metric, name), values in losses.items()])


def simulate(
    seed: int,
    plant: Plant,
    world: World | None = None,
    lasting_s: int = LASTING_S,
    *,
    beside: bool = True,
    num_gateways: int = 1,
    store: type[Store] = Store,
) -> Run:
    """`store`: in which a gateway tells its blocks, where it is one gateway."""
    judge, of = Judge(measures_cost=True), list[Block]()
    coming = blocks(seed, plant, world, lasting_s)
    if num_gateways > 1:
        coming = logged(coming, num_gateways, seed)

    def seconds() -> Iterator[Block]:
        for second in coming:
            of.append(second)
            yield second

    for block in seconds() if store is Store else as_told(seconds(), judge, store):
        judge.observe(block)
        if judge.outcome() != "held":
            break
    judgement = judge.judgement(with_intervals=False)
    num_seconds = len(of)
    fixed: tuple[tuple[Outcome, int], ...] = ()
    if beside:
        of += islice(coming, max(0, Thresholds.longest_s() - num_seconds))
        fixed = tuple(Thresholds(is_relative=it).outcome(of) for it in (False, True))
    because = judgement.because if judgement.outcome == "rolled_back" else ()
    return Run(judgement.outcome, because, judgement.num_candidate, judgement.num_compared, num_seconds, fixed)


def runs(
    plant: Plant,
    num: int,
    world: World | None = None,
    lasting_s: int = LASTING_S,
    first: int = 1,
    num_gateways: int = 1,
    workers: Executor | None = None,
) -> list[Run]:
    """Seed by seed, by these `workers` at once."""
    one = partial(simulate, plant=plant, world=world, lasting_s=lasting_s, num_gateways=num_gateways)
    each = map if workers is None else workers.map
    return list(each(one, range(first, first + num)))


def row(plant: Plant, found: Sequence[Run]) -> tuple[str, ...]:
    """What was judged, how often, with how many requests: the median and the most of those taken back, or of those promoted."""
    taken_back = [run for run in found if run.outcome == "rolled_back"]
    decided = taken_back if plant is not SAME else [run for run in found if run.outcome == "promoted"]
    requests = [run.num_candidate for run in decided]
    cells = [
        plant.name,
        *(_share(sum(run.outcome == outcome for run in found), len(found)) for outcome in OUTCOMES),
        f"{int(median(requests)):,} ({max(requests):,})" if requests else "-",
        f"{int(median(run.num_compared for run in decided)):,}" if decided else "-",
        ", ".join(sorted({measure for run in taken_back for measure in run.because})) or "-",
    ]
    for kind in range(2):
        own = [run.fixed[kind] for run in found]
        back = [num for outcome, num in own if outcome == "rolled_back"]
        cells.append(_share(len(back), len(own)) + (f" ({int(median(back)):,})" if back else ""))
    return tuple(cells)


OUTCOMES: tuple[Outcome, ...] = ("rolled_back", "promoted", "held")
HEADS = (
    "candidate",
    "taken back",
    "promoted",
    "held",
    "requests: median (most)",
    "compared",
    "by",
    "Flagger's defaults",
    "relative thresholds",
)


def _share(num: int, of: int) -> str:
    return f"{num / of:.1%}"


def measure(
    num_same: int, num_planted: int, lasting_s: int, num_gateways: int = 1, workers: Executor | None = None
) -> BenchReport:
    rows, verdicts = [], []
    for plant, num in ((SAME, num_same), *((it, num_planted) for it in PLANTED)):
        found = runs(
            plant,
            num,
            lasting_s=min(lasting_s, LASTING_SAME_S) if plant is SAME else lasting_s,
            num_gateways=num_gateways,
            workers=workers,
        )
        rows.append(row(plant, found))
        back = sum(run.outcome == "rolled_back" for run in found) / num
        if plant is SAME:
            verdicts.append(Verdict(f"{num} rollouts of {plant.name}, taken back", back, AtMost(FALSE_ROLLBACK_RATIO)))
        else:
            verdicts.append(Verdict(f"{plant.name}, taken back", back, AtLeast(1.0)))
    conditions = (
        f"simulated: {RATE_RPS:g} requests/s in waves, {NUM_REPLICAS} servers for each arm, {COMPARED_RATIO:.0%} of answers compared, "
        f"{lasting_s} s at most; gateways: {num_gateways}",
    )
    facts = {"rows": [dict(zip(HEADS, it, strict=True)) for it in rows]}
    return BenchReport(conditions, [table([HEADS, *rows])], verdicts, facts)


MODULE = "loadtest.bench.rollouts"


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__, "three rollouts of the same model and one of each other")
    parser.add_argument(
        "--seconds",
        type=int,
        default=LASTING_S,
        help="that a rollout lasts at most (default %(default)s; of the same model half an hour)",
    )
    parser.add_argument(
        "--gateways", type=int, default=1, help="that see a part each, and judge together (default %(default)s)"
    )
    parser.add_argument(
        "--same",
        type=int,
        default=NUM_SAME,
        help="rollouts of the same model (default %(default)s: a quarter of an hour of two cores)",
    )
    given = parser.parse_args(arguments)
    num_same, num_planted = (3, 1) if given.quick else (given.same, NUM_PLANTED)

    def job() -> BenchReport:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
            return measure(num_same, num_planted, given.seconds, given.gateways, workers)

    return run_bench(MODULE, arguments, given.json, job, is_quick=given.quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
