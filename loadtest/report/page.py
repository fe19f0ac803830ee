"""How a report looks: one HTML file that opens offline, on a phone and on paper, in light and dark, for colour-blind eyes too.

Only drawing; every number comes from `report/build.py`, every text from outside goes through `_e`. Figures are drawn in
`report/plots.py`; colours and letters are `report/style.py`'s. No script, no font, no link to anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from loadtest.evidence import testimony
from loadtest.records import Load, Payload
from loadtest.report import plots
from loadtest.report.style import document
from loadtest.report.style import grid as _grid
from loadtest.report.style import row as _row
from loadtest.report.style import text as _e
from loadtest.report.summaries import ArmSummary, Report, RunSummary, milliseconds, number
from loadtest.report.wording import label, paragraphs, point_label
from serving.measure.intervals import CONFIDENCE, FALSE_ALARM_RATIO, MIN_REPEATS, Difference, Estimate
from serving.measure.percentiles import MIN_BEYOND
from serving.measure.stability import MAX_ORDER, MIN_CHANGE_RATIO, MIN_REQUESTS, NUM_PARTS

PAGE = "report.html"


def write(directory: Path, report: Report) -> Path:
    path = directory / PAGE
    path.write_text(render(report), encoding="utf-8")
    return path


def render(report: Report) -> str:
    load = report.manifest.load
    body = [_head(report), _caveats(report), _absent(report), _unstable(report)]
    if len(load.points) > 1:
        body.append(_against_load(report))
    for point in load.points:
        if len(load.points) > 1:
            body.append(f'<h2 class="point">At {_e(point_label(load, point))}</h2>')
        body += _point(report, [arm for arm in report.arms if arm.point == point])
    body += [_runs(report.runs), _method(report)]
    return document(f"{report.manifest.name}: load test report", body)


def _point(report: Report, arms: Sequence[ArmSummary]) -> list[str]:
    """What there is to say of one point of the load."""
    ran = [arm for arm in arms if arm.num_runs]
    is_open = report.manifest.load.kind == "open"
    body = [_table(arms, is_open=is_open)]
    if ran:
        body += [plots.curves(ran)] if is_open else [plots.bars(ran), plots.curves(ran)]
    return [*body, _ratios(report, arms), _evidence(ran)]


def _against_load(report: Report) -> str:
    by_name = {
        arm.name: [one for one in sorted(report.arms, key=lambda a: a.point) if one.name == arm.name and one.num_runs]
        for arm in report.arms
    }
    drawn = {name: points for name, points in by_name.items() if len(points) > 1}
    unit = "requests per second" if report.manifest.load.kind == "open" else "users"
    return plots.against_load(drawn, unit) if drawn else ""


# -- the first screen -------------------------------------------------------------------------------------------------


def _head(report: Report) -> str:
    m = report.manifest
    facts = [
        (
            "Measured",
            f"<strong>{_e(m.model)}</strong> through the gateway at {_e(m.url)}, with {_e(_payload(m.payload))}",
        ),
        ("Load", _e(_load(m.load))),
        ("Processor", _e(f"{m.machine.processor}, {m.machine.num_cores:g} cores") + _tags(m.machine.instruction_sets)),
        ("GPU", _e("; ".join(m.machine.cards) or "none on this machine")),
        ("When", _e(_when(m.started))),
        ("Command", f"<code>{_e(m.command)}</code>"),
        ("Versions", _e(", ".join([f"{n} {v}" for n, v in m.versions.items()] + [m.machine.system]))),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    flags = [flag for flag in (report.verdict, "partial" if report.is_partial else None) if flag]
    kind = "Load test" + "".join(f' <span class="flag">{_e(flag)}</span>' for flag in flags)
    told = "".join(f'<p class="result">{_e(text)}</p>' for text in paragraphs(report.arms, m.load))
    result = f'<p class="kind">{kind}</p><h1>{_e(m.name)}</h1>{told}'
    return f"<header>{result}<dl>{rows}</dl></header>"


def _payload(payload: Payload) -> str:
    what = payload.what or payload.data
    distinct = "" if payload.num_distinct is None else f" ({payload.num_distinct:,} distinct)"
    rows = "1" if payload.batch_size == 1 else f"{payload.batch_size}"
    return f"{what}{distinct}, {rows} per request as {'JSON' if payload.encoding == 'json' else 'binary tensors'}"


def _load(load: Load) -> str:
    what = " then ".join(point_label(load, point) for point in load.points)
    if load.kind == "open":
        kinds = {
            "constant": "evenly spaced",
            "poisson": "Poisson arrivals",
            "bursts": "in bursts",
            "trace": f"as in {load.trace}",
        }
        what += f", {kinds[load.arrivals]}"
    return (
        f"{load.kind} loop, {what}; {load.duration_s:g} s per run after {load.warmup_s:g} s of warm-up; "
        f"{load.repeats} repeat{'' if load.repeats == 1 else 's'}, arms in turn"
    )


def _tags(names: Sequence[str]) -> str:
    return "".join(f' <span class="tag">{_e(name)}</span>' for name in names)


def _when(started: str) -> str:
    return datetime.fromisoformat(started).strftime("%-d %B %Y, %H:%M (UTC%z)")


def _caveats(report: Report) -> str:
    if not report.caveats:
        return ""
    return f"<h2>Before you believe it</h2><ul>{''.join(f'<li>{_e(text)}</li>' for text in report.caveats)}</ul>"


def _absent(report: Report) -> str:
    """Arms that were not run and runs that do not count: never left out in silence."""
    first = [arm for arm in report.arms if arm.point == report.manifest.load.points[0]]
    lines = [f"<strong>{_e(label(arm))}</strong>: not run: {_e(arm.not_run)}" for arm in first if arm.not_run]
    names = {arm.name: label(arm) for arm in report.arms}
    for run in report.runs:
        if run.void:
            lines.append(f"<strong>{_e(names[run.arm])}</strong>{_where(report, run)}: {_kind(run)}: {_e(run.void)}")
    if not lines:
        return ""
    return f'<section class="absent"><h2>Not in the numbers</h2><ul>{"".join(f"<li>{x}</li>" for x in lines)}</ul></section>'


def _where(report: Report, run: RunSummary) -> str:
    at = f" at {point_label(report.manifest.load, run.point)}" if len(report.manifest.load.points) > 1 else ""
    return f"{at}, repeat {run.repeat}"


def _unstable(report: Report) -> str:
    """Runs that were not the same from beginning to end: in the numbers, but not without a word."""
    names = {arm.name: label(arm) for arm in report.arms}
    lines = [
        f"<li><strong>{_e(names[run.arm])}</strong>{_where(report, run)}: {_e(run.unstable)}</li>"
        for run in report.runs
        if run.void is None and run.unstable
    ]
    return f'<section class="absent"><h2>Not stable</h2><ul>{"".join(lines)}</ul></section>' if lines else ""


def _kind(run: RunSummary) -> str:
    return "interrupted" if run.state == "interrupted" else "void"


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(arms: Sequence[ArmSummary], *, is_open: bool) -> str:
    ratio = "In time" if is_open else "Ratio"
    heads = ("Arm", "Requests/s", "p50 ms", "p90 ms", "p99 ms", ratio, "Right", "Errors", "Ran on")
    rows = [_arm(arm, heads, is_open=is_open) for arm in arms]
    return f"<h2>The arms side by side</h2>{_grid(heads, rows, ends_in_words=True)}"


def _arm(arm: ArmSummary, heads: Sequence[str], *, is_open: bool) -> str:
    name = f"<strong>{_e(label(arm))}</strong>" + _tag(arm)
    if not arm.num_runs:
        why = f"not run: {arm.not_run}" if arm.not_run else "no valid run"
        return f'<tr class="gone"><th>{name}</th><td colspan="{len(heads) - 1}">{_e(why)}</td></tr>'
    cells = (
        _interval(arm.throughput_rps, number),
        _interval(arm.latency_p50_s, milliseconds),
        _interval(arm.latency_p90_s, milliseconds),
        _interval(arm.latency_p99_s, milliseconds),
        _interval(arm.within_objective_ratio, _percent)
        if is_open
        else ("1" if arm.is_baseline else _factor(arm.throughput_ratio, in_words=False)),
        "–" if arm.accuracy is None else f"{arm.accuracy:.2%}",
        _e(", ".join(f"{num:,} {kind}" for kind, num in arm.errors.items()) or "0"),
        "<br>".join(_e(_device(device)) for device in arm.devices) or "no receipt",
    )
    return _row(heads, name, cells)


def _tag(arm: ArmSummary) -> str:
    called = "baseline" if arm.is_baseline else "the same" if arm.is_again else ""
    return f' <span class="tag">{called}</span>' if called else ""


def _device(receipt: str) -> str:
    """`cpu; name="X"` -> `cpu: X`"""
    kind, _, rest = receipt.partition(";")
    name = rest.partition("name=")[2].strip().strip('"')
    return f"{kind.strip()}: {name}" if name else receipt


def _interval(value: Estimate | None, show: Callable[[float], str]) -> str:
    if value is None:
        return '<span class="few">too few</span>'
    if value.low is None or value.high is None:
        return show(value.median)
    if show(value.low) == show(value.high):
        return show(value.median)
    return f'<span>{show(value.median)}<span class="between">{show(value.low)}–{show(value.high)}</span></span>'


def _factor(value: Difference | None, *, in_words: bool = True) -> str:
    """A ratio, its interval, and what it is called."""
    if value is None:
        return '<span class="few">inconclusive</span>'
    if value.low is None or value.high is None:
        return f'<span>{value.ratio:.2f}<span class="between">inconclusive</span></span>'
    called = {"higher": ", faster", "lower": ", slower"}.get(value.outcome, ", no difference seen") if in_words else ""
    return f'<span>{value.ratio:.2f}<span class="between">{value.low:.2f}–{value.high:.2f}{called}</span></span>'


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _evidence(arms: Sequence[ArmSummary]) -> str:
    if not testimony.is_known(arms):
        return ""
    heads = ("A request", *(_e(label(arm)) for arm in arms))
    rows = [_row(heads, _e(what), [_e(cell) for cell in cells]) for what, cells in testimony.lines(arms)]
    said = " ".join(_e(line) for line in testimony.remarks(arms))
    return f"<h2>What the servers say</h2>{_grid(heads, rows)}<p>{said}</p>"


def _ratios(report: Report, arms: Sequence[ArmSummary]) -> str:
    others = [arm for arm in arms if arm.throughput_ratio]
    if not others:
        return ""
    baseline = next(arm for arm in arms if arm.is_baseline)
    is_open = report.manifest.load.kind == "open"
    repeats = sorted({run.repeat for run in report.runs})
    heads = ("Arm", *(f"Repeat {n}" for n in repeats), "Speed-up of the median latency")
    valid = {(run.arm, run.repeat): run for run in report.runs if run.void is None and run.point == baseline.point}
    rows = []
    for arm in others:
        pairs = [(valid.get((arm.name, n)), valid.get((baseline.name, n))) for n in repeats]
        cells = [_ratio(own, base, is_open=is_open) for own, base in pairs]
        rows.append(_row(heads, _e(label(arm)), [*cells, _factor(arm.speed_ratio)]))
    lead = (
        "The baseline's median latency, divided by the arm's of the same repeat. Above 1 is faster."
        if is_open
        else "Requests per second, divided by the baseline's of the same repeat. Above 1 is faster."
    )
    return f"<h2>Against {_e(label(baseline))}, repeat by repeat</h2><p>{lead}</p>{_grid(heads, rows)}"


def _ratio(own: RunSummary | None, base: RunSummary | None, *, is_open: bool) -> str:
    if own is None or base is None:
        return "–"
    if not is_open:
        return f"{own.throughput_rps / base.throughput_rps:.3f}"
    return f"{base.latency_p50_s / own.latency_p50_s:.3f}" if base.latency_p50_s and own.latency_p50_s else "–"


def _runs(runs: Sequence[RunSummary]) -> str:
    heads = ("Run", "Good answers", "Errors", "Requests/s", "p50 ms", "p99 ms", "Generator CPU", "Rows")
    rows = []
    for run in runs:
        called = _kind(run) if run.void else "not stable" if run.unstable else ""
        tag = f' <span class="tag">{called}</span>' if called else ""
        cells = (
            f"{run.num_ok:,}",
            f"{run.num_errors:,}",
            number(run.throughput_rps),
            "–" if run.latency_p50_s is None else milliseconds(run.latency_p50_s),
            "–" if run.latency_p99_s is None else milliseconds(run.latency_p99_s),
            "–" if run.generator_cpu_ratio is None else f"{run.generator_cpu_ratio:.0%} of a core",
            f"<code>{_e(Path(run.rows).name)}</code>",
        )
        rows.append(_row(heads, f"{_e(run.arm)}, {run.point:,.6g}, repeat {run.repeat}{tag}", cells))
    table = _grid(heads, rows, ends_in_words=True)
    return f"<details><summary>Every run ({len(runs)})</summary>{table}</details>" if runs else ""


_CLOSED = (
    "Closed loop: each user sends its next request when the last one is answered. So throughput and latency are two "
    "sides of one number, and a slow server is asked less; it shows what saturates a server, not what independent "
    "clients live through.",
    "Latency is from just before the send to the last byte of the answer, seen by the generator, to the microsecond.",
)
_OPEN = (
    "Open loop: requests are sent when they are due, whether or not earlier ones were answered, as independent clients send. "
    "The same seed gives every arm the same arrivals.",
    "Latency is from when the request was due to the last byte of the answer, seen by the generator, to the microsecond: what "
    "waited in the generator counts. In time: good answers within the objective, of all requests that were due.",
    "A run is void if the generator lagged (99th percentile over 5 % of the objective), used over 90 % of a core in any of its "
    "processes, or left out more than 1 % of what was due. What was due while too many waited for their answers was dropped: it is not in "
    "time, and in no latency.",
)


def _rule(report: Report) -> str:
    """When `report/wording.py` calls an arm faster, and how often it would of an equal one."""
    what = "median latency" if report.manifest.load.kind == "open" else "requests per second"
    num = sum(1 for arm in report.arms if not (arm.is_baseline or arm.is_again) and arm.num_runs)
    return (
        f"An arm is called faster or slower only if the {CONFIDENCE:.0%} interval of its ratio to the baseline, in {what}, leaves out 1. "
        "The interval is Student's t on the logarithms of the ratios, one for each repeat, so that what slows a whole repeat cancels. "
        f"Two equal arms are called different in {FALSE_ALARM_RATIO:.0%} of comparisons, and this report makes {num}. Fewer than "
        f"{MIN_REPEATS} repeats are inconclusive."
    )


def _method(report: Report) -> str:
    ratio = (
        "Speed-up: the baseline's median latency over the arm's, repeat by repeat, then their geometric mean."
        if report.manifest.load.kind == "open"
        else "Ratio: requests per second over the baseline's, repeat by repeat, then their geometric mean."
    )
    lines = (
        *(_OPEN if report.manifest.load.kind == "open" else _CLOSED),
        "Throughput counts the good answers that arrived within the measured seconds.",
        f"A number is the median over runs. The range under it is a {CONFIDENCE:.0%} interval (Student's t) across runs, because "
        f"requests of one run are not independent; it is told from {MIN_REPEATS} runs on.",
        _rule(report),
        f"A run of {MIN_REQUESTS} requests or more is called not stable if its latency has an order in time (von Neumann's ratio of "
        f"{NUM_PARTS} parts under {MAX_ORDER:g}) and differs by {MIN_CHANGE_RATIO:.0%} from third to third, or if its queue grew.",
        f"A percentile is told only where at least {MIN_BEYOND} requests of each run lie beyond it: p99 needs 1,000 a run.",
        f"{ratio} Right: answers whose first label is the true one.",
        "Each arm pins its variant and pool. A run is void if a receipt shows another one, if nothing succeeded, or if the "
        "gateway or Triton was restarted under it.",
        "<code>tandem campaign report DIRECTORY</code> builds this page again from the raw rows; every number is in "
        "<code>report.json</code>.",
    )
    return f"<h2>Method</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
