"""What must not be so, for a pipeline: `--fail-if "p99_s > 0.05"`. Pure: text in, sentences out.

A condition is NAME OP NUMBER, or ARM.NAME OP NUMBER; nothing else, so that nobody has to guess what it means. Without an arm it is asked of
every arm at every point of the load. Rule: what is not known is never good. A number that is missing, because too few requests lie beyond a
percentile or no run was valid, fails like a bad one, and says so.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.errors import CampaignError

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_FORM = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)\s*(?P<operator>[<>=!]=|[<>])\s*(?P<number>[^\s<>=!]+)\s*")


class ConditionError(CampaignError):
    """A condition that cannot be asked. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Condition:
    """As it was written, and what it means. `arm` None: any."""

    text: str
    arm: str | None
    name: str
    operator: str
    number: float


@dataclass(frozen=True, slots=True)
class Place:
    """Numbers of one arm at one point of the load. `where`: in words, empty if there is but one. None: not known."""

    arm: str
    where: str
    values: Mapping[str, float | None]
    not_run: str | None = None


def parse(text: str, names: Sequence[str], arms: Sequence[str] | None = None) -> Condition:
    """`names`: what may be asked. `arms` None: not known yet, any is taken. Raises ConditionError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConditionError(f'--fail-if {text!r} is not of the form NAME OP NUMBER, such as "p99_s > 0.05".')
    prefix, _, name = found["name"].rpartition(".")
    if name not in names:
        raise ConditionError(f"--fail-if {text!r}: nothing is named {name!r}{_nearest(name, names)}")
    if prefix and arms is not None and prefix not in arms:
        raise ConditionError(f"--fail-if {text!r}: no arm is named {prefix!r}{_nearest(prefix, arms)}")
    try:
        number = float(found["number"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConditionError(f"--fail-if {text!r}: {found['number']!r} is not a number.")
    return Condition(text.strip(), prefix or None, name, found["operator"], number)


def failures(condition: Condition, places: Sequence[Place]) -> list[str]:
    """A sentence for each place where it is so, or where nobody knows; empty if all is well."""
    asked = [place for place in places if condition.arm in (None, place.arm)]
    ran = [place for place in asked if place.not_run is None or condition.arm is not None]
    if not ran:
        return [f"Failed: {condition.text}: nothing was measured, so nobody knows."]
    return [sentence for place in ran if (sentence := _failure(condition, place))]


def _failure(condition: Condition, place: Place) -> str | None:
    of = f"{place.arm}{place.where and ' ' + place.where}"
    value = place.values.get(condition.name)
    if value is None or math.isnan(value):
        why = f"it was not run: {place.not_run}" if place.not_run else "too few valid runs or requests"
        return f"Failed: {condition.text}: {condition.name} of {of} is not known ({why})."
    if OPERATORS[condition.operator](value, condition.number):
        return f"Failed: {condition.text}: {condition.name} of {of} is {value:.6g}."
    return None


def _nearest(word: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known are {', '.join(known)}."
