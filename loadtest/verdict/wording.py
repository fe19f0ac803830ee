"""Says a verdict in plain words: one paragraph that a manager understands, reasons, flips and caveats, each from values.

Rule: every sentence names where its figures come from, and what was not measured is said to be so. Nothing is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadtest.profile.wording import capitalised
from loadtest.report.wording import WHAT_IF
from loadtest.verdict.amounts import card, day, money, rate, times
from loadtest.verdict.report import Check, Source
from serving.decisions.plan.result import Objective, Plan, PoolPlan, PricedServer
from serving.decisions.profile import Profile
from serving.decisions.sensitivity import Flip, Sensitivity, What
from serving.decisions.verdict import Reason, Verdict, Word

HEADLINES: dict[Word, str] = {
    "pays": "The GPU pays",
    "does_not_pay": "The GPU does not pay",
    "depends": "Whether the GPU pays depends",
    "inconclusive": "Inconclusive",
}
KINDS = {"cpu": "CPU", "gpu": "GPU"}


def word(verdict: Verdict) -> str:
    """As it is told and as pipelines read it."""
    return WHAT_IF if verdict.what_if is not None else verdict.word


def headline(verdict: Verdict) -> str:
    return WHAT_IF.capitalize() if verdict.what_if is not None else HEADLINES[verdict.word]


def objective(asked: Objective) -> str:
    """`200/s at p99 20 ms`, or the span of a day's rates."""
    rates = sorted({one for _, one in asked.rates})
    span = rate(rates[0]) if len(rates) == 1 else f"{rate(rates[0])} to {rate(rates[-1])}"
    rows = "" if asked.batch_size == 1 else f", {asked.batch_size} rows each"
    return f"{span} with p99 within {times(asked.latency_p99_s)}{rows}"


# -- the paragraph -----------------------------------------------------------------------------------------------------


def paragraph(
    plan: Plan,
    verdict: Verdict,
    sources: Sequence[Source],
    check: Check | None,
    not_run: str | None,
    card_in_question: PricedServer | None,
) -> str:
    """All of it: the verdict, what serves the load and for how much, when the other kind would be cheaper, what is missing."""
    said = [_serves(plan, sources, check)]
    if card_in_question is not None and (other := _other_kind(plan, verdict, sources, card_in_question)):
        said.append(other)
    first = f"{headline(verdict)}: {'; '.join(said)}."
    rest = [
        *_if_so(verdict),
        *_why_unsure(verdict, plan),
        *_missing(verdict, plan.model, plan.objective.batch_size),
        *_unchecked(plan, check, not_run),
    ]
    return " ".join([first, *rest])


def _serves(plan: Plan, sources: Sequence[Source], check: Check | None) -> str:
    asked = plan.objective
    if not plan.pools:
        return f"nothing that was measured serves {objective(asked)}" + "".join(
            f", {b.says}" for b in plan.bindings[:1]
        )
    pools = " and ".join(_pool(pool, sources) for pool in plan.pools)
    is_one = len(plan.pools) == 1 and plan.pools[0].max_replicas == 1
    price = "" if plan.per_hour_at_peak is None else f" for {money(plan.per_hour_at_peak, plan.currency)} an hour"
    if check is None or check.void is not None or check.latency_p99_s is None:
        will = "is planned to serve" if is_one else "are planned to serve"
        return f"{pools} {will} {rate(asked.peak_rps)} with p99 within {times(asked.latency_p99_s)}{price}"
    verb = "serves" if is_one else "serve"
    return f"{pools} {verb} {rate(asked.peak_rps)} at p99 {times(check.latency_p99_s.value)}{price}"


def _pool(pool: PoolPlan, sources: Sequence[Source]) -> str:
    """`on this CPU 2 servers of INT8`"""
    many = "" if pool.max_replicas == 1 else f"{pool.max_replicas} servers of "
    return f"{_where(pool.chosen, sources)} {many}{pool.chosen.server.variant.upper()}"


def _where(priced: PricedServer, sources: Sequence[Source]) -> str:
    """`on this CPU`; elsewhere the device's name, and the machine's."""
    source = _source(priced.profile, sources)
    if source is not None and source.origin == "here":
        return f"on this {KINDS[priced.pool]}"
    named = (
        card(priced.server.device_name) if priced.pool == "gpu" else f"another machine's {priced.server.device_name}"
    )
    return f"on {named} ({_from(priced)})"


def _from(priced: PricedServer) -> str:
    """Which machine, which day, and whether anybody measured it."""
    profile = priced.profile
    if profile.provenance == "measured":
        beside = f" beside {profile.machine.processor}" if priced.pool == "gpu" else ""
        return f"measured{beside} on {day(profile.date)}"
    source = re.split(r"[,.:;]", profile.note or "")[0]  # a note of published figures begins with whose they are
    told = {
        "emulated": "emulated: its times follow a file",
        "published": f"published figures, not measured by Tandem{source and ': '}{source}",
    }
    return f"{told[profile.provenance]}, {day(profile.date)}"


def _source(profile: Profile, sources: Sequence[Source]) -> Source | None:
    return next((one for one in sources if one.profile is profile or one.profile == profile), None)


def _other_kind(plan: Plan, verdict: Verdict, sources: Sequence[Source], gpu: PricedServer) -> str:
    """From where on the card would pay, or up to where the CPU would have been cheaper."""
    pools = {pool.name for pool in plan.pools}
    at = verdict.break_even_rps
    source = _source(gpu.profile, sources)
    one = "this GPU" if source is not None and source.origin == "here" else card(gpu.server.device_name)
    price = money(gpu.per_hour, plan.currency)
    named = f"{one} ({gpu.offer.name}, {price} an hour{'' if one == 'this GPU' else '; ' + _from(gpu)})"
    if "gpu" in pools:
        if at is None or at > plan.objective.peak_rps:
            alone = "at no rate" if at is None else f"from {rate(at)} on"
            return f"it pays beside CPUs; cards alone are cheaper {alone}"
        return f"below {rate(at)} the CPU is cheaper" if at else "the CPU is cheaper at no rate"
    cards = {p.server.device_name for p in plan.considered if p.pool == "gpu" and p.max_rate.rate_rps > 0}
    if at is None:
        beside = "" if len(cards) == 1 else f", the cheapest for each request of {len(cards)} cards,"
        return f"{named}{beside} would not pay at any rate"
    beside = "" if len(cards) == 1 else f", the first of {len(cards)} cards to pay,"
    return f"{named}{beside} would pay from {rate(at)} on{_between(verdict)}"


def _between(verdict: Verdict) -> str:
    low, high = verdict.break_even_low_rps, verdict.break_even_high_rps
    if low is None or verdict.break_even_rps is None:
        return ""
    if high is None:
        near = "" if rate(low) == rate(verdict.break_even_rps) else f"from {rate(low)}, "
        return f" ({near}or never, within what was measured)"
    return "" if rate(low) == rate(high) else f" ({rate(low)} to {rate(high)} within what was measured)"


def _if_so(verdict: Verdict) -> list[str]:
    """What would hold were a file's figures so; never the word itself."""
    answers = {"pays": "the GPU would pay", "does_not_pay": "the GPU would not pay", "depends": "it would depend"}
    return (
        []
        if verdict.what_if is None
        else [f"If the figures from files hold, {answers.get(verdict.what_if, 'nobody can say')}."]
    )


def _why_unsure(verdict: Verdict, plan: Plan) -> list[str]:
    unsure = (
        "rate",
        "measurement",
        "price",
        "generator",
        "stricter",
        "too_few",
        "few_requests",
        "void",
        "unpriced",
        "unmet",
        "only_one",
    )
    return [f"{reason(one, plan.model, plan.objective.batch_size)}." for one in verdict.reasons if one.kind in unsure][
        :3
    ]


def _missing(verdict: Verdict, model: str, batch_size: int) -> list[str]:
    return [f"{missing(one, model, batch_size)}." for one in verdict.reasons if one.kind == "missing"]


def _profile_command(model: str, batch_size: int) -> str:
    return f"tandem profile {model}" + ("" if batch_size == 1 else f" --batch-size {batch_size}")


def missing(one: Reason, model: str, batch_size: int = 1) -> str:
    command = _profile_command(model, batch_size)
    kind = KINDS[one.pool or "gpu"]
    where = "a machine with a card" if one.pool == "gpu" else "the machine in question"
    if one.detail is not None:
        told = times(one.limit or 0)
        return (
            f"The {kind} profile of {model} has no rate for p99 {told}: run `{command} --p99 {told.replace(' ', '')}` on "
            f"{where} and give it with --profile"
        )
    return f"No {kind} profile of {model}: run `{command}` on {where} and give it with --profile"


def _unchecked(plan: Plan, check: Check | None, not_run: str | None) -> list[str]:
    if not_run is not None and plan.pools:
        return [f"Not run as a check: {not_run}."]
    if check is None:
        return []
    if check.void is not None:
        return [f"The check is void: {check.void}."]
    if not check.is_met:
        missed = f"{check.late_or_lost_ratio:.1%} of the answers were late or lost"
        return [f"The check at {rate(check.rate_rps)} missed the objective: {missed}; 1 % is allowed."]
    return []


# -- reasons and what would change it ----------------------------------------------------------------------------------


def reason(one: Reason, model: str, batch_size: int = 1) -> str:
    """One reason in a sentence without its full stop."""
    kind, command = KINDS.get(one.pool or "", ""), _profile_command(model, batch_size)
    value, limit = one.value or 0.0, one.limit or 0.0
    return {
        "cheaper": f"The {kind} is {value:.0%} cheaper at the rate asked for, over the whole measured interval",
        "only_one": f"Only the {kind} meets p99 {times(limit)}",
        "unmet": f"Neither a CPU nor a GPU that was measured meets p99 {times(limit)}",
        "over_cap": f"Everything that carries the load costs too much: at least {value:.4g} an hour, where {limit:.4g} is allowed",
        "rate": f"It depends on the rate: the GPU is cheaper at {rate(value)}, but not at every rate asked for",
        "measurement": f"It depends on how fast the {kind} servers really are: the measurements allow both answers at {rate(value)}",
        "price": f"It depends on the prices: both sides cost the same within {value:.1%}, and under {limit:.0%} nobody can tell",
        "generator": f"The load generator reached its limit before the server did, so both answers are possible at {rate(value)}",
        "stricter": (
            f"Rates were measured for a stricter objective, so both answers are possible at {rate(value)}: run "
            f"`{command} --p99 {limit * 1000:g}ms`"
        ),
        "too_few": f"Too few runs of {one.detail}: {value:.0f}, where {limit:.0f} are needed",
        "few_requests": (
            f"The highest rate of {one.detail} rests on {value:.0f} requests, where a p99 needs {limit:.0f}: run "
            f"`{command}` with longer runs (--seconds) and give it with --profile"
        ),
        "void": f"All {value:.0f} runs on the {kind} are void: {one.detail}",
        "missing": missing(one, model, batch_size),
        "unpriced": f"No price in the list fits {one.detail}: give a file with --prices",
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


def caveats(plan: Plan, sources: Sequence[Source], check: Check | None) -> tuple[str, ...]:
    """What a reader must know before believing the paragraph."""
    said = [*plan.caveats]
    told = " ".join(said)
    for profile in (source.profile for source in sources):
        if profile.note and profile.note.rstrip(".") not in told:
            names = " and ".join(dict.fromkeys(server.device_name for server in profile.servers))
            said.append(profile.note if profile.provenance == "measured" else f"{names}: {profile.note}")
    if check is not None:
        how = {
            True: ", with real-time priority, before the server's own work",
            False: ", without real-time priority, so that other work could make it late",
            None: "",
        }[check.is_real_time]
        said.append(
            f"In the check the load generator ran on the same cores as the server and took its share of them{how}."
        )
    return tuple(dict.fromkeys(capitalised(one) for one in said))
