"""What does an hour of what was measured on cost, by a dated list? The offer that a plan would take for this machine, and its share.

Pure. A price that rests on an offer whose processor is not known to be this one says so.
"""

from __future__ import annotations

from loadtest.claims.values import Price
from serving.decisions.plan.matching import Match, match
from serving.decisions.prices import PriceList
from serving.decisions.profile import Profile, ServerProfile, Settings
from serving.measure.machine import Machine

_FIT = {
    "alike": " (this processor names its family alone; that one has the same instruction sets)",
    "any": " (the offer names no processor)",
    "guess": " (a guess: no offer is known to have this processor)",
}


def prices(listed: PriceList, machine: Machine) -> tuple[Price, ...]:
    """Of the processor, all its cores, and of the card where one is here and on the list."""
    profile = Profile("any", "measured", listed.date, "", machine, ())
    devices = [("cpu", machine.processor), *(("gpu", name.partition(",")[0]) for name in machine.cards[:1])]
    found = []
    for device, name in devices:
        server = ServerProfile("fp32", "cpu" if device == "cpu" else "cuda", device, name, None, Settings())
        if matched := match(profile, server, listed):
            found.append(_price(listed, device, matched))
    return tuple(found)


def _price(listed: PriceList, device: str, matched: Match) -> Price:
    return Price(
        device="cpu" if device == "cpu" else "gpu",
        offer=matched.offer.name + _FIT.get(matched.fit, ""),
        per_hour=matched.per_hour,
        currency=listed.currency,
        source=f"{listed.name}, {listed.source}",
        date=listed.date,
    )
