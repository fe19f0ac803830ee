"""Simulates pools of fixed size with measured arrivals, to compare with a real run: answers in time, and answers per second.

The same deciding as `run.py` without anybody who scales, to be held beside a real run of the same pools. Rule: what a real run measures is
told here under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from serving.decisions.simulate.arrivals import Arrival
from serving.decisions.simulate.outcome import Tally
from serving.decisions.simulate.pool import Device, SimulatedPool
from serving.decisions.simulate.requests import RequestFlow, Stretch
from serving.decisions.simulate.scenario import ColdStart, PoolSetting
from serving.scheduling.prediction import Service
from serving.scheduling.shares import Terms


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
    pools: Sequence[FixedPool],
    arrivals: Iterable[Arrival],
    objective_s: float,
    stretch: Stretch | None = None,
    *,
    num_gateways: int = 1,
    begin_s: float = 0.0,
) -> Answers:
    """`arrivals`: (seconds, rows), in any order; to each gateway in turn. Those before `begin_s` teach them, and count by pool alone."""
    each = {"": arrivals}
    return replay_shared(pools, each, objective_s, stretch=stretch, num_gateways=num_gateways, begin_s=begin_s)[""]


def replay_shared(
    pools: Sequence[FixedPool],
    arrivals: Mapping[str, Iterable[Arrival]],
    objective_s: float,
    terms: Terms | None = None,
    *,
    stretch: Stretch | None = None,
    is_fair: bool = True,
    num_gateways: int = 1,
    begin_s: float = 0.0,
    homes: Mapping[str, int] | None = None,
) -> dict[str, Answers]:
    """The same of several tenants, by name: each with the time from the first arrival of all to the last answer of all.

    `num_by_pool` is all tenants'. `is_fair` False: as if all were one. `homes`: the gateway of each tenant that comes to one alone.
    """
    tallies = {tenant: Tally(objective_s) for tenant in arrivals}
    fleets = [_fleet(pool, num_gateways) for pool in pools]
    for fleet in fleets:
        for candidate in fleet.candidates:
            candidate.queue.share_by(terms or Terms(), Terms())
    answering = RequestFlow(fleets, objective_s, next(iter(tallies.values())), stretch)
    ordered = sorted((at, rows, tenant) for tenant, own in arrivals.items() for at, rows in own)
    for number, (at, rows, tenant) in enumerate(ordered):
        answering.until(at)
        own = tenant if is_fair else ""
        gateway = (homes or {}).get(tenant, number % num_gateways)
        answering.ask(at, rows, int(at >= begin_s), gateway, tenant=own, tally=tallies[tenant])
    lasting_s = 0.0
    if ordered:
        end = max(ordered[-1][0], answering.finish_all())
        lasting_s = end - next((at for at, _, _ in ordered if at >= begin_s), end)
        for fleet in fleets:
            answering.drop_expired(end + objective_s, fleet)
    num_by_pool = tuple((fleet.setting.name, sum(s.num_answered for s in fleet.ready)) for fleet in fleets)
    return {tenant: _answers(tally, lasting_s, num_by_pool) for tenant, tally in tallies.items()}


def replay_models(
    models: Sequence[FixedPool],
    arrivals: Sequence[Iterable[Arrival]],
    objectives_s: Sequence[float],
    terms: Terms | None = None,
    *,
    shares_device: bool = True,
    num_gateways: int = 1,
) -> list[Answers]:
    """Models of one pool, each with its arrivals, to each gateway in turn, and its time to answer. `shares_device`: executions of all
    follow one another; else they run at the same time. A model has the name of its service's.
    """
    fleets: list[SimulatedPool] = []
    for model in models:
        fleets.append(_fleet(model, num_gateways, fleets[0] if fleets else None, shares_device=shares_device))
    for candidate in fleets[0].candidates:
        candidate.queue.share_by(Terms(), terms or Terms())
    tallies = [Tally(objective_s) for objective_s in objectives_s]
    answering = RequestFlow(fleets, max(objectives_s), tallies[0], None)
    ordered = sorted((at, rows, number) for number, own in enumerate(arrivals) for at, rows in own)
    for turn, (at, rows, number) in enumerate(ordered):
        answering.until(at)
        answering.ask(
            at, rows, 1, turn % num_gateways, tally=tallies[number], only=number, objective_s=objectives_s[number]
        )
    end = max(ordered[-1][0], answering.finish_all())
    answering.drop_expired(end + max(objectives_s), fleets[0])
    return [_answers(tally, end - ordered[0][0], ()) for tally in tallies]


def _answers(tally: Tally, lasting_s: float, num_by_pool: tuple[tuple[str, int], ...]) -> Answers:
    return Answers(
        num_requests=tally.num_requests,
        num_in_time=tally.num_in_time,
        num_late=tally.num_late,
        num_refused=tally.num_refused,
        num_expired=tally.num_expired,
        lasting_s=lasting_s,
        latency_p50_s=tally.latencies.quantile(0.5),
        latency_p99_s=tally.latencies.quantile(0.99),
        num_by_pool=num_by_pool,
    )


def _fleet(
    pool: FixedPool, num_gateways: int, beside: SimulatedPool | None = None, *, shares_device: bool = False
) -> SimulatedPool:
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
        ),
        num_gateways,
        beside,
    )
    fleet.begin_with(number)
    if shares_device and beside is None:
        for server in fleet.ready:
            server.device = Device()
    return fleet
