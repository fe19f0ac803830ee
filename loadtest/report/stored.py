"""Reads a report.json of a campaign or a verdict: the values that can be compared with another, and their circumstances.

Pure but for the one read. What a difference means is `comparison.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import ResultsError
from loadtest.records import MANIFEST
from loadtest.report.comparison import SHARE, Quantity
from loadtest.report.summaries import VERSION
from serving.measure.intervals import estimate

FILE = "report.json"
VERDICT_VERSION = 1
MOST = 1e15  # of any value, in its unit: beyond, a file is broken
# key of an arm in report.json -> (what it is called, unit, whether lower is better)
_CAMPAIGN = {
    "latency_p50_s": ("p50", "s", True),
    "latency_p99_s": ("p99", "s", True),
    "throughput_rps": ("throughput", "requests/s", False),
    "within_objective_ratio": ("within the objective", SHARE, False),
}
_CIRCUMSTANCES = ("model", "machine", "versions", "payload", "load", "url")


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report as it can be compared. `circumstances`: by name, as text; `remarks`: what a reader must know of this one."""

    title: str
    kind: str
    values: tuple[Quantity, ...]
    circumstances: Mapping[str, str]
    remarks: tuple[str, ...]


def read(path: Path) -> StoredReport:
    """A results directory, or its report.json. Raises ResultsError."""
    file = path / FILE if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (path / MANIFEST).exists():
            raise ResultsError(f"{path} has no {FILE} yet; make it with `tandem campaign report {path}`.") from None
        raise ResultsError(f"{file} is not there; name a results directory, or its {FILE}.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ResultsError(f"{file} cannot be read: {error}.") from error
    try:
        return from_json(raw)
    except ResultsError as error:
        raise ResultsError(f"{file} {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(f"{file} is not a report of this Tandem: {error!r}.") from error


def from_json(raw: Any) -> StoredReport:
    """Raises ResultsError for what is no report, and KeyError, TypeError, ValueError or AttributeError for one that is broken."""
    if not isinstance(raw, dict) or ("manifest" not in raw and raw.get("kind") != "verdict"):
        raise ResultsError("is no report of a campaign or a verdict.")
    is_verdict = raw.get("kind") == "verdict"
    known = VERDICT_VERSION if is_verdict else VERSION
    if raw.get("version") != known:
        again = "" if is_verdict else "; build it again with `tandem campaign report DIRECTORY`"
        raise ResultsError(f"has version {raw.get('version')!r}; this Tandem reads version {known}{again}.")
    return _verdict(raw) if is_verdict else _campaign(raw)


def _campaign(raw: dict[str, Any]) -> StoredReport:
    manifest = raw["manifest"]
    remarks = ["it is partial"] if raw["is_partial"] else []
    if num_void := sum(arm["num_void"] for arm in raw["arms"]):
        remarks.append(
            f"{num_void} void run{'' if num_void == 1 else 's'} in it {'is' if num_void == 1 else 'are'} left out"
        )
    if num_unstable := sum(run["void"] is None and run["unstable"] is not None for run in raw["runs"]):
        remarks.append(f"{num_unstable} of its runs {'was' if num_unstable == 1 else 'were'} unstable")
    circumstances = {name: _text(manifest[name]) for name in _CIRCUMSTANCES}
    if manifest["is_local"]:  # a gateway of the campaign's own has another port each time
        circumstances["url"] = "this machine"
    title = f"{manifest['name']}, {manifest['started']}"
    return StoredReport(title, "campaign", tuple(_arms(raw)), circumstances, tuple(remarks))


def _arms(raw: dict[str, Any]) -> Iterator[Quantity]:
    load = raw["manifest"]["load"]
    is_open = load["kind"] == "open"
    for arm in raw["arms"]:
        if arm["is_again"] or arm["not_run"]:
            continue  # there for its own report; not there
        at = f"{arm['point']:,.6g} requests/s" if is_open else f"{arm['point']:g} users"
        for key, (called, unit, is_lower_better) in _CAMPAIGN.items():
            if key == "within_objective_ratio" and load["objective_s"] is None:
                continue
            runs = _numbers(arm[key]["runs"]) if arm[key] else ()
            yield Quantity(f"{arm['name']} at {at}: {called}", unit, runs, is_lower_better)


def _verdict(raw: dict[str, Any]) -> StoredReport:
    better = {"higher": False, "lower": True, None: None}
    values = tuple(
        Quantity(
            name,
            SHARE if one["unit"] == "1" else str(one["unit"]),
            _numbers(one["runs"]) or _numbers([one["value"]]),
            better[one["better"]],
            _step_ratio(_numbers(one["runs"]), one.get("high")),
        )
        for name, one in raw["numbers"].items()
    )
    machines = {f"machine ({source['origin']})": _text(source["machine"]) for source in raw["sources"]}
    prices = {"list": raw["price_list"], "date": raw["price_date"]}
    circumstances = {"model": raw["model"], "objective": _text(raw["objective"]), "prices": _text(prices)}
    circumstances |= machines | {"versions": _text(raw["versions"])}
    return StoredReport(f"verdict on {raw['model']}, {raw['date']}", "verdict", values, circumstances, ())


def _numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """Raises ValueError for what is none."""
    numbers = tuple(map(float, values))
    if wrong := [number for number in numbers if not abs(number) < MOST]:
        raise ValueError(f"{wrong[0]} is no number that was measured")
    return numbers


def _step_ratio(runs: Sequence[float], high: float | None) -> float:
    """Of a search: by how much the interval that is told reaches beyond that of its runs."""
    median = estimate(runs)
    return 1.0 if median is None or median.high is None or not high else max(1.0, high / median.high)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def different_circumstances(before: StoredReport, after: StoredReport) -> list[str]:
    """In words: what is not the same, so that a difference may come from it."""
    differences = []
    for name in dict.fromkeys((*before.circumstances, *after.circumstances)):
        old, new = before.circumstances.get(name, "none"), after.circumstances.get(name, "none")
        if old != new:
            differences.append(f"{name} differs: {_difference(old, new)}")
    return differences


def _difference(old: str, new: str) -> str:
    """Of two objects only the keys that differ."""
    try:
        before, after = json.loads(old), json.loads(new)
    except ValueError:
        return f"{old} before, {new} after"
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"{old} before, {new} after"
    keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return ", ".join(f"{key} {_text(before.get(key))} before, {_text(after.get(key))} after" for key in keys)
