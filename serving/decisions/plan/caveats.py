"""What must be known beside a plan's numbers: whose figures, machines and prices they are, what was left out, and why there is no plan.

Caveats are told only of servers that a number stands on, and of those that were left out. Each binding says what is wanted, what is
possible and the way out. Rule: nothing here changes a number, and what follows from another fact alone is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

from serving.decisions.fleet import usable_rps
from serving.decisions.plan.result import Binding, Objective, PricedServer
from serving.decisions.prices import Match, Offer, PriceList, exact, is_less, match, may_be_served, pool_of
from serving.decisions.profile import Profile, ServerProfile, provenance_of
from serving.decisions.wording import (
    WHOSE_FIGURES,
    asked_rate,
    device,
    exact_money,
    no_offer,
    offered,
    profile_command,
    rate,
    times,
    within,
)

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
    if (whose := provenance_of(profile, server)) != "measured":
        note = f" ({profile.note.rstrip('.')})" if profile.note and whose == "published" else ""
        yield f"what-if: {device(server)}: {WHOSE_FIGURES[whose]}{note}"
    if profile.others_ratio is not None and profile.others_ratio > MUCH_OTHER_WORK:
        yield f"other work took {profile.others_ratio:.0%} of the cores while {server.label} was measured"
    if server.is_untrained:
        yield f"{server.variant} has random weights: its speed is real, its answers mean nothing"
    judged = [one for one in profile.servers if one.accuracy is not None]
    best = max(judged, key=lambda one: one.accuracy or 0.0, default=server)
    if server.accuracy is not None and best.accuracy is not None and server.accuracy < best.accuracy:
        yield f"{server.variant} is less accurate than {best.variant}: {server.accuracy:.4g} and {best.accuracy:.4g} by their gates"


def _of_rate(priced: PricedServer, objective: Objective) -> Iterator[str]:
    found, label = priced.max_rate, priced.server.label
    if found.objective_s < objective.latency_p99_s * (1 - 1e-9):
        measured, wanted = within(found.objective_s), times(objective.latency_p99_s)
        yield f"{label} was measured for {measured}, so that it may carry more at {wanted}"
    if found.is_bounded_by_generator:
        yield f"{label}: the load generator ended at {rate(found.rate_rps)}; the server could perhaps carry more"


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
            f"a server has {machine.num_cores:g} cores, {offered(offer.name, matched.share)}, at that share of its price; the machine "
            "is rented as a whole"
        )
    elif matched.share > 1:
        yield f"measured with {machine.num_cores:g} cores, more than {offer.name} has; priced as {offered(offer.name, matched.share)}"
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
    pool, wanted = pool_of(server), within(objective.latency_p99_s)
    found = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
    if not may_be_served(server):
        return f"no {pool} pool loads that"
    if found is None:
        return f"its highest rate with {wanted} was never measured"
    if found.rate_rps <= 0:
        return f"no rate that was tried has {wanted}"
    if match(profile, server, prices, instances) is None:
        return no_offer(server.device_name, pool)
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


# -- why there is no plan ----------------------------------------------------------------------------------------------


def why_not(
    model: str,
    objective: Objective,
    profiles: Sequence[Profile],
    considered: Sequence[PricedServer],
    prices_at_peak: Sequence[float],
    gateway_per_hour: float,
    currency: str,
) -> tuple[Binding, ...]:
    """`prices_at_peak`: of all ways that carry the rates, whatever they cost."""
    servers = [server for profile in profiles for server in profile.servers]
    if not servers:
        command = profile_command(model, objective.batch_size, objective.latency_p99_s)
        says = f"nothing was measured of {model}: {command}"
        return (Binding("profile", None, None, says),)
    if not considered:
        return tuple(_not_one(model, objective, servers))
    if not prices_at_peak:
        return (_too_few(objective, considered),)
    return tuple(_too_dear(objective, considered, min(prices_at_peak) + gateway_per_hour, currency))


def _not_one(model: str, objective: Objective, servers: Sequence[ServerProfile]) -> Iterator[Binding]:
    wanted_s, rows = objective.latency_p99_s, objective.batch_size
    tried = [server for server in servers if server.max_rate_rps(wanted_s, rows) is not None]
    if not tried:
        known = sorted({m.objective_s for server in servers for m in server.max_rates if m.batch_size == rows})
        have = f", but for {', '.join(map(times, known))}" if known else ""
        of_rows = f" and {rows} rows a request" if rows > 1 else ""
        says = (
            f"the highest rate with {within(wanted_s)}{of_rows} was never measured{have}: "
            f"{profile_command(model, rows, wanted_s)}"
        )
        yield Binding("profile", wanted_s, min(known, default=None), says)
        return
    in_time = [s for s in tried if (m := s.max_rate_rps(wanted_s, rows)) is not None and m.rate_rps > 0]
    if not in_time:
        best_s = min(_seen_s(tried, rows), default=None)
        seen = f"the best p99 that was seen is {times(best_s)}" if best_s is not None else "no p99 is known"
        says = f"no server answers within {times(wanted_s)} at p99, not even at the lowest rate that was tried; {seen}"
        yield Binding("latency", wanted_s, best_s, says)
        return
    for pool in sorted({pool_of(server) for server in in_time}):
        of_pool = [server for server in in_time if pool_of(server) == pool]
        served = [server for server in of_pool if may_be_served(server)]
        says = no_offer(served[0].device_name, pool) if served else f"no {pool} pool loads {of_pool[0].label}"
        yield Binding("offer", None, None, says)


def _seen_s(servers: Sequence[ServerProfile], rows: int) -> Iterator[float]:
    """Under load, else one request at a time through the gateway."""
    for server in servers:
        yield from (p.latency_p99_s for p in server.load if p.batch_size == rows and p.latency_p99_s is not None)
        through = (t for t in server.ladder if t.rung.startswith("gateway") and t.batch_size == rows)
        yield from (t.latency_p99_s for t in through if t.latency_p99_s is not None)


def _too_few(objective: Objective, considered: Sequence[PricedServer]) -> Binding:
    most = objective.max_replicas or 0
    possible = most * sum(
        max((usable_rps(p, objective) for p in considered if p.pool == pool), default=0.0) for pool in ("cpu", "gpu")
    )
    says = f"with at most {most} servers of a kind {rate(possible)} are carried, {asked_rate(objective.peak_rps)} are wanted"
    return Binding("rate", objective.peak_rps, possible, says)


def _too_dear(
    objective: Objective, considered: Sequence[PricedServer], cheapest_per_hour: float, currency: str
) -> Iterator[Binding]:
    cap = objective.max_price_per_hour
    if cap is not None and is_less(exact(cap), exact(cheapest_per_hour)):
        least = f"{asked_rate(objective.peak_rps)} cost {exact_money(cheapest_per_hour, currency)} an hour at the least"
        says = f"{least}, and may cost {currency}{cap:g}"
        yield Binding("price", cap, cheapest_per_hour, says)
    if objective.minimise == "energy":
        if all(priced.server.joules_per_request is None for priced in considered):
            says = "no joules were measured of any server: on most virtual machines they cannot be read; plan by --minimise price"
            yield Binding("energy", None, None, says)
        elif cap is not None and cheapest_per_hour <= cap:
            price = f"{currency}{cap:g} an hour"
            says = f"no server whose joules were measured carries it for {price}; raise --max-price, or leave --minimise energy"
            yield Binding("energy", cap, None, says)
