"""How many servers of each pool are wanted now, and may anybody be told so? What the scaler decides at every look.

All pools are weighed against each other (`sizes.py`), by what the gateways' traffic would keep busy there (`demand.py`). What is decided
rests on gateways that were heard: while none is, nothing is told, and whoever scales leaves things as they are. Rule: values in, values
out; a number goes down only while every gateway is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from serving.decisions.bursts import Needs
from serving.decisions.demand import NO_DEMAND, Demands, Gateways, Total, total_of, update
from serving.decisions.sizes import (
    WARM,
    Change,
    FleetTarget,
    Sizes,
    advised_mix,
    fleet_changes,
    model_loads,
    next_fleet,
    not_lower,
    within,
)
from serving.scheduling.bridge import WINDOW_S
from serving.settings import SCALING_RULES, ScalingRules


@dataclass(frozen=True, slots=True)
class ScalingInput:
    """What one reconciliation found. `there`: servers that the cluster was last told to run, by pool; None where that cannot be known.

    `is_there_known` False: somebody is still asking the cluster, and it is worth waiting for. `needs`: the bursts that a scaler before this
    one saw, which count at the first number only.
    """

    addresses: Collection[str]
    heard: Mapping[str, Demands]
    are_named: bool = True
    there: Mapping[str, int] | None = None
    is_there_known: bool = True
    needs: Mapping[str, tuple[Needs, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scaling:
    """`replicas`: what may be told, by pool; None while it may not, because of `holds`. `keeps`: why nothing goes down now."""

    at: float = -inf
    gateways: Gateways = field(default_factory=Gateways)
    target: FleetTarget | None = None
    replicas: Mapping[str, int] | None = None
    demands: Demands | None = None
    holds: str = "no gateway was asked yet"
    keeps: str = ""
    changes: tuple[Change, ...] = ()


def step(
    old: Scaling, now: float, snapshot: ScalingInput, sizes: Sizes, rules: ScalingRules = SCALING_RULES
) -> Scaling:
    """To be asked every second or so. A clock that goes back is taken to stand still."""
    now = max(now, old.at)
    gateways = update(old.gateways, now, snapshot.addresses, snapshot.heard, snapshot.are_named)
    total, was = total_of(gateways, now), old.target
    holds = _holds(gateways, total, now, snapshot, is_new=was is None)
    if holds or total.demands is None:
        return Scaling(now, gateways, None if was is None else _rested(was, now), None, total.demands, holds, "", ())
    keeps, demands = _keeps(total), {name: total.demands.get(name, NO_DEMAND) for name in sizes.supplies}
    if was is None:
        target, said = _began(now, demands, snapshot, sizes, rules), []
    else:
        target = next_fleet(was, now, demands, sizes, rules)
        target = not_lower(was, target) if keeps else target
        said = fleet_changes(was, target, demands, sizes, rules)
    return Scaling(now, gateways, target, target.replicas, total.demands, "", keeps, tuple(said))


def _holds(gateways: Gateways, total: Total, now: float, snapshot: ScalingInput, is_new: bool) -> str:
    if total.demands is None:
        if not snapshot.addresses:
            return (
                "the gateways' name has no address" if snapshot.are_named else "the gateways' name cannot be looked up"
            )
        return "no gateway answers"
    since = gateways.heard_since
    if since is None or now - since < WINDOW_S:
        return f"gateways have been heard for less than {WINDOW_S:g} s"
    if is_new and not snapshot.is_there_known:
        return "what the cluster runs is not known yet"
    return ""


def _keeps(total: Total) -> str:
    if total.may_lower:
        return ""
    return f"{', '.join(total.missed)} not heard" if total.missed else "the gateways' name cannot be looked up"


def _began(now: float, demands: Demands, snapshot: ScalingInput, sizes: Sizes, rules: ScalingRules) -> FleetTarget:
    """What the cluster was last told, a server that is still on its way included: to be kept unless it does not pay.

    Where that cannot be known: what answers, or what pays at this demand if that is more. What was forgotten counts as done just now.
    """
    there = snapshot.there or {}
    ready = {name: within(supply, demands[name].num_ready) for name, supply in sizes.supplies.items()}
    best = advised_mix(model_loads(demands), demands, ready, sizes, rules).replicas
    replicas = {
        name: within(supply, there.get(name, max(ready[name], best[name]))) for name, supply in sizes.supplies.items()
    }
    known = {*sizes.supplies, *(WARM + name for name in sizes.warm)}
    needs = {name: it for name, it in snapshot.needs.items() if name in known}
    return FleetTarget(replicas, now, since=dict.fromkeys(sizes.coming, now), needs=needs)


def _rested(it: FleetTarget, now: float) -> FleetTarget:
    """Nobody knows what staying as it is costs meanwhile, nor what answers: nothing."""
    return replace(it, at=now, short_s=0.0, low_since={}, waiting={})
