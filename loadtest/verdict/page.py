"""Shows a verdict as one HTML file, from the template `verdict.html` beside this file: the decision first, then all that it rests on.

Only what is shown, and where; numbers are `report.py`'s, sentences `wording.py`'s, figures `figures.py`'s. What was not measured says so in
its cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from loadtest.profile.wording import where_time_goes, why_slower
from loadtest.report.figures import distribution
from loadtest.report.summaries import milliseconds, number
from loadtest.verdict import figures, wording
from loadtest.verdict.report import Check, ServerReport, SourceReport, VerdictReport
from serving.decisions.profile import LoadPoint, MaxRate
from serving.decisions.sensitivity import Sensitivity
from serving.decisions.verdict import AtRate, Side
from serving.decisions.wording import (
    assumption,
    day,
    flip,
    money,
    objective,
    offered,
    rate,
    reason,
    times,
    what_if_row,
    within,
)
from serving.documents.figures import Figure
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, Value

PAGE = "report.html"
PAGES = Pages(Path(__file__).parent, day=day)
MAX_OPEN_VOIDS = 6  # more void runs are folded, and unfolded on paper
NOT_MEASURED = Cell("not measured", kind="missing")
ORIGINS = {"here": "this machine", "given": "a file that was given", "shipped": "a file that came with Tandem"}


def write(directory: Path, report: VerdictReport) -> Path:
    path = directory / PAGE
    path.write_text(render(report), encoding="utf-8")
    return path


def render(report: VerdictReport) -> str:
    ranked = _ranked(report.servers)
    headline = wording.headline(report.verdict)
    first = (report.sentence or report.paragraph).removeprefix(f"{headline}: ")
    at_rps = report.verdict.break_even_rps
    by_name = {server.name: server for server in report.servers}
    return PAGES.render(
        "verdict.html",
        report=report,
        headline=headline,
        objective=objective(report.objective),
        sentence=first[:1].upper() + first[1:],
        paragraph=report.paragraph.removeprefix(report.sentence).strip() if report.sentence else "",
        figures_at_once=_figures_at_once(report),
        reasons=_sentences(
            reason(one, report.model, report.objective.batch_size, report.currency) for one in report.verdict.reasons
        ),
        flips=_sentences(flip(one, report.currency) for one in report.verdict.flips),
        bindings=_sentences(one.says for one in report.bindings),
        caveats=_sentences(report.caveats),
        latency=figures.latency(ranked, report.objective.latency_p99_s),
        distribution=_distribution(report.check, report.objective.latency_p99_s),
        ladder=figures.ladder([s for s in ranked if s.ladder][: figures.MAX_CURVES]),
        where_time_goes=_where_time_goes([s for s in ranked if s.ladder][: figures.MAX_CURVES]),
        cost=figures.cost(report, {kind: _cheapest(report, kind) for kind in figures.KINDS}),
        tornado=figures.tornado(report.sensitivity, at_rps),
        sensitivity=_sensitivity(report.sensitivity, report.currency),
        rates=_rates(report),
        servers=_servers(report),
        planned=[(pool.name, _with_accuracy(by_name[pool.server])) for pool in report.pools if pool.server in by_name],
        what_ifs=Table(
            "What if: cards by published figures",
            ("Card", "Published highest rate", "An hour", "Break-even", "Figures"),
            tuple(what_if_row(one, report.currency) for one in report.what_ifs),
            "Tandem measured none of these; each figure is a range, for none has HTTP and a gateway in it.",
            ends_in_words=True,
        ),
        prices=Table(
            "Price per million",
            ("At", "Per million requests"),
            tuple((what, money(value, report.currency)) for what, value in report.per_million),
        ),
        voids=_voids(report.servers, report.check),
        max_open_voids=MAX_OPEN_VOIDS,
        load_points=_load_points(report.servers),
        cold_starts=_cold_starts(report.servers),
        origins=ORIGINS,
    )


def _sentences(texts: Iterable[str]) -> list[str]:
    return [f"{text.rstrip('.')}." for text in texts]


def _ranked(servers: Sequence[ServerReport]) -> list[ServerReport]:
    """The cheapest CPU and the cheapest card first, in the colours of the cost curves; then what was weighed, then the rest."""
    weighed = [s for s in servers if s.offer is not None]
    first: dict[bool, ServerReport] = {}
    for server in weighed:
        first.setdefault(server.device != "cpu", server)
    ranked = [*(first[kind] for kind in sorted(first)), *weighed, *(s for s in servers if s.offer is None)]
    return list({s.name + str(s.source): s for s in ranked}.values())


def _cheapest(report: VerdictReport, kind: str) -> str:
    """The cheapest server of a kind, for the key of the cost curves; on several machines another one at each rate."""
    priced = [s for s in report.servers if s.offer is not None and (s.device == "cpu") == (kind == "cpu")]
    offers = list(dict.fromkeys(str(s.offer) for s in priced))
    if len(offers) > 1:
        return f"{kind.upper()}: at each rate the cheapest of {', '.join(offers)}"
    return f"{kind.upper()}: {_with_accuracy(priced[0])}, on {offers[0]}" if priced else kind.upper()


def _distribution(check: Check | None, objective_s: float) -> Figure | None:
    if check is None or check.void is not None or not check.latency_curve:
        return None
    caption = "Share of answers of the check within a time, on a logarithmic scale, without the fastest and the slowest 0.1 %."
    curves = {f"{check.label} at {rate(check.rate_rps)}": check.latency_curve}
    return distribution("Latency at the rate asked for", caption, curves, objective_s)


def _where_time_goes(servers: Sequence[ServerReport]) -> list[tuple[str, list[str]]]:
    """In words; of the cheapest of both kinds also why one is slower."""
    sections = [(s.label, where_time_goes(s, _least_rows(s))) for s in servers[:2]]
    kinds = {s.device == "cpu": s for s in reversed(servers)}
    if len(kinds) == 2:
        sections.append(("GPU and CPU", why_slower(kinds[False], kinds[True], _least_rows(kinds[True]))))
    return sections


def _least_rows(server: ServerReport) -> int:
    return min(timing.batch_size for timing in server.ladder)


# -- the three numbers that a decision needs ---------------------------------------------------------------------------


def _figures_at_once(report: VerdictReport) -> list[tuple[str, Value, str]]:
    hour, million = (report.numbers.get(name) for name in ("per_hour", "per_million"))
    each = f"{money(million.value, report.currency)} per million requests; " if million else ""
    return [
        ("Price an hour", money(hour.value, report.currency) if hour else "–", f"{each}{_plan_note(report)}"),
        ("Break-even", *_break_even(report)),
        ("p99 at this rate", *_p99(report)),
    ]


def _plan_note(report: VerdictReport) -> str:
    """What runs at most, with its accuracy: a cheaper variant that is worse is no bargain."""
    servers = {server.name: server for server in report.servers}
    pools = [
        f"{'' if pool.max_replicas == 1 else f'{pool.max_replicas} × '}{_with_accuracy(servers[pool.server])}"
        for pool in report.pools
    ]
    return " and ".join(pools) or "nothing is planned"


def _break_even(report: VerdictReport) -> tuple[str, str]:
    """(from which rate on the GPU is the cheaper one, how well that is known)"""
    verdict = report.verdict
    if len({s.device == "cpu" for s in report.servers if s.offer is not None}) < 2:
        return "unknown", "only one kind of server was measured and priced"
    low, high, note = (
        verdict.break_even_low_rps,
        verdict.break_even_high_rps,
        "from there on the GPU is cheaper",
    )
    if low is not None and verdict.what_if is not None:
        ends = dict.fromkeys((rate(low), "never" if high is None else rate(high)))
        return " to ".join(ends), f"a what-if, by figures from files; {note}"
    if low is not None and verdict.break_even_rps != 0:
        note = f"measured: {rate(low)} to {rate(high) if high is not None else 'never'}; {note}"
    return _rate_or_never(verdict.break_even_rps), note


def _rate_or_never(break_even_rps: float | None) -> str:
    return "never" if break_even_rps is None else "any rate" if break_even_rps == 0 else rate(break_even_rps)


def _p99(report: VerdictReport) -> tuple[Value, str]:
    p99, limit = report.numbers.get("p99_s"), f"objective {times(report.objective.latency_p99_s)}"
    if p99 is None:
        check = report.check
        reason = "not run" if check is None else "void" if check.void is not None else "too few answers"
        return Cell(reason, kind="missing"), report.check_not_run or limit
    interval = f"{times(p99.low)} to {times(p99.high)} over {len(p99.runs)} runs; " if p99.low and p99.high else ""
    return times(p99.value), f"{interval}{limit}"


# -- tables ------------------------------------------------------------------------------------------------------------


def _voids(servers: Sequence[ServerReport], check: Check | None) -> list[tuple[str, str, str]]:
    """What was run and is in no number, with the reason."""
    voids = [
        (s.label, f" at {rate(p.rate_rps)}", f"void: {p.void}") for s in servers for p in s.load if p.void is not None
    ]
    if check is not None:
        voids += [("the check", f" at {rate(check.rate_rps)}", f"void: {reason}") for reason in check.voids]
    return voids


def _rates(report: VerdictReport) -> Table:
    return Table(
        "At the rates asked for",
        ("Rate", "Hours a day", "CPU an hour", "CPU servers", "GPU an hour", "GPU servers", "Here the GPU"),
        tuple(_at_rate(at, report.currency) for at in report.verdict.at_rates),
        "Under a price: with its servers as fast, and as slow, as was measured.",
        ends_in_words=True,
    )


def _at_rate(at: AtRate, currency: str) -> tuple[Value, ...]:
    return (
        rate(at.rate_rps),
        f"{at.hours:g}",
        *_side(at.cpu, currency),
        *_side(at.gpu, currency),
        at.word.replace("_", " "),
    )


def _side(side: Side | None, currency: str) -> tuple[Value, Value]:
    """(price with its ends, servers)"""
    if side is None:
        return "–", "none"
    low = money(side.low_per_hour, currency)
    high = "out of reach" if side.high_per_hour is None else money(side.high_per_hour, currency)
    price = Cell(money(side.per_hour, currency), () if low == high else (f"{low}–{high}",))
    return price, Cell("\n".join(f"{num} × ({what})" for what, num in side.servers))


def _servers(report: VerdictReport) -> Table:
    """Accuracy stands beside the price, because a cheaper variant that is worse is no bargain."""
    return Table(
        "What was measured, the cheapest first",
        ("Server", "Highest rate", "Per million at it", "An hour", "Accuracy", "Joules each"),
        tuple(_server(s, report.sources[s.source], report.currency) for s in report.servers),
        f"Highest rate: with {within(report.objective.latency_p99_s)}.",
    )


def _server(s: ServerReport, source: SourceReport, currency: str) -> tuple[Value, ...]:
    where = f"{source.provenance} {'here' if source.origin == 'here' else 'elsewhere'}, {day(source.date)}"
    no_price = Cell("no price", kind="missing")
    return (
        Cell(s.label, (s.device_name, where), kind="strong"),
        _max_rate(s.max_rate),
        "–" if s.per_million is None else money(s.per_million, currency),
        no_price if s.per_hour is None else Cell(money(s.per_hour, currency), (offered(str(s.offer), s.share or 1.0),)),
        _accuracy(s).removeprefix("accuracy "),
        NOT_MEASURED if s.joules_per_request is None else f"{s.joules_per_request:.3g}",
    )


def _max_rate(measured: MaxRate | None) -> Value:
    if measured is None:
        return NOT_MEASURED
    if not measured.rate_rps:
        return "not seen: the generator was too slow" if measured.is_bounded_by_generator else "none in time"
    runs = f"{len(measured.runs)} run{'' if len(measured.runs) == 1 else 's'}"
    if measured.low_rps is None or measured.high_rps is None:
        return Cell(number(measured.rate_rps), (f"no interval, {runs}",))
    more = ", or more" if measured.is_bounded_by_generator else ""
    return Cell(number(measured.rate_rps), (f"{number(measured.low_rps)}–{number(measured.high_rps)}, {runs}{more}",))


def _with_accuracy(server: ServerReport) -> str:
    """`int8 on cpu, 1 × 2, accuracy 0.9822`"""
    return f"{server.label}, {_accuracy(server)}"


def _accuracy(server: ServerReport) -> str:
    if server.is_untrained:
        return "untrained: random weights"
    return "accuracy not recorded" if server.accuracy is None else f"accuracy {server.accuracy:.4f}"


def _sensitivity(answers: Sequence[Sensitivity], currency: str) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            assumption(one),
            money(one.cpu_per_day, currency),
            money(one.gpu_per_day, currency),
            {"cpu": "CPU", "gpu": "GPU", None: "neither"}[one.cheaper],
            _rate_or_never(one.break_even_rps),
        )
        for one in answers
        if one.cpu_per_day is not None and one.gpu_per_day is not None
    ]
    return Table(
        "If an assumption is wrong",
        ("If", "CPU servers a day", "GPU servers a day", "Cheaper then", "Break-even then"),
        tuple(dict.fromkeys(rows)),  # both ends of no interval are one
        "One thing at a time, all else as it is; servers of one kind against servers of the other.",
    )


def _load_points(servers: Sequence[ServerReport]) -> Table:
    """In the order in which they were made."""
    heads = ("Run", "Due", "Good answers/s", "p50 ms", "p99 ms", "Late or lost", "Within the objective")
    rows = tuple(_load_point(s, p) for s in servers for p in s.load)
    return Table("Every run under load", heads, rows, ends_in_words=True)


def _load_point(s: ServerReport, p: LoadPoint) -> tuple[Value, ...]:
    return (
        f"{s.label}, {rate(p.rate_rps)}",
        f"{p.num_due:,}",
        number(p.throughput_rps),
        "–" if p.latency_p50_s is None else milliseconds(p.latency_p50_s),
        "–" if p.latency_p99_s is None else milliseconds(p.latency_p99_s),
        f"{p.num_late_or_lost:,}",
        "void" if p.void is not None else "yes" if p.is_met else "no",
    )


def _cold_starts(servers: Sequence[ServerReport]) -> Table:
    known = [(s, {phase.name: phase.seconds for phase in s.cold_start}) for s in servers if s.cold_start]
    names = list(dict.fromkeys(name for _, phases in known for name in phases))
    rows = tuple(
        (s.label, *(f"{phases[n]:.2f}" if n in phases else "–" for n in names), f"{sum(phases.values()):.2f}")
        for s, phases in known
    )
    return Table("Cold start", ("Server", *(f"{name.replace('_', ' ')}, s" for name in names), "All, s"), rows)
