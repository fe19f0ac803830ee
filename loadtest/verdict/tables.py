"""The tables of a verdict's page: rates, servers with prices and accuracy, runs under load, cold starts, where figures come from.

Only drawing. What was not measured says so in its cell; it is never left empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.report.style import grid as _grid
from loadtest.report.style import row as _row
from loadtest.report.style import text as _e
from loadtest.report.summaries import milliseconds, number
from loadtest.verdict import wording
from loadtest.verdict.amounts import day, money, rate, times
from loadtest.verdict.report import Check, ServerReport, SourceReport, VerdictReport
from serving.decisions.plan.sensitivity import Sensitivity
from serving.decisions.profile import LoadPoint, MaxRate
from serving.decisions.verdict import AtRate, Side

MOST_OPEN = 6  # void runs that are listed at once; more are folded, and unfolded on paper
NOT_MEASURED = '<span class="few">not measured</span>'


def voids(servers: Sequence[ServerReport], check: Check | None) -> str:
    """What was run and is in no number, with why: never left out in silence."""
    lines = [
        f"<strong>{_e(s.label)}</strong> at {_e(rate(p.rate_rps))}: void: {_e(p.void)}"
        for s in servers
        for p in s.load
        if p.void is not None
    ]
    if check is not None:
        lines += [f"<strong>the check</strong> at {_e(rate(check.rate_rps))}: void: {_e(why)}" for why in check.voids]
    if not lines:
        return ""
    told = f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
    if len(lines) > MOST_OPEN:
        return f'<details class="absent"><summary>Not in the numbers ({len(lines)} void runs)</summary>{told}</details>'
    return f'<section class="absent"><h2>Not in the numbers</h2>{told}</section>'


def rates(report: VerdictReport) -> str:
    heads = ("Rate", "Hours a day", "CPU an hour", "CPU servers", "GPU an hour", "GPU servers", "Here the GPU")
    said = {"pays": "pays", "does_not_pay": "does not pay", "depends": "depends", "inconclusive": "inconclusive"}
    rows = [_at_rate(heads, at, report.currency, said[at.word]) for at in report.verdict.at_rates]
    lead = "<p>Under a price: with its servers as fast, and as slow, as was measured.</p>"
    return f"<h2>At the rates asked for</h2>{lead}{_grid(heads, rows, ends_in_words=True)}" if rows else ""


def _at_rate(heads: Sequence[str], at: AtRate, currency: str, word: str) -> str:
    cells = [f"{at.hours:g}"]
    for side in (at.cpu, at.gpu):
        cells += (
            ["–", "none"]
            if side is None
            else [_price(side, currency), "<br>".join(f"{n} × ({_e(what)})" for what, n in side.servers)]
        )
    return _row(heads, _e(rate(at.rate_rps)), [*cells, word])


def _price(side: Side, currency: str) -> str:
    high = "out of reach" if side.high_per_hour is None else money(side.high_per_hour, currency)
    low = money(side.low_per_hour, currency)
    between = "" if low == high else f'<span class="between">{_e(low)}–{_e(high)}</span>'
    return f"<span>{_e(money(side.per_hour, currency))}{between}</span>"


def servers(report: VerdictReport) -> str:
    """Accuracy stands beside the price, because a cheaper variant that is worse is no bargain."""
    heads = ("Server", "Highest rate", "Per million at it", "An hour", "Accuracy", "Joules each")
    rows = [_server(heads, s, report.sources[s.source], report.currency) for s in report.servers]
    lead = f"<p>Highest rate: with p99 within {_e(times(report.objective.latency_p99_s))}.</p>"
    return f"<h2>What was measured, the cheapest first</h2>{lead}{_grid(heads, rows)}" if rows else ""


def _server(heads: Sequence[str], s: ServerReport, source: SourceReport, currency: str) -> str:
    share = f", {s.share:.0%} of it" if s.share is not None and s.share < 1 else ""
    hour = '<span class="few">no price</span>'
    if s.per_hour is not None:
        offer = f'<span class="between">{_e(s.offer)}{share}</span>'
        hour = f"<span>{_e(money(s.per_hour, currency))}{offer}</span>"
    cells = (
        _max_rate(s.max_rate),
        "–" if s.per_million is None else _e(money(s.per_million, currency)),
        hour,
        _accuracy(s).removeprefix("accuracy "),
        NOT_MEASURED if s.joules_per_request is None else f"{s.joules_per_request:.3g}",
    )
    where = f"{source.provenance} {'here' if source.origin == 'here' else 'elsewhere'}, {day(source.date)}"
    notes = "".join(f'<span class="between">{_e(note)}</span>' for note in (s.device_name, where))
    name = f"<strong>{_e(s.label)}</strong>{notes}"
    return _row(heads, name, cells)


def _max_rate(measured: MaxRate | None) -> str:
    if measured is None:
        return NOT_MEASURED
    if not measured.rate_rps:
        return "not seen: the generator was too slow" if measured.is_bounded_by_generator else "none in time"
    runs = f"{len(measured.runs)} run{'' if len(measured.runs) == 1 else 's'}"
    if measured.low_rps is None or measured.high_rps is None:
        return f'<span>{number(measured.rate_rps)}<span class="between">no interval, {runs}</span></span>'
    more = ", or more" if measured.is_bounded_by_generator else ""
    between = f"{number(measured.low_rps)}–{number(measured.high_rps)}, {runs}{more}"
    return f'<span>{number(measured.rate_rps)}<span class="between">{between}</span></span>'


def prices(report: VerdictReport) -> str:
    heads = ("At", "Per million requests")
    rows = [_row(heads, _e(what), [_e(money(value, report.currency))]) for what, value in report.per_million]
    named = {pool.name: s for pool in report.pools for s in report.servers if s.name == pool.server}
    lead = "".join(f"<p>The plan's {name}: {_e(with_accuracy(s))}.</p>" for name, s in named.items())
    return f"<h2>Price per million</h2>{lead}{_grid(heads, rows)}" if rows else ""


def with_accuracy(server: ServerReport) -> str:
    """`int8 on cpu, 1 × 2, accuracy 0.9822`"""
    return f"{server.label}, {_accuracy(server)}"


def _accuracy(server: ServerReport) -> str:
    if server.is_untrained:
        return "untrained: random weights"
    return "accuracy not recorded" if server.accuracy is None else f"accuracy {server.accuracy:.4f}"


def sensitivity(answers: Sequence[Sensitivity], currency: str) -> str:
    heads = ("If", "CPU servers a day", "GPU servers a day", "Cheaper then", "Break-even then")
    told = [one for one in answers if one.cpu_per_day is not None and one.gpu_per_day is not None]
    rows = list(dict.fromkeys(_answer(heads, one, currency) for one in told))  # both ends of no interval are one
    lead = "<p>One thing at a time, all else as it is; servers of one kind against servers of the other.</p>"
    return f"<h2>If an assumption is wrong</h2>{lead}{_grid(heads, rows)}" if rows else ""


def _answer(heads: Sequence[str], one: Sensitivity, currency: str) -> str:
    prices = [_e(money(price, currency)) for price in (one.cpu_per_day, one.gpu_per_day) if price is not None]
    cheaper = {"cpu": "CPU", "gpu": "GPU", None: "neither"}[one.cheaper]
    at = (
        "never"
        if one.break_even_rps is None
        else "any rate"
        if one.break_even_rps == 0
        else _e(rate(one.break_even_rps))
    )
    return _row(heads, _e(wording.assumption(one)), [*prices, cheaper, at])


def load_points(servers: Sequence[ServerReport]) -> str:
    """Every run under load, in the order in which it was made."""
    heads = ("Run", "Due", "Good answers/s", "p50 ms", "p99 ms", "Late or lost", "Within the objective")
    rows = [_point(heads, s, p) for s in servers for p in s.load]
    table = _grid(heads, rows, ends_in_words=True)
    return f"<details><summary>Every run under load ({len(rows)})</summary>{table}</details>" if rows else ""


def _point(heads: Sequence[str], s: ServerReport, p: LoadPoint) -> str:
    outcome = "void" if p.void is not None else "yes" if p.is_met else "no"
    cells = (
        f"{p.num_due:,}",
        number(p.throughput_rps),
        "–" if p.latency_p50_s is None else milliseconds(p.latency_p50_s),
        "–" if p.latency_p99_s is None else milliseconds(p.latency_p99_s),
        f"{p.num_late_or_lost:,}",
        outcome,
    )
    return _row(heads, f"{_e(s.label)}, {_e(rate(p.rate_rps))}", cells)


def cold_starts(servers: Sequence[ServerReport]) -> str:
    known = [s for s in servers if s.cold_start]
    names = list(dict.fromkeys(phase.name for s in known for phase in s.cold_start))
    heads = ("Server", *(f"{_e(name.replace('_', ' '))}, s" for name in names), "All, s")
    rows = []
    for s in known:
        by_name = {phase.name: phase.seconds for phase in s.cold_start}
        cells = [f"{by_name[name]:.2f}" if name in by_name else "–" for name in names]
        rows.append(_row(heads, _e(s.label), [*cells, f"{sum(by_name.values()):.2f}"]))
    return f"<h2>Cold start</h2>{_grid(heads, rows)}" if rows else ""


def sources(report: VerdictReport) -> str:
    """Machine, day, command and versions of every profile."""
    return "<h2>Where the figures come from</h2>" + "".join(_source(one) for one in report.sources)


def _source(one: SourceReport) -> str:
    origin = {"here": "this machine", "given": "a file that was given", "shipped": "a file that came with Tandem"}
    machine = one.machine
    tags = "".join(f' <span class="tag">{_e(name)}</span>' for name in machine.instruction_sets)
    facts = [
        ("From", _e(f"{origin[one.origin]}{f' ({one.file})' if one.file else ''}; {one.provenance}")),
        ("When", _e(day(one.date))),
        ("Processor", _e(f"{machine.processor}, {machine.num_cores:g} cores") + tags),
        ("GPU", _e("; ".join(machine.cards) or "none")),
        ("Sent", _e(one.data or "not recorded")),
        ("Command", f"<code>{_e(one.command)}</code>"),
        ("Versions", _e(", ".join([f"{n} {v}" for n, v in one.versions.items()] + [machine.system]))),
    ]
    if one.note:
        facts.append(("Note", _e(one.note)))
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f'<dl class="source">{rows}</dl>'
