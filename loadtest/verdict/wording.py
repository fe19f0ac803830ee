"""Says a verdict in one paragraph that a manager understands, with its check, and what to know before believing it.

The words for each fact are `serving/decisions/wording.py`'s. Rule: every sentence names where its figures come from, and what was not
measured is said to be so. Nothing is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadtest.profile.wording import capitalised
from loadtest.report.wording import WHAT_IF
from loadtest.verdict.report import Check, Source
from serving.decisions.plan.result import Plan, PoolPlan, PricedServer
from serving.decisions.profile import Profile, provenance_of
from serving.decisions.verdict import Verdict, Word
from serving.decisions.wording import (
    KINDS,
    WHOSE_FIGURES,
    accuracy,
    asked_rate,
    card,
    day,
    from_rate,
    guessed,
    money,
    objective,
    rate,
    reason,
    times,
    what_if,
    within,
)

MAX_DOUBTS = 3  # in the paragraph; the page has all
HEADLINES: dict[Word, str] = {
    "pays": "The GPU pays",
    "does_not_pay": "The GPU does not pay",
    "depends": "Whether the GPU pays depends",
    "inconclusive": "Inconclusive",
}


def word(verdict: Verdict) -> str:
    """As it is told and as pipelines read it."""
    return WHAT_IF if verdict.what_if is not None else verdict.word


def headline(verdict: Verdict) -> str:
    return WHAT_IF.capitalize() if verdict.what_if is not None else HEADLINES[verdict.word]


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
    rest = (*_if_so(verdict), *_why_unsure(verdict, plan), *_unchecked(plan, check, not_run))
    return " ".join([sentence(plan, verdict, sources, check, card_in_question), *rest])


def sentence(
    plan: Plan, verdict: Verdict, sources: Sequence[Source], check: Check | None, card_in_question: PricedServer | None
) -> str:
    """The first one, to forward."""
    clauses = [_serves(plan, sources, check)]
    if card_in_question is not None and (other := _other_kind(plan, verdict, sources, card_in_question)):
        clauses.append(other)
    return f"{headline(verdict)}: {'; '.join(clauses)}."


def _serves(plan: Plan, sources: Sequence[Source], check: Check | None) -> str:
    target = plan.objective
    if not plan.pools:
        return ", ".join(
            [f"nothing that was measured serves {objective(target)}", *(b.says for b in plan.bindings[:1])]
        )
    pools = " and ".join(_pool(pool, sources) for pool in plan.pools)
    is_one = len(plan.pools) == 1 and plan.pools[0].max_replicas == 1
    price = (
        ""
        if plan.per_hour_at_peak is None
        else f" for {money(plan.per_hour_at_peak, plan.currency)} an hour{guessed(plan.pools)}"
    )
    if check is None or check.void is not None or check.latency_p99_s is None:
        will = "is planned to serve" if is_one else "are planned to serve"
        return f"{pools} {will} {asked_rate(target.peak_rps)} with {within(target.latency_p99_s)}{price}"
    verb = "serves" if is_one else "serve"
    return f"{pools} {verb} {asked_rate(target.peak_rps)} at p99 {times(check.latency_p99_s.value)}{price}"


def _pool(pool: PoolPlan, sources: Sequence[Source]) -> str:
    """`on this CPU 2 servers of INT8`"""
    many = "" if pool.max_replicas == 1 else f"{pool.max_replicas} servers of "
    server = pool.chosen.server
    right = f" ({accuracy(server.accuracy)[2:]})" if server.accuracy is not None else ""
    return f"{_where(pool.chosen, sources)} {many}{server.variant.upper()}{right}"


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
    profile, provenance = priced.profile, provenance_of(priced.profile, priced.server)
    if provenance == "measured":
        beside = f" beside {profile.machine.processor}" if priced.pool == "gpu" else ""
        return f"measured{beside} on {day(profile.date)}"
    source = re.split(r"[,.:;]", profile.note or "")[0]  # a note of published figures begins with whose they are
    whose = f": {source}" if source and provenance == "published" else ""
    return f"{WHOSE_FIGURES[provenance]}{whose}, {day(profile.date)}"


def _source(profile: Profile, sources: Sequence[Source]) -> Source | None:
    return next((one for one in sources if one.profile is profile or one.profile == profile), None)


def _other_kind(plan: Plan, verdict: Verdict, sources: Sequence[Source], gpu: PricedServer) -> str:
    """From where on the card would pay, or up to where the CPU would have been cheaper."""
    pools = {pool.name for pool in plan.pools}
    at = verdict.break_even_rps
    if "gpu" not in pools and gpu.profile.provenance == "published" and plan.what_ifs:
        return what_if(plan.what_ifs[0], plan.currency)
    source = _source(gpu.profile, sources)
    one = "this GPU" if source is not None and source.origin == "here" else card(gpu.server.device_name)
    price = money(gpu.per_hour, plan.currency)
    named = f"{one} ({gpu.offer.name}, {price} an hour{'' if one == 'this GPU' else '; ' + _from(gpu)})"
    if "gpu" in pools:
        if at is None or at > plan.objective.peak_rps:
            return f"it pays beside CPUs; cards alone are cheaper {from_rate(at)}"
        return f"below {rate(at)} the CPU is cheaper" if at else "the CPU is cheaper at no rate"
    cards = {p.server.device_name for p in plan.considered if p.pool == "gpu" and p.max_rate.rate_rps > 0}
    if at is None:
        beside = "" if len(cards) == 1 else f", the cheapest for each request of {len(cards)} cards,"
        return f"{named}{beside} would pay at no rate"
    beside = "" if len(cards) == 1 else f", the first of {len(cards)} cards to pay,"
    return f"{named}{beside} would pay {from_rate(at)}{_between(verdict)}"


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
    if verdict.what_if is None:
        return []
    answers = {"pays": "the GPU would pay", "does_not_pay": "the GPU would not pay", "depends": "it would depend"}
    return [f"If the figures from files hold, {answers.get(verdict.what_if, 'nobody can say')}."]


def _why_unsure(verdict: Verdict, plan: Plan) -> list[str]:
    """The first reasons for doubt, and every profile that is missing."""
    sure = ("cheaper", "over_cap", "what_if", "missing")  # said by the word, the first sentence, or below
    doubts = [one for one in verdict.reasons if one.kind not in sure][:MAX_DOUBTS]
    lacking = [one for one in verdict.reasons if one.kind == "missing"]
    return [f"{reason(one, plan.model, plan.objective.batch_size)}." for one in (*doubts, *lacking)]


def _unchecked(plan: Plan, check: Check | None, not_run: str | None) -> list[str]:
    if not_run is not None and plan.pools:
        return [f"Not run as a check: {not_run}."]
    if check is None:
        return []
    if check.void is not None:
        return [f"The check is void: {check.void}."]
    if not check.is_met:
        missed = f"{check.late_or_lost_ratio:.1%} of the answers were late or lost"
        return [f"The check at {asked_rate(check.rate_rps)} missed the objective: {missed}; 1 % is allowed."]
    return []


def caveats(plan: Plan, sources: Sequence[Source], check: Check | None) -> tuple[str, ...]:
    """What a reader must know before believing the paragraph."""
    found = [*plan.caveats]
    of_plan = " ".join(found)
    for profile in (source.profile for source in sources):
        if profile.note and profile.note.rstrip(".") not in of_plan:
            names = " and ".join(dict.fromkeys(server.device_name for server in profile.servers))
            found.append(profile.note if profile.provenance == "measured" else f"{names}: {profile.note}")
    if check is not None:
        how = {
            True: ", with real-time priority, before the server's own work",
            False: ", without real-time priority, so that other work could make it late",
            None: "",
        }[check.is_real_time]
        found.append(
            f"In the check the load generator ran on the same cores as the server and took its share of them{how}."
        )
    return tuple(dict.fromkeys(capitalised(one) for one in found))
