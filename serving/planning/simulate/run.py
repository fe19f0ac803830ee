"""One policy over one run of requests: arrivals, executions, servers that come and go, and a look at the demand every second.

Deciding is not here: requests go through `choose` and `PoolQueue`, pools through `bridge.step`, servers through `wake.want`, as in the
gateway. Requests that come in one slot are decided once and sent in executions of at most the chosen pool's batch. Rule: nothing here may
know what a gateway could not; only the oracle's plan is made beforehand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

from serving.planning.simulate.arrivals import Arrival
from serving.planning.simulate.fleet import Fleet
from serving.planning.simulate.oracle import Plan, demands, peak_gpus, plan
from serving.planning.simulate.outcome import Moment, Outcome, Tally
from serving.planning.simulate.scaling import Scaler
from serving.planning.simulate.servers import Server
from serving.planning.simulate.setting import Policy, PoolSetting, Setting
from serving.planning.wake import Needed
from serving.scheduling.bridge import ALWAYS_WARM, Bridge, Demand, step
from serving.scheduling.choice import Candidate, choose, turn_of
from serving.scheduling.line import Ticket

TICK_S = 1.0
NUM_MOMENTS = 240  # points of the picture
LEARN_EVERY = 8  # answers: with the same belief most of them say the same


def simulate(
    setting: Setting,
    policy: Policy,
    arrivals: Callable[[], Iterable[Arrival]],
    duration_s: float,
    *,
    chance: Callable[[], float],
    stretch: Callable[[], float] | None = None,
) -> Outcome:
    """`chance`: numbers in 0..1, for cold starts; `stretch`: how many times as long as its curve says an execution takes."""
    slots = demands(arrivals(), setting, duration_s)
    return Run(setting, policy, slots, duration_s, chance, stretch).through(arrivals())


class Run:
    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        slots: list[Needed],
        duration_s: float,
        chance: Callable[[], float],
        stretch: Callable[[], float] | None,
    ) -> None:
        self._policy, self._chance, self._stretch, self._duration_s = policy, chance, stretch, duration_s
        self._setting = setting = _for_policy(setting, policy, slots)
        self._cpu, self._gpu = Fleet(setting.cpu), Fleet(setting.gpu)
        future = plan(slots, setting) if policy.scaler == "oracle" else Plan((0,), (0,))
        self._scaler = Scaler(policy, setting, slots, future)
        num_cpu, num_gpu = self._scaler.first
        self._cpu.begin_with(num_cpu)
        self._gpu.begin_with(num_gpu)
        self._bridge = ALWAYS_WARM if num_gpu or not policy.has_cpu else Bridge()
        on_cpu = Candidate(self._cpu.queue, setting.cpu.service, setting.cpu.price_per_hour)
        on_gpu = Candidate(self._gpu.queue, setting.gpu.service, setting.gpu.price_per_hour, share=self._bridge.share)
        self._on_gpu = on_gpu
        self._candidates = {on_cpu.queue: on_cpu, on_gpu.queue: on_gpu}
        self._offered = (
            [on_cpu, on_gpu] if policy.has_cpu and policy.scaler != "none" else [on_cpu if policy.has_cpu else on_gpu]
        )
        self._demands = (Demand(), Demand(), Demand())  # on CPU, on GPU, on GPU alone
        self._costs = (
            setting.cpu.service.cost_s(setting.rows),
            setting.gpu.service.cost_s(setting.rows),
            setting.gpu.service.cost_s(setting.rows)
            if setting.cpu.service.seconds(setting.rows) > setting.objective_s
            else 0.0,
        )
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = count()
        self._tally = Tally()
        self._moment = Moment(0.0)
        self._num_requests = self._num_decided = self._num_answered = 0

    def through(self, arrivals: Iterable[Arrival]) -> Outcome:
        tick = 0.0
        for now, came, number in arrivals:
            while tick <= now:
                self._until(tick)
                self._look(tick)
                tick += TICK_S
            self._until(now)
            self._arrive(now, came, number)
        while tick <= self._duration_s:
            self._until(tick)
            self._look(tick)
            tick += TICK_S
        return self._end(self._duration_s)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _arrive(self, now: float, came: float, number: int) -> None:
        self._num_requests += number
        self._moment.num_requests += number
        self._scaler.came(now)
        for demand, cost_s in zip(self._demands, self._costs, strict=True):
            if cost_s:
                demand.note(now, cost_s * number)
        if self._policy.holds:
            self._hold(now, came, number)
            return
        rows, deadline = self._setting.rows, came + self._setting.objective_s
        while number:
            self._num_decided += 1
            chosen = choose(now, self._offered, rows, deadline, turn=turn_of(self._num_decided))
            if chosen is None:
                self._tally.num_refused += number
                self._violated(number)
                return
            candidate = chosen.candidate
            taken = self._together(now, candidate, deadline, number)
            self._tally.reasons[chosen.reason] = self._tally.reasons.get(chosen.reason, 0) + taken
            candidate.queue.admit((came, taken), candidate.service, rows * taken, deadline)
            self._send(now, candidate)
            number -= taken

    def _together(self, now: float, candidate: Candidate, deadline: float, number: int) -> int:
        """How many of these equal requests go in one execution and are in time."""
        rows, service = self._setting.rows, candidate.service
        taken = min(number, max(1, int(service.max_batch / rows)))
        while taken > 1 and candidate.queue.finish(now, service, rows * taken, deadline) is None:
            taken //= 2
        return taken

    def _hold(self, now: float, came: float, number: int) -> None:
        rows, service = self._setting.rows, self._on_gpu.service
        self._tally.reasons["only_pool"] = self._tally.reasons.get("only_pool", 0) + number
        while number:
            taken = min(number, max(1, int(service.max_batch / rows)))
            self._on_gpu.queue.admit((came, taken), service, rows * taken, inf)
            number -= taken
        self._send(now, self._on_gpu)

    def _send(self, now: float, candidate: Candidate) -> None:
        fleet = self._cpu if candidate.queue is self._cpu.queue else self._gpu
        while (ticket := fleet.queue.take(now)) is not None:
            if ticket.replica is None:
                self._expired(ticket)
                continue
            server = fleet.by_name[ticket.replica.name]
            server.waiting.append(ticket)
            self._execute(now, fleet, server)

    def _execute(self, now: float, fleet: Fleet, server: Server) -> None:
        while (begun := server.begin(1.0 if self._stretch is None else self._stretch())) is not None:
            seconds, batch = begun
            heapq.heappush(self._events, (now + seconds, next(self._number), "done", (fleet, server, batch)))

    def _done(self, now: float, fleet: Fleet, server: Server, batch: list[Ticket]) -> None:
        server.end()
        candidate = self._candidates[fleet.queue]
        for ticket in batch:
            actual_s = fleet.queue.answered(now, ticket)
            self._num_answered += 1
            if self._num_answered % LEARN_EVERY == 0:
                candidate.learn(ticket, actual_s)
            self._answered(now, *ticket.request)
        self._execute(now, fleet, server)
        fleet.went_idle(now, server)
        self._send(now, candidate)

    def _answered(self, now: float, came: float, number: int) -> None:
        latency_s = now - came
        self._tally.latencies.add(latency_s, number)
        if latency_s <= self._setting.objective_s + 1e-9:
            self._tally.num_in_time += number
        else:
            self._tally.num_late += number
            self._violated(number)

    def _expired(self, ticket: Ticket) -> None:
        number = ticket.request[1]
        self._tally.num_expired += number
        self._violated(number)

    def _violated(self, number: int) -> None:
        self._moment.num_violated += number

    # -- servers ------------------------------------------------------------------------------------------------------

    def _until(self, now: float) -> None:
        events = self._events
        while events and events[0][0] <= now:
            at, _, kind, what = heapq.heappop(events)
            if kind == "done":
                self._done(at, *what)
            else:
                fleet, server = what
                fleet.came(server)
                self._cross(at)
                self._send(at, self._candidates[fleet.queue])

    def _look(self, now: float) -> None:
        """What a gateway and a scaler do every second."""
        needed = Needed(*(demand.replicas(now) for demand in self._demands))
        num_ready = len(self._gpu.ready)
        num_cpu, num_gpu = self._scaler.wanted(now, needed, num_ready + len(self._gpu.coming), num_ready)
        for fleet, number in ((self._cpu, num_cpu), (self._gpu, num_gpu)):
            for ready_at, server in fleet.scale(now, number, lambda f=fleet: self._cold_start_s(f)):  # type: ignore[misc]
                heapq.heappush(self._events, (ready_at, next(self._number), "ready", (fleet, server)))
            for ticket in fleet.queue.expired(now):
                self._expired(ticket)
        self._cross(now)
        self._note(now)

    def _cold_start_s(self, fleet: Fleet) -> float:
        return (
            fleet.setting.cold_start.mean_s
            if self._policy.scaler == "oracle"
            else fleet.setting.cold_start.at(self._chance())
        )

    def _cross(self, now: float) -> None:
        """Traffic goes over to the GPU, or leaves it."""
        if not self._policy.has_cpu or self._policy.scaler == "none":
            return
        after = step(
            self._bridge, now, len(self._gpu.ready), len(self._gpu.ready) + len(self._gpu.coming), self._setting.bridge
        )
        self._tally.num_handovers += after.state == "ready" and self._bridge.state != "ready"
        self._bridge = after
        self._on_gpu.share = after.share

    # -- books --------------------------------------------------------------------------------------------------------

    def _note(self, now: float) -> None:
        moment = self._moment
        moment.num_cpu, moment.num_gpu, moment.num_cold = (
            len(self._cpu.ready),
            len(self._gpu.ready),
            len(self._gpu.coming),
        )
        if now - moment.at_s >= self._duration_s / NUM_MOMENTS:
            self._tally.timeline.append(moment)
            self._moment = Moment(now)

    def _end(self, now: float) -> Outcome:
        self._until(now + self._setting.objective_s)  # what came in the last moment
        tally = self._tally
        in_hand = self._num_requests - tally.num_in_time - tally.num_late - tally.num_refused - tally.num_expired
        tally.num_late += in_hand  # not answered by now: not in time
        for fleet in (self._cpu, self._gpu):
            fleet.close(now)
        if self._moment.num_requests or not tally.timeline:
            tally.timeline.append(self._moment)
        cpu_h, gpu_h = self._cpu.paid_s / 3600, self._gpu.paid_s / 3600
        answers = tally.latencies
        return Outcome(
            policy=self._policy.name,
            duration_s=self._duration_s,
            num_requests=self._num_requests,
            num_in_time=tally.num_in_time,
            num_late=tally.num_late,
            num_refused=tally.num_refused,
            num_expired=tally.num_expired,
            cost=cpu_h * self._setting.cpu.price_per_hour + gpu_h * self._setting.gpu.price_per_hour,
            cpu_hours=cpu_h,
            gpu_hours=gpu_h,
            num_gpu_starts=self._gpu.num_starts,
            num_handovers=tally.num_handovers,
            latency_mean_s=answers.sum_s / answers.total if answers.total else None,
            latency_p50_s=answers.quantile(0.5),
            latency_p99_s=answers.quantile(0.99),
            reasons=tuple(sorted(tally.reasons.items())),
            timeline=tuple(tally.timeline),
        )


def _for_policy(setting: Setting, policy: Policy, slots: list[Needed]) -> Setting:
    """Without the servers that the policy does not use."""
    cpu: PoolSetting = setting.cpu if policy.has_cpu else setting.cpu.at_most(0)
    gpu: PoolSetting = setting.gpu.at_most(0) if policy.scaler == "none" else setting.gpu
    if policy.scaler == "oracle":
        cpu = replace(cpu, min_replicas=0)  # nobody needs a reserve who knows what comes
    if policy.scaler == "always":
        number = peak_gpus(slots, setting)
        gpu = replace(gpu, min_replicas=number, max_replicas=number)
    return replace(setting, cpu=cpu, gpu=gpu)
