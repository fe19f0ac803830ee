"""The cheapest fleet costs what trying every number of servers finds, of two kinds and of any, and plan and verdict give the same one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array

from serving.decisions.fleet import (
    EPSILON,
    MAX_LOAD_RATIO,
    RETRY_AFTER_S,
    SHORT_PRICE,
    Load,
    ModelLoad,
    Quota,
    Shortage,
    Supply,
    cards,
    carrying,
    cheapest,
    cheapest_mix,
    choice,
    obtainable,
    whole,
    with_gpus,
)
from serving.decisions.prices import exact
from tests.decisions.plan.figures import objective, priced

MANY = settings(max_examples=3000 if os.environ.get("THOROUGH") else 100, deadline=None)
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


# -- any number of pools -----------------------------------------------------------------------------------------------

MIXES = settings(max_examples=3000 if os.environ.get("THOROUGH") else 30, deadline=None)
RATIO = 0.7
WHOLE = st.sampled_from([RATIO, 2 * RATIO])  # servers' worth, to the last float


def by_trying(
    models: Sequence[ModelLoad], pools: Mapping[str, Supply], quotas: Sequence[Quota]
) -> tuple[Decimal, float, int]:
    """Price, what is short and GPU cards of the best of all numbers of servers, each judged by a linear program of SciPy's."""
    work = np.array(
        [
            [
                model.servers.get(name, inf) if model.memory_bytes <= it.memory_bytes else inf
                for name, it in pools.items()
            ]
            for model in models
        ]
    )
    everywhere = [range(it.min_replicas, it.max_replicas + 1) for it in pools.values()]
    numbers = [
        each
        for each in product(*everywhere)
        if all(
            sum(cards(n, it) for n, (name, it) in zip(each, pools.items(), strict=True) if name in quota.pools)
            <= quota.max_cards
            for quota in quotas
        )
    ]
    work = work[work.min(axis=1) > EPSILON]
    least = work.min(axis=1)
    weights = np.where(np.isfinite(least), np.maximum(least, 1), 1)
    short = np.zeros(len(numbers)) if len(work) == 0 else what_is_short(work, np.array(numbers), weights)
    dearest = max(1.0, *(it.price_per_hour for it in pools.values()))
    found = []
    for each, lacks in zip(numbers, short, strict=True):
        paid = [cards(n, it) for n, it in zip(each, pools.values(), strict=True)]
        price = sum((n * exact(it.price_per_hour) for n, it in zip(paid, pools.values(), strict=True)), Decimal(0))
        num_gpus = sum(n for n, it in zip(paid, pools.values(), strict=True) if it.has_gpu)
        found.append((float(price) + SHORT_PRICE * dearest * round(lacks, 6), num_gpus, price, lacks))
    _, num_gpus, price, lacks = min(found)
    return price, lacks, num_gpus


def what_is_short(work: np.ndarray, numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of each row of `numbers`: all of them in one program, because one program each takes minutes."""
    tasks, units = work.shape
    width, every = units + 1, len(numbers)
    loads = np.zeros((units, tasks * width))
    for task, unit in product(range(tasks), range(units)):
        loads[unit, task * width + unit] = work[task, unit] if np.isfinite(work[task, unit]) else 0
    most = np.c_[np.isfinite(work), np.ones(tasks)].ravel()
    costs = np.c_[np.zeros((tasks, units)), weights].ravel()
    solved = linprog(
        np.tile(costs, every),
        A_ub=block_diag([csr_array(loads)] * every, format="csr"),
        b_ub=numbers.ravel() * RATIO + EPSILON,
        A_eq=block_diag([csr_array(np.kron(np.eye(tasks), np.ones(width)))] * every, format="csr"),
        b_eq=np.ones(tasks * every),
        bounds=np.c_[np.zeros(tasks * width * every), np.tile(most, every)],
        method="highs",
    )
    assert solved.status == 0
    found: np.ndarray = solved.x.reshape(every, -1) @ costs
    return found


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[ModelLoad], dict[str, Supply], list[Quota]]:
    pools = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        most = draw(st.integers(0, 4))
        pools[name] = Supply(
            draw(st.one_of(CENTS.map(lambda n: n / 100), st.sampled_from([0.5, 1.0, 2.0]))),
            draw(st.sampled_from([0, 0, most // 2])),
            most,
            has_gpu=draw(st.booleans()),
            servers_per_card=draw(st.sampled_from([1, 1, 2, 3])),
            memory_bytes=draw(st.sampled_from([inf, 10.0])),
        )
    servers = st.one_of(st.integers(0, 3000).map(lambda n: n / 997), st.integers(0, 500).map(lambda n: n / 991), WHOLE)
    models = [
        ModelLoad(
            draw(st.fixed_dictionaries({}, optional=dict.fromkeys(pools, servers))), draw(st.sampled_from([0, 8, 12]))
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    quotas = []
    for _ in range(draw(st.integers(0, 2))):
        members = draw(st.frozensets(st.sampled_from(sorted(pools))))
        fewest = sum(cards(pools[name].min_replicas, pools[name]) for name in members)
        quotas.append(Quota(members, fewest + draw(st.integers(0, 4))))
    return models, pools, quotas


NOBODY_SERVES_IT = [ModelLoad({})], {"a": Supply(0.01, 0, 0), "b": Supply(0.01, 0, 0, has_gpu=True)}, []


# All that it takes to be within the quota are moves of whole tasks.
NO_CARD_AT_ALL = (
    [ModelLoad({}), ModelLoad({"b": 2 / 997}), ModelLoad({"a": 1 / 997, "b": 1 / 997})],
    {"a": Supply(0.01, 0, 0), "b": Supply(0.01, 0, 1)},
    [Quota(frozenset({"a", "b"}), 0)],
)


@MIXES
@given(fleets())
@example(NOBODY_SERVES_IT)
@example(NO_CARD_AT_ALL)
def test_of_any_pools_no_numbers_within_caps_quotas_and_shared_cards_carry_more_or_cost_less(
    fleet: tuple[list[ModelLoad], dict[str, Supply], list[Quota]],
) -> None:
    models, pools, quotas = fleet
    found = cheapest_mix(models, pools, quotas, RATIO)
    price, short, num_gpus = by_trying(models, pools, quotas)
    assert found.price == price
    assert found.short == pytest.approx(
        short, abs=5e-6
    )  # of the smallest model here EPSILON of a server is 1e-6, in each pool
    assert sum(cards(found.replicas[name], it) for name, it in pools.items() if it.has_gpu) == num_gpus
    assert found.is_proven


HUNDREDTHS = st.integers(0, 3000).map(lambda n: n / 100)
PAIRS = settings(max_examples=3000 if os.environ.get("THOROUGH") else 80, deadline=None)


@PAIRS
@given(HUNDREDTHS, HUNDREDTHS, HUNDREDTHS, HUNDREDTHS, CENTS, CENTS, CAPS, CAPS, CAPS)
def test_of_two_pools_both_ways_to_the_cheapest_fleet_find_the_same(
    cpu_shared: float,
    gpu_shared: float,
    cpu_only: float,
    gpu_only: float,
    cpu_price: int,
    gpu_price: int,
    cpu_least: int,
    gpu_least: int,
    more: int,
) -> None:
    load = Load(cpu_shared + cpu_only, gpu_shared + gpu_only, gpu_only, cpu_only)
    cpu = Supply(cpu_price / 100, cpu_least - 1, cpu_least + 10 * more)
    gpu = Supply(gpu_price / 100, gpu_least - 1, gpu_least + 10 * more, has_gpu=True)
    models = [
        ModelLoad({"gpu": gpu_only}),
        ModelLoad({"cpu": cpu_only}),
        ModelLoad({"cpu": cpu_shared, "gpu": gpu_shared}),
    ]
    found, mix = cheapest(load, cpu, gpu), cheapest_mix(models, {"cpu": cpu, "gpu": gpu})
    if mix.short > 0:
        assert found.short > 0 or whole(cpu_only / MAX_LOAD_RATIO) > cpu.max_replicas
    else:
        assert found.short <= EPSILON
        assert mix.price == found.price
        assert mix.replicas == {"cpu": found.num_cpu, "gpu": found.num_gpu}


SIZES = {
    "cpu": Supply(0.2, 0, 40),
    "l4": Supply(0.8, 0, 10, has_gpu=True),
    "a100": Supply(4.1, 0, 10, has_gpu=True),
}


def of_cpus(servers: float) -> list[ModelLoad]:
    """So many CPU servers' work, of which an L4 does eight and an A100 forty."""
    return [ModelLoad({"cpu": servers, "l4": servers / 8, "a100": servers / 40})]


def wanted(models: Sequence[ModelLoad], pools: Mapping[str, Supply] = SIZES, *quotas: Quota) -> dict[str, int]:
    return {name: number for name, number in cheapest_mix(models, pools, quotas).replicas.items() if number}


@pytest.mark.parametrize(
    ("servers", "fleet"),
    [(0.5, {"cpu": 1}), (4.0, {"l4": 1}), (16.0, {"l4": 3}), (170.0, {"cpu": 3, "l4": 10, "a100": 4}), (0.0, {})],
)
def test_every_size_is_weighed_whatever_its_name_is(servers: float, fleet: dict[str, int]) -> None:
    assert wanted(of_cpus(servers)) == fleet
    again = {f"z{name}" if name == "a100" else f"y{name}": it for name, it in reversed(SIZES.items())}
    names = {"cpu": "ycpu", "l4": "yl4", "a100": "za100"}
    models = [ModelLoad({names[name]: number for name, number in it.servers.items()}) for it in of_cpus(servers)]
    assert wanted(models, again) == {names[name]: number for name, number in fleet.items()}


def test_what_cannot_be_had_is_taken_elsewhere_until_it_is_asked_for_again() -> None:
    spot = {**SIZES, "l4-spot": Supply(0.3, 0, 10, has_gpu=True)}
    models = [ModelLoad({**of_cpus(16.0)[0].servers, "l4-spot": 2.0})]
    assert wanted(models, spot) == {"l4-spot": 3}
    none, one = Shortage("l4-spot", 100.0, 0), Shortage("l4-spot", 100.0, 1)
    assert wanted(models, obtainable(spot, [none], 101.0)) == {"l4": 3}
    assert wanted(models, obtainable(spot, [one], 101.0)) == {"l4-spot": 1, "l4": 2}
    no_card = [none, Shortage("l4", 100.0, 0), Shortage("a100", 100.0, 0)]
    assert wanted(models, obtainable(spot, no_card, 101.0)) == {"cpu": 23}
    assert wanted(models, obtainable(spot, no_card, 100.0 + RETRY_AFTER_S)) == {"l4-spot": 3}


def test_a_quota_of_cards_holds_for_all_its_pools_together() -> None:
    quota = Quota(frozenset({"l4", "a100"}), 2)
    assert wanted(of_cpus(16.0), SIZES, quota) == {"cpu": 7, "l4": 2}
    assert wanted(of_cpus(70.0), SIZES, quota) == {"cpu": 20, "a100": 2}
    with pytest.raises(ValueError, match="limits"):
        cheapest_mix([], {"l4": Supply(0.8, 2, 3)}, [Quota(frozenset({"l4"}), 1)])


def test_servers_that_share_a_card_are_paid_for_by_the_card() -> None:
    slices = {"whole": Supply(4.0, 0, 4, has_gpu=True), "slice": Supply(4.5, 0, 7, has_gpu=True, servers_per_card=7)}
    found = cheapest_mix([ModelLoad({"whole": 0.3, "slice": 1.0})], slices)
    assert (found.replicas, found.price) == ({"whole": 1, "slice": 0}, Decimal("4.0"))
    cheaper = {**slices, "slice": replace(slices["slice"], price_per_hour=3.5)}
    found = cheapest_mix([ModelLoad({"whole": 0.3, "slice": 1.0})], cheaper)
    assert (found.replicas, found.price) == ({"whole": 0, "slice": 2}, Decimal("3.5"))


def test_a_model_goes_only_where_a_server_has_the_memory_for_it() -> None:
    pools = {"small": Supply(1.0, 0, 4, memory_bytes=16e9), "large": Supply(3.0, 0, 4, memory_bytes=80e9)}
    assert wanted([ModelLoad({"small": 0.5, "large": 0.5}, 14e9)], pools) == {"small": 1}
    assert wanted([ModelLoad({"small": 0.5, "large": 0.5}, 40e9)], pools) == {"large": 1}
    found = cheapest_mix([ModelLoad({"small": 0.5, "large": 0.5}, 90e9)], pools)
    assert (found.replicas, found.short) == ({"small": 0, "large": 0}, 1.0)


def test_of_many_models_that_few_pools_cannot_carry_as_much_is_carried_as_can_be() -> None:
    """As while servers are missing: twenty pools, of which four have servers, and some models that run on none of those."""
    generator = np.random.default_rng(1)
    pools = {f"{n}": Supply(round(0.1 * 1.25**n, 2), 0, 5 if n < 4 else 0, has_gpu=n > 3) for n in range(20)}
    models = [
        ModelLoad(
            {
                name: float(generator.uniform(0.5, 1.5) / it.price_per_hour)
                for name, it in pools.items()
                if generator.random() < 0.5
            }
        )
        for _ in range(60)
    ]
    mix = cheapest_mix(models, pools, (), RATIO)
    assert mix.replicas == {name: it.max_replicas for name, it in pools.items()}
    assert mix.is_proven
    everywhere = np.array([[it.servers.get(name, inf) for name in pools] for it in models])
    weights = np.maximum(everywhere.min(axis=1), 1)
    numbers = np.array([list(mix.replicas.values())])
    assert mix.short == pytest.approx(float(what_is_short(everywhere, numbers, weights)[0]), abs=1e-5)


def test_a_search_that_is_not_completed_says_how_much_cheaper_a_fleet_could_be() -> None:
    """Sizes of nearly the same price for each request, of which a mix may always save a cent more."""
    prices = [0.97, 1.03, 1.58, 2.13, 2.77, 3.19, 4.33, 5.77]
    pools = {f"{price}": Supply(price, 0, 30) for price in prices}
    models = [
        ModelLoad({f"{price}": (7 + n) / 5 / price * (1 + (n * k % 5) / 50) for k, price in enumerate(prices)})
        for n in range(30)
    ]
    found = cheapest_mix(models, pools)
    assert found.short == 0
    assert not found.is_proven
    assert 0.98 * found.price_per_hour < found.bound_per_hour < found.price_per_hour
    assert found == cheapest_mix(models, pools)
