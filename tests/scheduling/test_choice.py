"""The cheapest pool that is in time, the reason, and what never happens."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.choice import Candidate, Chosen, able, choose, forecasts, retry_after_s, that_take, turn_of
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Ticket
from tests.scheduling.servers import Exact, pool

CPU = Service(Curve(((1, 0.010), (8, 0.080))), max_batch=64)  # slow, cheap, and rows gain nothing together
GPU = Service(Curve(((1, 0.005), (64, 0.020))), max_batch=64)
CPU_PRICE, GPU_PRICE = 0.2, 1.0  # an hour


def both(*, share: float = 1.0, gpu_price: float = GPU_PRICE) -> list[Candidate]:
    return [Candidate(pool("cpu"), CPU, CPU_PRICE), Candidate(pool("gpu"), GPU, gpu_price, share=share)]


def load(candidate: Candidate, seconds: float) -> None:
    """So much work of the highest priority that it will be busy so long."""
    run = Exact(candidate.queue)
    for _ in range(round(seconds / candidate.service.cost_s(1))):
        candidate.queue.admit(None, candidate.service, 1, 1e9, 1)
    run.send(0.0)


def chosen(
    candidates: Sequence[Candidate], rows: float = 1, deadline: float = 1.0, **options: object
) -> tuple[str, str]:
    found = choose(0.0, candidates, rows, deadline, **options)  # type: ignore[arg-type]
    return (found.candidate.name, found.reason) if found else ("", "")


@pytest.mark.parametrize(
    ("rows", "where"), [(1, "cpu"), (2, "cpu"), (3, "gpu"), (8, "gpu"), (64, "gpu")]
)  # a CPU's row costs 0.2 · 0.01, the GPU's first 1.0 · 0.005
def test_few_rows_go_to_the_cpu_and_many_to_the_gpu(rows: int, where: str) -> None:
    assert chosen(both(), rows) == (where, "cheapest_in_time")


@pytest.mark.parametrize(
    ("rows", "left_s", "names"),
    [
        (1, 1.0, ["cpu", "gpu"]),
        (8, 0.07, ["gpu"]),
        (8, 0.08, ["cpu", "gpu"]),
        (1, 0.001, []),
        (64, inf, ["cpu", "gpu"]),
    ],
)
def test_a_request_is_demand_for_those_that_answer_it_in_time_when_idle(
    rows: float, left_s: float, names: list[str]
) -> None:
    pools = both()
    load(pools[0], 2.0)  # what there is to do does not matter
    assert [candidate.name for candidate in able(pools, rows, left_s)] == names


def test_who_is_asked_alone_is_able_whatever_it_takes() -> None:
    alone = both()[:1]
    assert able(alone, 64, 0.001) == alone


@pytest.mark.parametrize("crossover", [2, 5, 11, 30])
def test_a_planted_crossover_is_followed(crossover: float) -> None:
    line = Service(Curve(((1, 0.001), (64, 0.064))), max_batch=64)
    flat = Service(Curve(((1, 0.001 * (crossover + 0.5)), (64, 0.001 * (crossover + 0.5)))), max_batch=64)
    pools = [Candidate(pool("cpu"), line, 1.0), Candidate(pool("gpu"), flat, 1.0)]
    assert [chosen(pools, rows)[0] for rows in (crossover, crossover + 1)] == ["cpu", "gpu"]


def test_what_the_cheap_pool_cannot_do_in_time_spills_to_the_dear_one() -> None:
    pools = both()
    load(pools[0], 2.0)
    assert chosen(pools) == ("gpu", "spill")


def test_what_the_dear_pool_would_do_cheaper_spills_to_the_cpu_when_it_is_full() -> None:
    pools = both()
    load(pools[1], 2.0)
    assert chosen(pools, rows=8) == ("cpu", "spill")


def test_a_deadline_that_only_the_gpu_meets_goes_to_the_gpu() -> None:
    assert chosen(both(), deadline=0.006) == ("gpu", "spill")


def test_no_pool_in_time_is_a_refusal_that_says_when() -> None:
    pools = both()
    load(pools[0], 2.0)
    load(pools[1], 3.0)
    assert choose(0.0, pools, 1, 0.5) is None
    assert retry_after_s(0.0, pools, 1, 0.5) == pytest.approx(2.0 + 0.010 - 0.5, abs=0.011)


def test_what_is_never_in_time_anywhere_has_no_time_to_come_back() -> None:
    assert choose(0.0, both(), 1, 0.004) is None
    assert retry_after_s(0.0, both(), 1, 0.004) is None


def test_nothing_to_choose_from_is_a_refusal() -> None:
    assert choose(0.0, [], 1, 1.0) is None
    assert retry_after_s(0.0, [], 1, 1.0) is None


def test_the_cpu_bridges_while_the_gpu_is_cold() -> None:
    assert chosen(both(share=0.0), rows=8) == ("cpu", "bridged")


def test_a_cold_gpu_is_no_bridge_for_what_the_cpu_does_cheaper_anyway() -> None:
    assert chosen(both(share=0.0), rows=1) == ("cpu", "cheapest_in_time")


def test_a_cold_gpu_gets_nothing_even_where_the_cpu_refuses() -> None:
    assert choose(0.0, both(share=0.0), 8, 0.03) is None


@pytest.mark.parametrize(("turn", "found"), [(0.29, ("gpu", "cheapest_in_time")), (0.3, ("cpu", "bridged"))])
def test_a_gpu_that_warms_up_gets_its_share(turn: float, found: tuple[str, str]) -> None:
    assert chosen(both(share=0.3), rows=8, turn=turn) == found


def test_a_gpu_that_warms_up_takes_more_than_its_share_before_anything_is_refused() -> None:
    assert chosen(both(share=0.3), rows=8, deadline=0.03, turn=0.9) == ("gpu", "cheapest_in_time")


def test_a_pool_that_nobody_has_seen_yet_is_bridged_too() -> None:
    assert chosen(both()[:1], is_bridged=True) == ("cpu", "bridged")
    assert chosen(both()[:1], is_bridged=True, is_pinned=True) == ("cpu", "pinned")


def test_the_only_pool_and_a_pin_are_told_as_such() -> None:
    assert chosen(both()[:1]) == ("cpu", "only_pool")
    assert chosen(both(), is_pinned=True) == ("cpu", "pinned")


def test_of_equal_prices_the_first_is_taken() -> None:
    pools = [Candidate(pool(name), CPU, 1.0) for name in ("a", "b")]
    assert chosen(pools)[0] == "a"
    assert chosen(pools[::-1])[0] == "b"


def small_and_large(*, share: float = 1.0) -> list[Candidate]:
    small = Candidate(pool("cpu"), Service(Curve(((1, 0.001),)), max_batch=8), 0.1)
    return [small, Candidate(pool("gpu"), GPU, 10.0, share=share)]


def test_rows_go_to_a_pool_that_takes_so_many_at_once_whatever_it_costs() -> None:
    pools = small_and_large()
    assert chosen(that_take(pools, 8), rows=8) == ("cpu", "cheapest_in_time")
    assert chosen(that_take(pools, 9), rows=9) == ("gpu", "only_pool")
    assert that_take(pools, 65) == pools  # nobody takes them: a server says what is wrong
    assert that_take(pools[:1], 9) == pools[:1]


def test_rows_that_only_a_cold_pool_takes_wait_for_it() -> None:
    [cold] = that_take(small_and_large(share=0.0), 9)
    assert cold.name == "gpu"
    assert choose(0.0, [cold], 9, 1.0) is None


def test_a_pool_that_warms_up_and_is_the_only_one_says_when_it_takes_more() -> None:
    pools = both(share=0.0)[1:]
    load(pools[0], 2.0)
    assert choose(0.0, pools, 1, 0.5, turn=-1.0) is None
    found = retry_after_s(0.0, pools, 1, 0.5, turn=-1.0)
    assert found is not None
    assert found == pytest.approx(1.5, abs=0.05)
    assert retry_after_s(0.0, pools, 1, 0.5, turn=0.0) is None  # where others serve it, too, it gets none


def test_a_refusal_by_a_curve_alone_is_counted_until_there_is_another_curve() -> None:
    cpu, gpu = both()
    load(cpu, 2.0)
    choose(0.0, [cpu, gpu], 1, 0.5)
    assert (cpu.num_hopeless, gpu.num_hopeless) == (
        0,
        0,
    )  # it had too much to do, which is no reason to doubt the curve
    choose(3.0, [cpu, gpu], 1, 3.006)
    choose(3.0, [cpu, gpu], 1, 3.001)
    assert (cpu.num_hopeless, gpu.num_hopeless) == (2, 1)
    cpu.learn(Ticket(None, CPU, 1, 9.0, 9.0, 0.01, 3), 0.1)
    assert cpu.num_hopeless == 2
    cpu.use(GPU)
    assert cpu.num_hopeless == 0


@settings(deadline=None)  # of one example: machines are busy
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_turns_are_spread_evenly_over_any_hundred_requests(first: int, share: float) -> None:
    got = sum(turn_of(number) < share for number in range(first, first + 100))
    assert abs(got - 100 * share) <= 4


LOADS = st.tuples(st.floats(0, 3), st.floats(0, 3))


@settings(deadline=None)  # of one example: machines are busy
@given(LOADS, st.integers(1, 64), st.floats(0.001, 3), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_the_same_inputs_give_the_same_choice_and_more_time_never_a_refusal(
    loads: tuple[float, float], rows: int, deadline: float, more: float, share: float, turn: float
) -> None:
    pools, again = both(share=share), both(share=share)
    for one, other, seconds in zip(pools, again, loads, strict=True):
        load(one, seconds)
        load(other, seconds)
    first, second = choose(0.0, pools, rows, deadline, turn=turn), choose(0.0, again, rows, deadline, turn=turn)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first[1:] == second[1:]
        assert first.finish <= deadline + 1e-6
        assert first.candidate in pools
        assert choose(0.0, pools, rows, deadline + more, turn=turn) is not None


@settings(deadline=None)  # of one example: machines are busy
@given(LOADS, st.integers(1, 64), st.floats(0.001, 3))
def test_no_cheaper_pool_would_have_been_in_time(loads: tuple[float, float], rows: int, deadline: float) -> None:
    pools = both()
    for one, seconds in zip(pools, loads, strict=True):
        load(one, seconds)
    found = choose(0.0, pools, rows, deadline)
    for one in pools:
        is_in_time = one.queue.finish(0.0, one.service, rows, deadline) is not None
        assert not is_in_time or (isinstance(found, Chosen) and found.candidate.price(rows) <= one.price(rows))


def test_a_decision_over_sixteen_busy_servers_looks_at_each_a_bounded_number_of_times() -> None:
    """What `loadtest/bench/decisions.py` times: here without a clock, by counting the calls of one decision."""
    import sys

    pools = [Candidate(pool("cpu", 8), CPU, CPU_PRICE), Candidate(pool("gpu", 8), GPU, GPU_PRICE)]
    for one in pools:
        load(one, 8.0)
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert choose(0.0, pools, 1, 0.5) is None
    finally:
        sys.setprofile(None)
    assert calls <= 60  # two pools; a look for each server or ticket would be hundreds


@given(cpu_s=st.floats(0, 2), gpu_s=st.floats(0, 2), limit_s=st.floats(0.001, 3), rows=st.integers(1, 80))
def test_what_was_chosen_need_not_be_forecast_again(cpu_s: float, gpu_s: float, limit_s: float, rows: int) -> None:
    pools = both()
    for one, busy_s in zip(pools, (cpu_s, gpu_s), strict=True):
        load(one, busy_s)
    found = choose(0.0, pools, rows, limit_s)
    forecast = forecasts(0.0, pools, rows, limit_s, chosen=found)
    assert forecast == forecasts(0.0, pools, rows, limit_s)
    assert [one.candidate.name for one in forecast if found is not None and one.candidate is found.candidate] == (
        [] if found is None else [found.candidate.name]
    )


def test_small_corrections_are_collected_until_they_change_something() -> None:
    [candidate] = [Candidate(pool(), CPU, CPU_PRICE)]
    run = Exact(candidate.queue)
    for number in range(200):
        ticket = run.ask(candidate.queue, candidate.service, float(number), number + 9.0)
        assert ticket is not None
        before = candidate.service
        candidate.learn(ticket, 0.0105)  # 5 % more than the curve says, a 400th of which is believed at once
        run.until(number + 0.9)
        if number == 0:
            assert candidate.service is before
    assert candidate.service.seconds(1) == pytest.approx(0.0105, rel=0.015)
