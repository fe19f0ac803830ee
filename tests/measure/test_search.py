"""The search finds a planted highest rate, says what stopped it, and is not led astray by one run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from serving.measure.search import Course, RunOutcome, Search, SearchResult, find


def at_most(limit_rps: float) -> Callable[[float], RunOutcome]:
    return lambda rate_rps: "met" if rate_rps <= limit_rps else "missed"


def share_late(rate_rps: float, service_s: float, objective_s: float, num: int, chance: np.random.Generator) -> float:
    """Of a server that takes the same time for each request, one after the other, under Poisson arrivals."""
    at, took = chance.exponential(1 / rate_rps, num).cumsum(), service_s * chance.lognormal(0.0, 0.1, num)
    worked = took.cumsum()
    free = worked + np.maximum.accumulate(at - (worked - took))
    return float((free - at > objective_s).mean())


def planted_rps(service_s: float, objective_s: float) -> float:
    """By halves over runs so long that chance moves them by less than 1 %."""
    low, high = 0.1 / service_s, 1 / service_s
    for _ in range(10):
        middle = (low + high) / 2
        is_met = share_late(middle, service_s, objective_s, 50_000, np.random.default_rng(7)) <= 0.01
        low, high = (middle, high) if is_met else (low, middle)
    return low


@pytest.mark.parametrize(
    ("service_s", "objective_s"), [pytest.param(0.01, 0.1, marks=pytest.mark.thorough), (0.005, 0.012)]
)
def test_the_highest_rate_of_a_simulated_server_is_found_within_a_few_per_cent(
    service_s: float, objective_s: float
) -> None:
    truth_rps = planted_rps(service_s, objective_s)
    errors = []
    for seed in range(7):
        chance = np.random.default_rng(seed)

        def run(rate_rps: float, chance: np.random.Generator = chance) -> RunOutcome:
            return "met" if share_late(rate_rps, service_s, objective_s, 4000, chance) <= 0.01 else "missed"

        found = find(Search(0.3 / service_s, 1.0, precision_ratio=1.04, num_repeats=3, max_runs=30), run)
        assert len(found.estimates) == 3
        errors.append(found.rate_rps / truth_rps - 1)
    assert sorted(errors)[3] == pytest.approx(0.0, abs=0.05)
    assert max(map(abs, errors)) < 0.12


@pytest.mark.parametrize("limit_rps", [3.0, 90.0, 110.0, 1000.0, 40_000.0])
def test_a_sharp_limit_is_met_and_missed_by_no_more_than_the_precision(limit_rps: float) -> None:
    found = find(Search(100.0, 1.0, 1.05, 3, max_runs=50), at_most(limit_rps))
    assert limit_rps / 1.05 <= found.rate_rps <= limit_rps
    assert not found.is_bounded_by_generator


def test_a_server_that_never_answers_in_time_carries_nothing() -> None:
    tried: list[float] = []

    def run(rate_rps: float) -> RunOutcome:
        tried.append(rate_rps)
        return "missed"

    assert find(Search(100.0, 10.0), run) == SearchResult((), False)
    assert min(tried) == pytest.approx(10.0)


def test_every_rate_that_is_told_was_met_by_a_run() -> None:
    met = set()
    chance = random.Random(3)

    def run(rate_rps: float) -> RunOutcome:
        outcome: RunOutcome = "met" if chance.random() < 1 / (1 + (rate_rps / 200) ** 8) else "missed"
        if outcome == "met":
            met.add(rate_rps)
        return outcome

    found = find(Search(50.0, 1.0, 1.1, 5, max_runs=60), run)
    assert found.estimates
    assert set(found.estimates) <= met


def test_a_generator_that_ends_first_is_told_and_what_was_met_below_it_is_kept() -> None:
    found = find(Search(100.0, 1.0, 1.05, 3, max_runs=60), lambda rate_rps: "met" if rate_rps <= 500 else "void")
    assert found.is_bounded_by_generator
    assert 500 / 1.05 <= found.rate_rps <= 500


def test_void_runs_alone_carry_nothing_and_say_why() -> None:
    assert find(Search(100.0, 50.0), lambda _: "void") == SearchResult((), True)


def test_one_void_run_is_tried_again_and_changes_nothing() -> None:
    numbers: Iterator[int] = iter(range(1000))

    def run(rate_rps: float) -> RunOutcome:
        return "void" if next(numbers) % 5 == 2 else at_most(300.0)(rate_rps)

    found = find(Search(100.0, 1.0, 1.05, 3, max_runs=60), run)
    assert not found.is_bounded_by_generator
    assert found.rate_rps == pytest.approx(300.0, rel=0.05)


def test_one_lucky_run_far_above_does_not_decide() -> None:
    is_first = True

    def run(rate_rps: float) -> RunOutcome:
        nonlocal is_first
        if rate_rps > 350 and is_first:
            is_first = False
            return "met"
        return at_most(200.0)(rate_rps)

    found = find(Search(100.0, 1.0, 1.05, 5, max_runs=200), run)
    assert found.rate_rps <= 200.0 * 1.0001


@pytest.mark.parametrize("max_runs", [1, 2, 5, 9])
def test_no_more_runs_are_made_than_were_allowed(max_runs: int) -> None:
    tried: list[float] = []

    def run(rate_rps: float) -> RunOutcome:
        tried.append(rate_rps)
        return at_most(333.0)(rate_rps)

    find(Search(100.0, 1.0, 1.01, 9, max_runs), run)
    assert len(tried) == max_runs


def test_what_was_met_before_an_interruption_can_be_read() -> None:
    course = Course(Search(100.0, 1.0))
    steps = course.steps()
    next(steps)
    steps.send("met")
    assert course.found.rate_rps == 100.0


@pytest.mark.parametrize(
    "wrong", [{"floor_rps": 0.0}, {"floor_rps": 200.0}, {"start_rps": float("inf")}, {"precision_ratio": 1.0}]
)
def test_a_search_that_could_not_end_cannot_be_made(wrong: dict[str, float]) -> None:
    given = {"start_rps": 100.0, "floor_rps": 1.0, "precision_ratio": 1.1, **wrong}
    with pytest.raises(ValueError, match="search"):
        Search(given["start_rps"], given["floor_rps"], given["precision_ratio"])
