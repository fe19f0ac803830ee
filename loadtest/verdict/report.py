"""What does a verdict's report hold? Values only: `report.json` has all that the page shows, so that a pipeline reads no HTML.

Names under `numbers` are stable: by them two reports are compared. Deliberately not here: how it is said (`wording.py`), how it looks
(`page.py`), what follows from the numbers (`serving/planning/`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from serving.planning.machine import Machine
from serving.planning.plan.cost import per_million
from serving.planning.plan.result import Binding, CostPoint, Objective, Plan, Priced
from serving.planning.plan.sensitivity import Sensitivity
from serving.planning.profile import LoadPoint, MaxRate, Phase, Profile, Provenance, ServerProfile, Settings, Timing
from serving.planning.verdict import Verdict

VERSION = 1
FILE = "report.json"
Origin = Literal[
    "here", "given", "shipped"
]  # measured by this very run or on this machine; by --profile; with the package


@dataclass(frozen=True, slots=True)
class Source:
    """A profile and how it came to be used."""

    profile: Profile
    origin: Origin
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """The median over runs with its interval; without an interval where there are no runs."""

    value: float
    unit: str
    better: Literal["higher", "lower"] | None
    low: float | None = None
    high: float | None = None
    runs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """The planned rate, really run here on the planned server. Latencies count from when a request was due; None: too few answers.

    `void`: why no run counts, None where one does. `runs` are p99 of those that count.
    """

    rate_rps: float
    label: str
    num_due: int
    throughput_rps: float
    latency_p50_s: Number | None
    latency_p99_s: Number | None
    late_or_lost_ratio: float
    is_met: bool
    void: str | None
    voids: tuple[str, ...]  # of the runs that do not count
    latency_curve: tuple[tuple[float, float], ...] = ()  # (seconds, share of requests at or below)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Where figures come from."""

    origin: Origin
    provenance: Provenance
    date: str
    command: str
    machine: Machine
    versions: dict[str, str]
    data: str | None
    note: str | None
    file: str | None
    others_ratio: float | None


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server that was profiled, and its price where it has one."""

    name: str  # stable: variant-engine-device-settings
    label: str
    source: int  # the place of its profile among the sources
    variant: str
    engine: str
    device: str
    device_name: str
    settings: Settings
    max_rate: MaxRate | None
    offer: str | None
    share: float | None
    per_hour: float | None
    per_million: float | None  # at its highest rate
    accuracy: float | None
    is_untrained: bool
    joules_per_request: float | None
    cold_start: tuple[Phase, ...]
    ladder: tuple[Timing, ...]
    load: tuple[LoadPoint, ...]


@dataclass(frozen=True, slots=True)
class PoolReport:
    """A pool of the plan."""

    name: str
    server: str  # the name of a ServerReport
    label: str
    offer: str
    share: float
    min_replicas: int
    max_replicas: int
    per_hour: float  # of one server


@dataclass(frozen=True, slots=True)
class VerdictReport:
    """`word` is the verdict as it is told: with a file's figures in it `inconclusive (what-if)`."""

    model: str
    word: str
    paragraph: str
    is_met: bool  # a plan meets the objective, and the check, where it ran, did too
    objective: Objective
    currency: str
    price_list: str
    price_date: str
    price_source: str
    verdict: Verdict
    pools: tuple[PoolReport, ...]
    per_hour_at_peak: float | None
    per_day: float | None
    per_million: tuple[tuple[str, float], ...]
    bindings: tuple[Binding, ...]
    curve: tuple[CostPoint, ...]
    sensitivity: tuple[Sensitivity, ...]
    check: Check | None
    check_not_run: str | None
    servers: tuple[ServerReport, ...]
    sources: tuple[SourceReport, ...]
    caveats: tuple[str, ...]
    numbers: dict[str, Number]
    date: str
    command: str
    versions: dict[str, str]
    kind: Literal["verdict"] = "verdict"
    version: int = VERSION


def as_json(report: VerdictReport) -> dict[str, Any]:
    """Whole numbers and texts as JSON has them; what is without bounds is None."""
    return {"kind": report.kind, "version": report.version, **_plain(asdict(report))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def servers_of(sources: Sequence[Source], plan: Plan) -> tuple[ServerReport, ...]:
    """Those that were weighed first, the cheapest first; then the rest."""
    priced = {id(p.server): p for p in plan.considered}
    every = [(index, server) for index, source in enumerate(sources) for server in source.profile.servers]
    order = {id(p.server): place for place, p in enumerate(plan.considered)}
    every.sort(key=lambda one: order.get(id(one[1]), len(order)))
    return tuple(_server(index, server, priced.get(id(server)), plan.objective) for index, server in every)


def name_of(server: ServerProfile) -> str:
    """Stable from one report to the next."""
    s = server.settings
    return f"{server.variant}-{server.engine}-{server.device}-{s.num_instances}x{s.num_threads}"


def _server(source: int, server: ServerProfile, priced: Priced | None, objective: Objective) -> ServerReport:
    measured = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
    return ServerReport(
        name=name_of(server),
        label=server.label,
        source=source,
        variant=server.variant,
        engine=server.engine,
        device=server.device,
        device_name=server.device_name,
        settings=server.settings,
        max_rate=measured,
        offer=priced.offer.name if priced else None,
        share=priced.share if priced else None,
        per_hour=priced.per_hour if priced else None,
        per_million=priced.per_million() if priced and priced.max_rate.rate_rps > 0 else None,
        accuracy=server.accuracy,
        is_untrained=server.is_untrained,
        joules_per_request=server.joules_per_request,
        cold_start=server.cold_start,
        ladder=server.ladder,
        load=server.load,
    )


def pools_of(plan: Plan) -> tuple[PoolReport, ...]:
    return tuple(
        PoolReport(
            pool.name,
            name_of(pool.chosen.server),
            pool.chosen.server.label,
            pool.chosen.offer.name,
            pool.chosen.share,
            pool.min_replicas,
            pool.max_replicas,
            pool.chosen.per_hour,
        )
        for pool in plan.pools
    )


def sources_of(sources: Sequence[Source]) -> tuple[SourceReport, ...]:
    return tuple(
        SourceReport(
            source.origin,
            p.provenance,
            p.date,
            p.command,
            p.machine,
            p.versions,
            p.data,
            p.note,
            source.file,
            p.others_ratio,
        )
        for source in sources
        for p in (source.profile,)
    )


def numbers_of(plan: Plan, verdict: Verdict, servers: Sequence[ServerReport], check: Check | None) -> dict[str, Number]:
    """What two reports are compared by, and what `--fail-if` may ask for. What was not measured has no entry."""
    found: dict[str, Number] = {}
    for server in servers:
        if (m := server.max_rate) is not None:
            found[f"max_rate_rps/{server.name}"] = Number(m.rate_rps, "1/s", "higher", m.low_rps, m.high_rps, m.runs)
        if server.joules_per_request is not None:
            found[f"joules_per_request/{server.name}"] = Number(server.joules_per_request, "J", "lower")
    if check is not None and check.void is None:
        if check.latency_p50_s is not None:
            found["p50_s"] = check.latency_p50_s
        if check.latency_p99_s is not None:
            found["p99_s"] = check.latency_p99_s
        found["throughput_rps"] = Number(check.throughput_rps, "1/s", "higher")
        found["late_or_lost_ratio"] = Number(check.late_or_lost_ratio, "1", "lower")
    if plan.per_hour_at_peak is not None:
        found["per_hour"] = Number(plan.per_hour_at_peak, f"{plan.currency}/h", "lower")
        if (peak_rps := plan.objective.peak_rps) > 0:
            found["per_million"] = Number(per_million(plan.per_hour_at_peak, peak_rps), plan.currency, "lower")
    if verdict.break_even_rps is not None:
        ends = verdict.break_even_low_rps, verdict.break_even_high_rps
        found["break_even_rps"] = Number(verdict.break_even_rps, "1/s", None, *ends)
    return found
