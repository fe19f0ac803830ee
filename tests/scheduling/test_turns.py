"""Several models on one device: does each get its share of it, and is one that stays within its share in time whatever the others do?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.decisions.simulate.arrivals import Arrival
from serving.decisions.simulate.fixed_pools import Answers, FixedPool, replay_models
from serving.scheduling.admission import PoolQueue
from serving.scheduling.curve import Curve
from serving.scheduling.executions import Execution
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket
from serving.scheduling.shares import Term, Terms
from serving.scheduling.turns import BREAKS, Turns, Use
from tests.scheduling.test_shares import jain, poisson

LEAD_S = 1.0 + BREAKS * 0.5
LONG_S, SHORT_S, MAX_BATCH = 0.080, 0.020, 8
FOR_S, DEADLINE_S = 10.0, 1.0


def net(name: str, full_s: float, *, is_fixed: bool, gathers: bool = False) -> Service:
    """Executions cost the same whatever their rows, as on a card that is not full, or each row does."""
    curve = Curve(((1, full_s if is_fixed else full_s / MAX_BATCH), (MAX_BATCH, full_s)))
    return Service(curve, 1, MAX_BATCH, model=name, gathers=gathers)


def nets(*, is_fixed: bool, is_fair: bool = True, gathers: bool = False) -> list[Service]:
    """A long and a short one. Not `is_fair`: as if they were variants of one model, between which nothing is shared out."""
    return [
        net(name if is_fair else "", seconds, is_fixed=is_fixed, gathers=gathers)
        for name, seconds in (("long", LONG_S), ("short", SHORT_S))
    ]


def run(
    services: Sequence[Service],
    times: Sequence[float],
    terms: Terms | None = None,
    *,
    shares_device: bool = True,
    num_gateways: int = 1,
) -> list[Answers]:
    """Of each model so many times what it can do alone."""
    arrivals: list[list[Arrival]] = [
        poisson(n * MAX_BATCH / service.curve.seconds(MAX_BATCH), FOR_S, seed)
        for seed, (n, service) in enumerate(zip(times, services, strict=True))
    ]
    pools = [FixedPool(f"p{n}", service, 1.0) for n, service in enumerate(services)]
    deadlines_s = [DEADLINE_S] * len(pools)
    return replay_models(pools, arrivals, deadlines_s, terms, shares_device=shares_device, num_gateways=num_gateways)


def parts(services: Sequence[Service], answers: Sequence[Answers]) -> list[float]:
    """Of the device: answers in time as a share of what the model can do alone."""
    return [
        a.num_in_time / FOR_S * s.curve.seconds(MAX_BATCH) / MAX_BATCH for s, a in zip(services, answers, strict=True)
    ]


KINDS = pytest.mark.parametrize(
    ("is_fixed", "gathers"),
    [
        (True, False),
        (False, True),
        *(pytest.param(*both, marks=pytest.mark.thorough) for both in ((True, True), (False, False))),
    ],
)


@KINDS
def test_models_that_flood_one_device_get_the_same_of_it_and_waste_nothing(is_fixed: bool, gathers: bool) -> None:
    fair = nets(is_fixed=is_fixed, gathers=gathers)
    unfair = nets(is_fixed=is_fixed, is_fair=False, gathers=gathers)
    shared, before = parts(fair, run(fair, [3.0, 3.0])), parts(unfair, run(unfair, [3.0, 3.0]))
    assert jain(before) < 0.9, "without shares there is nothing to show"
    assert jain(shared) >= 0.99
    least = 0.85 if is_fixed and not gathers else 0.95
    assert sum(shared) >= least * sum(before), "a model that was held begins with one row where nothing is gathered"


def test_models_with_executions_of_seconds_get_the_same_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_S", "SHORT_S", "FOR_S", "DEADLINE_S"):
        monkeypatch.setitem(globals(), name, 25 * globals()[name])
    services = nets(is_fixed=True, gathers=True)
    assert jain(parts(services, run(services, [3.0, 3.0]))) >= 0.99


@KINDS
def test_a_model_within_its_share_is_in_time_beside_one_that_floods(is_fixed: bool, gathers: bool) -> None:
    fair = nets(is_fixed=is_fixed, gathers=gathers)
    unfair = nets(is_fixed=is_fixed, is_fair=False, gathers=gathers)
    (flood, small), (_, before), (_, alone) = run(fair, [3.0, 0.4]), run(unfair, [3.0, 0.4]), run(fair, [0.001, 0.4])
    assert before.attainment_ratio < 0.95, "without shares there is nothing to show"
    assert small.attainment_ratio == 1.0
    if (
        not is_fixed
    ):  # where each of the flooding model's executions costs a full one, even that of one row after a break, it is more
        assert small.latency_p99_s is not None
        assert alone.latency_p99_s is not None
        assert small.latency_p99_s <= alone.latency_p99_s + 1.25 * LONG_S
        assert flood.num_expired + flood.num_late <= 0.05 * (flood.num_requests - flood.num_refused)


@pytest.mark.parametrize(
    ("is_fixed", "gathers", "in_time"),
    [(True, True, 0.98), pytest.param(False, False, 0.95, marks=pytest.mark.thorough), (True, False, 0.9)],
    ids=["gathered", "by rows", "fixed"],
)
def test_models_keep_their_shares_where_two_gateways_send(is_fixed: bool, gathers: bool, in_time: float) -> None:
    """Neither of them sees which executions ran beside the other's requests, nor whose lines are long there."""
    services = nets(is_fixed=is_fixed, gathers=gathers)
    assert jain(parts(services, run(services, [3.0, 3.0], num_gateways=2))) >= 0.99
    _, small = run(services, [3.0, 0.4], num_gateways=2)
    assert small.attainment_ratio >= in_time


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        (Terms({"short": Term(weight=3.0)}), [0.25, 0.75]),
        (Terms({"long": Term(weight=3.0)}), [0.75, 0.25]),
        (Terms({"long": Term(reserved_ratio=0.6), "idle": Term(reserved_ratio=0.4)}), [0.8, 0.2]),
    ],
    ids=["short 3", "long 3", "long reserved 0.6"],
)
def test_weights_and_reserved_ratios_are_what_models_get(terms: Terms, wanted: Sequence[float]) -> None:
    services = nets(is_fixed=False)
    given = parts(services, run(services, [3.0, 3.0], terms))
    assert [one / sum(given) for one in given] == pytest.approx(wanted, abs=0.04)


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_nobody_waits_where_the_device_has_room_for_both(num_gateways: int) -> None:
    services, terms = nets(is_fixed=True), Terms({"short": Term(weight=9.0)})
    given = parts(services, run(services, [3.0, 3.0], terms, shares_device=False, num_gateways=num_gateways))
    assert min(given) >= 0.95


def test_what_a_model_leaves_the_other_uses() -> None:
    services = nets(is_fixed=True)
    given = parts(services, run(services, [3.0, 0.1], Terms({"short": Term(weight=9.0)})))
    assert given[1] == pytest.approx(0.1, abs=0.01)
    assert given[0] >= 0.75


SENDS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 1.0)), min_size=1, max_size=80)


@given(SENDS, st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10.0)))
def test_of_those_that_wait_one_may_send_and_none_gets_far_ahead(
    sends: list[tuple[str, float]], weights: dict[str, float]
) -> None:
    turns, sent_s = Turns(Terms({name: Term(weight) for name, weight in weights.items()})), dict.fromkeys("abc", 0.0)
    for name in "abc":
        turns.sent(name, 1e-9, LEAD_S, LEAD_S)
    for name, cost_s in sends:
        turns.look(0.0, "abc")
        free = [one for one in "abc" if not turns.is_held(one)]
        assert free, "somebody may send"
        turns.sent(name if name in free else free[0], cost_s, LEAD_S, LEAD_S)
        sent_s[name if name in free else free[0]] += cost_s
    shares = {name: weights.get(name, 1.0) for name in "abc"}
    least = min(sent_s[name] / shares[name] for name in "abc")
    for name in "abc":
        assert sent_s[name] <= least * shares[name] + LEAD_S + 1.0 + 1e-6, "its lead, and one more"


def test_one_that_waits_alone_is_never_held_and_what_others_did_not_ask_for_is_nobodys_claim() -> None:
    turns = Turns(Terms())
    for _ in range(1000):
        turns.look(0.0, "a")
        turns.sent("a", 1.0, LEAD_S, LEAD_S)
        assert not turns.is_held("a")
    turns.look(0.0, "ab")
    assert not turns.is_held("a")
    for _ in range(3):
        turns.sent("a", 1.0, LEAD_S, LEAD_S)
    turns.look(0.0, "ab")
    assert (turns.is_held("a"), turns.is_held("b")) == (True, False)
    turns.look(0.0, "a")
    assert not turns.is_held("a")


def test_nobody_is_held_for_a_model_that_others_do_not_slow() -> None:
    turns = Turns(Terms())
    turns.look(0.0, "ab")
    for pace in (1.0, 1.1, 0.9):
        turns.took("b", pace, is_beside=True)
    turns.sent("a", 100.0, LEAD_S, LEAD_S)
    turns.look(0.0, "ab")
    assert not turns.is_held("a")
    for _ in range(20):
        turns.took("b", 2.0, is_beside=True)
    turns.look(0.0, "ab")
    assert turns.is_held("a")
    assert turns.delay_s("a") == pytest.approx(100.0)


def test_of_several_gateways_the_servers_own_counts_are_the_truth() -> None:
    """What was charged here for what others' requests were part of, too, is given back; and nobody was alone who seemed to be."""
    turns = Turns(Terms())
    turns.look(0.0, "ab")
    turns.took("a", 5.0, is_beside=False)
    for name in "ab":
        turns.sent(name, 1.0, 0.5, LEAD_S)
    turns.did({"a": Use(1.0, 1.0, 3.0), "b": Use(2.0, 2.0, 3.0)}, {"a": 1.0, "b": 1.0}, 0.5, 3.0)
    turns.look(0.0, "ab")
    assert (turns.is_held("a"), turns.is_held("b")) == (False, False), "half of it is a's, all of b's"
    turns.sent("b", 0.5, 0.5, LEAD_S)
    turns.look(0.0, "ab")
    assert (turns.is_held("a"), turns.is_held("b")) == (False, True)
    turns.sent("a", 1.0, 0.5, LEAD_S)
    turns.look(0.0, "ab")
    assert (turns.is_held("a"), turns.is_held("b")) == (False, False), "its pace is not that of 5"


def test_a_gateway_that_has_its_servers_to_itself_again_goes_by_what_it_sees() -> None:
    turns = Turns(Terms())
    turns.did({}, {}, 0.5, 0.5)
    for others in (True, False, True, False):
        turns.meet(others, 0.5)
    assert turns.is_shared
    turns.meet(False, 0.5)
    assert not turns.is_shared


def test_what_is_left_after_it_was_booked_costs_its_model_what_its_server_tells() -> None:
    """Nothing of it went out, or it went on: what it was charged for is given back, beside what answers were."""
    long, short = nets(is_fixed=False)
    queue = PoolQueue("p", [replica := Replica("p-0")])
    for service in (long, short):
        queue.enter(0.0, None, service, 1, 100.0)
    answered, gone = (queue.enter(0.0, None, short, 1, 100.0) for _ in range(2))
    queue.answered(0.1, answered)
    queue.leave(gone)
    assert replica.charged_s == {"short": pytest.approx(2 * SHORT_S / MAX_BATCH)}


def alternate(turns: Turns, num: int) -> dict[str, int]:
    """Both wait all the time, and who is not held sends executions of a tenth of a second: how many each."""
    sent = {"a": 0, "b": 0}
    for _ in range(num):
        turns.look(0.0, "ab")
        name = "a" if not turns.is_held("a") and (turns.is_held("b") or sent["a"] <= sent["b"]) else "b"
        turns.sent(name, 0.1, 0.2 + BREAKS * 0.1, 0.2)
        sent[name] += 1
    return sent


def test_what_idle_models_leave_is_shared_by_those_that_have_work() -> None:
    turns = Turns(Terms({"a": Term(reserved_ratio=0.2)}))
    for number in range(98):
        turns.sent(f"idle-{number}", 0.1, 0.2 + BREAKS * 0.1, 0.2)
    turns.sent("a", 0.1, 0.2 + BREAKS * 0.1, 0.2)
    turns.sent("b", 0.1, 0.2 + BREAKS * 0.1, 0.2)
    turns.look(0.0, "ab")
    turns.look(10.0, "ab")
    sent = alternate(turns, 500)
    assert sent["a"] / 500 == pytest.approx(0.6, abs=0.03)


def test_nobody_waits_long_for_a_model_of_which_nothing_comes_back() -> None:
    """Its instance hangs, and all that it may have in flight is there; the other's does not."""
    hangs, other = net("hangs", SHORT_S, is_fixed=True), net("other", SHORT_S, is_fixed=True)
    queue = PoolQueue("p", [Replica("p-0")])
    flying: list[Ticket] = []
    num_sent, now = 0, 0.0
    while now < 10.0:
        now += 0.1
        for ticket in flying:
            queue.answered(now, ticket)
        flying = []
        for service in (hangs, hangs, *[other] * MAX_BATCH):
            ticket = queue.admit(None, service, 4, 100.0)
        while (taken := queue.take(now)) is not None:
            if taken.service is other:
                flying.append(taken)
                num_sent += 1
    assert num_sent >= 100, "two executions fly in a tenth of a second"


def test_a_model_that_one_of_ten_servers_serves_keeps_the_others_from_nothing() -> None:
    queue = PoolQueue("p", [Replica(f"p-{n}") for n in range(10)])
    everywhere = net("everywhere", SHORT_S, is_fixed=True)
    curve = everywhere.curve
    here = Service(curve, 1, MAX_BATCH, without=frozenset(f"p-{n}" for n in range(9)), model="here")
    flying: list[Ticket] = []
    rows = {"everywhere": 0, "here": 0}
    for step in range(1, 101):
        now = step * SHORT_S
        for ticket in flying:
            queue.answered(now, ticket)
        flying = []
        for service in [here] * 4 + [everywhere] * 40:
            queue.admit(None, service, MAX_BATCH, 100.0)
        while (taken := queue.take(now)) is not None:
            assert taken.replica is not None
            flying.append(taken)
            rows[taken.service.full.model] += 1
    assert rows["here"] >= 100
    assert rows["everywhere"] >= 10 * 100


def flood(queue: PoolQueue, now: float, takes_s: Mapping[Service, float], num: int) -> dict[Service, float]:
    """Of all of these more waits than fits, on a device that does one execution after another, in the order in which instances began them.

    Returns the seconds that each had of it in so many executions.
    """
    flying: list[Ticket] = []
    asked: list[Execution] = []
    had_s = dict.fromkeys(takes_s, 0.0)
    for _ in range(num):
        for service in takes_s:
            while sum(line.num_waiting for line in queue._lines_of(service)) < 3 * MAX_BATCH:
                queue.admit(None, service, 1, 1e6)
        while (taken := queue.take(now)) is not None:
            flying.append(taken)
        begun = [it.execution for it in flying if it.execution is not None and it.execution.ends is not None]
        asked += [it for it in dict.fromkeys(begun) if it not in asked]
        execution = asked.pop(0)
        done = [ticket for ticket in flying if ticket.execution is execution]
        flying = [ticket for ticket in flying if ticket.execution is not execution]
        assert len(done) == MAX_BATCH, "it is full"
        now += takes_s[done[0].service]
        had_s[done[0].service] += takes_s[done[0].service]
        for ticket in done:
            queue.answered(now, ticket)
    return had_s


def met(*services: Service) -> tuple[PoolQueue, float]:
    """A pool that knows of several models, and the time by then."""
    queue = PoolQueue("p", [Replica("p-0")])
    for ticket in [queue.enter(0.0, None, service, 1, 1e6) for service in services]:
        queue.answered(0.1, ticket)
    return queue, 0.2


def alone(queue: PoolQueue, now: float, service: Service, times: Sequence[float]) -> float:
    """Executions while nobody else has work, as multiples of what the curve says; returns when they are done."""
    for one in times:
        ticket = queue.enter(now, None, service, 1, 1e6)
        now += one * service.curve.seconds(1)
        queue.answered(now, ticket)
    return now


def test_what_waited_of_a_held_model_is_sent_as_one_execution_and_counts_as_one() -> None:
    long, short = nets(is_fixed=True, gathers=True)
    had_s = flood(PoolQueue("p", [Replica("p-0")]), 0.0, {long: LONG_S, short: SHORT_S}, 400)
    assert had_s[short] == pytest.approx(had_s[long], rel=0.1)


@pytest.mark.parametrize("slow", ["long", "short"])
def test_a_first_execution_that_takes_a_hundred_times_as_long_leaves_its_model_its_share(slow: str) -> None:
    long, short = nets(is_fixed=True, gathers=True)
    queue, now = met(long, short)
    now = alone(queue, now, long if slow == "long" else short, [100.0])
    had_s = flood(queue, now, {long: LONG_S, short: SHORT_S}, 400)
    assert had_s[short] == pytest.approx(had_s[long], rel=0.2)


def test_a_model_whose_executions_all_take_longer_than_its_curve_says_is_charged_for_all_of_that() -> None:
    long, short = nets(is_fixed=True, gathers=True)
    queue, now = met(long, short)
    now = alone(queue, now, short, [10.0] * 40)
    had_s = flood(queue, now, {long: LONG_S, short: 10 * SHORT_S}, 400)
    assert had_s[short] == pytest.approx(had_s[long], rel=0.1)


@pytest.mark.parametrize("paces", [(2.0, 0.0), (4.0, 0.0), (3.0, 0.0, 0.0), (6.0, 3.0, 0.0)])
def test_executions_whose_ends_are_seen_together_cost_their_model_what_they_took(paces: tuple[float, ...]) -> None:
    turns = Turns(Terms())
    turns.look(0.0, "ab")
    for pace in paces * 100:
        turns.took("a", pace, is_beside=False)
    sent = alternate(turns, 500)
    times = sum(paces) / len(paces)
    assert sent["a"] == pytest.approx(500 / (1 + times), rel=0.15)


def test_one_look_at_an_execution_that_took_long_at_a_shared_server_leaves_its_model_its_share() -> None:
    turns = Turns(Terms())
    turns.look(0.0, "ab")
    turns.did({"b": Use(0.1, 0.1, 10.0)}, {"b": 0.1}, 0.5, 10.0)
    sent = alternate(turns, 500)
    assert sent["b"] == pytest.approx(500 / 2.5, rel=0.1), "1.5 times what its curve says, and not 50"
    for _ in range(15):
        turns.did({"b": Use(0.1, 0.1, 1.0)}, {"b": 0.1}, 0.5, 1.0)
    sent = alternate(turns, 500)
    assert sent["b"] == pytest.approx(500 / 11, rel=0.15), "all that it takes, by and by"
