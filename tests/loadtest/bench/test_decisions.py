"""The bench of decisions asks what it says it asks."""

from __future__ import annotations

from loadtest.bench.decisions import measure, p99_us


def test_both_kinds_of_decision_are_timed_and_none_takes_anywhere_near_a_millisecond() -> None:
    times = measure(num_requests=3000)
    assert len(times.let_in) + len(times.refused) == 3000
    assert len(times.refused) == len(times.retry_after) > 100
    assert times.most_waiting > 10
    for kind in (times.let_in, times.refused, times.retry_after):
        middle = sorted(kind)[len(kind) // 2]
        assert middle < 500e-6  # 20 µs is the aim of a quiet machine; this one may be anything


def test_without_a_decision_there_is_no_percentile() -> None:
    assert p99_us([]) is None
