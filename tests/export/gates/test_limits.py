"""Limits: checked themselves, marked where the user chose them, and each one decides something."""

from __future__ import annotations

import math

import pytest

from serving.errors import UserError
from serving.export.gates import accuracy
from serving.export.gates.limits import QUALITY, RULES, Limits

SHARES = [
    "max_drop",
    "min_agreement",
    "min_cosine_mean",
    "min_cosine_worst",
    "min_recall_at_10",
    "max_probability_difference",
    "max_row_difference",
]
ERRORS = ["max_noise_ratio", "max_absolute_error", "max_relative_error"]


@pytest.mark.parametrize("limit", SHARES)
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_share_outside_0_to_1_is_the_users_to_mend(limit: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"{limit} is .*, want 0\.\.1"):
        Limits.chosen({limit: value})


@pytest.mark.parametrize("limit", ERRORS)
@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_an_error_below_0_is_the_users_to_mend(limit: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"{limit}.*0"):
        Limits.chosen({limit: value})


def test_a_limit_that_is_none_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"limit.*'max_drops'.*'max_drop'"):
        Limits.chosen({"max_drops": 0.1})


def test_every_limit_has_a_metric() -> None:
    assert {rule.limit for rule in RULES.values()} == {*SHARES, *ERRORS}


@pytest.mark.parametrize("metric", [metric for metric in RULES if metric != "row_difference"])
def test_a_chosen_limit_is_what_decides_and_the_record_says_that_it_was_chosen(metric: str) -> None:
    name, is_minimum, *_ = RULES[metric]
    reference = 0.9 if metric in QUALITY else None
    strict, loose = (0.1, 0.3) if not is_minimum else (0.9, 0.1)
    value = 0.2
    if metric in QUALITY:
        strict, loose, value = 0.05, 0.3, 0.7
    for limit, passes in ((strict, False), (loose, True)):
        check = Limits.chosen({name: limit}).check(metric, value, reference)
        assert (check.has_passed, check.is_default_limit) == (passes, False)
        refusal = accuracy.refusal("x-int8", check, "fp32")
        assert (refusal is None) is passes
        assert refusal is None or f"{check.value:.4g}" in str(refusal)


def test_a_row_difference_has_the_files_own_limit_until_one_is_chosen() -> None:
    check = Limits().row_check(0.05, 0.1)
    assert (check.limit, check.has_passed, check.is_default_limit) == (0.1, True, True)
    check = Limits.chosen({"max_row_difference": 0.01}).row_check(0.05, 0.1)
    assert (check.limit, check.has_passed, check.is_default_limit) == (0.01, False, False)


def test_the_absolute_error_is_told_until_a_limit_is_chosen() -> None:
    assert Limits().check("absolute_error", 1e9).limit is None
    assert Limits.chosen({"max_absolute_error": 1}).check("absolute_error", 2).has_passed is False


@pytest.mark.parametrize("metric", RULES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_never_passes_not_even_one_that_is_only_told(metric: str, value: float) -> None:
    for is_judged in (True, False):
        check = Limits().check(metric, value if metric not in QUALITY else math.nan, 0.9, is_judged=is_judged)
        assert accuracy.refusal("x-int8", check, "fp32") is not None


def test_a_limit_is_never_drawn_by_the_last_bit_of_a_number() -> None:
    assert Limits().check("top1", 0.94, 0.95).has_passed  # 0.95 - 0.01 is 0.9399999999999999 to a computer
    assert Limits(max_drop=0.1).check("top1", 0.8, 0.9).has_passed
    assert not Limits().check("top1", 0.9398, 0.95).has_passed
