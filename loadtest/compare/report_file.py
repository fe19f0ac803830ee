"""Reads a report.json of a campaign or a verdict: the values that can be compared with another report's, and their circumstances.

Pure but for the one read. What a difference means is `comparison.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.compare.comparison import SHARE, Quantity
from loadtest.errors import ResultsError
from loadtest.records import MANIFEST
from loadtest.report import summaries
from loadtest.report.summaries import ArmSummary, Report
from loadtest.verdict import report as verdicts
from loadtest.verdict.report import FILE, VerdictReport
from serving.documents.reader import Document, read_document
from serving.measure.intervals import Estimate, estimate

MOST = 1e15  # of any value, in its unit: beyond, a file is broken
_CIRCUMSTANCES = ("model", "machine", "versions", "payload", "load", "url")


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report as it can be compared. `circumstances`: by name, as JSON has them; `remarks`: what a reader must know of this one."""

    title: str
    kind: str
    values: tuple[Quantity, ...]
    circumstances: Mapping[str, Any]
    remarks: tuple[str, ...]


def read(path: Path) -> StoredReport:
    """A results directory, or its report.json. Raises ResultsError."""
    file = path / FILE if path.is_dir() else path
    if not file.exists() and (path / MANIFEST).exists():
        raise ResultsError(f"{path} has no {FILE} yet; make it with `tandem campaign report {path}`.")
    if not file.exists():
        raise ResultsError(f"{file} is not there; name a results directory, or its {FILE}.")
    return from_document(read_document(file, "the report", ResultsError))


def from_document(document: Document) -> StoredReport:
    """Raises the document's error for what is no report of this version."""
    names = document.data if isinstance(document.data, dict) else {}
    try:
        if names.get("kind") == "verdict":
            document.version(verdicts.VERSION, "the report of a verdict", "run `tandem verdict` again")
            return from_verdict(document.values(VerdictReport))
        if "manifest" in names:
            way_out = "build it again with `tandem campaign report DIRECTORY`"
            document.version(summaries.VERSION, "the report of a campaign", way_out)
            return from_campaign(document.values(Report))
    except ValueError as error:
        raise document.wrong((), str(error)) from None
    raise document.wrong((), "no report of a campaign or a verdict")


def from_campaign(report: Report) -> StoredReport:
    """Raises ValueError for a number that nobody can have measured."""
    manifest = report.manifest
    remarks = ["it is partial"] if report.is_partial else []
    if num_void := sum(arm.num_void for arm in report.arms):
        remarks.append(
            f"{num_void} void run{'' if num_void == 1 else 's'} in it {'is' if num_void == 1 else 'are'} left out"
        )
    if num_unstable := sum(run.void is None and run.unstable is not None for run in report.runs):
        remarks.append(f"{num_unstable} of its runs {'was' if num_unstable == 1 else 'were'} unstable")
    facts = asdict(manifest)
    circumstances = {name: facts[name] for name in _CIRCUMSTANCES}
    if manifest.is_local:  # a gateway of the campaign's own has another port each time
        circumstances["url"] = "this machine"
    title = f"{manifest.name}, {manifest.started}"
    return StoredReport(title, "campaign", tuple(_arms(report)), circumstances, tuple(remarks))


def _arms(report: Report) -> Iterator[Quantity]:
    load = report.manifest.load
    for arm in report.arms:
        if arm.is_again or arm.not_run:
            continue  # there for its own report; not there
        at = f"{arm.point:,.6g} requests/s" if load.kind == "open" else f"{arm.point:g} users"
        for name, found, unit, is_lower_better in _quantities(arm, has_objective=load.objective_s is not None):
            runs = _numbers(found.runs) if found else ()
            yield Quantity(f"{arm.name} at {at}: {name}", unit, runs, is_lower_better)


def _quantities(arm: ArmSummary, *, has_objective: bool) -> Iterator[tuple[str, Estimate | None, str, bool]]:
    """(name, value, unit, whether lower is better)"""
    yield "p50", arm.latency_p50_s, "s", True
    yield "p99", arm.latency_p99_s, "s", True
    yield "throughput", arm.throughput_rps, "requests/s", False
    if has_objective:
        yield "within the objective", arm.within_objective_ratio, SHARE, False


def from_verdict(report: VerdictReport) -> StoredReport:
    """Raises ValueError for a number that nobody can have measured."""
    values = tuple(
        Quantity(
            name,
            SHARE if one.unit == "1" else one.unit,
            _numbers(one.runs or (one.value,)),
            None if one.better is None else one.better == "lower",
            _step_ratio(one.runs, one.high),
        )
        for name, one in report.numbers.items()
    )
    machines = {f"machine ({source.origin})": asdict(source.machine) for source in report.sources}
    prices = {"list": report.price_list, "date": report.price_date}
    circumstances = {"model": report.model, "objective": asdict(report.objective), "prices": prices}
    circumstances |= machines | {"versions": report.versions}
    return StoredReport(f"verdict on {report.model}, {report.date}", "verdict", values, circumstances, ())


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    """Raises ValueError for what is none."""
    numbers = tuple(values)
    if wrong := [number for number in numbers if not abs(number) < MOST]:
        raise ValueError(f"{wrong[0]} is no number that was measured")
    return numbers


def _step_ratio(runs: Sequence[float], high: float | None) -> float:
    """Of a search: by how much the interval that is told reaches beyond that of its runs."""
    median = estimate(runs)
    return 1.0 if median is None or median.high is None or not high else max(1.0, high / median.high)


def different_circumstances(before: StoredReport, after: StoredReport) -> list[str]:
    """In words: what is not the same, so that a difference may come from it."""
    differences = []
    for name in dict.fromkeys((*before.circumstances, *after.circumstances)):
        old, new = before.circumstances.get(name, "none"), after.circumstances.get(name, "none")
        if old != new:
            differences.append(f"{name} differs: {_difference(old, new)}")
    return differences


def _difference(old: Any, new: Any) -> str:
    """Of two objects only the keys that differ."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{_text(old)} before, {_text(new)} after"
    keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {_text(old.get(key))} before, {_text(new.get(key))} after" for key in keys)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
