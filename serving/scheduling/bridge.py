"""How much of the traffic may go to a pool that was cold a moment ago, and how many servers would all traffic need?

While a pool is not ready others answer (`bridged`); then its share rises, and it is told to be flapping when it came and went too often:
from then on it gets only what would otherwise be refused. Values in, values out; the time is an argument. Rule: a pool on which nothing
answers has share 0 at once; only the way up is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Literal

State = Literal["cold", "waking", "warming", "ready", "draining"]
LAST_RESORT = 1e-6  # a share that gets no traffic but what nobody else takes in time
HOUR_S = 3600.0
WINDOW_S = 10.0  # of demand: shorter shows single bursts, longer wakes late; a guess, not measured


@dataclass(frozen=True, slots=True)
class Rules:
    settle_s: float = 2.0  # answering without a break before the first request goes there; a guess, not measured
    ramp_s: float = 10.0  # from the first request to all of them; a guess, not measured
    max_switches_per_hour: int = (
        6  # a node that comes and goes every ten minutes pays for nothing; a guess, not measured
    )

    def __post_init__(self) -> None:
        if self.settle_s < 0 or self.ramp_s < 0 or self.max_switches_per_hour < 1:
            raise ValueError("settle_s and ramp_s are not negative, and at least one switch an hour is allowed")


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Bridge:
    """Of one pool. `since`: when the state began; `switches`: when, within the last hour, traffic was handed over to it."""

    state: State = "cold"
    since: float = 0.0
    share: float = 0.0
    switches: tuple[float, ...] = ()


ALWAYS_WARM = Bridge("ready", 0.0, 1.0)


def step(old: Bridge, now: float, num_answering: int, num_wanted: int | None = None, rules: Rules = RULES) -> Bridge:
    """To be asked at every look at the pool. `num_wanted` None: nobody scales it, it is wanted whenever it is there."""
    state = _state(old, now, num_answering, num_wanted is None or num_wanted > 0, rules)
    since = old.since if state == old.state else now
    switches = old.switches
    if state == "ready" and old.state != "ready":
        switches = (*(at for at in switches if at > now - HOUR_S), now)
    return Bridge(state, since, _share(state, now - since, len(switches), rules), switches)


def _state(old: Bridge, now: float, num_answering: int, is_wanted: bool, rules: Rules) -> State:
    if num_answering == 0:
        return "waking" if is_wanted else "cold"
    if not is_wanted:
        return "draining"
    if old.state == "ready":
        return "ready"
    if old.state == "warming" and now - old.since >= rules.settle_s:
        recent = sum(at > now - HOUR_S for at in old.switches)
        return "ready" if recent < rules.max_switches_per_hour else "warming"
    return "warming"


def _share(state: State, for_s: float, num_switches: int, rules: Rules) -> float:
    if state == "ready":
        return 1.0 if for_s >= rules.ramp_s else max(LAST_RESORT, for_s / rules.ramp_s)
    if state == "warming" and num_switches >= rules.max_switches_per_hour and for_s >= rules.settle_s:
        return LAST_RESORT
    return 0.0


SHARED_BY = ","  # between the names of pools that share a demand; no pool's name has one


class Demand:
    """Servers of a pool that the traffic of the last seconds would keep busy. Additive: gateways' demands sum up."""

    __slots__ = ("_at", "_sum_s")

    def __init__(self) -> None:
        self._sum_s = 0.0
        self._at = 0.0

    def note(self, now: float, cost_s: float) -> None:
        """A request came, admitted or not, that takes so many seconds of one server there."""
        self._sum_s = self._faded(now) + cost_s
        self._at = now

    def replicas(self, now: float) -> float:
        return self._faded(now) / WINDOW_S

    def _faded(self, now: float) -> float:
        return self._sum_s * exp((self._at - now) / WINDOW_S) if now > self._at else self._sum_s
