"""A verdict of hand-made figures, as `tandem verdict` would write it: the real planner, judge and report on profiles that nobody measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from loadtest.verdict.build import build
from loadtest.verdict.report import Check, Number, Source, VerdictReport
from serving.decisions.plan.result import Objective
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import Offer, PriceList
from serving.decisions.profile import (
    RUNGS,
    LoadPoint,
    MaxRate,
    Phase,
    Profile,
    ServerProfile,
    Settings,
    Timing,
)
from serving.measure.machine import Machine

OBJECTIVE_S = 0.020
PRICES = PriceList(
    name="Hand-made list",
    source="nobody's",
    date="2026-07-20",
    currency="$",
    offers=(
        Offer("cpu.large", 0.1785, 4, processor="Processor X"),
        Offer("t4.large", 0.526, 4, "gpu", 1, "T4"),
    ),
)
HERE = Machine("Processor X 9", ("avx512f", "avx512_vnni"), 4.0, "Linux 6.8 x86_64")
THERE = Machine("Processor Y", ("avx2",), 4.0, "Linux 6.8 x86_64", ("NVIDIA T4, driver 570, 15360 MiB",))


def rate(most_rps: float, spread: float = 0.03, num_runs: int = 3) -> MaxRate:
    runs = tuple(most_rps * (1 + spread * (k - 1)) for k in range(num_runs))
    ends = (min(runs), max(runs)) if num_runs > 1 else (None, None)
    return MaxRate(OBJECTIVE_S, 1, most_rps, *ends, runs)


def points(most_rps: float, base_s: float) -> tuple[LoadPoint, ...]:
    """A queue that grows to the highest rate and beyond it."""
    found = []
    for share in (0.25, 0.5, 0.75, 0.9, 0.97, 1.0, 1.06):
        p99 = base_s * (1 + 0.6 / max(1.13 - share, 0.05))
        at = most_rps * share
        num = round(at * 5)
        is_met = p99 <= OBJECTIVE_S
        found.append(LoadPoint(at, 1, num, at, base_s, p99, 0 if is_met else num // 20, OBJECTIVE_S, is_met))
    void = "the generator sent one in a hundred requests more than 1.40 ms late, which is over 5 % of the objective of 20.0 ms"
    return (*found, LoadPoint(most_rps * 1.3, 1, 900, 700, None, None, 900, OBJECTIVE_S, False, void))


def ladder(base_s: float) -> tuple[Timing, ...]:
    """Each rung costs a little more than the one before."""
    return tuple(
        Timing(
            rung, 1, 2_000, base_s * (1 + 0.3 * k), base_s * (2 + k), base_s * (1 + 0.28 * k), base_s * (1 + 0.32 * k),
            num_bytes=None if rung == "in_process" else 300,
            **({} if rung == "in_process" else {"queue_s": base_s / 20, "compute_infer_s": base_s, "compute_input_s": base_s / 30, "compute_output_s": base_s / 40}),
        )
        for k, rung in enumerate(RUNGS)
    )  # fmt: skip


def server(variant: str, engine: str, device: str, most: MaxRate, base_s: float, **given: Any) -> ServerProfile:
    name = "Processor X 9" if device == "cpu" else "NVIDIA T4"
    cold = (Phase("process", 0.4), Phase("load", 0.7), Phase("warm_up", 0.1), Phase("first_answer", 0.01))
    told = {
        "load": points(most.rate_rps, base_s),
        "max_rates": (most,),
        "ladder": ladder(base_s / 3),
        "cold_start": cold,
        "accuracy": 0.9822,
        "settings": Settings(2, 2, 32),
    }
    return ServerProfile(variant, engine, device, name, "sha256:0", **(told | given))


def cpu_profile(**given: Any) -> Profile:
    servers = (
        server("fp32", "cpu", "cpu", rate(420), 0.0038),
        server("int8", "cpu", "cpu", rate(600), 0.0026),
    )
    told: dict[str, Any] = {
        "model": "digits",
        "provenance": "measured",
        "date": "2026-11-21T12:00:00+00:00",
        "command": "tandem profile digits --p99 0.02s",
        "machine": HERE,
        "servers": servers,
        "versions": {"python": "3.11", "tandem": "0.1.0", "triton (cpu)": "2.51.0"},
        "data": "real handwritten digits",
    }
    return Profile(**(told | given))


def gpu_profile(**given: Any) -> Profile:
    servers = (server("fp16", "cuda", "gpu", rate(6000), 0.0016, joules_per_request=0.021, is_untrained=False),)
    return cpu_profile(
        **({"servers": servers, "machine": THERE, "note": "Measured in October on a rented machine."} | given)
    )


def a_check(rate_rps: float, **given: Any) -> Check:
    p99 = Number(0.0071, "s", "lower", 0.0066, 0.0077, (0.0069, 0.0071, 0.0074))
    p50 = Number(0.0027, "s", "lower", 0.0026, 0.0028, (0.0026, 0.0027, 0.0028))
    curve = tuple((0.0022 + 0.0007 * -math.log(max(1 - share / 400, 1e-4)), share / 400) for share in range(401))
    told: dict[str, Any] = {
        "void": None,
        "voids": (),
        "is_met": True,
        "latency_curve": curve,
        "late_or_lost_ratio": 0.0004,
    }
    return Check(rate_rps, "int8 on cpu, 2 × 2", 4_800, rate_rps, p50, p99, **(told | given))


def made(
    *sources: Source,
    rates: tuple[tuple[float, float], ...] = ((24, 200),),
    check: Check | None = None,
    not_run: str | None = None,
    prices: PriceList = PRICES,
    **given: Any,
) -> VerdictReport:
    """Without sources: this machine's CPU, and a T4 from a file."""
    used = sources or (
        Source(cpu_profile(), "here"),
        Source(replace(gpu_profile(), date="2026-10-03T09:00:00+00:00"), "given", "t4.json"),
    )
    plan = make_plan("digits", Objective(OBJECTIVE_S, rates, **given), [s.profile for s in used], prices)
    return build(
        plan,
        used,
        prices,
        check=check,
        check_not_run=not_run,
        date="2026-11-21T12:05:00+00:00",
        command="tandem verdict digits --rate 200 --p99 20ms --profile t4.json",
        versions={"tandem": "0.1.0"},
    )
