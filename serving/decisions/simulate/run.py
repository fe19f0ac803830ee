"""One policy over one run of requests: what happens at which time?

Every second the demand is looked at, as a gateway and a scaler do, and servers are asked for or told to go; in between requests come and
are answered (`requests.py`), all of them or a part of each second (`arrivals.py`). Rule: only a plan is made beforehand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from serving.decisions.demand import Demand as PoolDemand
from serving.decisions.demand import Demands
from serving.decisions.simulate.arrivals import Arrivals, Sampling, num_seconds
from serving.decisions.simulate.oracle import Costs, Plan, Scaler, Work, demands, peak, plan, times
from serving.decisions.simulate.outcome import Outcome, Tally
from serving.decisions.simulate.pool import Server, SimulatedPool
from serving.decisions.simulate.requests import RequestFlow, Stretch
from serving.decisions.simulate.scenario import POLICIES, Policy, Setting
from serving.scheduling.bridge import ALWAYS_WARM, SHARED_BY, Bridge, Demand, step

NUM_MOMENTS = 240  # points of the picture
NO_PLAN = Plan()


@dataclass(frozen=True, slots=True)
class Draws:
    """Where chance comes from. `cold_start`: numbers in 0..1; `stretch`: of an execution, for a pool with noise."""

    cold_start: Callable[[], float]
    stretch: Stretch | None = None


class Run:
    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        arrivals: Arrivals,
        slots: Sequence[Work],
        draws: Draws,
        *,
        per_second: int | None = None,
        plan: Plan = NO_PLAN,
    ) -> None:
        """`setting`: as `for_policy` makes it; `slots`: the demand, for what is sized beforehand; `plan`: of the oracle."""
        self._policy, self._arrivals, self._draws, self._setting = policy, arrivals, draws, setting
        self._pools = {it.name: SimulatedPool(it) for it in setting.pools}
        self._scaler = Scaler(policy, setting, slots, plan)
        self._bridges: dict[str, Bridge] = {}  # of pools that come and go beside some that are always there
        for name, pool in self._pools.items():
            pool.begin_with(self._scaler.first[name])
            if pool.setting.has_gpu and setting.cpus:
                self._bridges[name] = ALWAYS_WARM if self._scaler.first[name] else Bridge()
                pool.candidate.share = self._bridges[name].share
        self._costs = Costs(setting.pools, setting.objective_s)
        self._meters: dict[tuple[str, ...], tuple[Demand, ...]] = {}  # by pools that may answer, one for each of them
        self._coming: list[tuple[float, int, SimulatedPool, Server]] = []
        self._number = count()
        self.tally = Tally(setting.objective_s, arrivals.duration_s / NUM_MOMENTS)
        self._answering = RequestFlow(list(self._pools.values()), setting.objective_s, self.tally, draws.stretch)
        self._sampling = Sampling(per_second, setting.objective_s)

    def through(self) -> Outcome:
        for second in range(num_seconds(self._arrivals)):
            self._until(second)
            self._look(second)
            self._second(second)
        end_s = self._arrivals.duration_s
        self._until(end_s)
        self._look(end_s)
        return self._end(end_s)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _second(self, second: int) -> None:
        """All that comes in it."""
        answering, end = self._answering, min(second + 1.0, self._arrivals.duration_s)
        asked = self._arrivals.asked(second)
        number = sum(asked.values())
        if number:
            self._scaler.came(second)
        for names, costs_s in self._costs.of(asked).items():
            meters = self._meters.setdefault(names, tuple(Demand() for _ in names))
            for meter, cost_s in zip(meters, costs_s, strict=True):
                meter.note((second + end) / 2, cost_s)
        if self._sampling.is_new(number):
            self._changed(second)
        take = answering.hold if self._policy.holds else answering.ask
        looked_until = float(second)
        for begin, until, weight in self._sampling.pieces(second, end, number):
            self._skip(looked_until, begin)
            for at, rows in self._arrivals.between(begin, until):
                self._until(at)
                take(at - answering.skipped_s, rows, weight)
            self._until(until)
            looked_until = until
        self._skip(looked_until, end)

    def _skip(self, now: float, to: float) -> None:
        """Requests' time stands still from now on until then."""
        if to > now:
            self._answering.skipped_s += to - now

    def _changed(self, now: float) -> None:
        """What requests meet is another from now on."""
        if self._sampling.is_partial:
            self._sampling.changed(now)
            self._answering.forget()

    # -- servers ------------------------------------------------------------------------------------------------------

    def _until(self, now: float) -> None:
        """Ends executions, and lets servers come, until this time on the wall."""
        answering = self._answering
        while self._coming and self._coming[0][0] <= now:
            at, _, fleet, server = heapq.heappop(self._coming)
            answering.until(at - answering.skipped_s)
            if fleet.came(server):
                self._cross(at)
                self._changed(at)
                answering.send(answering.now, fleet)
        answering.until(now - answering.skipped_s)

    def _look(self, now: float) -> None:
        """What a gateway and a scaler do every second."""
        answering = self._answering
        answering.drain(now - answering.skipped_s, 1.0)
        asked = {name: pool.num_asked for name, pool in self._pools.items()}
        wanted = self._scaler.wanted(now, self._told(now), asked)
        for name, pool in self._pools.items():
            before = len(pool.ready)
            for ready_at, server in pool.scale(now, wanted[name], lambda it=pool: self._cold_start_s(it)):  # type: ignore[misc]
                heapq.heappush(self._coming, (ready_at, next(self._number), pool, server))
            if len(pool.ready) != before:
                self._changed(now)
            answering.drop_expired(now - answering.skipped_s, pool)
        self._cross(now)
        self.tally.note(now, self._pools.values())

    def _told(self, now: float) -> Demands:
        """What gateways would tell of each pool."""
        work = {
            names: dict(zip(names, (it.replicas(now) for it in meters), strict=True))
            for names, meters in self._meters.items()
        }
        found = {}
        for name, pool in self._pools.items():
            here = {names: servers[name] for names, servers in work.items() if name in servers}
            only = 0.0 if len(self._pools) == 1 else here.get((name,), 0.0)
            shared = {SHARED_BY.join(names): it for names, it in here.items() if 1 < len(names) < len(self._pools)}
            found[name] = PoolDemand(sum(here.values()), only, len(pool.ready), 0.0, shared)
        return found

    def _cold_start_s(self, pool: SimulatedPool) -> float:
        cold_start = pool.setting.cold_start
        return cold_start.mean_s if self._policy.scaler == "oracle" else cold_start.at(self._draws.cold_start())

    def _cross(self, now: float) -> None:
        """Traffic goes over to pools that come and go, or leaves them."""
        for name, before in self._bridges.items():
            pool = self._pools[name]
            after = step(before, now, len(pool.ready), pool.num_asked, self._setting.bridge)
            self.tally.num_handovers += after.state == "ready" and before.state != "ready"
            if after.share != before.share:
                self._changed(now)
            self._bridges[name] = after
            pool.candidate.share = after.share

    def _end(self, now: float) -> Outcome:
        self._until(now + self._setting.objective_s)  # what came in the last moment
        for pool in self._pools.values():
            pool.close(now)
        self.tally.close()
        return self.tally.outcome(self._policy.name, now, self._pools.values())


def for_policy(setting: Setting, policy: Policy) -> Setting:
    """With the pools that the policy uses. Nobody needs a reserve who knows what comes."""
    pools = setting.used_by(policy)
    if policy.scaler == "oracle":
        pools = tuple(replace(it, min_replicas=0) for it in pools)
    return replace(setting, pools=pools)


def _always(setting: Setting, slots: Sequence[Work]) -> Setting:
    number = peak(slots, setting)
    return replace(
        setting,
        pools=tuple(replace(it, min_replicas=number[it.name], max_replicas=number[it.name]) for it in setting.pools),
    )


MAX_TRIES = 8
FIRST_LOAD_RATIO = 0.9  # of a server; what that makes late is tried again with more
MORE = 1.3  # servers for a slot that had too few
MAX_RAISES = 10  # until the plan is another: 1.3¹⁰ is 14 times the servers


def simulate(
    setting: Setting,
    policy: Policy,
    arrivals: Arrivals,
    draws: Callable[[], Draws],
    *,
    per_second: int | None = None,
    rivals: Sequence[Outcome] = (),
) -> Outcome:
    """`draws` gives the same chance at every call. `rivals`: what other policies did, if it is known; only the oracle asks."""
    own = for_policy(setting, policy)
    slots = demands(arrivals, own)
    if policy.scaler == "always":
        own = _always(own, slots)
    if policy.scaler != "oracle":
        return Run(own, policy, arrivals, slots, draws(), per_second=per_second).through()
    known = {outcome.policy: outcome for outcome in rivals}
    others = [
        known.get(other.name) or simulate(setting, other, arrivals, draws, per_second=per_second)
        for other in POLICIES
        if other.scaler != "oracle"
    ]

    def attempt(planned: Plan) -> Run:
        return Run(own, policy, arrivals, slots, draws(), per_second=per_second, plan=planned)

    best = min((*others, *_tries(own, slots, attempt)), key=lambda o: (o.num_violations, round(o.cost, 9)))
    return replace(best, policy=policy.name)


def _tries(setting: Setting, slots: Sequence[Work], attempt: Callable[[Plan], Run]) -> list[Outcome]:
    factors = [setting.wake.max_load_ratio / FIRST_LOAD_RATIO] * len(slots)
    planned = plan(_more(slots, factors), setting)
    outcomes: list[Outcome] = []
    for _ in range(MAX_TRIES):
        run = attempt(planned)
        outcomes.append(run.through())
        if not run.tally.violations:
            break
        short = {near for slot in run.tally.violations for near in (slot - 1, slot)}
        before = planned
        for _ in range(MAX_RAISES):
            factors = [factor * MORE if at in short else factor for at, factor in enumerate(factors)]
            planned = plan(_more(slots, factors), setting)
            if planned != before:
                break
        else:
            break  # there are no more servers
    return outcomes


def _more(slots: Sequence[Work], factors: Sequence[float]) -> list[Work]:
    return [times(slot, factor) for slot, factor in zip(slots, factors, strict=True)]
