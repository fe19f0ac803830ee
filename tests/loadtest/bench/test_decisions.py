"""The bench of decisions asks what it says it asks."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.bench.decisions import (
    MAX_REPLICAS,
    NUM_LOOKS,
    calls_per_s,
    decisions,
    longest_turn_s,
    made_fleet,
    made_metrics,
    measure,
    plans,
)
from serving.decisions.fleet import cheapest_mix


def test_both_kinds_of_decision_are_timed_and_none_takes_anywhere_near_a_millisecond() -> None:
    times = measure(num_requests=3000)
    assert len(times.admitted) + len(times.refused) == 3000
    assert len(times.refused) == len(times.retry_after) > 100
    assert times.most_waiting > 10
    for kind in (times.admitted, times.refused, times.retry_after):
        middle = sorted(kind)[len(kind) // 2]
        assert middle < 500e-6  # 20 µs is the aim of a quiet machine; this one may be anything


@pytest.mark.thorough
def test_fleets_are_planned_for_models_that_keep_their_pools_busy_and_can_be_carried() -> None:
    pools, models = made_fleet(1, 20, 100)
    assert (len(pools), len(models)) == (20, 100)
    assert {pool.max_replicas for pool in pools.values()} == {MAX_REPLICAS}
    mix = cheapest_mix(models, pools)
    assert mix.short == 0
    assert sum(mix.replicas.values()) > 100
    assert len(plans(3, 5, 2).took_s) == 2
    looks = decisions(3, 5, 1)
    assert len(looks.missing) + len(looks.answering) == NUM_LOOKS
    assert len(looks.missing) >= NUM_LOOKS // 4
    assert min(looks.missing + looks.answering) > 0


def test_a_scrape_and_the_calls_to_tritons_are_those_of_a_gateway() -> None:
    metrics = made_metrics(3)
    text = asyncio.run(metrics.text()).decode()
    assert text.count('tandem_requests_total{model="model-2",outcome="ok"') == 4
    assert asyncio.run(longest_turn_s(metrics)) > 0
    assert asyncio.run(calls_per_s(2, 3, 1.0)) >= 2
