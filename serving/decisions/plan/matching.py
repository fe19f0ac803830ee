"""Which machine of a price list stands for the one that was measured, and what does one server on it cost an hour?

By words: a card's name, a processor's name; where that says its family alone, by instruction sets. How well an offer fits is told
with it, so that a price which rests on a guess says so. Rule: a card is never taken for another one; a processor is, if nothing fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from serving.decisions.engines import ONLY_ENGINE, POOL
from serving.decisions.prices import Offer, PriceList
from serving.decisions.profile import Profile, ServerProfile

# `chosen`: by the user. `named`: the offer's words are in the device's name. `any`: the offer names no processor. `alike`: of the same
# family and with the same instruction sets. `guess`: nothing fits.
Fit = Literal["chosen", "named", "any", "alike", "guess"]
NEVER_ON = {("cpu", "fp16")}  # slower there than FP32 everywhere, so that no gate lets it pass
_CLOCKS = re.compile(r"@?\s*\d+(\.\d+)?\s*[gm]hz|\b\d+-core\b")
_SAYS_NOTHING = {"r", "tm", "cpu", "processor", "processors", "core", "unknown", "unnamed", "nvidia", "tesla"}


@dataclass(frozen=True, slots=True)
class Match:
    """`share` of the offer; `lacks_cores`: fewer cores for a card than it was measured with."""

    offer: Offer
    share: float
    fit: Fit
    lacks_cores: bool = False

    @property
    def per_hour(self) -> float:
        return self.offer.per_hour * self.share


def pool_of(server: ServerProfile) -> str:
    """An emulated device is of the kind that its name tells; a GPU where it tells none."""
    return "cpu" if server.device == "cpu" or server.device.startswith("emulated-cpu") else "gpu"


def may_be_served(server: ServerProfile) -> bool:
    """Whether a pool would load the variant on this engine as what it is. An emulated engine is of the device that it is named for."""
    pool, engine = pool_of(server), server.engine
    if (pool, server.variant) in NEVER_ON or POOL.get(engine, pool) != pool:
        return False
    return ONLY_ENGINE.get((pool, server.variant), engine) == engine


def match(
    profile: Profile, server: ServerProfile, prices: PriceList, chosen: Mapping[str, str] | None = None
) -> Match | None:
    """The cheapest offer that fits best. `chosen`: pool -> name of the offer that is to stand for all its machines."""
    pool = pool_of(server)
    offers = [offer for offer in prices.offers if offer.device == pool]
    if name := (chosen or {}).get(pool):
        return _cheapest([(offer, "chosen") for offer in offers if offer.name == name], profile)
    fits = _cards(server, profile, offers) if pool == "gpu" else _processors(profile, offers)
    return _cheapest(fits, profile)


def _cards(server: ServerProfile, profile: Profile, offers: Sequence[Offer]) -> list[tuple[Offer, Fit]]:
    """An emulated card is called by what its file is called by: the machine that computes its answers has another one, or none."""
    if server.device.startswith("emulated"):
        names = _words(f"{server.device} {server.engine}")
    else:
        names = _words(" ".join((server.device_name, *profile.machine.cards[:1])))
    return [(offer, "named") for offer in offers if offer.card and _words(offer.card) <= names]


def _processors(profile: Profile, offers: Sequence[Offer]) -> list[tuple[Offer, Fit]]:
    name, sets = profile.machine.processor, set(profile.machine.instruction_sets)
    if named := [offer for offer in offers if offer.processor and _words(offer.processor) <= _words(name)]:
        return [(offer, "named") for offer in named]
    if of_any := [offer for offer in offers if offer.processor is None]:
        return [(offer, "any") for offer in of_any]
    family = [offer for offer in offers if _telling(name) <= _words(offer.processor or "")]
    alike = [offer for offer in family if offer.instruction_sets and set(offer.instruction_sets) <= sets]
    most = max((len(offer.instruction_sets) for offer in alike), default=0)
    if best := [offer for offer in alike if len(offer.instruction_sets) == most]:
        return [(offer, "alike") for offer in best]
    if not offers:
        return []
    middle = median_low([offer.per_hour / offer.num_vcpus for offer in offers])
    return [(offer, "guess") for offer in offers if offer.per_hour / offer.num_vcpus == middle]


def _cheapest(fits: Sequence[tuple[Offer, Fit]], profile: Profile) -> Match | None:
    matches = [_share(offer, fit, profile.machine.num_cores) for offer, fit in fits]
    return min(
        matches,
        key=lambda m: (m.lacks_cores, m.share > 1, round(m.per_hour, 9), m.offer.num_vcpus, m.offer.name),
        default=None,
    )


def _share(offer: Offer, fit: Fit, num_cores: float) -> Match:
    """Of a card's offer what belongs to one card. A machine whose cores nobody tells is taken for the whole."""
    if offer.device == "gpu":
        return Match(offer, 1 / offer.num_cards, fit, lacks_cores=offer.num_vcpus / offer.num_cards < num_cores)
    return Match(offer, num_cores / offer.num_vcpus if num_cores > 0 else 1.0, fit)


def _words(name: str) -> set[str]:
    return {word for word in re.split(r"[^a-z0-9]+", name.lower()) if word}


def _telling(name: str) -> set[str]:
    """The words that tell a processor from another."""
    return _words(_CLOCKS.sub(" ", name.lower())) - _SAYS_NOTHING
