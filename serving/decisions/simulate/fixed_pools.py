"""Simulates pools of fixed size with measured arrivals, to compare with a real run: answers in time, and answers per second.

The same deciding as `run.py` without anybody who scales, to be held beside a real run of the same pools. Rule: what a real run measures is
told here under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.decisions.simulate.arrivals import Arrival
from serving.decisions.simulate.outcome import Tally
from serving.decisions.simulate.pool import SimulatedPool
from serving.decisions.simulate.requests import RequestFlow, Stretch
from serving.decisions.simulate.scenario import ColdStart, PoolSetting
from serving.scheduling.prediction import Service


@dataclass(frozen=True, slots=True)
class FixedPool:
    """`service`: of one of its servers."""

    name: str
    service: Service
    price_per_hour: float
    num_servers: int = 1
    noise_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """`lasting_s`: from the first arrival to the last answer or arrival."""

    num_requests: int
    num_in_time: int
    num_late: int
    num_refused: int
    num_expired: int
    lasting_s: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    num_by_pool: tuple[tuple[str, int], ...]  # answers

    @property
    def attainment_ratio(self) -> float:
        return self.num_in_time / self.num_requests if self.num_requests else 1.0

    @property
    def throughput_rps(self) -> float:
        """Answers a second, late ones too."""
        return (self.num_in_time + self.num_late) / self.lasting_s if self.lasting_s else 0.0

    @property
    def goodput_rps(self) -> float:
        """Answers in time, a second."""
        return self.num_in_time / self.lasting_s if self.lasting_s else 0.0


def replay(
    pools: Sequence[FixedPool], arrivals: Iterable[Arrival], objective_s: float, stretch: Stretch | None = None
) -> Answers:
    """`arrivals`: (seconds, rows), in any order."""
    tally = Tally(objective_s)
    fleets = [_fleet(pool) for pool in pools]
    answering = RequestFlow(fleets, objective_s, tally, stretch)
    first = last = None
    for at, rows in sorted(arrivals):
        first, last = at if first is None else first, at
        answering.until(at)
        answering.ask(at, rows, 1)
    if first is None or last is None:
        return Answers(0, 0, 0, 0, 0, 0.0, None, None, tuple((pool.name, 0) for pool in pools))
    end = max(last, answering.finish_all())
    for fleet in fleets:
        answering.drop_expired(end + objective_s, fleet)
    return Answers(
        num_requests=tally.num_requests,
        num_in_time=tally.num_in_time,
        num_late=tally.num_late,
        num_refused=tally.num_refused,
        num_expired=tally.num_expired,
        lasting_s=end - first,
        latency_p50_s=tally.latencies.quantile(0.5),
        latency_p99_s=tally.latencies.quantile(0.99),
        num_by_pool=tuple((fleet.setting.name, sum(s.num_answered for s in fleet.ready)) for fleet in fleets),
    )


def _fleet(pool: FixedPool) -> SimulatedPool:
    if pool.num_servers < 1:
        raise ValueError(f"pool '{pool.name}' needs at least one server, not {pool.num_servers}")
    number = pool.num_servers
    fleet = SimulatedPool(
        PoolSetting(
            pool.name,
            pool.service,
            pool.price_per_hour,
            number,
            number,
            ColdStart(0, 0, 0),
            noise_ratio=pool.noise_ratio,
        )
    )
    fleet.begin_with(number)
    return fleet
