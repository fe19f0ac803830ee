"""When a GPU is woken and when it may sleep: break-even, ski rental, hysteresis, bounded flapping."""

from __future__ import annotations

from itertools import groupby, pairwise
from math import exp, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.break_even import break_even_load
from serving.decisions.fleet import Load, Supply, cheapest, with_gpus
from serving.decisions.wake import Target, advised, next_target
from serving.settings import ScalingRules

CPU = Supply(price_per_hour=0.2, min_replicas=1, max_replicas=20)
FIXED_CPU = Supply(price_per_hour=0.2, min_replicas=1, max_replicas=4)
GPU = Supply(price_per_hour=1.0, max_replicas=4, cold_start_s=240.0)
EVEN = ScalingRules(max_load_ratio=1.0, hold_s=0.0)


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


def run(
    demand: list[tuple[float, float]],
    supply: Supply = CPU,
    rules: ScalingRules = EVEN,
    *,
    gpu: Supply = GPU,
    every_s: int = 1,
) -> list[Target]:
    """Demands of (seconds, CPU servers) one after another, a look a second; GPUs are there as soon as they are wanted."""
    wanted, looks = Target(1, 0), []
    for seconds, cpu in demand:
        for _ in range(int(seconds) // every_s):
            wanted = next_target(wanted, (len(looks) + 1.0) * every_s, load(cpu), supply, gpu, wanted.gpu, rules)
            looks.append(wanted)
    return looks


def changes(looks: list[Target]) -> list[tuple[int, int]]:
    """(second, GPUs) where their number changes."""
    pairs = zip([Target(0, 0), *looks], looks, strict=False)
    return [(at + 1, after.gpu) for at, (before, after) in enumerate(pairs) if before.gpu != after.gpu]


def test_nothing_wakes_a_gpu_without_demand() -> None:
    assert changes(run([(5000, 0.0)])) == []


def test_a_gpu_that_never_pays_is_never_woken() -> None:
    assert changes(run([(10_000, 5.0)])) == []


def test_a_gpu_is_woken_when_waiting_has_cost_what_a_cold_start_costs() -> None:
    """Nine CPU servers cost 1.8, one and a GPU 1.2: 0.6 an hour saved; a cold start costs 240 s of 1.0: 400 s."""
    assert changes(run([(500, 9.0)])) == [(400, 1)]


def test_a_short_peak_wakes_nobody_where_the_cpu_carries_it() -> None:
    assert changes(run([(300, 9.0), (300, 1.0)] * 5)) == []


def test_too_little_wakes_it_within_seconds() -> None:
    assert changes(run([(60, 9.0)], FIXED_CPU)) == [(5, 1)]


def test_a_burst_of_a_second_wakes_nobody() -> None:
    assert changes(run([(1, 9.0), (30, 1.0)] * 5, FIXED_CPU)) == []


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


def test_what_only_a_gpu_does_in_time_wakes_one() -> None:
    wanted = Target(1, 0)
    for now in range(10):
        wanted = next_target(wanted, float(now), load(0.0, gpu_only=0.1), CPU, GPU, 0, EVEN)
    assert wanted.gpu == 1


def test_an_idle_gpu_stays_as_long_as_its_cold_start_would_cost() -> None:
    """The threshold that makes renting skis 2-competitive: cold start's price over the price a second."""
    assert changes(run([(60, 9.0), (1000, 0.0)], FIXED_CPU)) == [(5, 1), (60 + 240, 0)]


def test_a_gpu_is_held_at_least_as_long_as_the_rules_say() -> None:
    looks = run([(60, 9.0), (1000, 0.0)], FIXED_CPU, ScalingRules(max_load_ratio=1.0, hold_s=600.0))
    assert changes(looks) == [(5, 1), (605, 0)]


def test_a_gpu_whose_node_is_paid_for_by_the_hour_is_kept_so_long() -> None:
    by_the_hour = Supply(price_per_hour=1.0, max_replicas=4, cold_start_s=240.0, min_billing_s=3600.0)
    looks = run([(60, 9.0), (5000, 0.0)], FIXED_CPU, gpu=by_the_hour)
    assert changes(looks) == [(5, 1), (3605, 0)]


def test_a_cpu_server_that_is_paid_for_longer_goes_later() -> None:
    wanted, none, cpu = Target(4, 0), Supply(1.0, 0, 0), Supply(0.2, 1, 20, min_billing_s=900.0)
    for now in range(900):
        wanted = next_target(wanted, float(now), load(0.5), cpu, none, 0, EVEN)
    assert wanted.cpu == 4
    assert next_target(wanted, 900.0, load(0.5), cpu, none, 0, EVEN).cpu == 1


def test_a_gpu_that_was_woken_too_often_stays_awake_until_the_hour_is_over() -> None:
    rules = ScalingRules(max_load_ratio=1.0, hold_s=0.0, max_wakes_per_hour=2)
    found = changes(run([(60, 9.0), (540, 0.0)] * 12, FIXED_CPU, rules))
    assert [count for _, count in found] == [1, 0, 1, 0, 1, 0, 1][: len(found)]
    assert len([at for at, count in found if count and at <= 3600]) == 2


UNSEEN = Load(6.0, 6.0, gpu_unseen=6.0)  # two servers more than there are CPUs; a GPU does no less than one


def test_of_gpus_that_nobody_has_seen_one_is_woken_whatever_they_might_take() -> None:
    looks = [Target(4, 0)]
    for now in range(1, 600):
        looks.append(next_target(looks[-1], float(now), UNSEEN, FIXED_CPU, GPU, 0, EVEN))
    assert changes(looks[1:]) == [(5, 1)]


CARD = Supply(price_per_hour=1.2, max_replicas=4, cold_start_s=300)


@pytest.mark.parametrize(
    ("demand", "woken_at"),
    [
        (Load(10.0, 1.0), 450),
        (Load(10.0, 10.0, gpu_unseen=10.0), 225),
        (Load(10.0, 6.0, gpu_unseen=5.5), 225),
        (Load(4.0, 4.0, gpu_unseen=4.0), None),
    ],
    ids=["seen", "not seen", "seen by some", "not seen, and dearer in any case"],
)
def test_of_gpus_that_nobody_has_seen_one_is_tried_where_it_might_save_money(
    demand: Load, woken_at: int | None
) -> None:
    """A cold start's worth of what it might save, of 3.0 an hour all but 1.4."""
    looks = [Target(15, 0)]
    for now in range(1, 3600):
        looks.append(next_target(looks[-1], float(now), demand, CPU, CARD, 0))
    assert {it.gpu for it in looks} == {0} | ({1} if woken_at else set())
    if woken_at:
        assert looks[-1].gpu_since == pytest.approx(woken_at, abs=3)


def test_a_gpu_that_was_tried_goes_when_it_does_not_pay_and_is_not_tried_again() -> None:
    wanted, numbers = Target(15, 0), []
    for now in range(1, 7200):
        unseen = 10.0 if not any(numbers) or now < 600 else 0.0
        wanted = next_target(
            wanted, float(now), Load(10.0, 10.0, gpu_unseen=unseen), CPU, CARD, 0 if unseen else wanted.gpu
        )
        numbers.append(wanted.gpu)
    assert [number for number, _ in groupby(numbers)] == [0, 1, 0]
    assert numbers.index(0, 600) < 600 + 400  # it has cost as much as its cold start


@pytest.mark.parametrize(("each", "most"), [(0.1, 1), (0.3, 3), (1.0, 4)])
def test_as_soon_as_one_answers_as_many_are_woken_as_are_needed_and_never_more(each: float, most: int) -> None:
    """`each`: GPUs that the work of a CPU server keeps busy, in truth; what was noted before fades. Four CPU servers take a third of it."""
    looks = [Target(4, 1)]
    for now in range(1, 60):
        faded = exp(-now / 10)
        demand = Load(12.0, 12.0 * (faded + (1 - faded) * each), gpu_unseen=12.0 * faded)
        looks.append(next_target(looks[-1], float(now), demand, FIXED_CPU, GPU, looks[-1].gpu, EVEN))
    assert max(it.gpu for it in looks) == looks[30].gpu == most


def test_a_burst_that_needs_four_gpus_gets_four_at_once_where_their_speed_is_known() -> None:
    wanted, burst = Target(4, 0), Load(40.0, 4.0)
    for now in range(1, 7):
        wanted = next_target(wanted, float(now), burst, FIXED_CPU, GPU, 0, EVEN)
    assert wanted.gpu == 4


def test_a_gateway_that_knows_them_is_believed_beside_one_that_does_not() -> None:
    """The demand of the first is 3 GPUs, of the second 6 at most."""
    best = advised(Load(36.0, 9.0, gpu_unseen=6.0), FIXED_CPU, GPU, 0, EVEN)
    assert best.num_gpu == cheapest(Load(36.0, 3.0), FIXED_CPU, GPU, 1.0).num_gpu == 3
    assert advised(Load(36.0, 9.0), FIXED_CPU, GPU, 0, EVEN).num_gpu == 4


@pytest.mark.parametrize(("num_gpu", "gpu", "most"), [(0, GPU, 1), (3, GPU, 3), (0, Supply(1.0, 2, 4), 2)])
def test_what_was_asked_for_already_and_what_is_always_kept_stays_although_it_was_never_seen(
    num_gpu: int, gpu: Supply, most: int
) -> None:
    """A scaler that starts anew finds servers that were asked for."""
    assert advised(Load(40.0, 40.0, gpu_unseen=40.0), FIXED_CPU, gpu, num_gpu, EVEN).num_gpu == most


def test_cpu_servers_bridge_until_the_gpu_is_there_and_then_go_slowly() -> None:
    wanted = Target(1, 0)
    for now in range(600):
        wanted = next_target(wanted, float(now), load(9.0), CPU, GPU, 0, EVEN)
    assert (wanted.cpu, wanted.gpu) == (9, 1)
    for now in range(600, 660):
        wanted = next_target(wanted, float(now), load(9.0), CPU, GPU, 1, EVEN)
    assert wanted.cpu == 9
    wanted = next_target(wanted, 660.0, load(9.0), CPU, GPU, 1, EVEN)
    assert wanted.cpu == 1


def test_without_a_gpu_cpu_servers_go_only_after_the_autoscalers_usual_time() -> None:
    wanted, none = Target(4, 0), Supply(1.0, 0, 0)
    for now in range(300):
        wanted = next_target(wanted, float(now), load(0.5), CPU, none, 0, EVEN)
    assert wanted.cpu == 4
    assert next_target(wanted, 300.0, load(0.5), CPU, none, 0, EVEN).cpu == 1


DEMANDS = st.lists(st.tuples(st.integers(1, 900), st.floats(0, 40)), min_size=1, max_size=12)


@pytest.mark.thorough
@settings(deadline=None, max_examples=30)
@given(DEMANDS)
def test_never_more_or_fewer_servers_than_can_be_had_and_never_more_wakes_than_allowed(
    demand: list[tuple[int, float]],
) -> None:
    rules = ScalingRules(hold_s=0.0, max_wakes_per_hour=3)
    looks = run([(float(s), d) for s, d in demand], FIXED_CPU, rules)
    assert all(1 <= w.cpu <= 4 and 0 <= w.gpu <= 4 for w in looks)
    counts = [(0, 0), *changes(looks)]
    sleeps = [at for (_, before), (at, after) in pairwise(counts) if after < before]
    for at in sleeps:
        assert sum(at - 3600 < other <= at for other in sleeps) <= 3 * GPU.max_replicas


def optimum(demand: list[tuple[int, float]]) -> float:
    """What knowing the future costs, with one GPU at most: dynamic programming over seconds of idle or busy."""
    one = Supply(1.0, 0, 1, 240.0)
    costs = {0: 0.0, 1: inf}
    for seconds, cpu in demand:
        off, on = (with_gpus(n, load(cpu), CPU, one, 1.0).price_per_hour * seconds / 3600 for n in (0, 1))
        wake = one.price_per_hour * one.cold_start_s / 3600
        costs = {0: min(costs[0], costs[1]) + off, 1: min(costs[1], costs[0] + wake) + on}
    return min(costs.values())


@pytest.mark.thorough
@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from([0.5, 9.5])), min_size=1, max_size=10))
def test_not_knowing_the_future_costs_at_most_three_times_of_knowing_it(demand: list[tuple[int, float]]) -> None:
    """Renting skis there and back: at most twice for each way, and what both ways share is paid once more."""
    one = Supply(1.0, 0, 1, 240.0)
    looks = run([(10.0 * s, d) for s, d in demand], CPU, EVEN, gpu=one, every_s=10)
    levels = [d for s, d in demand for _ in range(s)]
    cost = 0.0
    for before, level in zip([Target(1, 0), *looks], levels, strict=False):
        cost += with_gpus(before.gpu, load(level), CPU, one, 1.0).price_per_hour / 360
    cost += sum(count for _, count in changes(looks)) * one.price_per_hour * one.cold_start_s / 3600
    assert cost <= 3 * optimum([(10 * s, d) for s, d in demand]) + 0.02
