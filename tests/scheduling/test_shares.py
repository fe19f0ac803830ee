"""Several tenants before one pool: does each get its share, and does nobody who stays within it notice the others?"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.decisions.simulate.arrivals import Arrival
from serving.decisions.simulate.fixed_pools import Answers, FixedPool, replay, replay_shared
from serving.scheduling.choice import Candidate, choose, may_admit, retry_after_s
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.scheduling.shares import Shares, Term, Terms

from .servers import TENTH, Exact, pool

SLOW = Service(Curve(((1, 0.020), (8, 0.080), (32, 0.320))), 1, 32)
FAST = Service(Curve(((1, 0.008), (8, 0.050), (32, 0.200))), 1, 32)
CARD = Service(Curve(((1, 0.050), (8, 0.060), (64, 0.400))), 1, 64)
DEADLINES_S = {SLOW: 0.25, FAST: 0.25, CARD: 0.6}


def poisson(rate_rps: float, for_s: float, seed: int) -> list[Arrival]:
    generator, now = random.Random(seed), 0.0
    arrivals: list[Arrival] = []
    while (now := now + generator.expovariate(rate_rps)) < for_s:
        arrivals.append((now, 1))
    return arrivals


def run(
    service: Service,
    arrivals: Mapping[str, Sequence[Arrival]],
    terms: Terms | None = None,
    *,
    is_fair: bool = True,
    num_gateways: int = 1,
    homes: Mapping[str, int] | None = None,
) -> dict[str, Answers]:
    return replay_shared(
        [FixedPool("p", service, 1.0)],
        arrivals,
        DEADLINES_S[service],
        terms,
        is_fair=is_fair,
        num_gateways=num_gateways,
        homes=homes,
    )


def total(answers: Mapping[str, Answers]) -> int:
    return sum(one.num_in_time for one in answers.values())


def jain(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) ** 2 / (len(given) * sum(value**2 for value in given))


@pytest.mark.parametrize("floods", [(10.0,), (1.0, 2.0, 3.0)], ids=["one flood", "three"])
@pytest.mark.parametrize("service", [SLOW, FAST, CARD], ids=["slow", "fast", "card"])
def test_five_requests_a_second_are_answered_in_time_whatever_others_send(
    service: Service, floods: tuple[float, ...]
) -> None:
    capacity_rps, for_s = service.rate_rows_per_s, 12.0
    small = poisson(5.0, for_s, 1)
    others = {f"flood-{n}": poisson(times * capacity_rps, for_s, n + 2) for n, times in enumerate(floods)}
    shared = run(service, {"small": small, **others})
    alone = replay([FixedPool("p", service, 1.0)], small, DEADLINES_S[service])
    together = run(service, {"small": small, **others}, is_fair=False)
    assert together["small"].attainment_ratio < 0.5, "without shares there is nothing to show"
    # With three, all of which have had less than their share at times, some find no room within that time.
    assert shared["small"].attainment_ratio >= (1.0 if len(floods) == 1 else 0.93)
    p99_s, alone_p99_s = shared["small"].latency_p99_s, alone.latency_p99_s
    assert p99_s is not None
    assert alone_p99_s is not None
    assert p99_s <= alone_p99_s + service.curve.seconds(service.max_batch)
    assert total(shared) >= 0.95 * total(together)


@pytest.mark.parametrize("num_tenants", [2, 10, pytest.param(50, marks=pytest.mark.thorough)])
def test_equal_tenants_at_three_times_the_capacity_get_the_same_and_waste_nothing(num_tenants: int) -> None:
    for_s = max(10.0, num_tenants)
    rate_rps = 3 * FAST.rate_rows_per_s / num_tenants
    arrivals = {f"t{n}": poisson(rate_rps, for_s, n) for n in range(num_tenants)}
    shared, together = run(FAST, arrivals), run(FAST, arrivals, is_fair=False)
    assert jain(one.num_in_time for one in shared.values()) >= 0.99
    assert total(shared) >= 0.95 * total(together)
    let_in = sum(one.num_requests - one.num_refused for one in shared.values())
    assert sum(one.num_late for one in shared.values()) <= 0.05 * let_in


@pytest.mark.parametrize(
    ("num_tenants", "num_gateways", "goodput"),
    [(2, 2, 0.95), (10, 2, 0.95), pytest.param(50, 2, 0.95, marks=pytest.mark.thorough), (10, 4, 0.9)],
)
def test_gateways_give_equal_tenants_the_same_where_each_comes_to_all(
    num_tenants: int, num_gateways: int, goodput: float
) -> None:
    for_s = max(10.0, num_tenants)
    rate_rps = 3 * FAST.rate_rows_per_s / num_tenants
    arrivals = {f"t{n}": poisson(rate_rps, for_s, n) for n in range(num_tenants)}
    one, several = run(FAST, arrivals), run(FAST, arrivals, num_gateways=num_gateways)
    assert jain(it.num_in_time for it in several.values()) >= 0.99
    assert total(several) >= goodput * total(one)


def test_a_tenant_that_has_a_gateway_to_itself_gets_a_share_of_gateways_and_not_of_tenants() -> None:
    arrivals = {name: poisson(FAST.rate_rows_per_s, 15.0, seed) for seed, name in enumerate("abc")}
    answers = run(FAST, arrivals, num_gateways=2, homes={"a": 0, "b": 1, "c": 1})
    of_all = [it.num_in_time / total(answers) for it in answers.values()]
    assert 0.45 <= of_all[0] <= 0.55
    assert jain(of_all[1:]) >= 0.99


def test_weights_and_reserved_ratios_are_what_tenants_get_when_all_send_too_much() -> None:
    arrivals = {name: poisson(1.5 * FAST.rate_rows_per_s, 15.0, seed) for seed, name in enumerate("abc")}
    by_weight = run(FAST, arrivals, Terms({"a": Term(weight=3.0)}))
    of_a = by_weight["a"].num_in_time / total(by_weight)
    assert 0.57 <= of_a <= 0.63
    reserved = run(FAST, arrivals, Terms({"b": Term(reserved_ratio=0.5)}))
    assert 0.63 <= reserved["b"].num_in_time / total(reserved) <= 0.70, "its half, and a third of the rest"


def test_what_a_tenant_leaves_others_use() -> None:
    arrivals = {"a": poisson(0.2 * FAST.rate_rows_per_s, 10.0, 1), "b": poisson(3 * FAST.rate_rows_per_s, 10.0, 2)}
    answers = run(FAST, arrivals, Terms({"a": Term(weight=100.0, reserved_ratio=0.9)}))
    assert answers["b"].num_in_time >= 0.75 * FAST.rate_rows_per_s * 10.0


def test_one_tenant_is_treated_as_if_there_were_none() -> None:
    arrivals = poisson(2 * FAST.rate_rows_per_s, 3.0, 1)
    assert run(FAST, {"a": arrivals})["a"] == replay([FixedPool("p", FAST, 1.0)], arrivals, DEADLINES_S[FAST])


def test_a_full_line_of_one_tenant_refuses_that_tenant_alone_by_the_head_too() -> None:
    queue, now = pool(), 0.0
    exact, candidates = Exact(queue), [Candidate(queue, TENTH, 1.0)]
    num_let_in = 0
    while choose(now, candidates, 1, now + 1.0, tenant="flood") is not None:
        queue.admit(None, TENTH, 1, now + 1.0, tenant="flood")
        exact.send(now)
        num_let_in += 1
    assert num_let_in == 10
    assert not may_admit(now, candidates, 1, now + 1.0, tenant="flood")
    assert may_admit(now, candidates, 1, now + 1.0, tenant="small")
    chosen = choose(now, candidates, 1, now + 1.0, tenant="small")
    assert chosen is not None
    wait_s = retry_after_s(now, candidates, 1, now + 1.0, tenant="flood")
    assert wait_s is not None
    assert wait_s > 0
    ticket = queue.admit(None, TENTH, 1, now + 1.0, tenant="small")
    exact.send(now)
    exact.until(5.0)
    ended = {id(one): at for one, at in exact.done}
    assert ended[id(ticket)] <= 0.4, "behind what had been sent, before what waited"
    assert queue.num_waiting == 0


def test_a_flood_that_is_late_makes_nobody_else_more_careful() -> None:
    queue = pool()
    for tenant in ("flood", "small"):
        assert queue.finish(0.0, TENTH, 1, 9.0, tenant=tenant) is not None
        queue.enter(0.0, None, TENTH, 1, 9.0, tenant=tenant)
    tail_s = queue._tail_s(TENTH, 1, 0.1, 3)
    late = queue.enter(0.0, None, TENTH, 0.0, 0.3, tenant="flood")
    assert late.replica is not None
    queue.answered(0.5, late)
    assert queue._tail_s(TENTH, 1, 0.1, 3) == tail_s


def test_a_tenants_own_priorities_and_deadlines_hold_within_its_share() -> None:
    queue, now = pool(), 0.0
    exact = Exact(queue)
    for _ in range(2):
        queue.admit(None, TENTH, 1, now + 9.0, tenant="flood")
    exact.send(now)
    low = queue.admit(None, TENTH, 1, now + 5.0, 5, tenant="small")
    late = queue.admit(None, TENTH, 1, now + 6.0, 2, tenant="other")
    soon = queue.admit(None, TENTH, 1, now + 3.0, 2, tenant="third")
    exact.send(now)
    exact.until(9.0)
    order = [one for one, _ in exact.done if one in (low, late, soon)]
    assert order.index(soon) < order.index(late) < order.index(low) or late.sent == soon.sent


COSTS = st.floats(0.001, 1.0)
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), COSTS, st.booleans()), max_size=60)


@given(STEPS, st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 10.0)))
def test_the_imagined_server_has_as_much_to_do_as_the_pool_and_is_done_when_that_is(
    steps: list[tuple[str, float, bool]], weights: dict[str, float]
) -> None:
    shares = Shares(Terms({tenant: Term(weight) for tenant, weight in weights.items()}))
    let_in: list[tuple[str, float]] = []
    for tenant, cost_s, is_given_back in steps:
        shares.charge(tenant, cost_s)
        let_in.append((tenant, cost_s))
        if len(let_in) > 5:
            owner, done_s = let_in.pop(0)
            if is_given_back:
                shares.give_back(owner, done_s)
            else:
                shares.did(done_s)
        left_s = sum(cost for _, cost in let_in)
        assert shares.num_active >= 1
        groups = {name: shares.group(name) for name in "abcd"}
        assert any(group == 2 for group in groups.values()), "somebody has as much left as the mean"
        assert shares.backlog_s == pytest.approx(left_s, abs=1e-6)
    for _, cost_s in let_in:
        shares.did(cost_s)
    shares.did(1e-6)
    assert shares.num_active == 0
    assert all(shares.group(name) == 0 for name in "abcd")


TERMS = st.builds(Term, st.floats(0.1, 10.0), st.sampled_from([0.0, 0.1, 0.2]))


@given(TERMS, TERMS, st.lists(TERMS, max_size=3), st.integers(0, 50))
def test_what_idle_tenants_have_reserved_is_shared_by_those_that_have_work(
    own: Term, flood: Term, idle: list[Term], num_others: int
) -> None:
    names = [f"idle-{number}" for number in range(len(idle))]
    shares = Shares(Terms({"own": own, "flood": flood, **dict(zip(names, idle, strict=True))}))
    shares.charge("flood", 1e4)
    for name in ["own", *names, *(f"other-{number}" for number in range(num_others))]:
        shares.charge(name, 0.1)
    while shares.num_active > 1:
        shares.did(1.0)
    shares.charge("own", 1.0)
    took_s = 0.0
    while shares.group("own"):
        shares.did(0.01)
        took_s += 0.01
    rest = 1 - own.reserved_ratio - flood.reserved_ratio
    part = own.reserved_ratio + rest * own.weight / (own.weight + flood.weight)
    assert took_s == pytest.approx(1.0 / part, abs=0.02)


def test_what_is_given_back_leaves_nothing_behind_however_long_a_tenant_is_busy() -> None:
    shares = Shares(Terms())
    for _ in range(5):
        shares.charge("flood", 1.0)
    for _ in range(1000):
        shares.charge("flood", 1.0)
        shares.charge("flood", 1.0)
        shares.give_back("flood", 1.0)
        shares.did(1.0)
    assert len(shares._ends) < 20


def test_tenants_that_come_and_go_leave_nothing_behind_while_one_with_a_reservation_is_busy() -> None:
    shares = Shares(Terms({"always": Term(reserved_ratio=0.5), "light": Term(0.001), "heavy": Term(10_000.0)}))
    shares.charge("always", 1e6)
    for _ in range(1000):
        for tenant in ("light", "heavy", "other"):
            shares.charge(tenant, 1e-3)
        while shares.num_active > 1:
            shares.did(1.0)
    assert len(shares._ends) < 100
    assert shares.group("always") == 2


@pytest.mark.parametrize("other", [Term(0.001), Term(10_000.0)], ids=["light", "heavy"])
def test_what_an_arrival_costs_does_not_grow_with_the_tenants_that_reserve_something(other: Term) -> None:
    """Counted in entries of heaps, to which all else is in proportion."""
    num_tenants = 2_000
    names = [f"t{number}" for number in range(num_tenants)]
    terms = {name: Term(1 + number % 3, 0.9 / num_tenants) for number, name in enumerate(names)}
    shares = Shares(Terms({**terms, "other": other}))
    for name in names:
        shares.charge(name, 1.0)
    assert shares._number <= 20 * num_tenants
    before = shares._number
    for _ in range(num_tenants):  # it comes and goes, and what all have goes up and down with it
        shares.charge("other", 0.001)
        shares.did(0.01)
    assert shares._number - before <= 20 * num_tenants


@pytest.mark.parametrize("worked_s", [0.0, 1e5, 1e9])
@pytest.mark.parametrize(
    "terms",
    [
        {"a": Term(reserved_ratio=0.5)},
        {"a": Term(reserved_ratio=1.0)},
        {"a": Term(10_000.0, 0.1), "b": Term(0.001, 0.5)},
    ],
    ids=["half", "all", "heavy and light"],
)
def test_a_pool_that_is_never_idle_comes_to_the_end_of_each_tenants_work_although_clocks_are_rounded(
    terms: dict[str, Term], worked_s: float
) -> None:
    shares, names, generator = Shares(Terms(terms)), [*terms, "other", "another"], random.Random(1)
    shares.charge("other", 1e-3)
    shares.charge("flood", worked_s + 1.0)
    with few_calls():
        shares.did(worked_s)
    left_s = 1.001
    for _ in range(1000 if worked_s else 10_000):
        cost_s, done_s = generator.uniform(0.005, 0.015), generator.uniform(0.005, 0.015)
        shares.charge(generator.choice(names), cost_s)
        left_s += cost_s
        if left_s > 0.5 + done_s:
            with few_calls():
                shares.did(done_s)
            left_s -= done_s
    assert shares.backlog_s == pytest.approx(left_s, abs=1e-3)


@contextmanager
def few_calls() -> Iterator[None]:
    """Instead of never coming to an end."""
    num_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"
        if num_calls > 1000:
            sys.setprofile(None)
            pytest.fail("it comes to no end")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_terms_that_reserve_more_than_everything_are_none() -> None:
    with pytest.raises(ValueError, match="more than all"):
        Terms({"a": Term(reserved_ratio=0.6), "b": Term(reserved_ratio=0.6)})
    for weight in (0.0, 1e-9, 1e9, float("nan")):
        with pytest.raises(ValueError, match="weight"):
            Term(weight)
