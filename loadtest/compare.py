"""`tandem compare BEFORE AFTER`: two reports of campaigns or verdicts side by side, and whether something got worse.

Three parts: a report.json becomes values that can be compared and their circumstances; two sets of values become changes (pure); changes
become a table or JSON. Runs of two reports have no partners, so the interval is Welch's; what the machine did between the two days is in
the difference and in no interval. A share (unit `ratio`) is compared by its difference, everything else by its ratio. Each interval is
one of 95 %; `is_clearly_worse` asks for more, so that two equal reports give a false alarm in 5 % of cases at most, whatever they hold
(Bonferroni). Rule: a value of too few runs is inconclusive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from loadtest.errors import ResultsError
from loadtest.records import MANIFEST
from loadtest.report import summaries
from loadtest.report.summaries import ArmSummary, Report
from loadtest.verdict import report as verdicts
from loadtest.verdict.report import FILE, VerdictReport
from serving.documents.reader import Document, read_document
from serving.documents.tables import columns
from serving.measure.intervals import FALSE_ALARM_RATIO, MIN_REPEATS, Estimate, estimate, unpaired, welch_reach

# -- what differs ------------------------------------------------------------------------------------------------------


SHARE = "ratio"  # the unit of what lies in 0..1
Outcome = Literal["worse", "better", "no_difference_seen", "inconclusive", "not_judged"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One value of a report, run by run. `is_lower_better` None: neither is; it is told and not judged."""

    name: str
    unit: str
    runs: tuple[float, ...]
    is_lower_better: bool | None
    step_ratio: float = 1.0  # of what is searched in steps: the truth lies between a run and so many times it


@dataclass(frozen=True, slots=True)
class Change:
    """`change` is after ÷ before, of a share after - before; `low` and `high` are None where it is inconclusive."""

    name: str
    unit: str
    before: float | None  # median over runs
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    outcome: Outcome
    is_clearly_worse: bool

    @property
    def is_share(self) -> bool:
        return self.unit == SHARE


@dataclass(frozen=True, slots=True)
class Comparison:
    """`only_before` and `only_after`: names of what the other report does not have."""

    values: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        return any(value.is_clearly_worse for value in self.values)


def compare(before: Sequence[Quantity], after: Sequence[Quantity]) -> Comparison:
    """By name. Raises ValueError where a name means two units."""
    theirs = {one.name: one for one in after}
    ours = {one.name for one in before}
    pairs = [(one, theirs[one.name]) for one in before if one.name in theirs]
    for one, other in pairs:
        if one.unit != other.unit:
            raise ValueError(f"{one.name} is in {one.unit} before and in {other.unit} after")
    strict = FALSE_ALARM_RATIO / max(1, sum(one.is_lower_better is not None for one, _ in pairs))
    return Comparison(
        tuple(_compared(one, other, strict) for one, other in pairs),
        tuple(one.name for one in before if one.name not in theirs),
        tuple(one.name for one in after if one.name not in ours),
    )


def _compared(before: Quantity, after: Quantity, strict: float) -> Change:
    change, low, high = _change(before, after, FALSE_ALARM_RATIO)
    outcome = _outcome(after, low, high)
    _, strict_low, strict_high = _change(before, after, strict)
    return Change(
        after.name,
        after.unit,
        median(before.runs) if before.runs else None,
        median(after.runs) if after.runs else None,
        change,
        low,
        high,
        outcome,
        _outcome(after, strict_low, strict_high) == "worse",
    )


def _change(before: Quantity, after: Quantity, beyond_ratio: float) -> tuple[float | None, float | None, float | None]:
    """(change, low, high); None as far as it is not known. What has no logarithm, as no energy at all, has no ratio."""
    if not before.runs or not after.runs:
        return None, None, None
    if after.unit == SHARE:
        change = sum(after.runs) / len(after.runs) - sum(before.runs) / len(before.runs)
        reach = welch_reach(after.runs, before.runs, beyond_ratio)
        return (change, None, None) if reach is None else (change, change - reach, change + reach)
    if min(*before.runs, *after.runs) <= 0:
        return None, None, None
    difference = unpaired(after.runs, before.runs, beyond_ratio)
    assert difference
    if difference.low is None or difference.high is None:
        return difference.ratio, None, None
    return difference.ratio, difference.low / before.step_ratio, difference.high * after.step_ratio


def _outcome(measured: Quantity, low: float | None, high: float | None) -> Outcome:
    if measured.is_lower_better is None:
        return "not_judged"
    if low is None or high is None:
        return "inconclusive"
    same = 0.0 if measured.unit == SHARE else 1.0
    if low <= same <= high:
        return "no_difference_seen"
    return "worse" if (low > same) == measured.is_lower_better else "better"


# -- what a report holds -----------------------------------------------------------------------------------------------


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


# -- how it is told ----------------------------------------------------------------------------------------------------


WORDS = {"worse": "slower", "better": "faster"}
SHARE_WORDS = {"worse": "worse", "better": "better"}
TIMED = ("s", "requests/s", "1/s")  # of which one says faster and slower


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Two results directories, or report.json files."""

    before: Path
    after: Path
    as_json: bool = False


def run(options: CompareOptions) -> int:
    """Exit code 1 if something got clearly worse. Raises ResultsError (2)."""
    before, after = read(options.before), read(options.after)
    if before.kind != after.kind:
        raise ResultsError(
            f"{options.before} is of a {before.kind} and {options.after} of a {after.kind}; compare two of a kind."
        )
    try:
        comparison = compare(before.values, after.values)
    except ValueError as error:
        raise ResultsError(f"{options.after} cannot be compared: {error}.") from None
    if not comparison.values:
        raise ResultsError(
            f"{options.before} and {options.after} measured nothing that is named alike; compare the same arms and load."
        )
    print(_json(before, after, comparison) if options.as_json else text(before, after, comparison))
    return int(comparison.is_worse)


def text(before: StoredReport, after: StoredReport, comparison: Comparison) -> str:
    lines = [f"before: {before.title}", f"after:  {after.title}", ""]
    lines += [f"before: {remark}" for remark in before.remarks] + [f"after: {remark}" for remark in after.remarks]
    lines += [f"careful: {said}" for said in warnings(before, after)] + [""]
    heads = ("what", "before", "after", "change", "95 % interval", "outcome")
    lines.append(columns([heads, *(cells(value) for value in comparison.values)]))
    lines += [f"only before: {name}" for name in comparison.only_before] + [
        f"only after: {name}" for name in comparison.only_after
    ]
    return "\n".join([*lines, "", conclusion(comparison)])


def warnings(before: StoredReport, after: StoredReport) -> list[str]:
    """What may be behind a difference, beside what was changed on purpose."""
    circumstances = different_circumstances(before, after)
    return [
        *circumstances,
        "the runs of two reports have no partners: what else the machine did on the two days is in no interval",
    ]


def conclusion(comparison: Comparison) -> str:
    worse = [value.name for value in comparison.values if value.is_clearly_worse]
    if worse:
        return f"Clearly worse: {', '.join(worse)}."
    num_open = sum(value.outcome == "inconclusive" for value in comparison.values)
    needs = f"it takes {MIN_REPEATS} runs on each side, and enough requests in each"
    unknown = f" {num_open} of {len(comparison.values)} values are inconclusive: {needs}." if num_open else ""
    if any(value.outcome == "worse" for value in comparison.values):
        return (
            f"Nothing is clearly worse: what is called so above may be one of the {FALSE_ALARM_RATIO:.0%} of comparisons that are "
            f"called different by chance.{unknown}"
        )
    return f"Nothing got worse as far as can be seen.{unknown}"


def cells(value: Change) -> tuple[str, str, str, str, str, str]:
    change = "–" if value.change is None else _signed(value.change) if value.is_share else f"×{value.change:.3f}"
    between = "–"
    if value.low is not None and value.high is not None:
        between = " to ".join(_signed(end) if value.is_share else f"{end:.3f}" for end in (value.low, value.high))
    return value.name, _shown(value.before, value), _shown(value.after, value), change, between, word(value)


def word(value: Change) -> str:
    if value.outcome not in ("worse", "better"):
        return value.outcome.replace("_", " ")
    called = (WORDS if value.unit in TIMED else SHARE_WORDS)[value.outcome]
    return f"clearly {called}" if value.is_clearly_worse else called


def _signed(share: float) -> str:
    return f"{share:+.2%}"


def _shown(number: float | None, value: Change) -> str:
    if number is None:
        return "–"
    if value.is_share:
        return f"{number:.2%}"
    return f"{number * 1000:,.4g} ms" if value.unit == "s" else f"{number:,.5g} {value.unit}"


def _json(before: StoredReport, after: StoredReport, comparison: Comparison) -> str:
    document = {
        "version": 1,
        "before": before.title,
        "after": after.title,
        "warnings": warnings(before, after),
        **asdict(comparison),
    }
    return json.dumps(document | {"is_worse": comparison.is_worse}, indent=2, ensure_ascii=False)
