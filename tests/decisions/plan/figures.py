"""Made-up profiles and prices to plan with: how fast, how dear, and on what, is what each test says."""

from __future__ import annotations

from typing import Any

from serving.decisions.plan.result import Objective, PricedServer
from serving.decisions.prices import Offer, PriceList
from serving.decisions.profile import MaxRate, Profile, ServerProfile, Settings
from serving.measure.machine import Machine

OBJECTIVE_S = 0.020
EPYC = Machine("AMD EPYC 9R14", ("avx512_vnni", "avx512_bf16"), 4.0, "Linux")
T4 = Machine("Intel(R) Xeon(R) Platinum 8259CL", (), 4.0, "Linux", ("Tesla T4, driver 570, 15360 MiB",))
CPU_OFFER = Offer("cpu.large", 0.2, 4, processor="AMD EPYC 9R14")
GPU_OFFER = Offer("gpu.large", 0.526, 4, "gpu", 1, "T4")
PRICES = PriceList("list", "a test", "2026-07-20", "$", (CPU_OFFER, GPU_OFFER))


def server(device: str, rate_rps: float | None, **given: Any) -> ServerProfile:
    """`rate_rps` None: never searched for."""
    told: dict[str, Any] = {
        "variant": "int8" if device == "cpu" else "fp16",
        "engine": "cpu" if device == "cpu" else "cuda",
        "device": device,
        "device_name": "AMD EPYC 9R14" if device == "cpu" else "Tesla T4",
        "digest": None,
        "settings": Settings(1, 4, 32, 0) if device == "cpu" else Settings(1, 1, 32, 100),
        "max_rates": () if rate_rps is None else (MaxRate(OBJECTIVE_S, 1, rate_rps, rate_rps * 0.9, rate_rps * 1.1),),
    }
    return ServerProfile(**told | given)


def profile(*servers: ServerProfile, **given: Any) -> Profile:
    told: dict[str, Any] = {
        "model": "digits",
        "provenance": "measured",
        "date": "2026-11-21T12:00:00+00:00",
        "command": "tandem profile digits",
        "machine": T4 if any(s.device != "cpu" for s in servers) else EPYC,
        "servers": servers,
    }
    return Profile(**told | given)


def both(cpu_rps: float, gpu_rps: float) -> list[Profile]:
    return [profile(server("cpu", cpu_rps)), profile(server("gpu", gpu_rps), provenance="published", note="a paper")]


def objective(*rates: float | tuple[float, float], **given: Any) -> Objective:
    """Rates of a whole day each share it."""
    pairs = tuple(rate if isinstance(rate, tuple) else (24 / len(rates), float(rate)) for rate in rates)
    return Objective(**{"latency_p99_s": OBJECTIVE_S, "rates": pairs, "headroom_ratio": 1.0} | given)


def priced(device: str, rate_rps: float, per_hour: float, **given: Any) -> PricedServer:
    offer = Offer(
        f"{device}.large",
        per_hour,
        4,
        "gpu" if device == "gpu" else "cpu",
        int(device == "gpu"),
        "T4" if device == "gpu" else None,
    )  # type: ignore[arg-type]
    made = profile(server(device, rate_rps, **given))
    return PricedServer(made, made.servers[0], offer, 1.0, per_hour, made.servers[0].max_rates[0])
