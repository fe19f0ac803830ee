"""What does a machine cost an hour, by whose list of which day, and a million requests on it?

A price is money in one currency, which stands in the list, and a list is a file: ours, or one of yours. Which machine of a list a profile
was measured on is matched here, too. Rules: prices are added and compared by `exact`, never rounded; a card that does not fit is never
taken for another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from statistics import median_low
from typing import Any, ClassVar, Literal

from serving.decisions.engines import ONLY_ENGINE, POOL
from serving.decisions.profile import STRICT, Profile, ServerProfile
from serving.documents.reader import read_document
from serving.errors import UserError

HOUR_S = 3600.0
EQUAL_PER_HOUR = (
    1.0  # of every pool where none is set: the one whose server is busy for the shortest time is the cheapest then
)


_ROUNDING = Decimal("1e-9")  # relative: a share of an offer's price is a product of floats


def is_less(price: Decimal, other: Decimal) -> bool:
    """Whether a price is lower by more than what floats leave of two that are the same."""
    return price < other * (1 - _ROUNDING)


@lru_cache(maxsize=4096)
def exact(price: float) -> Decimal:
    """As it was written, so that sums of prices are compared without rounding."""
    return Decimal(str(price))


def per_million(per_hour: float, rate_rps: float) -> float:
    """Requests that really come, on servers that are paid for anyway."""
    return per_hour / (HOUR_S * rate_rps) * 1e6


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine that can be rented. `card` and `processor` are words that a device's name must hold to be the same; without
    `processor` it stands for any. `instruction_sets` tell it from others where a machine names its processor's family alone.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    per_hour: float
    num_vcpus: int
    device: Literal["cpu", "gpu"] = "cpu"
    num_cards: int = 0
    card: str | None = None
    processor: str | None = None
    instruction_sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < float("inf"):
            raise ValueError(f"{self.name}: a price is a number above 0, not {self.per_hour}")
        if self.num_vcpus < 1 or (self.device == "gpu") != (self.num_cards > 0):
            raise ValueError(f"{self.name}: it needs a processor, and a gpu offer its cards")
        if (self.card is None) == (self.device == "gpu"):
            raise ValueError(f"{self.name}: a gpu offer says which card it has, and no other does")


@dataclass(frozen=True, slots=True)
class PriceList:
    """`currency` is a sign or a code, as it is to be printed. `date`: the day of the prices, ISO 8601."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    source: str
    date: str
    currency: str
    offers: tuple[Offer, ...]
    version: Literal[1] = 1

    def offer(self, name: str) -> Offer | None:
        return next((offer for offer in self.offers if offer.name == name), None)


SHIPPED = Path(__file__).parent / "shipped" / "prices" / "aws-us-east-1-2026-07-20.yaml"


def read_prices(path: Path | None) -> PriceList:
    """None: the list that is shipped. Raises UserError with the file, the place in it and what is wrong there."""
    path = path or SHIPPED
    document = read_document(path, "the price list")
    document.version(1, "a price list", "docs/plan.md shows one")
    prices = document.values(PriceList)
    try:
        date.fromisoformat(prices.date)
    except ValueError:
        raise document.wrong(("date",), f"{prices.date!r} is no day such as 2026-07-20") from None
    if not prices.offers:
        raise document.wrong(("offers",), "there is none")
    names = [offer.name for offer in prices.offers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise document.wrong(("offers",), f"{twice} is there twice")
    return prices


def read_price_lists(paths: Sequence[Path | None]) -> PriceList:
    """One after the other: an offer of a later file replaces one of the same name. The date is the oldest one's."""
    lists = [read_prices(path) for path in paths] or [read_prices(None)]
    first = lists[0]
    offers: dict[str, Offer] = {}
    for path, prices in zip(paths, lists, strict=False):
        if prices.currency != first.currency:
            raise UserError(
                f"{path or SHIPPED}: its prices are in {prices.currency}, those of {first.name} in {first.currency}; "
                "convert one, or give the other alone"
            )
    for prices in lists:
        offers |= {offer.name: offer for offer in prices.offers}
    return PriceList(
        name=", ".join(prices.name for prices in lists),
        source="; ".join(prices.source for prices in lists),
        date=min(prices.date for prices in lists),
        currency=first.currency,
        offers=tuple(offers.values()),
    )


# `chosen`: by the user. `named`: the offer's words are in the device's name. `any`: the offer names no processor. `alike`: of the same
# family and with the same instruction sets. `guess`: nothing fits.
Fit = Literal["chosen", "named", "any", "alike", "guess"]
NEVER_ON = {("cpu", "fp16"), ("cpu", "tf32")}  # slower there than FP32 everywhere, or FP32; no gate lets them pass
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
