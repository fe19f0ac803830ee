"""How many servers should each pool have now, and when does waking the GPU pay?

For a demand there is a cheapest mix of servers. Changing to it costs a cold start, so the change waits until staying has cost as much as
the change would: the rule for renting skis, which never pays more than twice what knowing the future would have cost. Too little for
the demand is no matter of price: then it wakes after a few seconds. What a pool takes that nobody has seen is an upper bound: one server
of it is enough to find out. Rule: flapping is bounded by not sleeping, never by not waking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from serving.decisions.prices import HOUR_S

EPSILON = 1e-9
A_LITTLE = 1e-3  # of a server: more than rounding, and nothing that anybody would notice


@dataclass(frozen=True, slots=True)
class Supply:
    """What can be had of a pool. `cold_start_s`: from asking for a server to its first answer; `min_billing_s`: paid for, however short."""

    price_per_hour: float
    min_replicas: int = 0
    max_replicas: int = 1
    cold_start_s: float = 0.0
    min_billing_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is not between 0 and max_replicas {self.max_replicas}")
        if self.price_per_hour < 0 or self.cold_start_s < 0 or self.min_billing_s < 0:
            raise ValueError("prices, cold starts and billed times are not negative")


@dataclass(frozen=True, slots=True)
class Needed:
    """Servers that all traffic would keep busy on either pool, were it there alone; `…_only` of them can go nowhere else.

    `gpu_unseen` of them at most: by traffic of which nobody knows what it takes there, because the pool was never seen.
    """

    cpu: float
    gpu: float
    gpu_only: float = 0.0
    cpu_only: float = 0.0
    gpu_unseen: float = 0.0

    @property
    def each(self) -> tuple[float, float, float, float]:
        return self.cpu, self.gpu, self.gpu_only, self.cpu_only


@dataclass(frozen=True, slots=True)
class WakeRules:
    max_load_ratio: float = 0.7  # of a server: above, queues grow long; a guess, not measured
    patience_s: float = (
        5.0  # with too little, before a GPU is woken: a shorter burst is over before a node is there; a guess
    )
    hold_s: float = 60.0  # a server stays at least so long once it is there; a guess, not measured
    cpu_hold_s: float = (
        300.0  # less is needed for so long before a CPU server goes: the autoscaler's usual five minutes
    )
    handover_s: float = 60.0  # the same once the GPUs are there that were waited for: they take the next burst; a guess
    max_wakes_per_hour: int = 6

    def __post_init__(self) -> None:
        if not 0 < self.max_load_ratio <= 1:
            raise ValueError(f"max_load_ratio is above 0 and at most 1, not {self.max_load_ratio}")
        for name in ("patience_s", "hold_s", "cpu_hold_s", "handover_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is 0 or more seconds, not {getattr(self, name)}")
        if self.max_wakes_per_hour < 1:
            raise ValueError(
                f"max_wakes_per_hour is 1 or more, not {self.max_wakes_per_hour}: with none it never sleeps"
            )


WAKE_RULES = WakeRules()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Servers wanted now, and what must be remembered until the next look: what staying as it is has cost, in which direction."""

    cpu: int
    gpu: int
    at: float = 0.0
    cost_of_staying: float = 0.0  # above 0: of not having more GPUs; below: of having too many
    short_s: float = 0.0  # how long the demand has been more than there is
    gpu_since: float = -inf  # when the number of GPUs last changed
    cpu_low_since: float | None = None
    wakes: tuple[float, ...] = ()


def want(
    old: Wanted, now: float, needed: Needed, cpu: Supply, gpu: Supply, num_gpu_ready: int, rules: WakeRules = WAKE_RULES
) -> Wanted:
    """To be asked every second or so."""
    best = advised(needed, cpu, gpu, old.gpu, rules)
    staying = mix(old.gpu, needed, cpu, gpu, rules)
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
    bridging = mix(min(num_gpu, num_gpu_ready), needed, cpu, gpu, rules).num_cpu
    hold_s = rules.handover_s if 0 < num_gpu <= num_gpu_ready else rules.cpu_hold_s
    num_cpu, low_since = _cpu(old, now, bridging, max(hold_s, cpu.min_billing_s))
    if num_gpu != old.gpu:
        return Wanted(num_cpu, num_gpu, now, 0.0, 0.0, now, low_since, wakes)
    return Wanted(num_cpu, num_gpu, now, cost, short_s, old.gpu_since, low_since, wakes)


@dataclass(frozen=True, slots=True)
class Mix:
    """`short`: the share of the demand that it cannot carry."""

    num_cpu: int
    num_gpu: int
    price_per_hour: float
    short: float


def mix(num_gpu: int, needed: Needed, cpu: Supply, gpu: Supply, rules: WakeRules = WAKE_RULES) -> Mix:
    """So many GPU servers, and as many CPU servers as carry the rest."""
    carries = num_gpu * rules.max_load_ratio
    only_short = max(0.0, needed.gpu_only - carries)
    rest = max(0.0, needed.gpu - needed.gpu_only - max(0.0, carries - needed.gpu_only))
    share_on_cpu = rest / (needed.gpu - needed.gpu_only) if needed.gpu > needed.gpu_only else 0.0
    for_cpu = ((needed.cpu - needed.cpu_only) * share_on_cpu + needed.cpu_only) / rules.max_load_ratio
    num_cpu = min(max(ceil(for_cpu - EPSILON), cpu.min_replicas), cpu.max_replicas)
    short = (share_on_cpu * (1 - num_cpu / for_cpu) if for_cpu > num_cpu else 0.0) + only_short
    price = num_cpu * cpu.price_per_hour + num_gpu * gpu.price_per_hour
    return Mix(num_cpu, num_gpu, price, short)


def cheapest(needed: Needed, cpu: Supply, gpu: Supply, rules: WakeRules = WAKE_RULES) -> Mix:
    """The mix that carries the demand, or as much of it as any does, for the least money; of equals the one with fewer GPUs."""
    mixes = (mix(n, needed, cpu, gpu, rules) for n in range(gpu.min_replicas, gpu.max_replicas + 1))
    return min(mixes, key=lambda m: (round(m.short, 6), round(m.price_per_hour, 6), m.num_gpu))


def advised(needed: Needed, cpu: Supply, gpu: Supply, num_gpu: int, rules: WakeRules = WAKE_RULES) -> Mix:
    """The cheapest mix; of GPUs that nobody has seen one, or as many as are needed for sure. `num_gpu` are asked for already.

    That one is also had where it would save money if it took all of which nobody knows: by the upper bound it never would, and nobody
    would ever find out. It goes again when it is known and does not.
    """
    if needed.gpu_unseen <= 0:
        return cheapest(needed, cpu, gpu, rules)
    known = replace(needed, gpu=max(needed.gpu - needed.gpu_unseen, needed.gpu_only), gpu_unseen=0.0)
    most = max(1, num_gpu, gpu.min_replicas, cheapest(known, cpu, gpu, rules).num_gpu)
    careful = cheapest(needed, cpu, replace(gpu, max_replicas=min(most, gpu.max_replicas)), rules)
    if careful.num_gpu > 0 or gpu.max_replicas == 0:
        return careful
    hoped = mix(1, known, cpu, gpu, rules)
    return min((careful, hoped), key=lambda m: (round(m.short, 6), round(m.price_per_hour, 6), m.num_gpu))


def break_even(needed: Needed, cpu: Supply, gpu: Supply, rules: WakeRules = WAKE_RULES) -> float | None:
    """The demand, in GPU servers, from which on a GPU more than the fewest pays, were there more or less of the same traffic.

    None where it never does. The mix changes where one more CPU server would be needed, and nowhere else.
    """
    shared = needed.cpu - needed.cpu_only
    if needed.gpu_only > 0:
        return 0.0
    if shared <= 0 or needed.gpu <= 0:
        return None
    for num_cpu in range(cpu.max_replicas + 1):
        carried = max(0.0, num_cpu * rules.max_load_ratio - needed.cpu_only)
        scale = (carried + A_LITTLE) / shared
        more = Needed(shared * scale + needed.cpu_only, needed.gpu * scale, 0.0, needed.cpu_only)
        if cheapest(more, cpu, gpu, rules).num_gpu > gpu.min_replicas:
            return needed.gpu * carried / shared
    return None


def _cost_of_staying(old: Wanted, best: Mix, staying: Mix, passed_s: float) -> float:
    """More GPUs would be cheaper: it rises. Fewer would: it falls. It begins anew when the direction changes."""
    saved = max(0.0, staying.price_per_hour - best.price_per_hour) * passed_s / HOUR_S
    if best.num_gpu > old.gpu:
        return max(0.0, old.cost_of_staying) + saved
    if best.num_gpu < old.gpu:
        return min(0.0, old.cost_of_staying) - saved
    return 0.0


def _cpu(old: Wanted, now: float, needed: int, hold_s: float) -> tuple[int, float | None]:
    if needed >= old.cpu:
        return needed, None
    since = now if old.cpu_low_since is None else old.cpu_low_since
    return (needed, None) if now - since >= hold_s else (old.cpu, since)
