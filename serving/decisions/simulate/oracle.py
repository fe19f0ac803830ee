"""Which servers does a known demand need? A plan for every slot of time, and the peak that always-warm servers are sized for.

Dynamic programming over slots: the first aim is that nothing is short, the second the price, cold starts included. How close to the edge
servers may be loaded comes in with the demand. What a policy wants at each moment stands at the end. Rule: what is known here beforehand
is for comparison alone; it is not proven best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from serving.decisions.fleet import Fleet, Load, with_gpus
from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.arrivals import Arrivals, num_seconds
from serving.decisions.simulate.outcome import SLOT_S
from serving.decisions.simulate.scenario import Policy, Setting
from serving.decisions.wake import Target, next_target
from serving.scheduling.choice import able, that_take

SHORT_PRICE = 1e6  # of an hour in which all is short: more than any server


@dataclass(frozen=True, slots=True)
class Plan:
    """Servers per slot of `SLOT_S`."""

    cpu: tuple[int, ...]
    gpu: tuple[int, ...]

    def most(self, now: float, ahead_s: float) -> tuple[int, int]:
        """Of each kind, at any time from now on until so far ahead."""
        last = len(self.gpu) - 1
        first, end = min(int(now / SLOT_S), last), min(int((now + ahead_s) / SLOT_S), last) + 1
        return max(self.cpu[first:end]), max(self.gpu[first:end])


class Costs:
    """What a request takes of the pools that a policy uses, told once for each number of rows; by `able`, as in the gateway."""

    def __init__(self, setting: Setting, policy: Policy) -> None:
        self._cpu, self._gpu, self._objective_s = setting.cpu, setting.gpu, setting.objective_s
        self._pools = setting.used_by(policy)
        self._known: dict[float, Load] = {}

    def of(self, asked: Mapping[float, int]) -> Load:
        """Seconds of one server on CPU, on GPU, and of both those that only it can answer in time."""
        cpu_s = gpu_s = gpu_only_s = cpu_only_s = 0.0
        for rows, number in asked.items():
            one = self._known.get(rows) or self._add(rows)
            cpu_s, gpu_s = cpu_s + one.cpu * number, gpu_s + one.gpu * number
            gpu_only_s, cpu_only_s = gpu_only_s + one.gpu_only * number, cpu_only_s + one.cpu_only * number
        return Load(cpu_s, gpu_s, gpu_only_s, cpu_only_s)

    def _add(self, rows: float) -> Load:
        pools = able(that_take(self._pools, rows), rows, self._objective_s)
        cpu_s = self._cpu.service.cost_s(rows) if self._cpu in pools else 0.0
        gpu_s = self._gpu.service.cost_s(rows) if self._gpu in pools else 0.0
        self._known[rows] = one = Load(cpu_s, gpu_s, 0.0 if cpu_s else gpu_s, 0.0 if gpu_s else cpu_s)
        return one


def demands(arrivals: Arrivals, setting: Setting, policy: Policy) -> list[Load]:
    """What each slot needs, as `wake` is told it."""
    costs = Costs(setting, policy)
    slots = [[0.0, 0.0, 0.0, 0.0] for _ in range(int(arrivals.duration_s / SLOT_S) + 1)]
    for second in range(num_seconds(arrivals)):
        slot = slots[int(second / SLOT_S)]
        for at, seconds in enumerate(costs.of(arrivals.asked(second)).each):
            slot[at] += seconds / SLOT_S
    return [Load(*slot) for slot in slots]


def peak_gpus(slots: list[Load], setting: Setting) -> int:
    """GPU servers that carry every slot alone."""
    most = max((slot.gpu for slot in slots), default=0.0)
    return min(max(1, ceil(most / setting.wake.max_load_ratio - 1e-9)), setting.gpu.max_replicas)


def plan(slots: list[Load], setting: Setting) -> Plan:
    cpu, gpu, rules = setting.cpu.supply, setting.gpu.supply, setting.wake
    numbers = range(gpu.min_replicas, gpu.max_replicas + 1)
    start_price = gpu.price_per_hour * gpu.cold_start_s / HOUR_S
    costs = {number: start_price * number for number in numbers}
    came_from: list[dict[int, int]] = []
    kept: dict[Load, dict[int, Fleet]] = {}
    for slot in slots:
        mixes = kept.setdefault(
            slot, {n: with_gpus(n, slot, cpu, gpu, rules.max_load_ratio) for n in numbers} if slot not in kept else {}
        )
        before = {n: _cheapest_from(costs, n, start_price) for n in numbers}
        came_from.append({n: origin for n, (_, origin) in before.items()})
        costs = {
            n: before[n][0] + (mixes[n].price_per_hour + SHORT_PRICE * mixes[n].short) * SLOT_S / HOUR_S
            for n in numbers
        }
    number = min(costs, key=lambda n: (costs[n], n)) if slots else 0
    chosen = []
    for slot, origins in zip(reversed(slots), reversed(came_from), strict=True):
        chosen.append((kept[slot][number].num_cpu, number))
        number = origins[number]
    chosen.reverse()
    return Plan(tuple(c for c, _ in chosen) or (0,), tuple(g for _, g in chosen) or (0,))


def _cheapest_from(costs: dict[int, float], number: int, start_price: float) -> tuple[float, int]:
    """The price of having had another number before, with the starts that lead to this one."""
    best = (inf, number)
    for before, cost in costs.items():
        best = min(best, (cost + start_price * max(0, number - before), before))
    return best


def first_mix(slots: list[Load], setting: Setting) -> Fleet:
    """CPU servers for the first minute, and no GPU."""
    first = slots[: ceil(60 / SLOT_S)] or [Load(0, 0)]
    mean = Load(*(sum(each) / len(first) for each in zip(*(slot.each for slot in first), strict=True)))
    return with_gpus(0, mean, setting.cpu.supply, setting.gpu.supply, setting.wake.max_load_ratio)


class Scaler:
    def __init__(self, policy: Policy, setting: Setting, slots: list[Load], plan: Plan) -> None:
        self._policy, self._setting, self._plan = policy, setting, plan
        self.first = self._first(slots)
        self._wanted = Target(*self.first)
        self._last_came = -inf

    def came(self, now: float) -> None:
        self._last_came = now

    def wanted(self, now: float, needed: Load, num_gpu: int, num_gpu_ready: int) -> tuple[int, int]:
        """CPU and GPU servers; `num_gpu` counts those on their way, too."""
        setting, scaler = self._setting, self._policy.scaler
        if scaler == "oracle":
            return self._foreseen(now)
        if scaler == "always":
            return 0, setting.gpu.min_replicas
        if scaler == "demand":
            return 0, self._by_demand(now, needed, num_gpu)
        cpu, gpu = setting.cpu.supply, setting.gpu.supply
        self._wanted = next_target(self._wanted, now, needed, cpu, gpu, num_gpu_ready, setting.wake)
        return self._wanted.cpu, self._wanted.gpu

    def _first(self, slots: list[Load]) -> tuple[int, int]:
        setting, policy = self._setting, self._policy
        if policy.scaler == "oracle":
            return self._foreseen(0.0)  # before time began it knew, too
        num_cpu = setting.cpu.first_replicas
        if num_cpu is None or not policy.has_cpu:
            num_cpu = first_mix(slots, setting).num_cpu if policy.has_cpu else 0
        return num_cpu, setting.gpu.min_replicas

    def _foreseen(self, now: float) -> tuple[int, int]:
        """Asked for a cold start and a handover ahead, and kept while needed again within that time."""
        setting = self._setting
        cpu_ahead_s = setting.cpu.cold_start.mean_s + SLOT_S
        gpu_ahead_s = setting.gpu.cold_start.mean_s + setting.bridge.settle_s + setting.bridge.ramp_s + SLOT_S
        return self._plan.most(now, cpu_ahead_s)[0], self._plan.most(now, gpu_ahead_s)[1]

    def _by_demand(self, now: float, needed: Load, num_gpu: int) -> int:
        """As many as the demand needs, at once; to none after the cool-down, and not to fewer before."""
        if now - self._last_came > self._setting.cooldown_s:
            return self._setting.gpu.min_replicas
        wanted = ceil(needed.gpu / self._setting.wake.max_load_ratio - 1e-9)
        return min(max(1, wanted, num_gpu), self._setting.gpu.max_replicas) if self._last_came > -inf else num_gpu
