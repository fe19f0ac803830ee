"""What does a machine cost an hour, by whose list of which day, and a million requests on it?

A price is money in one currency, which stands in the list. Rule: prices are added and compared by `exact`, never rounded. The files are
`files/prices.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Literal

from serving.decisions.profile import STRICT

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
