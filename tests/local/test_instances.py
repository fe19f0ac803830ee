"""How cores are shared out among model instances."""

from __future__ import annotations

import pytest

from serving.local.instances import Share, TritonOverrides, crowded, share


@pytest.mark.parametrize(("pool", "expected"), [("cpu", Share(1, 6)), ("gpu", Share(1, 1))])
def test_instances_times_threads_are_the_cores_of_a_cpu_pool(pool: str, expected: Share) -> None:
    assert share(pool, 6) == expected


@pytest.mark.parametrize(("num_instances", "num_threads"), [(0, 1), (1, 0)])
def test_a_share_of_nothing_is_a_mistake(num_instances: int, num_threads: int) -> None:
    with pytest.raises(ValueError, match="needs an instance and a thread"):
        Share(num_instances, num_threads)


@pytest.mark.parametrize(
    ("overrides", "pool", "expected"),
    [
        (TritonOverrides(instances=2), "cpu", Share(2, 3)),
        (TritonOverrides(instances=4), "cpu", Share(4, 1)),
        (TritonOverrides(instances=8), "cpu", Share(8, 1)),
        (TritonOverrides(threads=2), "cpu", Share(1, 2)),
        (TritonOverrides(instances=2, threads=6), "cpu", Share(2, 6)),
        (TritonOverrides(instances=3), "gpu", Share(3, 1)),
        (TritonOverrides(queue_delay_us=5, max_batch=8), "cpu", Share(1, 6)),
    ],
)
def test_what_is_asked_for_changes_the_share_and_the_rest_of_the_cores_follows(
    overrides: TritonOverrides, pool: str, expected: Share
) -> None:
    assert share(pool, 6, overrides) == expected


def test_more_threads_than_cores_are_said_and_as_many_are_not() -> None:
    assert crowded(Share(2, 3), 6) is None
    said = crowded(Share(2, 4), 6)
    assert said is not None
    assert said.startswith("warning: 2 × 4 threads of a model are more than the 6 cores")


def test_what_is_asked_for_becomes_options_of_a_triton_and_zero_is_asked_for_too() -> None:
    assert TritonOverrides().flags() == []
    assert TritonOverrides(instances=2, queue_delay_us=0).flags() == ["--instances", "2", "--queue-delay-us", "0"]
    assert TritonOverrides(threads=3, max_batch=8).flags() == ["--threads", "3", "--max-batch", "8"]
