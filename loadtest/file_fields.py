"""The kinds of fields that files of campaigns and of claims have, for the strict reader (`serving/documents/reader.py`)."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")  # as the gateway's public names; also a directory's and a header's


def between(low: float, high: float) -> Any:
    return Field(ge=low, le=high)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(f"must be a name of letters, digits, '.', '_' and '-', not {value[:40]!r}")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must be text that is not empty")
    return value


def _different(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values or len(set(values)) < len(values):
        raise ValueError("must be one value or a list of different ones")
    return values


T = TypeVar("T")
Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_text)]
OneOrMore = Annotated[
    tuple[T, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else (value,)),
    AfterValidator(_different),
]
