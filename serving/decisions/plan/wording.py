"""A plan in words and in a table. Pure text; what it says was decided before.

Rule: no number here that is not in the plan, and every price with its currency and what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serving.decisions.plan.result import Plan, PoolPlan, PricedServer
from serving.documents.tables import columns


def paragraph(plan: Plan) -> str:
    """One paragraph of plain sentences."""
    return " ".join(_why_not(plan) if not plan.pools else _sentences(plan))


def _why_not(plan: Plan) -> Iterator[str]:
    yield f"There is no plan for {plan.model}:"
    yield "; ".join(binding.says for binding in plan.bindings) + "."


def _sentences(plan: Plan) -> Iterator[str]:
    asked = plan.objective
    rates = [rate for _, rate in asked.rates]
    load = (
        f"{_n(max(rates))} requests per second"
        if len(set(rates)) == 1
        else f"{_n(min(rates))} to {_n(max(rates))} requests per second"
    )
    rows = f" of {asked.batch_size} rows" if asked.batch_size > 1 else ""
    yield f"{load}{rows} at p99 ≤ {asked.latency_p99_s * 1e3:g} ms: {' and '.join(_pool(pool) for pool in plan.pools)}."
    yield _price(plan)
    if len(plan.pools) == 2:
        yield "The CPU pool is always there; cards come where they make it cheaper, and starting one takes its time."
    yield _break_even(plan)
    if asked.minimise == "energy" and plan.joules_per_day is not None:
        yield f"It takes {plan.joules_per_day / 3.6e6:.3g} kWh a day for its requests, the least that was measured."


def _pool(pool: PoolPlan) -> str:
    chosen, most = pool.chosen, pool.max_replicas
    count = f"{most}" if pool.min_replicas == most else f"{pool.min_replicas} to {most}"
    servers = "server" if most == 1 else "servers"
    what = f"{chosen.server.variant.upper()} on {device(chosen)} ({offered(chosen)})"
    return f"{count} {servers} with {what}, {_n(chosen.max_rate.rate_rps)}/s each at most"


def device(priced: PricedServer) -> str:
    """With whose times they are, where they are not measured. Of an emulated one the name is that of its file."""
    if priced.server.device.startswith("emulated"):
        return priced.server.device
    how = {"measured": "", "emulated": "emulated ", "published": "published "}[priced.profile.provenance]
    return f"{how}{priced.server.device_name}"


def offered(priced: PricedServer) -> str:
    share = "" if abs(priced.share - 1) < 1e-9 else f"{priced.share:.3g} of a "
    return f"{share}{priced.offer.name}"


def _price(plan: Plan) -> str:
    assert plan.per_hour_at_peak is not None
    assert plan.per_day is not None
    sign, peak = plan.currency, plan.objective.peak_rps
    million = dict(plan.per_million).get(f"the plan at {peak:g}/s", 0.0)
    if len({rate for _, rate in plan.objective.rates}) == 1:
        price = f"{sign}{plan.per_hour_at_peak:.4g} an hour, {sign}{million:.3g} per million requests"
    else:
        at_peak = f"{sign}{plan.per_hour_at_peak:.4g} an hour and {sign}{million:.3g} per million at {_n(peak)}/s"
        price = f"{sign}{plan.per_day:.4g} a day; {at_peak}"
    gateway = (
        f"{sign}{plan.gateway_per_hour:g} an hour for the gateway in it"
        if plan.gateway_per_hour
        else "the gateway not in it"
    )
    return f"That costs {price}; {gateway}."


def _break_even(plan: Plan) -> str:
    pools = {priced.pool for priced in plan.considered}
    if "gpu" not in pools:
        return "No card was weighed: no profile of one is in time and has a price."
    if "cpu" not in pools:
        return "No CPU server was weighed: no profile of one is in time and has a price."
    if plan.break_even_rps is None:
        return "A card never pays here by itself: for each request it costs more than a CPU."
    if plan.break_even_rps == 0:
        return "A card is the cheaper one at any rate."
    return f"From {_n(plan.break_even_rps)}/s on, cards alone are cheaper than CPUs alone."


def table(plan: Plan) -> str:
    """What runs at each rate, what was weighed, what a million costs."""
    parts = (_steps(plan), _considered(plan), _per_million(plan))
    return "\n\n".join(columns(rows, align="<" * len(rows[0])) for rows in parts if len(rows) > 1)


def _steps(plan: Plan) -> Sequence[Sequence[str]]:
    price = [f"{plan.currency}{step.per_hour:.4g}" for step in plan.steps]
    rows = [
        (f"{step.hours:g}", f"{step.rate_rps:g}/s", str(step.num_cpu), str(step.num_gpu), price[k])
        for k, step in enumerate(plan.steps)
    ]
    return [("hours a day", "rate", "CPU servers", "GPU servers", "an hour"), *rows]


def _considered(plan: Plan) -> Sequence[Sequence[str]]:
    sign = plan.currency
    names = [(p.pool, p.server.label, f"{device(p)} ({offered(p)})") for p in plan.considered]
    numbers = [
        (f"{p.max_rate.rate_rps:.4g}/s", f"{sign}{p.per_hour:.4g}", f"{sign}{p.per_million():.3g}")
        for p in plan.considered
    ]
    rows = [(*name, *number) for name, number in zip(names, numbers, strict=True)]
    heading = ("pool", "variant, engine, instances × threads", "machine", "highest rate", "an hour", "per million")
    return [heading, *rows]


def _per_million(plan: Plan) -> Sequence[Sequence[str]]:
    rows = [(what, f"{plan.currency}{price:.3g}") for what, price in plan.per_million]
    return [("a million requests", "price"), *rows]


def _n(number: float) -> str:
    """Four digits, whole from a thousand on."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
