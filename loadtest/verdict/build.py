"""From a plan, its profiles and a check to the values of a report. Pure; measuring is `command.py`'s, judging `planning/verdict.py`'s."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.verdict import wording
from loadtest.verdict.report import (
    Check,
    Source,
    VerdictReport,
    numbers_of,
    pools_of,
    servers_of,
    sources_of,
)
from serving.planning.plan.cost import cost_point, usable_rps
from serving.planning.plan.result import CostPoint, Plan
from serving.planning.plan.sensitivity import sensitivity
from serving.planning.price_list import PriceList
from serving.planning.verdict import judge

MAX_EDGES = 60


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
        paragraph=wording.paragraph(plan, verdict, sources, check, check_not_run),
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
    )


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
