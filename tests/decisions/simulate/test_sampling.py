"""A part of each second says what all of it would, and what happens once is counted once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.decisions.simulate.arrivals import Arrivals, Bursts, Sampling, bursts
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.simulate.scenario import ColdStart, Setting
from tests.decisions.simulate.settings import cpu, gpu, made, run, setting

PER_SECOND = 25
COLD = ColdStart(20, 30, 40)
EASY = setting(0.3, cpu=cpu(8, 0.02, min_replicas=1, cold_start=COLD), gpu=gpu(4, cold_s=60.0))
SATURATED = setting(0.3, cpu=cpu(4, 0.02), gpu=gpu(0))  # 200 a second


def both(policy: str, of: Setting, arrivals: Arrivals, **options: Any) -> tuple[Outcome, Outcome]:
    whole = run(policy, arrivals, arrivals.duration_s, of, **options)
    return whole, run(policy, arrivals, arrivals.duration_s, of, per_second=PER_SECOND, **options)


def assert_alike(whole: Outcome, part: Outcome) -> None:
    assert part.num_requests == pytest.approx(whole.num_requests, rel=0.03)
    assert part.attainment_ratio == pytest.approx(whole.attainment_ratio, abs=0.02)
    assert part.cost == pytest.approx(whole.cost, rel=0.03)
    assert part.latency_p50_s == pytest.approx(whole.latency_p50_s, rel=0.04)
    assert part.latency_p99_s == pytest.approx(whole.latency_p99_s, rel=0.2)  # a few dozen requests lie beyond it


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        ("tandem", 100.0),
        ("tandem", 300.0),
        ("cpu-only", 300.0),
        ("gpu-always", 300.0),
        ("no-bridge", 300.0),
        ("hold", 300.0),
    ],
)
def test_where_servers_come_and_go_a_part_says_what_the_whole_says(policy: str, rate: float) -> None:
    assert_alike(*both(policy, EASY, made(rate, 300.0, 4)))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("rate", [150.0, 260.0, 600.0])  # at 200, queues need longer to come to rest than is looked at
def test_where_servers_are_saturated_a_part_says_what_the_whole_says(rate: float) -> None:
    whole, part = both("cpu-only", SATURATED, made(rate, 300.0, 4))
    assert_alike(whole, part)
    assert part.num_refused == pytest.approx(whole.num_refused, rel=0.05, abs=0.02 * whole.num_requests)


@pytest.mark.thorough
@pytest.mark.slow
def test_bursts_are_seen_although_a_part_is_looked_at() -> None:
    rate = bursts(120, Bursts(8, every_s=70, lasting_s=10), random.Random(3))  # 60 and 480
    assert_alike(*both("tandem", EASY, made(rate, 600.0, 4)))


@pytest.mark.thorough
def test_noise_is_seen_although_a_part_is_looked_at() -> None:
    generator = random.Random(5)
    of = setting(0.3, cpu=cpu(4, 0.02, noise_ratio=0.3), gpu=gpu(0))
    whole, part = both("cpu-only", of, made(150.0, 150.0, 4), stretch=lambda cv: max(0.1, generator.gauss(1.0, cv)))
    assert_alike(whole, part)


# -- which part -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 100_000), st.integers(1, 500), st.floats(0.01, 2.0), st.floats(-5.0, 5.0), st.floats(0.1, 1.0))
def test_pieces_lie_in_their_second_and_stand_for_all_of_it(
    number: int, per_second: int, objective_s: float, changed_ago_s: float, lasting_s: float
) -> None:
    sampling = Sampling(per_second, objective_s)
    sampling.changed(1000.0 - changed_ago_s)
    pieces = sampling.pieces(1000.0, 1000.0 + lasting_s, number)
    ends = [1000.0, *(at for piece in pieces for at in piece[:2]), 1000.0 + lasting_s]
    assert ends == pytest.approx(sorted(ends), abs=1e-9)
    assert sum((end - begin) * weight for begin, end, weight in pieces) == pytest.approx(lasting_s)
    assert all((end - begin) * number / lasting_s <= per_second + 1e-6 for begin, end, weight in pieces if weight > 1)


def test_after_a_change_a_while_is_looked_at_in_full() -> None:
    sampling = Sampling(10, 0.1)
    sampling.changed(5.0)
    whole, part = sampling.pieces(5.0, 6.0, 1000)
    assert (whole.begin, whole.end, whole.weight) == (5.0, pytest.approx(5.3), 1)
    assert part.weight == pytest.approx(70, abs=1)
    assert [piece.weight for piece in sampling.pieces(6.0, 7.0, 1000)] == [100]


def test_after_a_change_within_a_second_the_while_begins_with_the_next() -> None:
    sampling = Sampling(10, 0.1)
    sampling.changed(5.4)  # a server came
    whole, part = sampling.pieces(6.0, 7.0, 1000)
    assert (whole.begin, whole.end, whole.weight) == (6.0, pytest.approx(6.3), 1)
    assert part.weight == pytest.approx(70, abs=1)


def test_a_new_rate_is_a_change_and_chance_is_none() -> None:
    sampling, generator = Sampling(10, 0.1), random.Random(1)
    assert sampling.is_new(1000)
    assert not any(sampling.is_new(round(generator.gauss(1000, 1000**0.5))) for _ in range(1000))
    assert sampling.is_new(1400)
    assert sampling.is_new(0)
