"""Small pools for simulations whose results are known beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from serving.decisions.simulate.arrivals import Arrivals, ListedArrivals, PoissonArrivals, steady
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.simulate.run import Draws, simulate
from serving.decisions.simulate.scenario import POLICIES, ColdStart, Policy, PoolSetting, Setting
from serving.scheduling.bridge import Rules
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.settings import ScalingRules

POLICY = {policy.name: policy for policy in POLICIES}


def cpu(servers: int = 4, seconds: float = 0.1, **changes: Any) -> PoolSetting:
    """A fixed number of servers, a request at a time on each."""
    fields = {"price_per_hour": 0.2, "min_replicas": servers, "max_replicas": servers, "cold_start": ColdStart(0, 0, 0)}
    return PoolSetting("cpu", Service(Curve(((1, seconds),))), **{**fields, **changes})


def gpu(servers: int = 1, cold_s: float = 100.0, **changes: Any) -> PoolSetting:
    """A hundred requests a second and more, none to begin with."""
    fields: dict[str, Any] = {
        "price_per_hour": 1.0,
        "min_replicas": 0,
        "max_replicas": servers,
        "cold_start": ColdStart(cold_s, cold_s, cold_s),
        "has_gpu": True,
    }
    fields |= {"name": "gpu", "service": Service(Curve(((1, 0.005), (16, 0.02))), max_batch=16)}
    return PoolSetting(**{**fields, **changes})


def setting(objective_s: float = 1.0, **changes: Any) -> Setting:
    """`cpu`, `gpu`, `more`: its pools."""
    pools = (changes.pop("cpu", cpu()), changes.pop("gpu", gpu()), *changes.pop("more", ()))
    fields: dict[str, Any] = {
        "wake": ScalingRules(patience_s=0.0, hold_s=0.0),
        "bridge": Rules(settle_s=0.0, ramp_s=0.0),
    }
    return Setting(pools, objective_s, **{**fields, **changes})


def evenly(rate_rps: float, from_s: float, to_s: float) -> list[float]:
    """Requests at equal distances."""
    return [from_s + n / rate_rps for n in range(round((to_s - from_s) * rate_rps))]


def made(rate: float | Callable[[float], float], duration_s: float, seed: int = 1) -> PoissonArrivals:
    changing = rate if callable(rate) else steady(rate)
    return PoissonArrivals(changing, duration_s, lambda number: random.Random(f"{number} {seed}"))


def run(
    policy: str | Policy,
    arrivals: Arrivals | Sequence[float],
    duration_s: float,
    of: Setting | None = None,
    *,
    stretch: Callable[[float], float] | None = None,
    seed: int = 2,
    **options: Any,
) -> Outcome:
    """`arrivals`: times, or what makes them."""
    chosen = POLICY[policy] if isinstance(policy, str) else policy
    come = ListedArrivals(arrivals, duration_s) if isinstance(arrivals, Sequence) else arrivals
    return simulate(of or setting(), chosen, come, lambda: Draws(random.Random(seed).random, stretch), **options)
