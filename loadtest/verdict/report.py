"""Holds the values of a verdict: `report.json` has all that the page shows, so that a pipeline reads no HTML.

Names under `numbers` are stable: by them two reports are compared. Deliberately not here: how it is said (`wording.py`), how it looks
(`page.py`), what follows from the numbers (`serving/decisions/`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from serving.decisions.plan.result import Binding, CostPoint, Objective, WhatIf
from serving.decisions.profile import LoadPoint, MaxRate, Phase, Profile, Provenance, Settings, Timing
from serving.decisions.sensitivity import Sensitivity
from serving.decisions.verdict import Verdict
from serving.measure.machine import Machine

VERSION = 1
FILE = "report.json"
# `here`: measured by this very run, or on this machine; `given`: by --profile; `shipped`: with the package.
Origin = Literal["here", "given", "shipped"]


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
    is_real_time: bool | None = (
        None  # whether the load generator went before all other work, in each run; None: it did not say
    )
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
    what_ifs: tuple[WhatIf, ...] = ()
    sentence: str = ""  # the first of the paragraph
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
