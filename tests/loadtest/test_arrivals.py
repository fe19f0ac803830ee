"""Schedules have the rates and the spread that their names promise, and parts add up to the whole."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.arrivals import Arrivals, schedule
from serving.decisions.simulate.arrivals import PoissonArrivals, bursts

POISSON = Arrivals("poisson", 200.0)
BURSTS = Arrivals("bursts", 100.0, burst_times=5.0, burst_every_s=4.0, burst_lasting_s=1.0)
TRACE = Arrivals("trace", times_s=(0.0, 0.5, 0.5, 3.0))


def spread(times: list[float]) -> float:
    """The gaps' coefficient of variation."""
    gaps = [after - before for before, after in pairwise(times)]
    return stdev(gaps) / mean(gaps)


def test_constant_arrivals_keep_their_distance() -> None:
    assert list(schedule(Arrivals("constant", 4.0), 1.0, seed=1)) == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_vary_as_much_as_they_are_long(seed: int) -> None:
    times = list(schedule(POISSON, 100.0, seed))
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert spread(times) == pytest.approx(1.0, abs=0.05)


def test_bursts_have_the_rate_on_average_and_vary_more() -> None:
    times = list(schedule(BURSTS, 2000.0, seed=1))
    assert len(times) == pytest.approx(200_000, rel=0.1)
    assert spread(times) > 1.2
    per_second = [0] * 2000
    for at in times:
        per_second[int(at)] += 1
    assert max(per_second) > 200  # five times the 50 a second outside


def test_the_simulator_means_the_same_by_bursts() -> None:
    """Of the same four numbers: as many requests, and as many crowded seconds."""
    made = PoissonArrivals(bursts(100.0, BURSTS.bursts, random.Random(1)), 4000.0, lambda number: random.Random(number))
    simulated = [sum(made.asked(second).values()) for second in range(4000)]
    sent = [0] * 4000
    for at in schedule(BURSTS, 4000.0, seed=1):
        sent[int(at)] += 1
    assert sum(simulated) == pytest.approx(sum(sent), rel=0.1)
    assert sum(n > 150 for n in simulated) == pytest.approx(sum(n > 150 for n in sent), rel=0.1)


def test_a_trace_is_sent_as_it_is() -> None:
    assert list(schedule(TRACE, 1.0, seed=1)) == [0.0, 0.5, 0.5]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([POISSON, BURSTS, TRACE, Arrivals("constant", 90.0)]), st.integers(1, 5), st.integers(0, 99))
def test_generators_together_send_what_one_would_send_alone(arrivals: Arrivals, num_parts: int, seed: int) -> None:
    whole = list(schedule(arrivals, 2.0, seed))
    parts = [list(schedule(arrivals, 2.0, seed, part, num_parts)) for part in range(num_parts)]
    assert sorted(at for part in parts for at in part) == whole
    assert whole == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_another_seed_is_another_schedule() -> None:
    assert list(schedule(POISSON, 1.0, 1)) == list(schedule(POISSON, 1.0, 1)) != list(schedule(POISSON, 1.0, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "poisson"},
        {"kind": "constant", "rate_rps": float("nan")},
        {"kind": "bursts", "rate_rps": 1.0, "burst_times": 0.5},
        {"kind": "bursts", "rate_rps": 1.0, "burst_lasting_s": 10.0},
        {"kind": "trace"},
        {"kind": "trace", "times_s": (1.0, 0.5)},
    ],
)
def test_what_is_no_schedule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"need|burst"):
        Arrivals(**wrong)  # type: ignore[arg-type]
