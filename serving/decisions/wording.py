"""Turns what a plan or a verdict found into words: amounts, machines, prices, the break-even, reasons, and what would change the answer.

Terminal, files, reports and pages take their words from here, so that one fact reads the same everywhere. Caveats, and what keeps a plan
from being possible, are found and worded in `plan/caveats.py`; a verdict's paragraph with its check is `loadtest/verdict/wording.py`'s.
Rule: no number here that is not in the plan or the verdict, and every price with its currency and what it is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from serving.decisions.plan.result import Objective, Plan, PoolPlan, PricedServer, WhatIf
from serving.decisions.prices import per_million
from serving.decisions.profile import Provenance, ServerProfile
from serving.decisions.sensitivity import Flip, Sensitivity, What
from serving.decisions.verdict import Reason
from serving.documents.tables import columns

KINDS = {"cpu": "CPU", "gpu": "GPU"}
WHOSE_FIGURES: dict[Provenance, str] = {
    "measured": "measured",
    "emulated": "emulated: its times follow a file",
    "published": "published figures, not measured by Tandem",
}

# -- amounts: three digits at most, as no measurement here is better ---------------------------------------------------


def money(value: float, currency: str) -> str:
    """Two digits after the point, or two that say something: $0.18, $0.0042, $1,234."""
    if value >= 100:
        return f"{currency}{value:,.0f}"
    return f"{currency}{value:.2f}" if value >= 0.1 or value == 0 else f"{currency}{value:.2g}"


def exact_money(value: float, currency: str) -> str:
    """Four digits, as price lists have them: for tables, where prices are compared with each other."""
    return f"{currency}{value:.4g}"


def rate(value: float) -> str:
    """`820/s`: three digits that say something, as no measurement here is better."""
    told = float(f"{value:.3g}")
    return f"{told:,.0f}/s" if told >= 1000 else f"{told:g}/s"


def asked_rate(value: float) -> str:
    """With the digits that were asked for: `10,365/s`."""
    return f"{value:,.0f}/s" if value >= 1000 else f"{value:.6g}/s"


def times(value_s: float) -> str:
    return f"{value_s * 1000:.3g} ms" if value_s < 0.9995 else f"{value_s:.3g} s"


def day(iso: str) -> str:
    try:
        return datetime.fromisoformat(iso).strftime("%-d %B %Y")
    except ValueError:
        return iso


def card(device_name: str) -> str:
    """`a T4`, `an H200`: a card as people call it."""
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ").split(",")[0].strip()
    spelled = len(name) > 1 and (name[1].isdigit() or name[:2].isupper())
    starts = "AEFHILMNORSX" if spelled else "AEIO"
    return f"{'an' if name[:1].upper() in starts else 'a'} {name}"


def accuracy(value: float | None) -> str:
    """Beside a variant that is named: `, accuracy 0.972`."""
    return "" if value is None else f", accuracy {value:.4g}"


def guessed(pools: Sequence[PoolPlan]) -> str:
    """Beside a price: which machines stand for those that were measured, where that is a guess."""
    names = dict.fromkeys(pool.chosen.offer.name for pool in pools if pool.chosen.is_price_guessed)
    return f" (a guess: priced as {' and '.join(names)})" if names else ""


# -- what was asked for, machines and shares ---------------------------------------------------------------------------


def objective(asked: Objective) -> str:
    """`200/s with p99 within 20 ms`, or the span of a day's rates."""
    rates = sorted({one for _, one in asked.rates})
    span = " to ".join(dict.fromkeys((asked_rate(rates[0]), asked_rate(rates[-1]))))
    rows = "" if asked.batch_size == 1 else f", {asked.batch_size} rows each"
    return f"{span} with {within(asked.latency_p99_s)}{rows}"


def within(latency_p99_s: float) -> str:
    return f"p99 within {times(latency_p99_s)}"


def profile_command(model: str, batch_size: int = 1, latency_p99_s: float | None = None) -> str:
    """Measures what is missing, when a user types it."""
    time = "" if latency_p99_s is None else f" --p99 {latency_p99_s * 1e3:g}ms"
    return f"`tandem profile {model}{time}{'' if batch_size == 1 else f' --batch-size {batch_size}'}`"


def device(server: ServerProfile) -> str:
    """Of an emulated one the name of its file."""
    return server.device if server.device.startswith("emulated") else server.device_name


def machine(priced: PricedServer) -> str:
    """`AMD EPYC (0.5 of a c7a.xlarge)`, with whose times they are, where they are not measured."""
    name, whose = device(priced.server), priced.profile.provenance
    prefix = "" if whose == "measured" or name.startswith("emulated") else f"{whose} "
    return f"{prefix}{name} ({offered(priced.offer.name, priced.share)})"


def offered(name: str, share: float) -> str:
    """`0.5 of a c7a.xlarge`"""
    return name if abs(share - 1) < 1e-9 else f"{share:.3g} of a {name}"


def no_offer(device_name: str | None, pool: str | None) -> str:
    instance = f"--instance {pool or 'POOL'}=NAME"
    return f"no machine of the price list has '{device_name}': name one with {instance}, or give a price file with --prices"


def from_rate(break_even_rps: float | None) -> str:
    """From which rate on something holds."""
    if break_even_rps is None:
        return "at no rate"
    return f"from {rate(break_even_rps)} on" if break_even_rps else "at any rate"


def what_if(one: WhatIf, currency: str) -> str:
    """The range in which the break-even lies by published figures; said of every card that nobody measured, and never as an answer."""
    machine = f"{card(one.card)} ({offered(one.offer, one.share)}, {money(one.per_hour, currency)} an hour)"
    return f"on {machine}, by published figures ({_whose(one)}), {break_even_range(one)}"


def _whose(one: WhatIf) -> str:
    """A note of published figures begins with whose they are."""
    source = re.split(r"[,:;]|\.(?!\d)", one.source)[0]
    return f"{source}, {day(one.date)}" if source else day(one.date)


def break_even_range(one: WhatIf) -> str:
    low, high = one.break_even_low_rps, one.break_even_high_rps
    if low is None:
        return "it would cost less than CPUs at no rate"
    if high is None:
        return f"the break-even lies above {requests(low)}, if anywhere"
    if rate(low) == rate(high):
        return f"the break-even lies at {requests(high)}"
    return f"the break-even lies between {rate(low).removesuffix('/s')} and {requests(high)}"


def requests(value: float) -> str:
    """`1,900 requests/s`"""
    return f"{rate(value).removesuffix('/s')} requests/s"


# -- a plan ------------------------------------------------------------------------------------------------------------


def paragraph(plan: Plan) -> str:
    """One paragraph of plain sentences."""
    if not plan.pools:
        return f"There is no plan for {plan.model}: {'; '.join(binding.says for binding in plan.bindings)}."
    return " ".join(_sentences(plan))


def _sentences(plan: Plan) -> Iterator[str]:
    yield f"{objective(plan.objective)}: {' and '.join(_pool(pool) for pool in plan.pools)}."
    yield _price(plan)
    if len(plan.pools) == 2:
        yield "The CPU pool is always there; cards come where they make it cheaper, and starting one takes its time."
    weighed = {priced.pool for priced in plan.considered}
    lacking = [name for pool, name in (("gpu", "card"), ("cpu", "CPU server")) if pool not in weighed]
    if lacking:
        yield f"No {lacking[0]} was weighed: no profile of one is in time and has a price."
        if plan.what_ifs:
            yield f"A what-if: {what_if(plan.what_ifs[0], plan.currency)}."
    else:
        yield f"Cards alone are cheaper than CPUs alone {from_rate(plan.break_even_rps)}."
    if plan.objective.minimise == "energy" and plan.joules_per_day is not None:
        yield f"It takes {plan.joules_per_day / 3.6e6:.3g} kWh a day for its requests, the least that was measured."


def _pool(pool: PoolPlan) -> str:
    chosen, most = pool.chosen, pool.max_replicas
    count = f"{most}" if pool.min_replicas == most else f"{pool.min_replicas} to {most}"
    variant = f"{chosen.server.variant.upper()} on {machine(chosen)}{accuracy(chosen.server.accuracy)}"
    return (
        f"{count} {'server' if most == 1 else 'servers'} with {variant}, {rate(chosen.max_rate.rate_rps)} each at most"
    )


def _price(plan: Plan) -> str:
    assert plan.per_hour_at_peak is not None
    assert plan.per_day is not None
    sign, peak_rps = plan.currency, plan.objective.peak_rps
    hour, million = plan.per_hour_at_peak, per_million(plan.per_hour_at_peak, peak_rps)
    price = f"{money(hour, sign)} an hour{guessed(plan.pools)}, {money(million, sign)} per million requests"
    if len({one for _, one in plan.objective.rates}) > 1:
        price = f"{money(plan.per_day, sign)} a day; at {asked_rate(peak_rps)} {price}"
    gateway = f"{money(plan.gateway_per_hour, sign)} an hour for the gateway in it"
    return f"That costs {price}; {gateway if plan.gateway_per_hour else 'the gateway not in it'}."


def table(plan: Plan) -> str:
    """What runs at each rate, what was weighed, what a million costs."""
    parts = (_steps(plan), _considered(plan), _what_ifs(plan), _per_million(plan))
    return "\n\n".join(columns(rows, align="<" * len(rows[0])) for rows in parts if len(rows) > 1)


def _steps(plan: Plan) -> Sequence[Sequence[str]]:
    rows = [
        (f"{s.hours:g}", asked_rate(s.rate_rps), str(s.num_cpu), str(s.num_gpu), exact_money(s.per_hour, plan.currency))
        for s in plan.steps
    ]
    return [("hours a day", "rate", "CPU servers", "GPU servers", "an hour"), *rows]


def _considered(plan: Plan) -> Sequence[Sequence[str]]:
    sign = plan.currency
    rows = []
    for p in plan.considered:
        amounts = rate(p.max_rate.rate_rps), exact_money(p.per_hour, sign), exact_money(p.per_million(), sign)
        rows.append((p.pool, p.server.label, machine(p), *amounts))
    heading = ("pool", "variant, engine, instances × threads", "machine", "highest rate", "an hour", "per million")
    return [heading, *rows]


def _what_ifs(plan: Plan) -> Sequence[Sequence[str]]:
    """Cards that nobody measured, with what others published of them."""
    rows = [what_if_row(one, plan.currency) for one in plan.what_ifs]
    return [("what if", "published highest rate", "an hour", "break-even", "figures"), *rows]


def what_if_row(one: WhatIf, currency: str) -> tuple[str, str, str, str, str]:
    told = " to ".join(dict.fromkeys(rate(end) for end in (one.low_rps, one.high_rps)))
    ends = ("never" if at is None else rate(at) for at in (one.break_even_low_rps, one.break_even_high_rps))
    machine = f"{one.card} ({offered(one.offer, one.share)})"
    price = exact_money(one.per_hour, currency)
    return machine, told, price, " to ".join(dict.fromkeys(ends)), _whose(one)


def _per_million(plan: Plan) -> Sequence[Sequence[str]]:
    rows = [(what, exact_money(price, plan.currency)) for what, price in plan.per_million]
    return [("a million requests", "price"), *rows]


# -- a verdict's reasons, and what would change it ---------------------------------------------------------------------


def missing(one: Reason, model: str, batch_size: int = 1) -> str:
    """Which profile there is none of, and how to get it."""
    kind = KINDS[one.pool or "gpu"]
    where = "a machine with a card" if one.pool == "gpu" else "the machine in question"
    limit_s = None if one.detail is None else one.limit
    lacks = f"No {kind} profile of {model}"
    if limit_s is not None:
        lacks = f"The {kind} profile of {model} has no rate for p99 {times(limit_s)}"
    return f"{lacks}: run {profile_command(model, batch_size, limit_s)} on {where} and give it with --profile"


def reason(one: Reason, model: str, batch_size: int = 1, currency: str = "") -> str:
    """One reason in a sentence without its full stop."""
    kind = KINDS.get(one.pool or "", "")
    value, limit = one.value or 0.0, one.limit or 0.0
    return {
        "cheaper": f"The {kind} is {value:.0%} cheaper at the rate asked for, over the whole measured interval",
        "only_one": f"Only the {kind} meets p99 {times(limit)}",
        "unmet": f"Neither a CPU nor a GPU that was measured meets p99 {times(limit)}",
        "over_cap": (
            f"Everything that carries the load costs too much: at least {exact_money(value, currency)} an hour, where "
            f"{exact_money(limit, currency)} is allowed"
        ),
        "rate": f"It depends on the rate: the GPU is cheaper at {rate(value)}, but not at every rate asked for",
        "measurement": f"It depends on how fast the {kind} servers really are: the measurements allow both answers at {rate(value)}",
        "price": f"It depends on the prices: both sides cost the same within {value:.1%}, and under {limit:.0%} nobody can tell",
        "generator": f"The load generator reached its limit before the server did, so both answers are possible at {rate(value)}",
        "stricter": (
            f"Rates were measured for a stricter objective, so both answers are possible at {rate(value)}: run "
            f"{profile_command(model, batch_size, limit)}"
        ),
        "too_few": f"Too few runs of {one.detail}: {value:.0f}, where {limit:.0f} are needed",
        "few_requests": (
            f"The highest rate of {one.detail} rests on {value:.0f} requests, where a p99 needs {limit:.0f}: run "
            f"{profile_command(model, batch_size)} with longer runs (--seconds) and give it with --profile"
        ),
        "void": f"All {value:.0f} runs on the {kind} are void: {one.detail}",
        "missing": missing(one, model, batch_size),
        "unpriced": f"N{no_offer(one.detail, one.pool)[1:]}",
        "what_if": f"The {kind} figures are {one.detail}, not measured",
    }[one.kind]


def flip(one: Flip, currency: str) -> str:
    """What would change the answer, in a sentence without its full stop."""
    to = {"pays": "the GPU would pay", "does_not_pay": "the GPU would not pay"}[one.to]
    ratio = one.at / one.now - 1 if one.now else 0.0
    by = f"{abs(ratio):.0%} {'more' if ratio > 0 else 'less'}"
    if one.what == "rate":
        return f"{'Above' if one.at > one.now else 'Below'} {rate(one.at)} instead of {rate(one.now)} {to}"
    if one.what == "gpu_speed":
        return f"With {rate(one.at)} instead of {rate(one.now)} from one GPU server {to}"
    if one.what == "idle":
        return f"With more than {one.at:.0%} of the GPU's paid hours idle {to}"
    kind = "GPU" if one.what == "gpu_price" else "CPU"
    now, at = money(one.now, currency), money(one.at, currency)
    return f"{'Above' if one.at > one.now else 'Below'} {at} an hour for one {kind} server instead of {now} ({by}) {to}"


ASSUMPTIONS: dict[What, str] = {
    "cpu_price": "CPU price",
    "gpu_price": "GPU price",
    "cpu_rate": "Highest rate of a CPU server",
    "gpu_rate": "Highest rate of a GPU server",
    "idle_hours": "Hours a day without load",
}


def assumption(one: Sensitivity) -> str:
    """What is assumed otherwise, and how."""
    at = {"cpu_price": f"× {one.at:g}", "gpu_price": f"× {one.at:g}", "idle_hours": f"{one.at:g}"}
    return f"{ASSUMPTIONS[one.what]} {at.get(one.what, rate(one.at))}"
