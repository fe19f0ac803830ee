"""Price lists as files: YAML that says `version: 1`, read strictly; one is shipped, users add their own machines.

What an offer is stands in `decisions/prices.py`. Rule: a misspelt word is an error with the nearest known one, and prices in two
currencies never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from serving.decisions.prices import Offer, PriceList
from serving.documents.reader import read_document
from serving.errors import UserError

SHIPPED = Path(__file__).parents[1] / "shipped" / "prices" / "aws-us-east-1-2026-07-20.yaml"


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
