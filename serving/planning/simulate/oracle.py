"""What would somebody who knows the future do? A plan of servers for every slot, and the peak that always-warm servers are sized for.

Dynamic programming over slots: the first aim is that nothing is short, the second the price, cold starts included. It sizes with the same
rules as everybody, so it differs by what it knows and not by how close to the edge it goes. Rule: an oracle is for comparison alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from serving.planning.prices import HOUR_S
from serving.planning.simulate.arrivals import Arrival
from serving.planning.simulate.setting import Setting
from serving.planning.wake import Mix, Needed, mix

SLOT_S = 10.0  # the window in which demand is measured, too
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


def demands(arrivals: Iterable[Arrival], setting: Setting, duration_s: float) -> list[Needed]:
    """What each slot needs, as `wake` is told it."""
    counts = [0] * (int(duration_s / SLOT_S) + 1)
    for now, _, count in arrivals:
        counts[min(int(now / SLOT_S), len(counts) - 1)] += count
    return [needed(setting, count / SLOT_S) for count in counts]


def needed(setting: Setting, rate_rps: float) -> Needed:
    rows, cpu, gpu = setting.rows, setting.cpu.service, setting.gpu.service
    on_gpu = rate_rps * gpu.cost_s(rows)
    return Needed(rate_rps * cpu.cost_s(rows), on_gpu, on_gpu if cpu.seconds(rows) > setting.objective_s else 0.0)


def peak_gpus(slots: list[Needed], setting: Setting) -> int:
    """GPU servers that carry every slot alone."""
    most = max((slot.gpu for slot in slots), default=0.0)
    return min(max(1, ceil(most / setting.wake.max_load_ratio - 1e-9)), setting.gpu.max_replicas)


def plan(slots: list[Needed], setting: Setting) -> Plan:
    cpu, gpu, rules = setting.cpu.supply, setting.gpu.supply, setting.wake
    numbers = range(gpu.min_replicas, gpu.max_replicas + 1)
    start_price = gpu.price_per_hour * gpu.cold_start_s / HOUR_S
    costs = {number: start_price * number for number in numbers}
    came_from: list[dict[int, int]] = []
    kept: dict[Needed, dict[int, Mix]] = {}
    for slot in slots:
        mixes = kept.setdefault(slot, {n: mix(n, slot, cpu, gpu, rules) for n in numbers} if slot not in kept else {})
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


def first_mix(slots: list[Needed], setting: Setting) -> Mix:
    """CPU servers for the first minute, and no GPU."""
    first = slots[: ceil(60 / SLOT_S)] or [Needed(0, 0)]
    mean = Needed(sum(s.cpu for s in first) / len(first), sum(s.gpu for s in first) / len(first))
    return mix(0, mean, setting.cpu.supply, setting.gpu.supply, setting.wake)
