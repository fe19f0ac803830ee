"""What keeps a plan from being possible, in numbers: nothing measured, nothing in time, no price, too few servers, too little money.

Each says what is wanted, what is possible and the way out. Rule: what follows from another alone is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serving.decisions.fleet import usable_rps
from serving.decisions.plan.result import Binding, Objective, PricedServer
from serving.decisions.prices import exact, is_less, pool_of
from serving.decisions.profile import Profile, ServerProfile


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
        says = f"nothing was measured of {model}: `tandem profile {model} --p99 {_ms(objective.latency_p99_s)}`"
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
        have = f", but at {', '.join(map(_ms, known))}" if known else ""
        of_rows = f" with {rows} rows a request" if rows > 1 else ""
        says = (
            f"the highest rate at p99 ≤ {_ms(wanted_s)}{of_rows} was never measured{have}: "
            f"`tandem profile {model} --p99 {_ms(wanted_s)}{f' --batch-size {rows}' if rows > 1 else ''}`"
        )
        yield Binding("profile", wanted_s, min(known, default=None), says)
        return
    in_time = [s for s in tried if (m := s.max_rate_rps(wanted_s, rows)) is not None and m.rate_rps > 0]
    if not in_time:
        best_s = min(_seen_s(tried, rows), default=None)
        seen = f"the best p99 that was seen is {_ms(best_s)}" if best_s is not None else "no p99 is known"
        says = f"no server answers within {_ms(wanted_s)} at p99, not even at the lowest rate that was tried; {seen}"
        yield Binding("latency", wanted_s, best_s, says)
        return
    for pool in sorted({pool_of(server) for server in in_time}):
        name = next(s.device_name for s in in_time if pool_of(s) == pool)
        says = (
            f"no machine in the price list is one with '{name}', or none may serve what was measured there: "
            f"name one with --instance {pool}=NAME, or add yours to a price file"
        )
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
    says = f"with at most {most} servers of a kind {possible:.4g} requests per second are carried, {objective.peak_rps:g} are wanted"
    return Binding("rate", objective.peak_rps, possible, says)


def _too_dear(
    objective: Objective, considered: Sequence[PricedServer], cheapest_per_hour: float, currency: str
) -> Iterator[Binding]:
    cap = objective.max_price_per_hour
    if cap is not None and is_less(exact(cap), exact(cheapest_per_hour)):
        says = (
            f"{objective.peak_rps:g} requests per second cost {currency}{cheapest_per_hour:.4g} an hour at the least, and may cost "
            f"{currency}{cap:g}"
        )
        yield Binding("price", cap, cheapest_per_hour, says)
    if objective.minimise == "energy":
        if all(priced.server.joules_per_request is None for priced in considered):
            says = "no joules were measured of any server: on most virtual machines they cannot be read; plan by --minimise price"
            yield Binding("energy", None, None, says)
        elif cap is not None and cheapest_per_hour <= cap:
            price = f"{currency}{cap:g} an hour"
            says = f"no server whose joules were measured carries it for {price}; raise --max-price, or leave --minimise energy"
            yield Binding("energy", cap, None, says)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}ms"
