"""Shows a campaign's report as one HTML file, from the template `campaign.html` beside this file.

Only what is shown, and where; every number comes from `build.py`, every sentence of results from `wording.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from loadtest.records import Load, Payload
from loadtest.report import evidence, figures
from loadtest.report.summaries import ArmSummary, Report, RunSummary, milliseconds, number
from loadtest.report.wording import answer, between, chosen, label, of_load, paragraphs, point_label
from serving.documents.figures import Figure
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, Value
from serving.measure import intervals, percentiles, stability
from serving.measure.intervals import Difference, Estimate

PAGE = "report.html"
PAGES = Pages(Path(__file__).parent)
RULES = {
    name: value for room in (intervals, percentiles, stability) for name, value in vars(room).items() if name.isupper()
}
ARRIVALS = {"constant": "evenly spaced", "poisson": "Poisson arrivals", "bursts": "in bursts"}


def write(directory: Path, report: Report) -> Path:
    path = directory / PAGE
    path.write_text(render(report), encoding="utf-8")
    return path


def render(report: Report) -> str:
    manifest, load = report.manifest, report.manifest.load
    return PAGES.render(
        "campaign.html",
        report=report,
        is_open=load.kind == "open",
        flags=[flag for flag in (report.verdict, "partial" if report.is_partial else None) if flag],
        answer=answer(report.arms, load),
        figures_at_once=_figures_at_once(report),
        paragraphs=paragraphs(report.arms, load),
        payload=_payload(manifest.payload, load),
        load_words=_load(load),
        when=datetime.fromisoformat(manifest.started).strftime("%-d %B %Y, %H:%M (UTC%z)"),
        left_out=_left_out(report),
        unstable=_unstable(report),
        against_load=_against_load(report),
        points=[_point(report, point) for point in load.points],
        runs=_runs(report.runs),
        num_comparisons=sum(1 for arm in report.arms if not (arm.is_baseline or arm.is_again) and arm.num_runs),
        **RULES,
    )


def _figures_at_once(report: Report) -> list[tuple[str, Value, str]]:
    """Of the arm to use: how fast, how slow at worst, how much better than the baseline; under each what it is."""
    load = report.manifest.load
    if (found := chosen(report.arms, load)) is None:
        return []
    arm, baseline = found
    at = f"{label(arm)} at {point_label(load, arm.point)}"
    ratio = of_load(arm, load)
    rate, median, slowest = arm.throughput_rps, arm.latency_p50_s, arm.latency_p99_s
    assert rate is not None
    right = "its answers were not judged" if arm.accuracy is None else f"{arm.accuracy:.2%} of its answers are right"
    first = (
        ("Median latency", "too few" if median is None else f"{milliseconds(median.median)} ms", at)
        if load.kind == "open"
        else ("Requests per second", number(rate.median), at)
    )
    return [
        first,
        ("p99", "too few" if slowest is None else f"{milliseconds(slowest.median)} ms", right),
        (
            "Against " + label(baseline),
            "1" if ratio is None else f"{ratio.ratio:.2f} ×",
            "the baseline itself" if ratio is None else between(ratio),
        ),
    ]


def _payload(payload: Payload, load: Load) -> str:
    distinct = "" if payload.num_distinct is None else f" ({payload.num_distinct:,} distinct)"
    encoding = "JSON" if payload.encoding == "json" else "binary tensors"
    rows = f"{payload.batch_size} per request" + (
        f", or as many as {Path(load.trace).name} says," if load.trace else ""
    )
    return f"{payload.what or payload.data}{distinct}, {rows} as {encoding}"


def _load(load: Load) -> str:
    rates = " then ".join(point_label(load, point) for point in load.points)
    arrivals = (
        f", {ARRIVALS.get(load.arrivals, f'as in {Path(load.trace or str()).name}')}" if load.kind == "open" else ""
    )
    return (
        f"{load.kind} loop, {rates}{arrivals}; {load.duration_s:g} s per run after {load.warmup_s:g} s of warm-up; "
        f"{load.repeats} repeat{'' if load.repeats == 1 else 's'}, arms in turn"
    )


def _left_out(report: Report) -> list[tuple[str, str, str]]:
    """Arms that were not run and runs that do not count, with the reason of each."""
    first = [arm for arm in report.arms if arm.point == report.manifest.load.points[0]]
    arms = [(label(arm), "", f"not run: {arm.not_run}") for arm in first if arm.not_run]
    return arms + [(*_place(report, run), f"{_outcome(run)}: {run.void}") for run in report.runs if run.void]


def _unstable(report: Report) -> list[tuple[str, str, str]]:
    """Runs that are in the numbers although they changed from beginning to end."""
    return [(*_place(report, run), run.unstable) for run in report.runs if run.void is None and run.unstable]


def _place(report: Report, run: RunSummary) -> tuple[str, str]:
    load = report.manifest.load
    at = f" at {point_label(load, run.point)}" if len(load.points) > 1 else ""
    return next(label(arm) for arm in report.arms if arm.name == run.arm), f"{at}, repeat {run.repeat}"


def _outcome(run: RunSummary) -> str:
    if run.void:
        return "interrupted" if run.state == "interrupted" else "void"
    return "unstable" if run.unstable else ""


def _against_load(report: Report) -> Figure | None:
    by_name: dict[str, list[ArmSummary]] = {}
    for arm in sorted((arm for arm in report.arms if arm.num_runs), key=lambda arm: arm.point):
        by_name.setdefault(arm.name, []).append(arm)
    several = {arm.name: by_name[arm.name] for arm in report.arms if len(by_name.get(arm.name, ())) > 1}
    unit = "requests per second" if report.manifest.load.kind == "open" else "users"
    return figures.latency_against_load(several, unit) if several else None


def _point(report: Report, point: float) -> dict[str, Any]:
    """What there is to show of one point of the load."""
    is_open = report.manifest.load.kind == "open"
    arms = [arm for arm in report.arms if arm.point == point]
    ran = [arm for arm in arms if arm.num_runs]
    return {
        "title": point_label(report.manifest.load, point),
        "arms": _arms(arms, is_open=is_open),
        "figures": [*([] if is_open else [figures.throughput(ran)]), figures.latency(ran)] if ran else [],
        "ratios": _ratios(report, arms),
        "evidence": evidence.table(ran),
        "remarks": evidence.remarks(ran),
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def _arms(arms: Sequence[ArmSummary], *, is_open: bool) -> Table:
    share = "In time" if is_open else "Ratio"
    heads = ("Arm", "Requests/s", "p50 ms", "p90 ms", "p99 ms", share, "Right", "Errors", "Ran on")
    return Table("The arms side by side", heads, tuple(_arm(arm, is_open=is_open) for arm in arms), ends_in_words=True)


def _arm(arm: ArmSummary, *, is_open: bool) -> tuple[Value, ...]:
    tag = "baseline" if arm.is_baseline else "the same" if arm.is_again else ""
    name = Cell(label(arm), tag=tag, kind="strong")
    if not arm.num_runs:
        return name, f"not run: {arm.not_run}" if arm.not_run else "no valid run"
    if is_open:
        share: Value = _interval(arm.within_objective_ratio, "{:.2%}".format)
    else:
        share = "1" if arm.is_baseline else _ratio_cell(arm.throughput_ratio, has_words=False)
    return (
        name,
        _interval(arm.throughput_rps, number),
        _interval(arm.latency_p50_s, milliseconds),
        _interval(arm.latency_p90_s, milliseconds),
        _interval(arm.latency_p99_s, milliseconds),
        share,
        "–" if arm.accuracy is None else f"{arm.accuracy:.2%}",
        ", ".join(f"{num:,} {kind}" for kind, num in arm.errors.items()) or "0",
        Cell("\n".join(map(_device, arm.devices)) or "no receipt"),
    )


def _device(receipt: str) -> str:
    """`cpu; name="X"` -> `cpu: X`"""
    kind, _, rest = receipt.partition(";")
    name = rest.partition("name=")[2].strip().strip('"')
    return f"{kind.strip()}: {name}" if name else receipt


def _interval(value: Estimate | None, show: Callable[[float], str]) -> Cell:
    if value is None:
        return Cell("too few", kind="missing")
    if value.low is None or value.high is None or show(value.low) == show(value.high):
        return Cell(show(value.median))
    return Cell(show(value.median), (f"{show(value.low)}–{show(value.high)}",))


def _ratio_cell(value: Difference | None, *, has_words: bool = True) -> Cell:
    """A ratio, its interval, and what it is called."""
    if value is None:
        return Cell("inconclusive", kind="missing")
    if value.low is None or value.high is None:
        return Cell(f"{value.ratio:.2f}", ("inconclusive",))
    words = (
        {"higher": ", faster", "lower": ", slower"}.get(value.outcome, ", no significant difference")
        if has_words
        else ""
    )
    return Cell(f"{value.ratio:.2f}", (f"{value.low:.2f}–{value.high:.2f}{words}",))


def _ratios(report: Report, arms: Sequence[ArmSummary]) -> Table:
    is_open = report.manifest.load.kind == "open"
    baseline = next(arm for arm in arms if arm.is_baseline)
    repeats = sorted({run.repeat for run in report.runs})
    valid = {(run.arm, run.repeat): run for run in report.runs if run.void is None and run.point == baseline.point}
    rows: list[tuple[Value, ...]] = [
        (
            label(arm),
            *(_ratio(valid.get((arm.name, n)), valid.get((baseline.name, n)), is_open=is_open) for n in repeats),
            _ratio_cell(arm.speed_ratio),
        )
        for arm in arms
        if arm.throughput_ratio
    ]
    what = (
        "The baseline's median latency, divided by the arm's"
        if is_open
        else "Requests per second, divided by the baseline's"
    )
    return Table(
        f"Against {label(baseline)}, repeat by repeat",
        ("Arm", *(f"Repeat {n}" for n in repeats), "Speed-up of the median latency"),
        tuple(rows),
        f"{what} of the same repeat. Above 1 is faster.",
    )


def _ratio(own: RunSummary | None, base: RunSummary | None, *, is_open: bool) -> str:
    if own is None or base is None:
        return "–"
    if not is_open:
        return f"{own.throughput_rps / base.throughput_rps:.3f}"
    return f"{base.latency_p50_s / own.latency_p50_s:.3f}" if base.latency_p50_s and own.latency_p50_s else "–"


def _runs(runs: Sequence[RunSummary]) -> Table:
    rows = tuple(
        (
            Cell(f"{run.arm}, {run.point:,.6g}, repeat {run.repeat}", tag=_outcome(run)),
            f"{run.num_ok:,}",
            f"{run.num_errors:,}",
            number(run.throughput_rps),
            "–" if run.latency_p50_s is None else milliseconds(run.latency_p50_s),
            "–" if run.latency_p99_s is None else milliseconds(run.latency_p99_s),
            "–" if run.generator_cpu_ratio is None else f"{run.generator_cpu_ratio:.0%} of a core",
            Cell(Path(run.rows).name, kind="code"),
        )
        for run in runs
    )
    heads = ("Run", "Good answers", "Errors", "Requests/s", "p50 ms", "p99 ms", "Generator CPU", "Rows")
    return Table("Every run", heads, rows, ends_in_words=True)
