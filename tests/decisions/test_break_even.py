"""From which load on a GPU pays beside one CPU pool, and which servers are the cheapest there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.break_even import break_even_load
from serving.decisions.fleet import Load, Supply, cheapest, with_gpus
from serving.settings import ScalingRules

CPU = Supply(price_per_hour=0.2, min_replicas=1, max_replicas=20)
FIXED_CPU = Supply(price_per_hour=0.2, min_replicas=1, max_replicas=4)
GPU = Supply(price_per_hour=1.0, max_replicas=4, cold_start_s=240.0)


def load(cpu: float, gpu_only: float = 0.0) -> Load:
    """A GPU does the work of ten CPU servers."""
    return Load(cpu, cpu / 10 + gpu_only, gpu_only)


@pytest.mark.parametrize(
    "options", [{"min_replicas": -1}, {"min_replicas": 3}, {"price_per_hour": -1}, {"min_billing_s": -1}]
)
def test_a_supply_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not"):
        Supply(**{"price_per_hour": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.1])
def test_servers_cannot_be_loaded_beyond_what_they_do(ratio: float) -> None:
    with pytest.raises(ValueError, match="max_load_ratio"):
        ScalingRules(max_load_ratio=ratio)


@pytest.mark.parametrize(
    ("cpu", "num_cpu", "num_gpu"),
    [
        (0.0, 1, 0),
        (0.9, 1, 0),
        (3.5, 4, 0),
        (5.9, 6, 0),  # six CPU servers cost as much as one and a GPU: of equals fewer GPUs
        (6.1, 1, 1),
        (10.0, 1, 1),
        (12.0, 2, 1),
        (19.0, 1, 2),
    ],
)
def test_the_cheapest_mix_breaks_even_where_prices_say(cpu: float, num_cpu: int, num_gpu: int) -> None:
    best = cheapest(load(cpu), CPU, GPU, 1.0)
    assert (best.num_cpu, best.num_gpu, best.short) == (num_cpu, num_gpu, 0.0)


def test_what_only_a_gpu_does_in_time_needs_one_whatever_it_costs() -> None:
    assert cheapest(load(0.1, gpu_only=0.01), CPU, GPU, 1.0).num_gpu == 1


def test_more_than_all_servers_carry_takes_all_of_them_and_says_what_is_short() -> None:
    best = cheapest(load(100.0), FIXED_CPU, GPU, 1.0)
    assert (best.num_cpu, best.num_gpu) == (4, 4)
    assert best.short == pytest.approx(0.6 - 0.04)


def test_what_only_a_cpu_does_keeps_its_servers_whatever_the_gpus_take() -> None:
    for num_gpu in (0, 1, 4):
        assert with_gpus(num_gpu, Load(3.0, 0.0, 0.0, 3.0), CPU, GPU, 1.0).num_cpu == 3
    assert with_gpus(1, Load(13.0, 1.0, 0.0, 3.0), CPU, GPU, 1.0).num_cpu == 3
    assert cheapest(Load(30.0, 0.0, 0.0, 30.0), CPU, GPU, 1.0).num_gpu == 0  # more than there is, and no GPU helps


def test_what_only_a_cpu_does_is_short_where_there_are_too_few_whatever_gpus_there_are() -> None:
    for num_gpu in (0, 4):
        assert with_gpus(num_gpu, Load(30.0, 0.0, 0.0, 30.0), FIXED_CPU, GPU, 1.0).short == pytest.approx(26.0)
    crowded = Load(7.0, 0.4, 0.0, 3.0)  # a GPU takes four of seven, and four CPU servers carry the rest
    assert cheapest(crowded, FIXED_CPU, GPU, 1.0).num_gpu == 1
    assert cheapest(crowded, FIXED_CPU, GPU, 1.0).short == 0.0


@pytest.mark.parametrize(
    ("demand", "cpu", "gpu", "even"),
    [
        (load(3.0), CPU, GPU, 0.6),  # above six CPU servers
        (load(30.0), CPU, GPU, 0.6),
        (load(0.1), FIXED_CPU, GPU, 0.4),  # there is no fifth
        (load(3.0), CPU, Supply(price_per_hour=0.1), 0.1),  # beside the one CPU server that is kept
        (load(3.0), CPU, Supply(price_per_hour=99.0), 2.0),  # only where CPUs end
        (load(3.0, gpu_only=0.1), CPU, GPU, 0.0),
        (load(0.0), CPU, GPU, None),
        (load(3.0), CPU, Supply(price_per_hour=1.0, max_replicas=0), None),
    ],
)
def test_the_demand_from_which_on_a_gpu_pays(demand: Load, cpu: Supply, gpu: Supply, even: float | None) -> None:
    assert break_even_load(demand, cpu, gpu, 1.0) == (None if even is None else pytest.approx(even))


@settings(deadline=None)  # of one example: machines are busy
@given(st.floats(0.01, 30), st.floats(0.1, 5), st.integers(1, 30))
def test_below_break_even_no_gpu_is_in_the_cheapest_mix_and_just_above_one_is(
    cpu: float, price: float, most: int
) -> None:
    supply, gpu = Supply(0.2, 1, most), Supply(price, 0, 4)
    even = break_even_load(load(cpu), supply, gpu, 1.0)
    assert even is not None
    for times, has_gpu in ((0.999, False), (1.001, True)):
        assert (cheapest(load(10 * even * times), supply, gpu, 1.0).num_gpu > 0) is has_gpu
