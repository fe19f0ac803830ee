"""One policy over one run of requests: what happens at which time?

Every second the demand is looked at, as a gateway and a scaler do, and servers are asked for or told to go; in between requests come and
are answered (`requests.py`), all of them or a part of each second (`arrivals.py`). Rule: only a plan is made beforehand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from serving.decisions.fleet import Load
from serving.decisions.simulate.arrivals import Arrivals, Sampling, num_seconds
from serving.decisions.simulate.oracle import Costs, Plan, Scaler, demands, peak_gpus, plan
from serving.decisions.simulate.outcome import Outcome, Tally
from serving.decisions.simulate.pool import Server, SimulatedPool
from serving.decisions.simulate.requests import RequestFlow, Stretch
from serving.decisions.simulate.scenario import POLICIES, Policy, PoolSetting, Setting
from serving.scheduling.bridge import ALWAYS_WARM, Bridge, Demand, step

NUM_MOMENTS = 240  # points of the picture
NO_PLAN = Plan((0,), (0,))


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
        slots: list[Load],
        draws: Draws,
        *,
        per_second: int | None = None,
        plan: Plan = NO_PLAN,
    ) -> None:
        """`slots`: the demand, for what is sized beforehand; `plan`: of the oracle."""
        self._policy, self._arrivals, self._draws = policy, arrivals, draws
        self._setting = setting = _for_policy(setting, policy, slots)
        self._cpu, self._gpu = SimulatedPool(setting.cpu), SimulatedPool(setting.gpu)
        self._scaler = Scaler(policy, setting, slots, plan)
        num_cpu, num_gpu = self._scaler.first
        self._cpu.begin_with(num_cpu)
        self._gpu.begin_with(num_gpu)
        self._bridge = ALWAYS_WARM if num_gpu or not policy.has_cpu else Bridge()
        self._gpu.candidate.share = self._bridge.share
        self._costs = Costs(setting, policy)
        self._demands = (Demand(), Demand(), Demand(), Demand())  # on CPU, on GPU, on GPU alone, on CPU alone
        self._coming: list[tuple[float, int, SimulatedPool, Server]] = []
        self._number = count()
        self.tally = Tally(setting.objective_s, arrivals.duration_s / NUM_MOMENTS)
        used = setting.used_by(policy)
        self._used = [fleet for fleet in (self._cpu, self._gpu) if fleet.setting in used]
        self._answering = RequestFlow(self._used, setting.objective_s, self.tally, draws.stretch)
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
        for demand, cost_s in zip(self._demands, self._costs.of(asked).each, strict=True):
            demand.note((second + end) / 2, cost_s)
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
        needed = Load(*(demand.replicas(now) for demand in self._demands))
        num_ready = len(self._gpu.ready)
        wanted = self._scaler.wanted(now, needed, self._gpu.num_asked, num_ready)
        for fleet, number in zip((self._cpu, self._gpu), wanted, strict=True):
            before = len(fleet.ready)
            for ready_at, server in fleet.scale(now, number, lambda f=fleet: self._cold_start_s(f)):  # type: ignore[misc]
                heapq.heappush(self._coming, (ready_at, next(self._number), fleet, server))
            if len(fleet.ready) != before:
                self._changed(now)
            answering.drop_expired(now - answering.skipped_s, fleet)
        self._cross(now)
        self.tally.note(now, len(self._cpu.ready), len(self._gpu.ready), len(self._gpu.coming))

    def _cold_start_s(self, fleet: SimulatedPool) -> float:
        cold_start = fleet.setting.cold_start
        return cold_start.mean_s if self._policy.scaler == "oracle" else cold_start.at(self._draws.cold_start())

    def _cross(self, now: float) -> None:
        """Traffic goes over to the GPU, or leaves it."""
        if len(self._used) < 2:
            return
        after = step(self._bridge, now, len(self._gpu.ready), self._gpu.num_asked, self._setting.bridge)
        self.tally.num_handovers += after.state == "ready" and self._bridge.state != "ready"
        if after.share != self._bridge.share:
            self._changed(now)
        self._bridge = after
        self._gpu.candidate.share = after.share

    def _end(self, now: float) -> Outcome:
        self._until(now + self._setting.objective_s)  # what came in the last moment
        for fleet in (self._cpu, self._gpu):
            fleet.close(now)
        self.tally.close()
        return self.tally.outcome(
            self._policy.name,
            now,
            (self._cpu.paid_s, self._gpu.paid_s),
            (self._setting.cpu.price_per_hour, self._setting.gpu.price_per_hour),
            self._gpu.num_starts,
        )


def _for_policy(setting: Setting, policy: Policy, slots: list[Load]) -> Setting:
    """Without the servers that the policy does not use."""
    cpu: PoolSetting = setting.cpu if policy.has_cpu else setting.cpu.at_most(0)
    gpu: PoolSetting = setting.gpu.at_most(0) if policy.scaler == "none" else setting.gpu
    if policy.scaler == "oracle":  # nobody needs a reserve who knows what comes
        cpu, gpu = replace(cpu, min_replicas=0), replace(gpu, min_replicas=0)
    if policy.scaler == "always":
        number = peak_gpus(slots, setting)
        gpu = replace(gpu, min_replicas=number, max_replicas=number)
    return replace(setting, cpu=cpu, gpu=gpu)


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
    slots = demands(arrivals, setting, policy)
    if policy.scaler != "oracle":
        return Run(setting, policy, arrivals, slots, draws(), per_second=per_second).through()
    known = {outcome.policy: outcome for outcome in rivals}
    others = [
        known.get(other.name) or simulate(setting, other, arrivals, draws, per_second=per_second)
        for other in POLICIES
        if other.scaler != "oracle"
    ]

    def attempt(planned: Plan) -> Run:
        return Run(setting, policy, arrivals, slots, draws(), per_second=per_second, plan=planned)

    best = min((*others, *_tries(setting, slots, attempt)), key=lambda o: (o.num_violations, round(o.cost, 9)))
    return replace(best, policy=policy.name)


def _tries(setting: Setting, slots: list[Load], attempt: Callable[[Plan], Run]) -> list[Outcome]:
    # A reserve is for who does not know.
    free = replace(setting, cpu=replace(setting.cpu, min_replicas=0), gpu=replace(setting.gpu, min_replicas=0))
    factors = [setting.wake.max_load_ratio / FIRST_LOAD_RATIO] * len(slots)
    planned = plan(_more(slots, factors), free)
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
            planned = plan(_more(slots, factors), free)
            if planned != before:
                break
        else:
            break  # there are no more servers
    return outcomes


def _more(slots: list[Load], factors: list[float]) -> list[Load]:
    return [Load(*(servers * factor for servers in slot.each)) for slot, factor in zip(slots, factors, strict=True)]
