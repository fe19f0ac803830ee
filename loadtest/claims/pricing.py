"""What does an hour of what was measured on cost, by a dated list? The offer that fits the machine, and the share of it that was used.

Pure. A processor that no offer names is priced as the cheapest core of the list, and the price says so.
"""

from __future__ import annotations

from loadtest.claims.values import Price
from serving.planning.machine import Machine
from serving.planning.price_list import Offer, PriceList


def prices(listed: PriceList, machine: Machine, num_threads: int) -> tuple[Price, ...]:
    """Of the processor, and of the card where one is here and on the list."""
    found = []
    cpus = [offer for offer in listed.offers if offer.device == "cpu"]
    if cpus:
        same = [o for o in cpus if o.processor and o.processor.lower() in machine.processor.lower()]
        chosen = min(same or cpus, key=lambda offer: (offer.per_hour / offer.num_vcpus, offer.num_vcpus))
        words = chosen.name if same else f"{chosen.name} (no offer names this processor; the cheapest core of the list)"
        found.append(_price(listed, chosen, words, chosen.per_hour * num_threads / chosen.num_vcpus))
    cards = [o for o in listed.offers if o.card and any(o.card.lower() in name.lower() for name in machine.cards)]
    if cards:
        chosen = min(cards, key=lambda offer: offer.per_hour / offer.num_cards)
        found.append(_price(listed, chosen, chosen.name, chosen.per_hour / chosen.num_cards))
    return tuple(found)


def _price(listed: PriceList, offer: Offer, words: str, per_hour: float) -> Price:
    return Price(offer.device, words, per_hour, listed.currency, f"{listed.name}, {listed.source}", listed.date)
