"""How does a verdict look? One HTML file: a first screen for whoever decides, then curves, tables and how it was measured.

Only drawing; numbers are `report.py`'s, sentences `wording.py`'s, figures `pictures.py`'s. Every text from outside goes through `_e`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.profile.picture import ladder_bars
from loadtest.profile.wording import where_time_goes, why_slower
from loadtest.report.style import document
from loadtest.report.style import text as _e
from loadtest.verdict import pictures, tables, wording
from loadtest.verdict.amounts import day, money, rate, times
from loadtest.verdict.report import ServerReport, VerdictReport

PAGE = "report.html"


def write(directory: Path, report: VerdictReport) -> Path:
    path = directory / PAGE
    path.write_text(render(report), encoding="utf-8")
    return path


def render(report: VerdictReport) -> str:
    asked = [one for _, one in report.objective.rates]
    weighed = [s for s in report.servers if s.offer is not None]
    rest = [s for s in report.servers if s.offer is None]
    ranked = [*_first_of_each_kind(weighed), *weighed, *rest]
    once = list({s.name + str(s.source): s for s in ranked}.values())
    body = [
        _head(report),
        _changes(report),
        _caveats(report),
        pictures.latency(once, report.objective.latency_p99_s),
        _check(report),
        _ladders(once),
        pictures.cost(report.curve, report.currency, asked, report.verdict.break_even_rps, _names(report)),
        pictures.tornado(report.sensitivity, report.verdict.break_even_rps),
        tables.sensitivity(report.sensitivity, report.currency),
        tables.rates(report),
        tables.servers(report),
        tables.prices(report),
        tables.voids(report.servers, report.check),
        tables.load_points(report.servers),
        tables.cold_starts(report.servers),
        tables.sources(report),
        _method(report),
    ]
    return document(f"{report.model}: does the GPU pay?", body, CSS)


def _first_of_each_kind(weighed: Sequence[ServerReport]) -> list[ServerReport]:
    """The cheapest of either kind, so that both are in the pictures; the CPU first, in the colour of the cost curves."""
    first: dict[bool, ServerReport] = {}
    for server in weighed:
        first.setdefault(server.device != "cpu", server)
    return [first[kind] for kind in sorted(first)]


def _names(report: VerdictReport) -> dict[str, str]:
    """What the cheapest server of each kind is, for the key of the cost curves; on several machines another one at each rate."""
    names = {}
    for kind in ("cpu", "gpu"):
        priced = [s for s in report.servers if s.offer is not None and (s.device == "cpu") == (kind == "cpu")]
        offers = list(dict.fromkeys(s.offer for s in priced))
        what = f": {tables.with_accuracy(priced[0])}, on {offers[0]}" if priced else ""
        if len(offers) > 1:
            what = f": at each rate the cheapest of {', '.join(str(offer) for offer in offers)}"
        names[kind] = f"{kind.upper()}{what}"
    return names


# -- the first screen --------------------------------------------------------------------------------------------------


def _head(report: VerdictReport) -> str:
    flags = [] if report.is_met else ["objective not met"]
    marks = "".join(f' <span class="flag">{_e(flag)}</span>' for flag in flags)
    asked = wording.objective(report.objective)
    kind = f"Does the GPU pay? <strong>{_e(report.model)}</strong> at {_e(asked)}{marks}"
    heading = f'<p class="kind">{kind}</p><h1>{_e(wording.headline(report.verdict))}</h1>'
    rest = report.paragraph.removeprefix(f"{wording.headline(report.verdict)}: ")
    return f'<header>{heading}<p class="result">{_e(rest[:1].upper() + rest[1:])}</p>{_figures(report)}</header>'


def _figures(report: VerdictReport) -> str:
    """The four numbers that a decision needs."""
    currency = report.currency
    hour = report.numbers.get("per_hour")
    million = report.numbers.get("per_million")
    p99 = report.numbers.get("p99_s")
    broken = _break_even(report)
    cells = [
        ("Price an hour", _e(money(hour.value, currency)) if hour else "–", _e(_plan_note(report))),
        (
            "Price per million",
            _e(money(million.value, currency)) if million else "–",
            "requests at the highest rate asked for",
        ),
        ("Break-even", _e(broken), _e(_break_even_note(report))),
        (
            "p99 at this rate",
            _e(times(p99.value)) if p99 else f'<span class="few">{_no_p99(report)}</span>',
            _e(_p99_note(report)),
        ),
    ]
    boxes = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd><dd class='note'>{note}</dd></div>" for name, value, note in cells
    )
    return f'<dl class="figures">{boxes}</dl>'


def _plan_note(report: VerdictReport) -> str:
    """What runs at most, with its accuracy: a cheaper variant that is worse is no bargain."""
    servers = {server.name: server for server in report.servers}
    said = []
    for pool in report.pools:
        many = "" if pool.max_replicas == 1 else f"{pool.max_replicas} × "
        said.append(f"{many}{tables.with_accuracy(servers[pool.server])}")
    return " and ".join(said) or "nothing is planned"


def _break_even(report: VerdictReport) -> str:
    at = report.verdict.break_even_rps
    kinds = {s.device == "cpu" for s in report.servers if s.offer is not None}
    if len(kinds) < 2:
        return "unknown"
    return "never" if at is None else "any rate" if at == 0 else rate(at)


def _break_even_note(report: VerdictReport) -> str:
    verdict = report.verdict
    if _break_even(report) == "unknown":
        return "only one kind of server was measured and priced"
    low, high = verdict.break_even_low_rps, verdict.break_even_high_rps
    if low is None or verdict.break_even_rps == 0:
        return "from there on the GPU is the cheaper one"
    span = f"{rate(low)} to {rate(high) if high is not None else 'never'}"
    return f"by what was measured: {span}; from there on the GPU is the cheaper one"


def _no_p99(report: VerdictReport) -> str:
    if report.check is None:
        return "not run"
    return "void" if report.check.void is not None else "too few answers"


def _p99_note(report: VerdictReport) -> str:
    p99 = report.numbers.get("p99_s")
    if p99 is None:
        return report.check_not_run or f"objective {times(report.objective.latency_p99_s)}"
    within = f"{times(p99.low)} to {times(p99.high)} over {len(p99.runs)} runs; " if p99.low and p99.high else ""
    return f"{within}objective {times(report.objective.latency_p99_s)}"


def _changes(report: VerdictReport) -> str:
    """Why it is so, and what would change it."""
    reasons = [wording.reason(one, report.model, report.objective.batch_size) for one in report.verdict.reasons]
    flips = [wording.flip(one, report.currency) for one in report.verdict.flips]
    parts = []
    if reasons:
        parts.append(f"<h2>Why</h2>{_list(reasons)}")
    parts.append(f"<h2>What would change it</h2>{_list(flips)}" if flips else "")
    parts += [f"<h2>What cannot be met</h2>{_list([b.says for b in report.bindings])}"] if report.bindings else []
    return "".join(parts)


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_e(one.rstrip(chr(46)))}.</li>' for one in sentences)}</ul>"


def _caveats(report: VerdictReport) -> str:
    return f"<h2>Before you believe it</h2>{_list(report.caveats)}" if report.caveats else ""


# -- below -------------------------------------------------------------------------------------------------------------


def _check(report: VerdictReport) -> str:
    check = report.check
    if check is None or check.void is not None:
        return ""
    name = f"{check.label} at {rate(check.rate_rps)}"
    return pictures.distribution(check.latency_curve, report.objective.latency_p99_s, name)


def _ladders(servers: Sequence[ServerReport]) -> str:
    """Where the time goes, in bars and in words; of the cheapest of both kinds also why one is slower."""
    drawn = [s for s in servers if s.ladder][: pictures.MAX_CURVES]
    said = [(s.label, where_time_goes(s, _least_rows(s))) for s in drawn[:2]]
    kinds = {s.device == "cpu": s for s in reversed(drawn)}
    if len(kinds) == 2:
        said.append(("GPU and CPU", why_slower(kinds[False], kinds[True], _least_rows(kinds[True]))))
    told = "".join(f"<p><strong>{_e(name)}.</strong> {_e(' '.join(lines))}</p>" for name, lines in said if lines)
    return ladder_bars(drawn) + told


def _least_rows(server: ServerReport) -> int:
    return min(timing.batch_size for timing in server.ladder)


def _method(report: VerdictReport) -> str:
    asked = report.objective
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = (
        "Open loop: requests are sent when they are due, as independent clients send, whether or not earlier ones were "
        "answered. Latency is from when a request was due to the last byte of the answer, through the gateway.",
        "The highest rate of a server is the most requests per second of which at most 1 % were late or lost, by search, "
        "repeated; its interval is over the repeats. A run is void if the generator lagged, was too busy or left requests "
        "out; void runs are in no number.",
        f"Servers are whole. Each is planned with {asked.headroom_ratio:.0%} of its highest rate, and at least "
        f"{max(asked.min_replicas, 1)} of a pool runs. The price is the list's for every hour that a server runs, used or not.",
        "Pays, or does not pay: at every rate asked for, with the GPU as slow and the CPU as fast as was measured, or the other "
        "way round. Where the answer differs between these ends, or between the rates, it depends. Fewer than three repeats, "
        "only void runs or a missing side are inconclusive; so is whatever rests on figures from a file.",
        f"Prices: {_e(report.price_list)}, {_e(day(report.price_date))}; {_e(report.price_source)}.",
        f"Command: <code>{_e(report.command)}</code>, {_e(day(report.date))}; {_e(versions)}.",
        "Every number of this page is in <code>report.json</code> beside it.",
    )
    return f"<h2>Method</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


CSS = """
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:14px 18px;padding:14px 16px}
.figures div{display:block;padding:0}
.figures dt{font-size:14px}
.figures dd{font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}
.figures dd.note{font-size:12px;line-height:1.35;color:var(--soft)}
.limit{stroke:var(--text);stroke-width:1.5;fill:none;stroke-dasharray:2 4}
.asked{stroke:var(--soft);stroke-width:1.5;fill:none;stroke-dasharray:1 4}
.crossing{stroke:var(--text);stroke-width:1.5;fill:none}
.line.hollow{fill:var(--page);stroke-width:1.8}
.line.thin{stroke-width:1.8}
thead th,.between{white-space:normal}
th .between{display:block;margin:0}
.absent summary{margin:0}
.key{white-space:normal}
.source{margin-bottom:12px}
@media(max-width:640px){.figures{grid-template-columns:1fr 1fr}.figures dd{font-size:20px}}
""".replace("\n", "")
