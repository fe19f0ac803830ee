"""Builds the values of a report from a plan, its profiles and a check. Pure; `command.py` measures, `decisions/verdict.py` judges."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.verdict import wording
from loadtest.verdict.report import (
    Check,
    Number,
    PoolReport,
    ServerReport,
    Source,
    SourceReport,
    VerdictReport,
)
from serving.decisions.fleet import cheapest_alone, cost_point, usable_rps
from serving.decisions.plan.result import CostPoint, Objective, Plan, PricedServer
from serving.decisions.prices import PriceList, per_million
from serving.decisions.profile import ServerProfile
from serving.decisions.sensitivity import sensitivity
from serving.decisions.verdict import Verdict, judge

JUST_ABOVE = 1 + 1e-6
MAX_EDGES = 60  # steps of a server in the cost curve: beyond, they are finer than a picture shows


def build(
    plan: Plan,
    sources: Sequence[Source],
    prices: PriceList,
    *,
    check: Check | None,
    check_not_run: str | None,
    asides: Sequence[str] = (),
    date: str,
    command: str,
    versions: dict[str, str],
) -> VerdictReport:
    verdict = judge(plan, [source.profile for source in sources])
    servers = servers_of(sources, plan)
    return VerdictReport(
        model=plan.model,
        word=wording.word(verdict),
        paragraph=wording.paragraph(plan, verdict, sources, check, check_not_run, card_in_question(plan, verdict)),
        is_met=bool(plan.pools) and (check is None or check.void is not None or check.is_met),
        objective=plan.objective,
        currency=plan.currency,
        price_list=prices.name,
        price_date=prices.date,
        price_source=prices.source,
        verdict=verdict,
        pools=pools_of(plan),
        per_hour_at_peak=plan.per_hour_at_peak,
        per_day=plan.per_day,
        per_million=plan.per_million,
        bindings=plan.bindings,
        curve=stepped(plan),
        sensitivity=sensitivity(plan.considered, plan.objective)
        if any(rate > 0 for _, rate in plan.objective.rates)
        else (),
        check=check,
        check_not_run=check_not_run,
        servers=servers,
        sources=sources_of(sources),
        caveats=(*asides, *wording.caveats(plan, sources, check)),
        numbers=numbers_of(plan, verdict, servers, check),
        date=date,
        command=command,
        versions=versions,
        what_ifs=plan.what_ifs,
        sentence=wording.sentence(plan, verdict, sources, check, card_in_question(plan, verdict)),
    )


def card_in_question(plan: Plan, verdict: Verdict) -> PricedServer | None:
    """The card that is the cheaper one from the break-even on; where none ever is, the cheapest for each request.

    None where of CPUs or of cards there is none.
    """
    cpu, gpu = ([p for p in plan.considered if p.pool == pool and p.max_rate.rate_rps > 0] for pool in ("cpu", "gpu"))
    if not cpu or not gpu:
        return None
    at = verdict.break_even_rps
    if at is None:
        return gpu[0]
    found = cheapest_alone(gpu, at * JUST_ABOVE or plan.objective.peak_rps, plan.objective)
    return gpu[0] if found is None else found.priced


def stepped(plan: Plan) -> tuple[CostPoint, ...]:
    """The plan's curve with every rate, to its end, at which one server more is needed: a picture of it has upright steps.

    Beyond MAX_EDGES steps of a server they are too fine to be seen.
    """
    cpu, gpu = ([p for p in plan.considered if p.pool == pool and p.max_rate.rate_rps > 0] for pool in ("cpu", "gpu"))
    end = max((point.rate_rps for point in plan.curve), default=0.0)
    rates = {point.rate_rps for point in plan.curve}
    for priced in (*cpu, *gpu):
        step = usable_rps(priced, plan.objective)
        rates |= {step * k for k in range(1, min(int(end / step), MAX_EDGES) + 1)}
    return tuple(cost_point(cpu, gpu, rate, plan.objective) for rate in sorted(rates))


def servers_of(sources: Sequence[Source], plan: Plan) -> tuple[ServerReport, ...]:
    """Those that were weighed first, the cheapest first; then the rest."""
    priced = {id(p.server): p for p in plan.considered}
    every = [(index, server) for index, source in enumerate(sources) for server in source.profile.servers]
    order = {id(p.server): place for place, p in enumerate(plan.considered)}
    every.sort(key=lambda one: order.get(id(one[1]), len(order)))
    return tuple(_server(index, server, priced.get(id(server)), plan.objective) for index, server in every)


def name_of(server: ServerProfile) -> str:
    """Stable from one report to the next."""
    s = server.settings
    batch = f"-batch{s.max_batch_size}" if s.is_batch_limited else ""
    delay = f"-delay{s.queue_delay_us}us" if s.queue_delay_us else ""
    tuning = s.tuning_words.replace("/", "-")
    return f"{server.variant}-{server.engine}-{server.device}-{s.num_instances}x{s.num_threads}{batch}{delay}{tuning}"


def _server(source: int, server: ServerProfile, priced: PricedServer | None, objective: Objective) -> ServerReport:
    measured = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
    return ServerReport(
        name=name_of(server),
        label=server.label,
        source=source,
        variant=server.variant,
        engine=server.engine,
        device=server.device,
        device_name=server.device_name,
        settings=server.settings,
        max_rate=measured,
        offer=priced.offer.name if priced else None,
        share=priced.share if priced else None,
        per_hour=priced.per_hour if priced else None,
        per_million=priced.per_million() if priced and priced.max_rate.rate_rps > 0 else None,
        accuracy=server.accuracy,
        is_untrained=server.is_untrained,
        joules_per_request=server.joules_per_request,
        cold_start=server.cold_start,
        ladder=server.ladder,
        load=server.load,
    )


def pools_of(plan: Plan) -> tuple[PoolReport, ...]:
    return tuple(
        PoolReport(
            pool.name,
            name_of(pool.chosen.server),
            pool.chosen.server.label,
            pool.chosen.offer.name,
            pool.chosen.share,
            pool.min_replicas,
            pool.max_replicas,
            pool.chosen.per_hour,
        )
        for pool in plan.pools
    )


def sources_of(sources: Sequence[Source]) -> tuple[SourceReport, ...]:
    return tuple(
        SourceReport(
            source.origin,
            p.provenance,
            p.date,
            p.command,
            p.machine,
            p.versions,
            p.data,
            p.note,
            source.file,
            p.others_ratio,
        )
        for source in sources
        for p in (source.profile,)
    )


def numbers_of(plan: Plan, verdict: Verdict, servers: Sequence[ServerReport], check: Check | None) -> dict[str, Number]:
    """What two reports are compared by, and what `--fail-if` may ask for. What was not measured has no entry."""
    found: dict[str, Number] = {}
    for server in servers:
        if (m := server.max_rate) is not None:
            found[f"max_rate_rps/{server.name}"] = Number(m.rate_rps, "1/s", "higher", m.low_rps, m.high_rps, m.runs)
        if server.joules_per_request is not None:
            found[f"joules_per_request/{server.name}"] = Number(server.joules_per_request, "J", "lower")
    if check is not None and check.void is None:
        if check.latency_p50_s is not None:
            found["p50_s"] = check.latency_p50_s
        if check.latency_p99_s is not None:
            found["p99_s"] = check.latency_p99_s
        found["throughput_rps"] = Number(check.throughput_rps, "1/s", "higher")
        found["late_or_lost_ratio"] = Number(check.late_or_lost_ratio, "1", "lower")
    if plan.per_hour_at_peak is not None:
        found["per_hour"] = Number(plan.per_hour_at_peak, f"{plan.currency}/h", "lower")
        if (peak_rps := plan.objective.peak_rps) > 0:
            found["per_million"] = Number(per_million(plan.per_hour_at_peak, peak_rps), plan.currency, "lower")
    if verdict.break_even_rps is not None:
        ends = verdict.break_even_low_rps, verdict.break_even_high_rps
        found["break_even_rps"] = Number(verdict.break_even_rps, "1/s", None, *ends)
    return found
