"""How a report looks: one HTML file that opens offline, on a phone and on paper, in light and dark, for colour-blind eyes too.

Only drawing; every number comes from `report.py`, every text from outside goes through `_e`. Curves differ by dash and by the label at
their end as well as by colour. No script, no font, no link to anywhere.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from loadtest.estimates import CONFIDENCE, MIN_BEYOND, Estimate, chance_apart, range_coverage
from loadtest.records import Load, Payload
from loadtest.report import ArmSummary, Report, RunSummary, label, milliseconds, number

PAGE = "report.html"
# Okabe and Ito's colours, told apart by all common kinds of colour blindness; darkened (light page) or lightened to 3:1 against the page.
LIGHT = ("#0072B2", "#C04A00", "#007A5A", "#A3457F", "#8A6A00", "#444444")
DARK = ("#56B4E9", "#F0853B", "#2FC79B", "#E39AC4", "#E6C84A", "#BBBBBB")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "14 5", "4 2")
WIDE, NARROW = 760, 340  # a column on a desk, a column on a phone


def write(directory: Path, report: Report) -> Path:
    path = directory / PAGE
    path.write_text(render(report), encoding="utf-8")
    return path


def render(report: Report) -> str:
    ran = [arm for arm in report.arms if arm.num_runs]
    body = [_head(report), _caveats(report), _absent(report), _table(report.arms)]
    if ran:
        body += [_bars(ran), _curves(ran)]
    body += [_ratios(report), _runs(report.runs), _method(report)]
    title = _e(f"{report.manifest.name}: load test report")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_css()}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


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
    result = f'<p class="kind">{kind}</p><h1>{_e(m.name)}</h1><p class="result">{_e(report.sentence)}</p>'
    return f"<header>{result}<dl>{rows}</dl></header>"


def _payload(payload: Payload) -> str:
    what = "real handwritten digits" if payload.data == "digits" else "random inputs"
    images = "1 image" if payload.batch_size == 1 else f"{payload.batch_size} images"
    return f"{what}, {images} per request as {'JSON' if payload.encoding == 'json' else 'binary tensors'}"


def _load(load: Load) -> str:
    return (
        f"{load.users} users, closed loop; {load.duration_s:g} s per run after {load.warmup_s:g} s of warm-up; "
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
    lines = [f"<strong>{_e(label(arm))}</strong>: not run: {_e(arm.not_run)}" for arm in report.arms if arm.not_run]
    names = {arm.name: label(arm) for arm in report.arms}
    for run in report.runs:
        if run.void:
            lines.append(f"<strong>{_e(names[run.arm])}</strong>, repeat {run.repeat}: {_kind(run)}: {_e(run.void)}")
    if not lines:
        return ""
    return f'<section class="absent"><h2>Not in the numbers</h2><ul>{"".join(f"<li>{x}</li>" for x in lines)}</ul></section>'


def _kind(run: RunSummary) -> str:
    return "interrupted" if run.state == "interrupted" else "void"


# -- tables: on a phone every row becomes a block, whose cells name their own column ----------------------------------


def _grid(heads: Sequence[str], rows: Sequence[str], *, ends_in_words: bool = False) -> str:
    titles = "".join(f"<th>{h}</th>" for h in heads)
    kind = ' class="words"' if ends_in_words else ""
    return f"<table{kind}><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(heads: Sequence[str], name: str, cells: Sequence[str]) -> str:
    filled = "".join(f'<td data-head="{h}">{cell}</td>' for h, cell in zip(heads[1:], cells, strict=True))
    return f"<tr><th>{name}</th>{filled}</tr>"


def _table(arms: Sequence[ArmSummary]) -> str:
    heads = ("Arm", "Requests/s", "p50 ms", "p90 ms", "p99 ms", "Ratio", "Right", "Errors", "Ran on")
    return f"<h2>The arms side by side</h2>{_grid(heads, [_arm(arm, heads) for arm in arms], ends_in_words=True)}"


def _arm(arm: ArmSummary, heads: Sequence[str]) -> str:
    name = f"<strong>{_e(label(arm))}</strong>" + (' <span class="tag">baseline</span>' if arm.is_baseline else "")
    if not arm.num_runs:
        why = f"not run: {arm.not_run}" if arm.not_run else "no valid run"
        return f'<tr class="gone"><th>{name}</th><td colspan="{len(heads) - 1}">{_e(why)}</td></tr>'
    cells = (
        _interval(arm.throughput_rps, number),
        _interval(arm.latency_p50_s, milliseconds),
        _interval(arm.latency_p90_s, milliseconds),
        _interval(arm.latency_p99_s, milliseconds),
        "1" if arm.is_baseline else _interval(arm.throughput_ratio, _two_digits),
        "–" if arm.accuracy is None else f"{arm.accuracy:.2%}",
        _e(", ".join(f"{num:,} {kind}" for kind, num in arm.errors.items()) or "0"),
        "<br>".join(_e(_device(device)) for device in arm.devices) or "no receipt",
    )
    return _row(heads, name, cells)


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
    return f'<span>{show(value.median)}<span class="between">{show(value.low)}–{show(value.high)}</span></span>'


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _ratios(report: Report) -> str:
    others = [arm for arm in report.arms if arm.throughput_ratio]
    if not others:
        return ""
    baseline = next(arm for arm in report.arms if arm.is_baseline)
    repeats = sorted({run.repeat for run in report.runs})
    heads = ("Arm", *(f"Repeat {n}" for n in repeats), "Speed-up of the median latency")
    valid = {(run.arm, run.repeat): run.throughput_rps for run in report.runs if run.void is None}
    rows = []
    for arm in others:
        pairs = [(valid.get((arm.name, n)), valid.get((baseline.name, n))) for n in repeats]
        cells = [f"{own / base:.3f}" if own and base else "–" for own, base in pairs]
        rows.append(_row(heads, _e(label(arm)), [*cells, _interval(arm.speed_ratio, _two_digits)]))
    lead = "Requests per second, divided by the baseline's of the same repeat. Above 1 is faster."
    return f"<h2>Against {_e(label(baseline))}, repeat by repeat</h2><p>{lead}</p>{_grid(heads, rows)}"


def _runs(runs: Sequence[RunSummary]) -> str:
    heads = ("Run", "Good answers", "Errors", "Requests/s", "p50 ms", "p99 ms", "Generator CPU", "Rows")
    rows = []
    for run in runs:
        tag = f' <span class="tag">{_kind(run)}</span>' if run.void else ""
        cells = (
            f"{run.num_ok:,}",
            f"{run.num_errors:,}",
            number(run.throughput_rps),
            "–" if run.latency_p50_s is None else milliseconds(run.latency_p50_s),
            "–" if run.latency_p99_s is None else milliseconds(run.latency_p99_s),
            "–" if run.generator_cpu_ratio is None else f"{run.generator_cpu_ratio:.0%} of a core",
            f"<code>{_e(Path(run.rows).name)}</code>",
        )
        rows.append(_row(heads, f"{_e(run.arm)}, repeat {run.repeat}{tag}", cells))
    table = _grid(heads, rows, ends_in_words=True)
    return f"<details><summary>Every run ({len(runs)})</summary>{table}</details>" if runs else ""


def _method(report: Report) -> str:
    num_runs = max((arm.num_runs for arm in report.arms), default=0)
    lines = (
        "Closed loop: each user sends its next request when the last one is answered. So throughput and latency are two "
        "sides of one number, and a slow server is asked less; it shows what saturates a server, not what independent "
        "clients live through.",
        "Latency is from just before the send to the last byte of the answer, seen by the generator, to the microsecond. "
        "Throughput counts the good answers that arrived within the measured seconds.",
        f"A number is the median over runs. The range under it is a {CONFIDENCE:.0%} bootstrap interval across runs, because "
        f"requests of one run are not independent. It can be no wider than from the smallest run to the largest, which "
        f"with {num_runs} runs holds the true median in {range_coverage(num_runs):.0%} of cases; 95 % needs six.",
        f"An arm is called faster or slower only if every one of its runs beats, or loses to, every run of the baseline. With "
        f"{num_runs} runs each, two equal arms would look so in {chance_apart(num_runs, num_runs):.0%} of campaigns.",
        f"A percentile is told only where at least {MIN_BEYOND} requests of each run lie beyond it: p99 needs 1,000 a run.",
        "Ratio: requests per second over the baseline's, repeat by repeat, then the median. Right: answers whose first "
        "label is the true one.",
        "Each arm pins its variant and pool. A run is void if a receipt shows another one, if nothing succeeded, or if the "
        "gateway or Triton was restarted under it.",
        "<code>tandem campaign report DIRECTORY</code> builds this page again from the raw rows; every number is in "
        "<code>report.json</code>.",
    )
    return f"<h2>Method</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


# -- plots: each drawn for a desk and for a phone, so that letters keep their size ------------------------------------


def _figure(title: str, caption: str, wide: str, narrow: str) -> str:
    drawn = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f"<figure><h2>{title}</h2>{drawn}<figcaption>{caption}</figcaption></figure>"


def _svg(width: int, height: int, name: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{_e(name)}">{"".join(parts)}</svg>'


def _bars(arms: Sequence[ArmSummary]) -> str:
    caption = "Good answers per second: the bar is the median over runs, the line its interval, each dot one run."
    return _figure("Throughput", caption, _draw_bars(arms, WIDE), _draw_bars(arms, NARROW))


def _draw_bars(arms: Sequence[ArmSummary], width: int) -> str:
    row, top, right = 58, 6, 72
    most = max(max(arm.throughput_rps.runs) for arm in arms if arm.throughput_rps) or 1.0
    parts = []
    for index, arm in enumerate(arms):
        assert arm.throughput_rps
        y, scale = top + index * row, (width - right) / most
        value = arm.throughput_rps
        end = value.median * scale
        parts.append(f'<text x="0" y="{y + 13}" class="name">{_e(label(arm))}</text>')
        parts.append(f'<rect x="0" y="{y + 20}" width="{end:.1f}" height="22" rx="2" class="fill c{index % 6}"/>')
        reach = max(end, (value.high or 0) * scale, max(value.runs) * scale)
        if value.low is not None and value.high is not None:
            low, high, middle = value.low * scale, value.high * scale, y + 31
            parts.append(
                f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 6}v12M{high:.1f} {middle - 6}v12" class="whisker"/>'
            )
        parts += [f'<circle cx="{run * scale:.1f}" cy="{y + 31}" r="3" class="dot"/>' for run in value.runs]
        parts.append(f'<text x="{reach + 8:.1f}" y="{y + 36}">{number(value.median)}</text>')
    return _svg(width, top + row * len(arms), "Throughput of each arm", parts)


def _curves(arms: Sequence[ArmSummary]) -> str:
    key = "".join(_key(index, arm) for index, arm in enumerate(arms))
    words = (
        "Share of requests answered within a time, on a logarithmic scale: further left is faster. All valid runs together, "
        "without the fastest and the slowest 0.1 %."
    )
    caption = f'<span class="keys">{key}</span>{words}'
    return _figure("Latency", caption, _draw_curves(arms, WIDE, 320), _draw_curves(arms, NARROW, 260))


def _key(index: int, arm: ArmSummary) -> str:
    path = f'<path d="M1 5H33" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>'
    line = f'<svg width="34" height="10" aria-hidden="true">{path}</svg>'
    return f'<span class="key">{line} {_e(label(arm))}</span>'


def _draw_curves(arms: Sequence[ArmSummary], width: int, height: int) -> str:
    left, right, top, bottom = 44, 14, 10, 40
    curves = [arm.latency_curve for arm in arms]
    # From the fastest 0.1 % to the slowest 0.1 %: single requests beyond would squeeze the rest.
    low = min(_at(curve, 0.001) for curve in curves) * 1000
    high = max(max(_at(curve, 0.999) for curve in curves) * 1000, low * 1.5)
    span = math.log(high / low)

    def x(ms: float) -> float:
        return left + (width - left - right) * math.log(max(ms, low) / low) / span

    def y(share: float) -> float:
        return top + (height - top - bottom) * (1 - share)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{left} {y(share):.1f}H{width - right}" class="rule"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" class="end">{share:.0%}</text>')
    for tick in _ticks(low, high, 4 if width == NARROW else 9):
        parts.append(f'<path d="M{x(tick):.1f} {top}V{height - bottom}" class="rule"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 16}" class="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + width - right) / 2:.0f}" y="{height - 6}" class="middle">latency, ms</text>')
    for index, curve in enumerate(curves):
        points = " ".join(f"{x(v * 1000):.1f},{y(s):.1f}" for v, s in curve if v * 1000 <= high)
        parts.append(f'<polyline points="{points}" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>')
    return _svg(width, height, "Distribution of latency of each arm", parts)


def _at(curve: Sequence[tuple[float, float]], share: float) -> float:
    return next((value for value, at in curve if at >= share), curve[-1][0])


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers of a logarithmic axis; as many kinds of digits as fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [
            round(digit * 10.0**decade, 9)
            for decade in decades
            for digit in digits
            if low <= digit * 10.0**decade <= high
        ]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def _css() -> str:
    def colours(values: Sequence[str]) -> str:
        return "".join(f"--c{i}:{c};" for i, c in enumerate(values))

    light = f"--page:#fff;--text:#1a1a1a;--soft:#5c5c5c;--rule:#dcdcdc;--box:#f5f5f3;--warn:#fff4e0;{colours(LIGHT)}"
    dark = f"--page:#16181b;--text:#e8e8e6;--soft:#a6a8ab;--rule:#3a3d42;--box:#202328;--warn:#33291a;{colours(DARK)}"
    classes = "".join(f".fill.c{i}{{fill:var(--c{i})}}.line.c{i}{{stroke:var(--c{i})}}" for i in range(6))
    return (
        f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{:root{{color-scheme:light;{light}}}}}{classes}{CSS}"
    )


CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:820px;margin:0 auto;padding:28px 30px 60px}
h1{font-size:28px;margin:0 0 8px;line-height:1.2}
h2{font-size:19px;margin:34px 0 10px}
.kind{margin:0;color:var(--soft);font-size:14px}
.result{font-size:19px;line-height:1.5;margin:0 0 18px}
dl{margin:0;background:var(--box);padding:10px 16px;border-radius:6px}
dl div{display:flex;gap:12px;padding:3px 0}
dt{flex:0 0 92px;color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
ul{margin:0;padding-left:20px}
li{margin:4px 0}
code{font:14px ui-monospace,monospace;overflow-wrap:anywhere}
.tag,.flag{font-size:12px;border:1px solid var(--rule);border-radius:4px;padding:0 5px;white-space:nowrap;font-weight:400}
.flag{background:var(--warn);border-color:currentColor}
.absent{background:var(--warn);border-radius:6px;padding:12px 16px;margin-top:26px}
.absent h2{margin:0 0 6px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:7px 8px;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:400;color:var(--soft)}
th:first-child,.words td:last-child,.words th:last-child{text-align:left}
th strong,thead th,.few{white-space:nowrap}
tbody th{color:var(--text)}
.gone td{text-align:left;color:var(--soft)}
.between{display:block;color:var(--soft);font-size:12px;white-space:nowrap}
.few{color:var(--soft)}
summary{cursor:pointer;margin:30px 0 8px;font-size:19px;font-weight:700}
figure{margin:0}
figcaption{color:var(--soft);font-size:14px}
.keys{display:block;color:var(--text)}
.key{display:inline-block;margin-right:18px;white-space:nowrap}
svg{max-width:100%;height:auto;display:block}
.key svg{display:inline-block;vertical-align:middle}
text{fill:var(--soft);font-size:13px}
.name{fill:var(--text);font-size:14px}
.end{text-anchor:end}.middle{text-anchor:middle}
.rule{stroke:var(--rule);fill:none}
.line{fill:none;stroke-width:2.5}
.whisker{stroke:var(--text);stroke-width:1.5;fill:none}
.dot{fill:var(--page);stroke:var(--text);stroke-width:1.2}
.narrow{display:none}
@media(max-width:640px){
main{padding:16px 16px 40px}
.result{font-size:17px}
dl div{display:block}
.wide{display:none}.narrow{display:block}
thead{display:none}
tr{display:block;border-bottom:1px solid var(--rule);padding:8px 0}
tbody th,td{display:flex;justify-content:space-between;gap:14px;border:0;padding:2px 0;text-align:right!important}
tbody th{display:block;text-align:left!important}
td[data-head]::before{content:attr(data-head);color:var(--soft);text-align:left;flex:none}
.between{display:inline;margin-left:8px}
}
@media print{main{max-width:none;padding:0}details:not([open])>*{display:block}figure,tr,.absent,dl{break-inside:avoid}body{font-size:11pt}}
""".replace("\n", "")
