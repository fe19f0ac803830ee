"""How other autoscalers would set one GPU pool, by their published rules: for comparing how often they change a number, and what it costs.

    hpa      Kubernetes' HorizontalPodAutoscaler: every 15 s ceil(ready x use / target), 10 % tolerance, up by 4 or to twice, down by the
             highest of the last 300 s; never to none
    keda     a ScaledObject on the queue of work: none after 300 s of nothing, one as soon as there is some, in between as hpa on the total
    knative  Knative's pod autoscaler: every 2 s the mean of 60 s over 70 %, of 6 s in a panic at twice what there is; none after 30 s more

Defaults of their documentation, collected 2026-11-25, with 70 % of a server as the target of all. Rule: they know one pool and no prices.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from serving.decisions.demand import Demands
from serving.decisions.fleet import EPSILON
from serving.decisions.simulate.flow import Wanted
from serving.decisions.sizes import Sizes

HPA_EVERY_S, HPA_TOLERANCE, HPA_DOWN_S = 15, 0.1, 300
HPA_UP = 4  # pods, or twice as many, each 15 s
KEDA_COOLDOWN_S = 300
KNATIVE_EVERY_S, KNATIVE_STABLE_S, KNATIVE_PANIC_S, KNATIVE_GRACE_S = 2, 60, 6, 30
KNATIVE_PANIC_RATIO, KNATIVE_DOWN_RATIO = 2.0, 2.0


class _OnePool:
    """The cheapest GPU pool follows the rule; of the others there are the fewest. `first`: what is there when time begins."""

    def __init__(self, sizes: Sizes, first: Mapping[str, int], max_load_ratio: float) -> None:
        self._pool = min(sizes.coming, key=lambda name: sizes.supplies[name].price_per_hour)
        self._supply, self._target = sizes.supplies[self._pool], max_load_ratio
        fewest = {name: it.min_replicas for name, it in sizes.supplies.items()}
        self._replicas = {**fewest, self._pool: first[self._pool]}

    @property
    def _number(self) -> int:
        return self._replicas[self._pool]

    def _set(self, number: int, least: int = 0) -> Mapping[str, int]:
        bounded = min(max(number, least, self._supply.min_replicas), self._supply.max_replicas)
        self._replicas = {**self._replicas, self._pool: bounded}
        return self._replicas


class Hpa(_OnePool):
    _may_sleep = False

    def __init__(self, sizes: Sizes, first: Mapping[str, int], max_load_ratio: float) -> None:
        super().__init__(sizes, first, max_load_ratio)
        self._advised: deque[tuple[float, int]] = deque()
        self._busy_at = -math.inf

    def __call__(self, now: float, demands: Demands) -> Mapping[str, int]:
        work = demands[self._pool].replicas
        if work > EPSILON:
            self._busy_at = now
        if self._may_sleep and now - self._busy_at > KEDA_COOLDOWN_S:
            return self._set(0)
        if self._number == 0:
            return self._set(1) if work > EPSILON or not self._may_sleep else self._replicas
        if int(now) % HPA_EVERY_S:
            return self._replicas
        ratio = work / (self._target * self._number)
        advised = self._number if abs(ratio - 1) <= HPA_TOLERANCE else math.ceil(self._number * ratio - EPSILON)
        self._advised.append((now, advised))
        while self._advised[0][0] < now - HPA_DOWN_S:
            self._advised.popleft()
        if advised < self._number:
            advised = min(self._number, max(number for _, number in self._advised))
        return self._set(min(advised, max(self._number + HPA_UP, 2 * self._number)), 1)


class Keda(Hpa):
    _may_sleep = True


class Knative(_OnePool):
    def __init__(self, sizes: Sizes, first: Mapping[str, int], max_load_ratio: float) -> None:
        super().__init__(sizes, first, max_load_ratio)
        self._seen: deque[float] = deque(maxlen=KNATIVE_STABLE_S)
        self._panic_until = self._busy_at = -math.inf

    def __call__(self, now: float, demands: Demands) -> Mapping[str, int]:
        self._seen.append(demands[self._pool].replicas)
        if int(now) % KNATIVE_EVERY_S:
            return self._replicas
        seen = list(self._seen)
        stable, panic = (sum(it) / len(it) / self._target for it in (seen, seen[-KNATIVE_PANIC_S:]))
        if panic >= KNATIVE_PANIC_RATIO * max(1, self._number):
            self._panic_until = now + KNATIVE_STABLE_S
        if stable > EPSILON:
            self._busy_at = now
        if now < self._panic_until:
            return self._set(max(self._number, math.ceil(panic - EPSILON)))
        least = math.floor(self._number / KNATIVE_DOWN_RATIO)
        if stable <= EPSILON:
            return self._set(max(1, least) if now - self._busy_at <= KNATIVE_GRACE_S else 0)
        return self._set(max(math.ceil(stable - EPSILON), least), 1)


def rivals(sizes: Sizes, first: Mapping[str, int], max_load_ratio: float) -> dict[str, Wanted]:
    return {
        name: rule(sizes, first, max_load_ratio) for name, rule in (("hpa", Hpa), ("keda", Keda), ("knative", Knative))
    }
