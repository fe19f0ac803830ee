"""The cheapest fleet costs what trying every number of servers finds, and plan and verdict give the same one."""

from __future__ import annotations

import os
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.fleet import EPSILON, Load, Supply, carrying, cheapest, choice, with_gpus
from tests.decisions.plan.figures import objective, priced

MANY = settings(max_examples=3000 if os.environ.get("THOROUGH") else 1000, deadline=None)
TENTHS, CENTS, CAPS = st.integers(1, 400), st.integers(1, 400), st.integers(1, 9)


@MANY
@given(TENTHS, CENTS, TENTHS, CENTS, st.integers(0, 1500), st.sampled_from([5, 7, 10]), CAPS, CAPS, st.integers(0, 2))
def test_no_numbers_of_servers_within_the_caps_that_carry_the_rate_cost_less(
    cpu_rps: int,
    cpu_price: int,
    gpu_rps: int,
    gpu_price: int,
    rate: int,
    headroom: int,
    least: int,
    most: int,
    min_gpus: int,
) -> None:
    """By whole numbers: rates and headroom in tenths, prices in cents."""
    asked = objective(rate / 10, headroom_ratio=headroom / 10, min_replicas=least, max_replicas=most)
    cpu, gpu = priced("cpu", cpu_rps / 10, cpu_price / 100), priced("gpu", gpu_rps / 10, gpu_price / 100)

    def by_trying(cpus: range, gpus: range) -> int | None:
        enough = ((c, g) for c, g in product(cpus, gpus) if (c * cpu_rps + g * gpu_rps) * headroom >= rate * 10)
        return min((c * cpu_price + g * gpu_price for c, g in enough), default=None)

    alone, none = range(least, most + 1), range(1)
    for fleet, best in (
        (carrying(cpu, None, rate / 10, asked), by_trying(alone, none)),
        (carrying(None, gpu, rate / 10, asked), by_trying(none, alone)),
        (carrying(cpu, gpu, rate / 10, asked, min_gpus=min_gpus), by_trying(alone, range(min_gpus, most + 1))),
    ):
        assert (None if fleet is None else fleet.price * 100) == best


LOADS = st.floats(0, 30)


@MANY
@given(LOADS, LOADS, LOADS, LOADS, CENTS, CENTS, CAPS, CAPS, CAPS)
def test_of_traffic_that_only_one_kind_takes_as_much_is_carried_as_can_be_for_the_least_money(
    cpu_shared: float,
    gpu_shared: float,
    cpu_only: float,
    gpu_only: float,
    cpu_price: int,
    gpu_price: int,
    cpu_most: int,
    gpu_least: int,
    more_gpus: int,
) -> None:
    load = Load(cpu_shared + cpu_only, gpu_shared + gpu_only, gpu_only, cpu_only)
    cpu, gpu = Supply(cpu_price, 1, cpu_most), Supply(gpu_price, gpu_least - 1, gpu_least + more_gpus)
    every = [with_gpus(n, load, cpu, gpu) for n in range(gpu.min_replicas, gpu.max_replicas + 1)]
    least_short = min(fleet.short for fleet in every) + EPSILON
    found = cheapest(load, cpu, gpu)
    assert found.short <= least_short
    assert found.price == min(fleet.price for fleet in every if fleet.short <= least_short)


@pytest.mark.parametrize("rate", [10_365.0, 1e6, 1e7])
def test_kinds_that_cost_nearly_the_same_for_each_request_have_an_answer_in_time(rate: float) -> None:
    asked = objective(rate)
    fleet = carrying(priced("cpu", 10.0, 0.1), priced("gpu", 10.000001, 0.1), rate, asked)
    assert fleet is not None
    assert fleet.price <= choice([priced("cpu", 10.0, 0.1)], [], rate, asked).cpu.price  # type: ignore[union-attr]
