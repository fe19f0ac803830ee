"""What a client would rather have: the headers `Accept` and `Accept-Encoding`, whose parts have qualities from 0 (never) to 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Preference(NamedTuple):
    name: str  # in small letters
    parameters: dict[str, str]
    quality: float


def preferences(value: str) -> Iterator[Preference]:
    """In the order of the header."""
    for part in value.lower().split(","):
        name, *given = (word.strip() for word in part.split(";"))
        parameters = {key.strip(): text.strip(' "') for key, _, text in (word.partition("=") for word in given)}
        yield Preference(name, parameters, _quality(parameters.get("q", "1")))


def _quality(text: str) -> float:
    """0, so that it counts for nothing, where it cannot be read."""
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
