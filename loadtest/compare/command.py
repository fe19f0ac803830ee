"""`tandem compare BEFORE AFTER`: two reports side by side, with what differs, by how much, and whether something got worse."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.compare.comparison import Change, Comparison, compare
from loadtest.compare.report_file import StoredReport, different_circumstances, read
from loadtest.errors import ResultsError
from serving.documents.tables import columns
from serving.measure.intervals import FALSE_ALARM_RATIO, MIN_REPEATS

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
