"""Hand-made profiles and plans to judge: two kinds of server, of which each test says how fast, how dear and how well measured they are."""

from __future__ import annotations

from typing import Any

from serving.decisions.plan.result import Objective, Plan, PricedServer
from serving.decisions.prices import Offer
from serving.decisions.profile import MaxRate, Profile, ServerProfile, Settings
from serving.measure.machine import Machine

OBJECTIVE_S = 0.020
CPU_PER_HOUR, GPU_PER_HOUR = 0.18, 0.526


def max_rate(rate_rps: float, spread: float = 0.01, num_runs: int = 5, **given: Any) -> MaxRate:
    """`spread`: how far both ends of the interval are from the middle, as a share of it."""
    low, high = rate_rps * (1 - spread), rate_rps * (1 + spread)
    runs = tuple(low + (high - low) * k / max(num_runs - 1, 1) for k in range(num_runs))
    ends = {"low_rps": low, "high_rps": high} if num_runs > 1 else {"low_rps": None, "high_rps": None}
    return MaxRate(**{"objective_s": OBJECTIVE_S, "batch_size": 1, "rate_rps": rate_rps, "runs": runs} | ends | given)


def server(device: str, rate: MaxRate, **given: Any) -> ServerProfile:
    told = {
        "variant": "int8" if device == "cpu" else "fp16",
        "engine": "cpu" if device == "cpu" else "cuda",
        "device": device,
        "device_name": "A processor" if device == "cpu" else "NVIDIA T4",
        "digest": None,
        "settings": Settings(),
        "max_rates": (rate,),
    }
    return ServerProfile(**told | given)


def profile(*servers: ServerProfile, **given: Any) -> Profile:
    cards = ("NVIDIA T4, driver 570, 15360 MiB",) if any(s.device == "gpu" for s in servers) else ()
    told = {
        "model": "digits",
        "provenance": "measured",
        "date": "2026-11-21T12:00:00+00:00",
        "command": "tandem profile digits",
        "machine": Machine("A processor", ("avx512f",), 2.0, "Linux", cards),
        "servers": servers,
    }
    return Profile(**told | given)


def priced(one: Profile, which: ServerProfile, per_hour: float, name: str | None = None) -> PricedServer:
    device = "cpu" if which.device.endswith("cpu") else "gpu"
    cards = (0, None) if device == "cpu" else (1, "T4")
    offer = Offer(name or f"{device}.large", per_hour, 4, device, *cards)
    return PricedServer(one, which, offer, 1.0, per_hour, which.max_rates[0])


def plan(*considered: PricedServer, rates: tuple[tuple[float, float], ...] = ((24, 200),), **given: Any) -> Plan:
    objective = Objective(OBJECTIVE_S, rates, **given)
    return Plan("digits", objective, "$", (), None, None, None, (), (), considered)


def both(
    cpu: MaxRate, gpu: MaxRate, rates: tuple[tuple[float, float], ...] = ((24, 200),), **given: Any
) -> tuple[Plan, list[Profile]]:
    """A processor and a card, each on a machine of its own."""
    ours, theirs = profile(server("cpu", cpu)), profile(server("gpu", gpu))
    sides = priced(ours, ours.servers[0], CPU_PER_HOUR), priced(theirs, theirs.servers[0], GPU_PER_HOUR)
    return plan(*sides, rates=rates, **given), [ours, theirs]
