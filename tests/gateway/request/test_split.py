"""Which arm answers whom, by weights, keys and headers."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from serving.control.document import Arm, ModelControl
from serving.gateway.access import ANYBODY, Caller
from serving.gateway.request.route import Route, Split

NOBODY: dict[bytes, bytes] = {}


def split(canary: float, sticky_by: str = "key", model: str = "digits") -> Split:
    arms = {"canary": Arm(version=2, weight=canary), "stable": Arm(version=1, weight=1 - canary)}
    control = ModelControl(split=arms, sticky_by=sticky_by)
    return Split(model, control, cast("list[Route]", list(arms)), [arm.weight for arm in arms.values()])


def key(name: str) -> Caller:
    return Caller(name, frozenset({"infer"}))


def named(number: int) -> Caller:
    return key(f"user-{number}")


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.5])
def test_requests_of_nobody_are_shared_out_evenly(ratio: float) -> None:
    of = split(ratio)
    got = Counter(str(of.of(NOBODY, ANYBODY)) for _ in range(10_000))
    assert abs(got["canary"] - ratio * 10_000) <= 5


def test_a_caller_stays_with_an_arm_and_a_canary_that_grows_keeps_whom_it_has() -> None:
    callers = list(map(named, range(4000)))
    before: set[str] = set()
    for ratio in (0.01, 0.05, 0.2, 0.5):
        of = split(ratio)
        canary = {it.name for it in callers if str(of.of(NOBODY, it)) == "canary"}
        assert canary == {it.name for it in callers if str(split(ratio).of(NOBODY, it)) == "canary"}
        assert before <= canary
        assert abs(len(canary) / len(callers) - ratio) < 0.02
        before = canary


def test_canaries_of_two_models_are_not_tried_on_the_same_callers() -> None:
    one, other = split(0.1), split(0.1, model="wine")
    both = [it for it in map(named, range(4000)) if str(one.of(NOBODY, it)) == str(other.of(NOBODY, it)) == "canary"]
    assert len(both) < 100


def test_a_header_says_who_it_is_where_it_is_asked_and_sent() -> None:
    of = split(0.3, "header:X-User")
    for number in range(100):
        sent = {b"x-user": b"%d" % number}
        assert len({str(of.of(sent, named(it))) for it in range(5)}) == 1
    assert {str(of.of(NOBODY, key("a"))) for _ in range(20)} == {"canary", "stable"}
    each = split(0.3, "none")
    assert {str(each.of(NOBODY, key("a"))) for _ in range(20)} == {"canary", "stable"}
