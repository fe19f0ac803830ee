"""claims.json: a report as text, and the same report from the text.

Rule: what is read equals what was written, and an unknown or a missing word is an error that names it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

from loadtest.claims.values import Report
from loadtest.errors import ResultsError


def to_json(report: Report) -> str:
    return json.dumps(_rounded(dataclasses.asdict(report)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str, file: str) -> Report:
    """Raises ResultsError."""
    try:
        report = _built(Report, json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"{file} is no report of the claims suite: {error}.") from None
    assert isinstance(report, Report)
    return report


def _rounded(value: Any) -> Any:
    """Five significant digits: more of them are noise in a file that people compare."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _built(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if unknown := set(value) - set(hints):
            raise ValueError(f"unknown {sorted(unknown)[0]!r} in {kind.__name__}")  # type: ignore[union-attr]
        return kind(**{name: _built(hints[name], one) for name, one in value.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        return tuple(_built(typing.get_args(kind)[0], one) for one in value)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (inner,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        return None if value is None else _built(inner, value)
    return value
