"""What came of a simulated run: how many requests were in time, what it cost, how often the GPU was started.

Latencies are kept in a histogram whose buckets are 2 % wide, so that a day at 10,000 requests a second fits. Rule: every request that
came is counted exactly once: in time, late, refused, or expired. The table that is printed is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, exp, inf, log
from typing import Any

from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.pool import SimulatedPool
from serving.documents.tables import columns

WIDTH = 0.02  # of a bucket, in logarithms
SMALLEST_S = 1e-6
SLOT_S = 10.0  # the window in which demand is measured, too
ROUNDING_S = 1e-9


class Latencies:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0
        self.sum_s = 0.0

    def add(self, seconds: float, count: int) -> None:
        bucket = ceil(log(seconds / SMALLEST_S) / WIDTH) if seconds > SMALLEST_S else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += count
        self.sum_s += seconds * count

    def quantile(self, q: float) -> float | None:
        """To 2 %, never too small; None without an answer."""
        left = q * self.total
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 1e-9:
                return SMALLEST_S * exp(bucket * WIDTH)
        return None


@dataclass(slots=True)
class Moment:
    """A slice of the timeline. Servers as they were at its end, all of a kind and by pool; `cold`: GPU servers on their way."""

    at_s: float
    num_requests: int = 0
    num_violated: int = 0
    num_cpu: int = 0
    num_gpu: int = 0
    num_cold: int = 0
    servers: dict[str, int] = field(default_factory=dict)


class Tally:
    """Counted while it runs. Times are those of the clock on the wall."""

    def __init__(self, objective_s: float, moment_s: float = inf) -> None:
        self.num_requests = 0
        self.num_in_time = 0
        self.num_late = 0
        self.num_refused = 0
        self.num_expired = 0
        self.num_handovers = 0
        self.reasons: dict[str, int] = {}
        self.latencies = Latencies()
        self.timeline: list[Moment] = []
        self.violations: dict[int, int] = {}  # in each ten seconds, by their number
        self._in_time_s = objective_s + ROUNDING_S
        self._moment = Moment(0.0)
        self._moment_s = moment_s

    def came(self, number: int) -> None:
        self.num_requests += number
        self._moment.num_requests += number

    def answered(self, now: float, latency_s: float, number: int) -> None:
        self.latencies.add(latency_s, number)
        if latency_s <= self._in_time_s:
            self.num_in_time += number
        else:
            self.num_late += number
            self._violated(now, number)

    def refused(self, now: float, number: int) -> None:
        self.num_refused += number
        self._violated(now, number)

    def expired(self, now: float, number: int) -> None:
        self.num_expired += number
        self._violated(now, number)

    def note(self, now: float, pools: Iterable[SimulatedPool]) -> None:
        """The servers there are now."""
        moment, pools = self._moment, list(pools)
        moment.servers = {it.setting.name: len(it.ready) for it in pools}
        moment.num_gpu = sum(len(it.ready) for it in pools if it.setting.has_gpu)
        moment.num_cpu = sum(moment.servers.values()) - moment.num_gpu
        moment.num_cold = sum(len(it.coming) for it in pools if it.setting.has_gpu)
        if now - moment.at_s >= self._moment_s:
            self.timeline.append(moment)
            self._moment = Moment(now)

    def close(self) -> None:
        """The end: who is not answered by now was not in time."""
        self.num_late += self.num_requests - self.num_in_time - self.num_late - self.num_refused - self.num_expired
        if self._moment.num_requests or not self.timeline:
            self.timeline.append(self._moment)

    def outcome(self, policy: str, duration_s: float, pools: Iterable[SimulatedPool]) -> Outcome:
        answers, pools = self.latencies, list(pools)
        hours = {it.setting.name: it.paid_s / HOUR_S for it in pools}
        gpus = [it for it in pools if it.setting.has_gpu]
        gpu_hours = sum(hours[it.setting.name] for it in gpus)
        return Outcome(
            policy=policy,
            duration_s=duration_s,
            num_requests=self.num_requests,
            num_in_time=self.num_in_time,
            num_late=self.num_late,
            num_refused=self.num_refused,
            num_expired=self.num_expired,
            cost=sum(hours[it.setting.name] * it.setting.price_per_hour for it in pools),
            hours=hours,
            cpu_hours=sum(hours.values()) - gpu_hours,
            gpu_hours=gpu_hours,
            num_gpu_starts=sum(it.num_starts for it in gpus),
            num_handovers=self.num_handovers,
            latency_mean_s=answers.sum_s / answers.total if answers.total else None,
            latency_p50_s=answers.quantile(0.5),
            latency_p99_s=answers.quantile(0.99),
            reasons=tuple(sorted(self.reasons.items())),
            timeline=tuple(self.timeline),
        )

    def _violated(self, now: float, number: int) -> None:
        self._moment.num_violated += number
        slot = int(now / SLOT_S)
        self.violations[slot] = self.violations.get(slot, 0) + number


@dataclass(frozen=True, slots=True)
class Outcome:
    """`hours`: of each pool that the policy uses; of cards, where servers share them. `cpu_hours`, `gpu_hours`: of all pools of a kind."""

    policy: str
    duration_s: float
    num_requests: int
    num_in_time: int
    num_late: int
    num_refused: int
    num_expired: int
    cost: float
    hours: Mapping[str, float]
    cpu_hours: float
    gpu_hours: float
    num_gpu_starts: int
    num_handovers: int
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    reasons: tuple[tuple[str, int], ...]
    timeline: tuple[Moment, ...]

    @property
    def attainment_ratio(self) -> float:
        return self.num_in_time / self.num_requests if self.num_requests else 1.0

    @property
    def num_violations(self) -> int:
        return self.num_requests - self.num_in_time

    @property
    def cost_per_million(self) -> float | None:
        """Of those in time; the rest is worth nothing."""
        return self.cost / self.num_in_time * 1e6 if self.num_in_time else None


HEAD = ("policy", "in time", "late", "refused", "p50 ms", "p99 ms", "cost", "per 1M in time")
KINDS = ("CPU h", "GPU h")  # instead of pools' names where there is one of each
TAIL = ("GPU starts", "handovers")


def head_and_rows(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Requests that expired in a queue count as refused: both got no answer. Hours of each pool."""
    pools = list(dict.fromkeys(name for it in sorted(outcomes, key=lambda it: -len(it.hours)) for name in it.hours))
    hours = [f"{name} h" for name in pools] if len(pools) > len(KINDS) else KINDS
    return (*HEAD, *hours, *TAIL), [_row(outcome, pools) for outcome in outcomes]


def table(outcomes: Sequence[Outcome]) -> str:
    head, rows = head_and_rows(outcomes)
    return columns([head, *rows], align="<".ljust(len(head), ">"), ruled=True)


def _row(outcome: Outcome, pools: Sequence[str]) -> tuple[str, ...]:
    by_pool = [outcome.hours.get(name, 0.0) for name in pools]
    return (
        outcome.policy,
        f"{outcome.attainment_ratio:.4%}",
        f"{outcome.num_late:,}",
        f"{outcome.num_refused + outcome.num_expired:,}",
        _ms(outcome.latency_p50_s),
        _ms(outcome.latency_p99_s),
        f"{outcome.cost:.3f}",
        "-" if outcome.cost_per_million is None else f"{outcome.cost_per_million:,.2f}",
        *(f"{it:.2f}" for it in (by_pool if len(pools) > len(KINDS) else (outcome.cpu_hours, outcome.gpu_hours))),
        str(outcome.num_gpu_starts),
        str(outcome.num_handovers),
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f}"


def as_json(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "is_what_if": True, **facts, "policies": [_object(outcome) for outcome in outcomes]}


def _object(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome)
    fields["reasons"] = dict(outcome.reasons)
    fields["attainment_ratio"] = outcome.attainment_ratio
    fields["num_violations"] = outcome.num_violations
    fields["cost_per_million_in_time"] = outcome.cost_per_million
    return fields
