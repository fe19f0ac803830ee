"""How many servers should each pool have now, and when does waking the GPU pay?

For a demand there is a cheapest mix of servers. Changing to it costs a cold start, so the change waits until staying has cost as much as
the change would: the rule for renting skis, which never pays more than twice what knowing the future would have cost. Too little for
the demand is no matter of price: then it wakes after a few seconds. What a pool takes that nobody has seen is an upper bound: one server
of it is enough to find out. More pools: `sizes.py`.
Rule: flapping is bounded by not sleeping, never by not waking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from serving.decisions.fleet import EPSILON, Fleet, Load, Supply, cheapest, with_gpus
from serving.decisions.prices import HOUR_S
from serving.settings import SCALING_RULES, ScalingRules


@dataclass(frozen=True, slots=True)
class Target:
    """Servers wanted now, and what must be remembered until the next look: what staying as it is has cost, in which direction."""

    cpu: int
    gpu: int
    at: float = 0.0
    cost_of_staying: float = 0.0  # above 0: of not having more GPUs; below: of having too many
    short_s: float = 0.0  # how long the demand has been more than there is
    gpu_since: float = -inf  # when the number of GPUs last changed
    cpu_low_since: float | None = None
    wakes: tuple[float, ...] = ()


def next_target(
    old: Target,
    now: float,
    needed: Load,
    cpu: Supply,
    gpu: Supply,
    num_gpu_ready: int,
    rules: ScalingRules = SCALING_RULES,
) -> Target:
    """To be asked every second or so."""
    best = advised(needed, cpu, gpu, old.gpu, rules)
    staying = with_gpus(old.gpu, needed, cpu, gpu, rules.max_load_ratio)
    passed_s = max(0.0, now - old.at)
    short_s = old.short_s + passed_s if staying.short > EPSILON else max(0.0, old.short_s - passed_s)
    cost = _cost_of_staying(old, best, staying, passed_s)
    num_gpu, wakes = old.gpu, tuple(at for at in old.wakes if at > now - HOUR_S)
    price_of_change = gpu.price_per_hour * gpu.cold_start_s / HOUR_S * abs(best.num_gpu - old.gpu)
    if best.num_gpu > old.gpu:
        if (cost > 0 and cost >= price_of_change) or (staying.short > best.short and short_s >= rules.patience_s):
            num_gpu, wakes = best.num_gpu, (*wakes, now)
    elif best.num_gpu < old.gpu:
        stays_s = max(rules.hold_s, gpu.min_billing_s)
        is_held = now - old.gpu_since < stays_s or len(wakes) >= rules.max_wakes_per_hour
        if -cost >= price_of_change and not is_held:
            num_gpu = best.num_gpu
    bridging = with_gpus(min(num_gpu, num_gpu_ready), needed, cpu, gpu, rules.max_load_ratio).num_cpu
    hold_s = rules.handover_s if 0 < num_gpu <= num_gpu_ready else rules.cpu_hold_s
    num_cpu, low_since = _cpu(old, now, bridging, max(hold_s, cpu.min_billing_s))
    if num_gpu != old.gpu:
        return Target(num_cpu, num_gpu, now, 0.0, 0.0, now, low_since, wakes)
    return Target(num_cpu, num_gpu, now, cost, short_s, old.gpu_since, low_since, wakes)


def advised(needed: Load, cpu: Supply, gpu: Supply, num_gpu: int, rules: ScalingRules) -> Fleet:
    """The cheapest mix; of GPUs that nobody has seen one, or as many as are needed for sure. `num_gpu` are asked for already.

    That one is also had where it would save money if it took all of which nobody knows: by the upper bound it never would, and nobody
    would ever find out. It goes again when it is known and does not.
    """
    if needed.gpu_unseen <= 0:
        return cheapest(needed, cpu, gpu, rules.max_load_ratio)
    known = replace(needed, gpu=max(needed.gpu - needed.gpu_unseen, needed.gpu_only), gpu_unseen=0.0)
    most = max(1, num_gpu, gpu.min_replicas, cheapest(known, cpu, gpu, rules.max_load_ratio).num_gpu)
    careful = cheapest(needed, cpu, replace(gpu, max_replicas=min(most, gpu.max_replicas)), rules.max_load_ratio)
    if careful.num_gpu > 0 or gpu.max_replicas == 0:
        return careful
    hoped = with_gpus(1, known, cpu, gpu, rules.max_load_ratio)
    return min((careful, hoped), key=lambda m: (round(m.short, 6), m.price, m.num_gpu))


def _cost_of_staying(old: Target, best: Fleet, staying: Fleet, passed_s: float) -> float:
    """More GPUs would be cheaper: it rises. Fewer would: it falls. It begins anew when the direction changes."""
    saved = max(0.0, staying.price_per_hour - best.price_per_hour) * passed_s / HOUR_S
    if best.num_gpu > old.gpu:
        return max(0.0, old.cost_of_staying) + saved
    if best.num_gpu < old.gpu:
        return min(0.0, old.cost_of_staying) - saved
    return 0.0


def _cpu(old: Target, now: float, needed: int, hold_s: float) -> tuple[int, float | None]:
    if needed >= old.cpu:
        return needed, None
    since = now if old.cpu_low_since is None else old.cpu_low_since
    return (needed, None) if now - since >= hold_s else (old.cpu, since)
