"""Price lists as files: YAML that says `version: 1`, read strictly; one is shipped, users add their own machines.

What an offer is stands in `planning/price_list.py`. Rule: a misspelt word is an error with the nearest known one, and prices in two
currencies never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import date
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serving.documents.reader import read_document
from serving.errors import UserError
from serving.planning.price_list import Offer, PriceList
from serving.settings import nearest

SHIPPED = Path(__file__).parent / "prices" / "aws-us-east-1-2026-07-20.yaml"
_PRICES = TypeAdapter(PriceList)
_WORDS = {True: {field.name for field in fields(Offer)}, False: {field.name for field in fields(PriceList)}}


def read_prices(path: Path | None) -> PriceList:
    """None: the list that is shipped. Raises UserError with the file, the place in it and what is wrong there."""
    path = path or SHIPPED
    raw = read_document(path, "the price list")
    if not isinstance(raw, dict) or raw.get("version") != 1:
        found = raw.get("version") if isinstance(raw, dict) else None
        raise UserError(f"{path}: not a price list of version 1 (its version is {found!r}); docs/plan.md shows one")
    if isinstance(raw.get("date"), date):  # YAML reads an unquoted day as one
        raw["date"] = raw["date"].isoformat()[:10]
    try:
        prices = _PRICES.validate_python(raw)
        date.fromisoformat(prices.date)
    except ValidationError as error:
        raise UserError(f"{path}: {_problem(error)}") from None
    except ValueError:
        raise UserError(f"{path}: date: '{raw['date']}' is no day such as 2026-07-20") from None
    if not prices.offers:
        raise UserError(f"{path}: offers: there is none")
    names = [offer.name for offer in prices.offers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: offers: {twice} is there twice")
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


def _problem(error: ValidationError) -> str:
    """The first; a misspelt word before the one that is missing because of it."""
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda p: p["type"] not in ("extra_forbidden", "unexpected_keyword_argument"))
    where = ".".join(str(part) for part in problem["loc"]) or "the list"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown '{where}'{nearest(str(problem['loc'][-1]), _WORDS[len(problem['loc']) > 1])}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"'{where}' is missing"
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
