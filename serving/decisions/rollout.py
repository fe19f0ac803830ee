"""Is a candidate to be promoted, held, or rolled back? Judged after every block of requests, by what it answered beside the primary.

Five measures, each with a limit of how much worse it may be: its answers, its usual latency, its slowest answers, its errors, its cost.
Rolled back is what is shown to be beyond one of them; promoted what is shown to be within all; the rest is held. Both are shown by
sequential tests (`serving/measure/anytime.py`), so it may be asked after every block, for as long as one likes:

* a candidate that is within all limits is rolled back in at most FALSE_ROLLBACK_RATIO of rollouts: the measures share that equally, the
  answers' part is halved between all of them together and each replica by itself;
* one that is beyond any limit is promoted in at most FALSE_PROMOTION_RATIO. All measures have to pass, so each may have all of it
  (Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 1982).

What is assumed, and tried out in `loadtest/bench/rollouts.py`: which requests the candidate gets does not depend on what they ask;
of answers that are compared no more than some twenty in a row cling together; slow spells of a server are over within half a minute.
Latency is compared only within a block, because time of day and load move both. Sending, counting and setting weights is not here.
Rule: a block is a value, and the same blocks make the same judgement, so that a gateway that starts again, or another one, can go on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from serving.measure.anytime import BlockMeans, Floats, GroupedMeanTest, RateDifference, inverted
from serving.measure.percentiles import between_ranks

Outcome = Literal["promoted", "held", "rolled_back"]
Finding = Literal["worse", "fine", "open"]

FALSE_ROLLBACK_RATIO = 0.01
FALSE_PROMOTION_RATIO = 0.05

LATENCY, TAIL, ERRORS, COST = "latency", "slowest", "errors", "cost"

# Compared answers that follow each other and count as one, against a candidate and for it: who got a wrong one asks again. One by one, with
# contents that come in runs of five of which a quarter is compared, 1.6 % of candidates that were no worse were taken back.
ALIKE_AGAINST, ALIKE_FOR = 20, 5
MIN_BLOCK = 20  # latencies of each arm; smaller blocks are joined to the next: a share of 20 has steps of 5 %
TAIL_Q = 0.95  # beyond it a block of 20 has one, where p99 has none
NUM_TAILS = 20  # blocks whose primary says what is slow: 20 seconds, shorter than load takes to change
# How far from its limit a first block counts in full; later ones go by those before them. Guesses that cost a few blocks.
REACH_SUPERIORITY, REACH_TAIL, REACH_COST = 0.25, 0.1, 0.25


@dataclass(frozen=True, slots=True)
class Margins:
    """How much worse than the primary a candidate may be, and still be promoted. All are above 0.

    `loss`: metric of answers -> how much of 1 the mean may be off, where 1 is an answer as the primary's: half of what the gate lets a
    variant lose, so that what a gate let pass is not rolled back by its own rounding, and 1 % of wrong answers is seen. A new version that
    is trained anew differs more: say how much.
    """

    loss: Mapping[str, float] = field(default_factory=lambda: dict(MAX_LOSS))
    latency_ratio: float = (
        1.025  # half of 5 %, which is to be seen; nobody notices 2.5 %, and less takes four times the requests
    )
    tail_share: float = 0.01  # of requests beyond the primary's p95: six in place of five in a hundred
    error_share: float = 0.001  # a service that promises 99.9 % has no more to give
    cost_ratio: float = 1.05  # below what a month's load moves by; a guess, not measured

    def __post_init__(self) -> None:
        for name, value in self.loss.items():
            if not 0 < value < 1:
                raise ValueError(f"loss of {name} is {value}, want between 0 and 1")
        for it in fields(self):
            value = getattr(self, it.name)
            if it.name.endswith("_ratio") and not value > 1:
                raise ValueError(f"{it.name} is {value}, want above 1: 1.05 is 5 % more")
            if it.name.endswith("_share") and not 0 < value < 1:
                raise ValueError(f"{it.name} is {value}, want between 0 and 1")


# Metric of answers -> the mean loss that a candidate may have (`serving/export/gates/limits.py` has the gate's).
MAX_LOSS: Mapping[str, float] = {
    "agreement": 0.005,
    "cosine": 0.005,
    "recall": 0.05,
    "error": 0.05,
}


@dataclass(frozen=True, slots=True)
class Arm:
    """What one side did in a block. `latencies_s`: of its answers, in any order; of the primary, as many as are at hand.

    `num`: requests, of which `num_failed` ended in an error of ours (5xx, or no answer). `cost`: in any unit, None where nobody counted
    it; of `num_costed` rows, or of all requests.
    """

    latencies_s: Sequence[float]
    num: int
    num_failed: int = 0
    cost: float | None = None
    num_costed: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.num_failed <= self.num:
            raise ValueError(f"{self.num_failed} of {self.num} requests failed")

    @property
    def cost_each(self) -> float | None:
        """None where nobody knows."""
        num = self.num if self.num_costed is None else self.num_costed
        return None if self.cost is None or not num else self.cost / num

    def __add__(self, other: Arm) -> Arm:
        latencies_s = (*self.latencies_s, *other.latencies_s)
        costs = [it.cost for it in (self, other) if it.cost is not None]
        num = sum(it.num if it.num_costed is None else it.num_costed for it in (self, other) if it.cost is not None)
        return Arm(
            latencies_s, self.num + other.num, self.num_failed + other.num_failed, sum(costs) if costs else None, num
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """Of answers of one replica of the candidate beside the primary's to the same requests, 0 (alike) to 1, by one metric."""

    metric: str
    values: Sequence[float]
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """What happened within a second or so. An arm that nobody sent anything to has no requests."""

    candidate: Arm
    primary: Arm
    losses: Sequence[Losses] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one measure says. `value` is what was seen, `low` and `high` hold the truth at all times at once: each end is as sure as the
    decision that it would lead to. `num`: answers, requests or blocks that it rests on, as `of` says."""

    measure: str
    finding: Finding
    value: float
    low: float
    high: float
    limit: float
    num: int
    of: str
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`because`: the measures that are beyond their limits, or, while it is held, those that have not shown yet that they are within."""

    outcome: Outcome
    because: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    num_candidate: int
    num_primary: int
    num_compared: int
    num_blocks: int


def judgement_of(told: Mapping[str, Any]) -> Judgement:
    """Of its fields, as JSON has them: what is null there is not known, or an interval has no such end."""
    nothing = {"value": math.nan, "low": -math.inf, "high": math.inf}
    evidence = [{**it, **{end: other for end, other in nothing.items() if it[end] is None}} for it in told["evidence"]]
    return Judgement(
        **{**told, "because": tuple(told["because"]), "evidence": tuple(Evidence(**it) for it in evidence)}
    )


class Judge:
    """Takes blocks in turn. `metrics`: by which answers are compared; without one a candidate is judged by the rest alone.

    `measures_cost`: whether arms may tell what they cost, which is judged once one has.
    """

    def __init__(
        self, margins: Margins | None = None, metrics: Sequence[str] = ("agreement",), *, measures_cost: bool = False
    ) -> None:
        self.margins = margins or Margins()
        unknown = [metric for metric in metrics if metric not in self.margins.loss]
        if unknown:
            raise ValueError(f"no loss is said for {unknown[0]}")
        self.metrics = tuple(metrics)
        self._answers = {metric: self._of_answers(metric) for metric in metrics}
        self._replicas: dict[tuple[str, str], GroupedMeanTest] = {}
        self._latency = BlockMeans(0.5, REACH_SUPERIORITY)
        self._tail = BlockMeans(self.margins.tail_share, REACH_TAIL)
        self._errors = RateDifference(self.margins.error_share)
        self._cost = BlockMeans(_relative(self.margins.cost_ratio), REACH_COST) if measures_cost else None
        self._pairs: list[tuple[Floats, Floats]] = []  # sorted latencies of each block, candidate's and primary's
        self._tails_s: list[float] = []
        self._pending = _NOTHING
        self._num = np.zeros(4, dtype=np.int64)
        num_measures = len(metrics) + 3 + measures_cost
        self._log_worse = math.log(num_measures / FALSE_ROLLBACK_RATIO)
        self._log_fine = -math.log(FALSE_PROMOTION_RATIO)

    def observe(self, block: Block) -> None:
        self._count(block)
        pending = self._pending = Block(
            self._pending.candidate + block.candidate, self._pending.primary + block.primary
        )
        if min(len(pending.candidate.latencies_s), len(pending.primary.latencies_s)) < MIN_BLOCK:
            return
        self._pending = _NOTHING
        self._time(
            *(np.sort(np.asarray(a.latencies_s, dtype=np.float64)) for a in (pending.candidate, pending.primary))
        )
        each = pending.candidate.cost_each, pending.primary.cost_each
        if self._cost is not None and each[0] is not None and each[1] is not None:
            self._cost.add((each[0] - each[1]) / (each[0] + each[1]) if each[0] + each[1] else 0.0)

    def would_be_sure(self, blocks: Sequence[Block]) -> bool:
        """Whether only with these, too, answers or errors would be proven worse. Nothing is changed, and times are not looked at."""
        losses = [it for block in blocks for it in block.losses]
        is_off = any(sum(it.values) > self.margins.loss[it.metric] * len(it.values) for it in losses)
        if self._is_sure or not (is_off or any(block.candidate.num_failed for block in blocks)):
            return False  # without the copies
        other = copy.copy(self)
        other._answers, other._replicas, other._errors, other._num = copy.deepcopy(
            (self._answers, self._replicas, self._errors, self._num)
        )
        for block in blocks:
            other._count(block)
        return other._is_sure

    @property
    def _is_sure(self) -> bool:
        """Whether answers or errors are proven worse."""
        timed = (LATENCY, TAIL, COST)
        return any(finding == "worse" and measure not in timed for (measure, _), finding in self._findings())

    def _count(self, block: Block) -> None:
        """All but its times."""
        for losses in block.losses:
            self._compare(losses)
        ours, theirs = block.candidate, block.primary
        self._num += (ours.num, theirs.num, 0, 1)
        self._errors.add(ours.num_failed, ours.num, theirs.num_failed, theirs.num)

    def _of_answers(self, metric: str) -> GroupedMeanTest:
        return GroupedMeanTest(self.margins.loss[metric], ALIKE_AGAINST, ALIKE_FOR)

    def _compare(self, losses: Losses) -> None:
        if losses.metric not in self._answers:
            raise ValueError(f"answers are not compared by {losses.metric} here")
        self._answers[losses.metric].add(losses.values)
        self._num[2] += len(losses.values)
        key = losses.metric, losses.replica
        if key not in self._replicas:
            self._replicas[key] = self._of_answers(losses.metric)
        self._replicas[key].add(losses.values)

    def _time(self, ours_s: Floats, theirs_s: Floats) -> None:
        self._pairs.append((ours_s, theirs_s))
        self._latency.add(superiority(ours_s, theirs_s, self.margins.latency_ratio))
        if self._tails_s:
            slow_s = float(np.median(self._tails_s[-NUM_TAILS:])) * self.margins.latency_ratio
            beyond = [1 - np.searchsorted(values, slow_s, "right") / len(values) for values in (ours_s, theirs_s)]
            self._tail.add(float(beyond[0] - beyond[1]))
        self._tails_s.append(between_ranks(theirs_s, TAIL_Q))

    @property
    def num_blocks(self) -> int:
        return int(self._num[3])

    # -- what follows --------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """The same as `judgement().outcome`, without the intervals, which take long."""
        findings = [finding for _, finding in self._findings()]
        if "worse" in findings:
            return "rolled_back"
        return "held" if "open" in findings else "promoted"

    def judgement(self, *, with_intervals: bool = True) -> Judgement:
        """`with_intervals` False: without any evidence, in no time."""
        found = dict(self._findings())
        outcome = self.outcome()
        wanted: Finding = "worse" if outcome == "rolled_back" else "open"
        names = [measure for (measure, _), finding in found.items() if finding == wanted]
        ours, theirs, compared, blocks = (int(num) for num in self._num)
        evidence = tuple(self._evidence(*key, it) for key, it in found.items() if with_intervals)
        return Judgement(outcome, tuple(dict.fromkeys(names)), evidence, ours, theirs, compared, blocks)

    def _findings(self) -> Iterable[tuple[tuple[str, str], Finding]]:
        """(measure, replica) -> what it says. A replica alone can only be worse: all together have to be fine."""
        for metric, test in self._answers.items():
            own = self._own_replicas(metric)
            log_worse = self._log_worse + (math.log(2) if own else 0.0)
            yield (metric, ""), self._finding(test.log_above, test.log_below, log_worse)
            for replica, it in own.items():
                if it.log_above >= self._log_replica(len(own)):
                    yield (metric, replica), "worse"
        yield (LATENCY, ""), self._finding(*self._latency.evidence())
        yield (TAIL, ""), self._finding(*self._tail.evidence())
        yield (ERRORS, ""), self._finding(self._errors.log_above, self._errors.log_below)
        if self._cost is not None and self._cost.num:
            yield (COST, ""), self._finding(*self._cost.evidence())

    def _own_replicas(self, metric: str) -> dict[str, GroupedMeanTest]:
        """Of more than one."""
        own = {replica: test for (of, replica), test in self._replicas.items() if of == metric}
        return own if len(own) > 1 else {}

    def _log_replica(self, num: int) -> float:
        return self._log_worse + math.log(2 * num)

    def _finding(self, log_above: float, log_below: float, log_worse: float | None = None) -> Finding:
        if log_above >= (self._log_worse if log_worse is None else log_worse):
            return "worse"
        return "fine" if log_below >= self._log_fine else "open"

    def _evidence(self, measure: str, replica: str, finding: Finding) -> Evidence:
        if measure in self._answers:
            own = self._own_replicas(measure)
            test = own[replica] if replica else self._answers[measure]
            log_worse = self._log_replica(len(own)) if replica else self._log_worse + (math.log(2) if own else 0.0)
            ends = test.interval(log_worse, self._log_fine)
            return Evidence(measure, finding, test.mean, *ends, test.limit, test.num, "answers", replica)
        if measure == ERRORS:
            ends = self._errors.interval(self._log_worse, self._log_fine)
            return Evidence(
                measure, finding, self._errors.mean, *ends, self._errors.limit, self._errors.num, "requests"
            )
        if measure == LATENCY:
            ends = self._latency_interval()
            limit = self.margins.latency_ratio
            return Evidence(measure, finding, self._latency_ratio(), *ends, limit, self._latency.num, "blocks")
        if measure == TAIL:
            ends = self._tail.interval(self._log_worse, self._log_fine, -1.0, 1.0)
            return Evidence(measure, finding, self._tail.mean, *ends, self._tail.limit, self._tail.num, "blocks")
        assert self._cost is not None
        low, high = self._cost.interval(self._log_worse, self._log_fine, -1.0, 1.0)
        ends = _ratio(low), _ratio(high)
        limit = self.margins.cost_ratio
        return Evidence(measure, finding, _ratio(self._cost.mean), *ends, limit, self._cost.num, "blocks")

    def _latency_ratio(self) -> float:
        """Typical latency over the primary's: the geometric mean over blocks of the ratio of medians."""
        logs = [math.log(np.median(ours) / np.median(theirs)) for ours, theirs in self._pairs if np.median(theirs) > 0]
        return math.exp(float(np.mean(logs))) if logs else math.nan

    def _latency_interval(self) -> tuple[float, float]:
        """The ratios at which neither arm is the slower one: as `_latency`, for any limit in place of the margin."""

        def evidence(log_ratio: float, above: bool) -> float:
            each = [superiority(ours, theirs, math.exp(log_ratio)) for ours, theirs in self._pairs]
            return self._latency.evidence_of(0.5, each, above=above)

        ends = inverted(evidence, self._log_worse, self._log_fine, -math.log(100), math.log(100), steps=16)
        return math.exp(ends[0]), math.exp(ends[1])


def judged(blocks: Iterable[Block], judge: Judge) -> Judgement:
    """After the first block that decides, or after the last."""
    for block in blocks:
        judge.observe(block)
        if judge.outcome() != "held":
            break
    return judge.judgement()


def superiority(ours_s: Floats, theirs_s: Floats, ratio: float) -> float:
    """How often an answer of ours is slower than `ratio` times one of theirs, of all pairs; one half where neither is the slower arm.

    Mann and Whitney's statistic. Both are sorted, [n]. It is the same for any unit and any tail.
    """
    scaled = ours_s / ratio
    faster = np.searchsorted(theirs_s, scaled, "left") + np.searchsorted(theirs_s, scaled, "right")
    return float(faster.mean()) / (2 * len(theirs_s))


def _relative(ratio: float) -> float:
    """A ratio as a difference over the sum, which is within -1..1."""
    return (ratio - 1) / (ratio + 1)


def _ratio(relative: float) -> float:
    return (1 + relative) / (1 - relative) if relative < 1 else math.inf


_NOTHING = Block(Arm((), 0), Arm((), 0))
