"""Evidence that may be looked at at any time: what it promises, tried as exactly as possible."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.measure import anytime
from serving.measure.anytime import BlockMeans, DriftTest, GroupedMeanTest, MeanTest, RateDifference, log_evidence

ALPHA = 0.05
UNIT = st.floats(0.01, 0.99)
VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(limit=UNIT, low=st.floats(0, 1), high=st.floats(0, 1), above=st.booleans())
def test_no_value_with_the_mean_of_the_claim_gains_on_average(
    limit: float, low: float, high: float, above: bool
) -> None:
    """Of two values on both sides of the limit, with the chances that make it their mean."""
    low, high = low * limit, limit + high * (1 - limit)
    chance = 1.0 if high == low else (limit - low) / (high - low)
    gain = [math.exp(log_evidence(np.array([value]), limit, above=above)) for value in (low, high)]
    assert (1 - chance) * gain[0] + chance * gain[1] == pytest.approx(1.0)


@given(values=VALUES, one=UNIT, other=UNIT)
def test_a_limit_further_off_has_more_against_it(values: list[float], one: float, other: float) -> None:
    array, near, far = np.array(values), min(one, other), max(one, other)
    assert log_evidence(array, near, above=True) >= log_evidence(array, far, above=True) - 1e-9
    assert log_evidence(array, near, above=False) <= log_evidence(array, far, above=False) + 1e-9


@given(values=VALUES, limit=UNIT, wanted=st.floats(0.5, 5))
def test_the_interval_leaves_out_the_limit_just_where_the_evidence_does(
    values: list[float], limit: float, wanted: float
) -> None:
    test = MeanTest(limit)
    test.add(values[:3])
    test.add(values[3:])
    low, high = test.interval(wanted, wanted)
    assert low - 1e-9 <= test.mean <= high + 1e-9
    assert (low > limit + 1e-9) <= (test.log_above >= wanted) <= (low >= limit - 1e-9)
    assert (high < limit - 1e-9) <= (test.log_below >= wanted) <= (high <= limit + 1e-9)


@pytest.mark.parametrize("mean", [0.002, pytest.param(0.05, marks=pytest.mark.thorough), 0.5])
def test_a_claim_that_holds_is_given_up_in_no_more_runs_than_promised(mean: float) -> None:
    generator, num_runs = np.random.default_rng(7), 200
    num_false = 0
    for _ in range(num_runs):
        test = MeanTest(mean)
        for _ in range(25):
            test.add((generator.random(100) < mean).astype(np.float64))
            if test.log_above >= math.log(1 / ALPHA):
                num_false += 1
                break
    assert num_false / num_runs <= ALPHA


@pytest.mark.parametrize(
    ("mean", "limit", "most"),
    [(0.01, 0.005, 20_000), (0.02, 0.005, 3_000), (1.0, 0.005, 10), (0.6, 0.5, 1_000), (0.0, 0.005, 2_000)],
)
def test_what_is_beyond_a_limit_is_seen(mean: float, limit: float, most: int) -> None:
    generator, test = np.random.default_rng(3), MeanTest(limit)
    test.add((generator.random(most) < mean).astype(np.float64))
    assert (test.log_above if mean > limit else test.log_below) >= math.log(1 / ALPHA)


@pytest.mark.parametrize("values", [[1.5], [-0.1], [math.nan]])
def test_values_outside_of_the_unit_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        MeanTest(0.5).add(values)


def test_answers_that_come_in_runs_count_as_one() -> None:
    """Each is wrong in one of a hundred questions, asked five times in a row: one by one that breaks the promise."""
    generator, num_runs, limit = np.random.default_rng(9), 60, 0.01
    num_false = {"one by one": 0, "in groups": 0}
    for _ in range(num_runs):
        values = np.repeat(generator.random(400) < limit, 5).astype(float).tolist()
        tests: dict[str, MeanTest | GroupedMeanTest] = {
            "one by one": MeanTest(limit),
            "in groups": GroupedMeanTest(limit, 20, 5),
        }
        is_false = dict.fromkeys(tests, False)
        for start in range(0, len(values), 40):
            for name, test in tests.items():
                test.add(values[start : start + 40])
                is_false[name] |= test.log_above >= math.log(1 / ALPHA)
        for name in tests:
            num_false[name] += is_false[name]
    assert num_false["in groups"] / num_runs <= ALPHA < num_false["one by one"] / num_runs


def test_groups_of_what_does_not_fill_one_wait() -> None:
    test = GroupedMeanTest(0.1, 20, 5)
    test.add([1.0] * 4)
    assert (test.num, test.mean, test.log_above, test.log_below) == (4, 1.0, 0.0, 0.0)
    test.add([1.0] * 16)
    assert test.log_above > 1 > 0 > test.log_below
    low, high = test.interval(0.5, 0.5)
    assert 0.1 < low < test.mean <= high


# -- two rates ---------------------------------------------------------------------------------------------------------


@given(
    known=st.floats(0.001, 0.9),
    limit=st.floats(0.001, 0.3),
    at=st.floats(0, 1),
    beyond=st.floats(0, 1),
    num=st.integers(1, 2),
    primary_num=st.integers(1, 3),
    above=st.booleans(),
)
@example(known=0.625, limit=0.28125, at=0.0, beyond=1.0, num=1, primary_num=1, above=True)  # ours next to 1
def test_no_pair_of_rates_on_the_claims_side_gains_on_average(
    known: float, limit: float, at: float, beyond: float, num: int, primary_num: int, above: bool
) -> None:
    """All outcomes of a block, weighed by their chances at (`primary`, `ours`), which is anywhere on the claim's side."""
    if above:
        primary = at
        ours = beyond * min(1.0, primary + limit)
    else:
        primary = at * (1 - limit)
        ours = primary + limit + beyond * (1 - primary - limit)
    expected = 0.0
    for failed, primary_failed in itertools.product(range(num + 1), range(primary_num + 1)):
        counts = np.array([[failed, num, primary_failed, primary_num]], dtype=np.float64)
        growth = anytime._rates_growth(counts, np.array([known]), limit, above=above)
        chance = math.comb(num, failed) * ours**failed * (1 - ours) ** (num - failed)
        chance *= math.comb(primary_num, primary_failed)
        chance *= primary**primary_failed * (1 - primary) ** (primary_num - primary_failed)
        expected += chance * float(np.exp(growth).mean())
    assert expected <= 1 + 1e-6


@pytest.mark.thorough
def test_equal_rates_that_move_together_are_not_told_apart() -> None:
    generator, num_runs = np.random.default_rng(5), 20
    num_false = 0
    for _ in range(num_runs):
        test, rate = RateDifference(0.001), 0.002
        for _ in range(40):
            rate = min(0.3, max(0.0005, rate * math.exp(generator.normal() * 0.3)))
            test.add(int(generator.binomial(50, rate)), 50, int(generator.binomial(150, rate)), 150)
            if test.log_above >= math.log(1 / ALPHA):
                num_false += 1
                break
    assert num_false / num_runs <= ALPHA


def test_rates_that_differ_are_told_apart_and_their_difference_is_in_the_interval() -> None:
    generator, test = np.random.default_rng(1), RateDifference(0.001)
    for _ in range(300):
        test.add(int(generator.binomial(30, 0.01)), 30, int(generator.binomial(90, 0.002)), 90)
    low, high = test.interval(3.0, 3.0)
    assert 0.001 < low < 0.008 < high < 0.03
    assert test.log_above > 3.0 > test.log_below


@pytest.mark.parametrize(("num_good", "most"), [(10_000, 50), (1_000_000, 1_500)])
def test_a_candidate_that_fails_after_a_long_time_is_found_before_many_more_requests_came(
    num_good: int, most: int
) -> None:
    test, num = RateDifference(0.001), 0
    for _ in range(num_good // 1000):
        test.add(0, 1000, 0, 1000)
    while test.log_above < math.log(400) and num < num_good:
        test.add(10, 10, 0, 10)
        num += 10
    assert num <= most


def test_a_candidate_without_errors_is_shown_to_be_within_the_limit() -> None:
    test = RateDifference(0.001)
    for _ in range(200):
        test.add(0, 40, 0, 120)
    assert test.log_below > math.log(1 / ALPHA)
    assert test.interval(3.0, 3.0)[1] < 0.001


# -- values that cling together ----------------------------------------------------------------------------------------


def walk(generator: np.random.Generator, num: int, lasting: float, sigma: float, mean: float) -> list[float]:
    keep, value, values = math.exp(-1 / lasting) if lasting else 0.0, 0.0, []
    for step in generator.normal(size=num) * sigma * math.sqrt(1 - keep**2):
        value = keep * value + float(step)
        values.append(mean + value)
    return values


@pytest.mark.parametrize("lasting", [pytest.param(0.0, marks=pytest.mark.thorough), 8.0])
def test_blocks_that_depend_on_those_before_alarm_no_more_often(lasting: float) -> None:
    generator, num_runs = np.random.default_rng(11), 30
    num_false = naive = 0
    for _ in range(num_runs):
        means = BlockMeans(0.5, 0.25)
        values = walk(generator, 256, lasting, 0.05, 0.5)
        is_false = False
        for number, value in enumerate(values):
            means.add(value)
            is_false = is_false or (number % 4 == 3 and means.evidence()[0] >= math.log(1 / ALPHA))
        num_false += is_false
        naive += log_evidence(np.clip(np.array(values) * 2 - 0.5, 0, 1), 0.5, above=True) >= math.log(1 / ALPHA)
    assert num_false / num_runs <= ALPHA
    if lasting == 8.0:
        assert naive / num_runs > ALPHA  # one by one, the same values would break the promise


@pytest.mark.parametrize(("lasting", "size"), [(0.0, 1), (5.0, 8)])
def test_blocks_are_joined_until_they_are_independent_and_a_shift_is_seen(lasting: float, size: int) -> None:
    means = BlockMeans(0.5, 0.25)
    for value in walk(np.random.default_rng(2), 1_024, lasting, 0.05, 0.54):
        means.add(value)
    assert means.size is not None
    assert means.size >= size
    assert means.evidence()[0] > math.log(1 / ALPHA)
    low, high = means.interval(3.0, 3.0, 0.0, 1.0)
    assert 0.5 < low < means.mean < high


def test_few_blocks_say_nothing() -> None:
    means = BlockMeans(0.5, 0.25)
    for _ in range(anytime.MIN_GROUPS - 1):
        means.add(1.0)
    assert means.evidence() == (-math.inf, -math.inf)
    assert means.interval(3.0, 3.0, 0.0, 1.0) == (0.0, 1.0)


# -- drift -------------------------------------------------------------------------------------------------------------


def test_a_drift_is_seen_as_soon_after_a_long_good_time_as_at_once() -> None:
    def rows_until_alarm(num_good: int) -> int:
        test = DriftTest(0.01)
        test.add([0.0] * num_good)
        for number in range(1_000):
            if test.evidence >= math.log(1e6):
                return number
            test.add([float(number % 5 == 0)])
        raise AssertionError

    assert rows_until_alarm(5_000) == rows_until_alarm(0) < 60


def test_a_false_alarm_of_a_drift_is_as_rare_as_asked_for() -> None:
    generator, test = np.random.default_rng(4), DriftTest(0.05)
    num_alarms, evidence = 0, math.log(1_000)
    for _ in range(20):
        for value in generator.random(500) < 0.05:
            test.add([float(value)])
            if test.evidence >= evidence:
                num_alarms, test = num_alarms + 1, DriftTest(0.05)
    assert num_alarms <= 10  # in 10,000 values


def test_what_was_off_is_right_again_after_as_many_good_values_as_that_takes() -> None:
    test = DriftTest(0.01, above=False)
    test.add([1.0] * 100)
    assert test.evidence < 0
    test.add([0.0] * 1_000)
    assert test.evidence >= math.log(1e3)
