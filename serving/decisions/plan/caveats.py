"""What a reader must know before a plan's numbers are believed: whose figures, whose machine, whose price, how old.

Only of servers that a number stands on, and of those that were left out. Rule: nothing here changes a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

from serving.decisions.plan.result import Objective, PricedServer
from serving.decisions.prices import Match, Offer, PriceList, match, may_be_served, pool_of
from serving.decisions.profile import Profile, ServerProfile

MAX_AGE_DAYS = 180  # of prices: lists change a few times a year; a guess
MUCH_OTHER_WORK = 0.1  # of the cores: a tenth of the speed is more than repeats differ by; a guess


def caveats(
    profiles: Sequence[Profile],
    said: Sequence[PricedServer],
    objective: Objective,
    prices: PriceList,
    instances: Mapping[str, str],
    today: str | None,
) -> tuple[str, ...]:
    found: list[str] = []
    for priced in said:
        found += _of_figures(priced)
        found += _of_rate(priced, objective)
        matched = match(priced.profile, priced.server, prices, instances)
        found += [] if matched is None else _of_price(priced, matched)
        found += [] if matched is None or matched.fit != "chosen" else _of_choice(priced, matched.offer, prices)
    found += _of_energy(profiles, objective)
    found += _left_out(profiles, objective, prices, instances)
    found += _of_age(prices, [profile.date for profile in profiles], today)
    return tuple(dict.fromkeys(found))


def _of_figures(priced: PricedServer) -> Iterator[str]:
    profile, server = priced.profile, priced.server
    if profile.provenance == "published":
        note = f" ({profile.note.rstrip('.')})" if profile.note else ""
        yield f"what-if: {server.device_name} by published figures, not measured by Tandem{note}"
    elif profile.provenance == "emulated" or server.device.startswith("emulated"):
        name = server.device if server.device.startswith("emulated") else server.device_name
        yield f"what-if: {name} is emulated; its times are those of a file"
    if profile.others_ratio is not None and profile.others_ratio > MUCH_OTHER_WORK:
        yield f"other work took {profile.others_ratio:.0%} of the cores while {server.label} was measured"
    if server.is_untrained:
        yield f"{server.variant} has random weights: its speed is real, its answers mean nothing"
    judged = [one for one in profile.servers if one.accuracy is not None]
    best = max(judged, key=lambda one: one.accuracy or 0.0, default=server)
    if server.accuracy is not None and best.accuracy is not None and server.accuracy < best.accuracy:
        yield f"{server.variant} is less accurate than {best.variant}: {server.accuracy:.4g} and {best.accuracy:.4g} by their gates"


def _of_rate(priced: PricedServer, objective: Objective) -> Iterator[str]:
    rate, label = priced.max_rate, priced.server.label
    if rate.objective_s < objective.latency_p99_s * (1 - 1e-9):
        wanted, measured = objective.latency_p99_s * 1e3, rate.objective_s * 1e3
        yield f"{label} was measured for p99 ≤ {measured:g} ms, so that it may carry more at {wanted:g} ms"
    if rate.is_bounded_by_generator:
        yield f"{label}: the load generator ended at {rate.rate_rps:.4g}/s; the server could perhaps carry more"


def _of_price(priced: PricedServer, matched: Match) -> Iterator[str]:
    machine, offer = priced.profile.machine, matched.offer
    if matched.fit == "alike":
        yield f"'{machine.processor}' names its family alone; priced as {offer.name}, whose processor has the same instruction sets"
    if matched.fit == "guess":
        yield (
            f"no offer is known to have '{machine.processor}'; priced as {offer.name}, a guess: say which by --instance cpu=NAME or a "
            "price file of your own"
        )
    if offer.device == "gpu" and offer.num_cards > 1:
        yield f"one of the {offer.num_cards} cards of {offer.name}, at its share of the price; it is rented as a whole"
    elif offer.device == "cpu" and machine.num_cores <= 0:
        yield f"nobody tells with how many cores {priced.server.label} was measured; priced as a whole {offer.name}"
    elif matched.share < 1:
        yield (
            f"a server has {machine.num_cores:g} cores, {matched.share:.0%} of a {offer.name}, at that share of its price; the machine is "
            "rented as a whole"
        )
    elif matched.share > 1:
        yield f"measured with {machine.num_cores:g} cores, more than {offer.name} has; priced as {matched.share:.3g} of it"
    if matched.lacks_cores:
        yield (
            f"{priced.server.label} was measured with {machine.num_cores:g} cores beside the card, more than {offer.name} has for one"
        )


def _of_energy(profiles: Sequence[Profile], objective: Objective) -> Iterator[str]:
    known = [s for profile in profiles for s in profile.servers if s.joules_per_request is not None]
    if objective.minimise == "energy" and len({pool_of(server) for server in known}) == 2:
        yield (
            "a processor's joules are those of all that it did, a card's may be without those of the processor beside it; neither has the "
            "rest of the machine"
        )


def _of_choice(priced: PricedServer, offer: Offer, prices: PriceList) -> Iterator[str]:
    """Where somebody says by hand what machine it is: whether it is one of that kind."""
    alone = match(priced.profile, priced.server, replace(prices, offers=(offer,)))
    if alone is None or alone.fit == "guess":
        measured = priced.server.device_name if priced.pool == "gpu" else priced.profile.machine.processor
        yield (
            f"{priced.server.label} was measured on '{measured}' and is priced as {offer.name}, which has "
            f"'{offer.card or offer.processor}': how fast it is there, nobody measured"
        )


def _left_out(
    profiles: Sequence[Profile], objective: Objective, prices: PriceList, instances: Mapping[str, str]
) -> Iterator[str]:
    """Why servers of the profiles were not weighed: a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for profile in profiles:
        for server in profile.servers:
            if (why := _why_left_out(profile, server, objective, prices, instances)) is not None:
                reasons.setdefault(why, []).append(server.label)
    for why, labels in reasons.items():
        yield f"not weighed: {', '.join(dict.fromkeys(labels))}: {why}"


def _why_left_out(
    profile: Profile, server: ServerProfile, objective: Objective, prices: PriceList, instances: Mapping[str, str]
) -> str | None:
    pool, wanted = pool_of(server), f"p99 ≤ {objective.latency_p99_s * 1e3:g} ms"
    rate = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
    if not may_be_served(server):
        return f"no {pool} pool loads that"
    if rate is None:
        return f"its highest rate at {wanted} was never measured"
    if rate.rate_rps <= 0:
        return f"it is not in time at {wanted}, at no rate that was tried"
    if match(profile, server, prices, instances) is None:
        return f"no machine of the price list has '{server.device_name}'; name one by --instance {pool}=NAME or in a price file"
    if objective.minimise == "energy" and server.joules_per_request is None:
        return "its joules were never measured"
    return None


def _of_age(prices: PriceList, dates: Sequence[str], today: str | None) -> Iterator[str]:
    days = [day for text in (*dates, today) if text and (day := _day(text))]
    priced = _day(prices.date)
    if days and priced and (age := (max(days) - priced).days) > MAX_AGE_DAYS:
        yield f"prices are {age} days old ({prices.name}, {prices.date}); give newer ones with --prices"


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return None
