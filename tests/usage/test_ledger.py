"""Quotas hold to the request, windows begin with second, hour and month, and what is handed over is counted once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.usage.ledger import (
    BYTES,
    DEVICE_S,
    DOLLARS,
    HOUR_S,
    REQUESTS,
    TOKENS,
    Batch,
    Begun,
    Excess,
    Lease,
    Ledger,
    Limit,
    Part,
    Quotas,
    Window,
    begin,
    fair_parts,
)

NOW = datetime(2026, 11, 25, 20, 30, 15, 250_000, tzinfo=UTC).timestamp()


def ledger(*limits: Limit, concurrent: int | None = None) -> Ledger:
    made = Ledger()
    made.quotas = {"a": Quotas(limits, concurrent)}
    return made


def hand_over(it: Ledger) -> Batch:
    for _ in it.gathers():
        pass
    return it.hand_over()


def hear(
    it: Ledger,
    totals: Mapping[Window, Sequence[float]],
    leases: Mapping[Part, Lease] | None = None,
    *,
    has_forgotten: bool = False,
) -> None:
    for _ in it.hears(totals, leases or {}, has_forgotten=has_forgotten):
        pass


def ask(
    it: Ledger, now: float = NOW, *, num_bytes: int = 100, device_s: float = 0.5, tokens: float = 8
) -> Excess | None:
    """One request, answered at once."""
    if (excess := it.begin(now, "a", num_bytes)) is None:
        it.end(now, "a", num_bytes, ("digits", "cpu", device_s, device_s * 2, tokens))
        it.left("a")
    return excess


@pytest.mark.parametrize(
    ("per", "passes_in_s"),
    [("second", 0.75), ("hour", 29 * 60 + 44.75), ("month", 5 * 86400 + 3 * 3600 + 29 * 60 + 44.75)],
)
def test_a_quota_of_requests_passes_when_its_window_ends(per: str, passes_in_s: float) -> None:
    it = ledger(Limit(REQUESTS, per, 3))
    assert [ask(it) for _ in range(3)] == [None] * 3
    excess = ask(it)
    assert excess is not None
    assert excess.passes_in_s == pytest.approx(passes_in_s)
    assert ask(it, NOW + passes_in_s - 0.01) is not None
    assert ask(it, NOW + passes_in_s + 0.01) is None
    assert it.begin(NOW, "b", 1) is None, "others have none"


@pytest.mark.parametrize(
    ("limit", "num_let_in"),
    [
        (Limit(BYTES, "hour", 250), 2),  # the third would not fit
        (Limit(DEVICE_S, "hour", 1.2), 3),  # the third begins with 1.0 used
        (Limit(DOLLARS, "hour", 2.0), 2),
        (Limit(TOKENS, "hour", 8), 1),
        (Limit(REQUESTS, "hour", 0), 0),
    ],
)
def test_each_kind_of_quota_counts_its_own(limit: Limit, num_let_in: int) -> None:
    it = ledger(limit)
    assert [ask(it) is None for _ in range(5)] == [True] * num_let_in + [False] * (5 - num_let_in)


def test_what_alone_is_more_than_a_quota_of_bytes_never_passes() -> None:
    excess = ask(ledger(Limit(BYTES, "hour", 250), Limit(REQUESTS, "hour", 1)), num_bytes=251)
    assert excess is not None
    assert (excess.passes_in_s, excess.is_too_large) == (inf, True)


@pytest.mark.parametrize(
    "it", [ledger(Limit(what, "hour", 0)) for what in (REQUESTS, DEVICE_S, DOLLARS)] + [ledger(concurrent=0)]
)
def test_a_quota_of_nothing_never_passes(it: Ledger) -> None:
    excess = ask(it)
    assert excess is not None
    assert (excess.passes_in_s, excess.is_too_large) == (inf, False)
    assert "at once" not in excess.text  # of which there are none


def test_who_is_refused_by_a_gateways_part_is_told_of_it() -> None:
    it = ledger(Limit(REQUESTS, "second", 8), concurrent=6)
    hear(it, {}, {("a", "concurrent"): Lease(0.0, {})})
    assert (excess := ask(it)) is not None
    assert "0 of them by this gateway" in excess.text
    hear(it, {}, {("a", "requests"): Lease(0.0, {})})
    assert (excess := ask(it)) is not None
    assert "0 of them by this gateway" in excess.text


def test_of_several_quotas_the_one_that_passes_last_is_told() -> None:
    it = ledger(Limit(REQUESTS, "second", 1), Limit(REQUESTS, "hour", 1))
    ask(it)
    excess = ask(it)
    assert excess is not None
    assert excess.passes_in_s is not None
    assert excess.passes_in_s > 60


def test_requests_count_while_they_run_and_not_when_nobody_answered() -> None:
    it = ledger(Limit(REQUESTS, "hour", 2), concurrent=2)
    assert [it.begin(NOW, "a", 1) for _ in range(2)] == [None, None]
    excess = it.begin(NOW, "a", 1)
    assert excess is not None
    assert excess.passes_in_s is None
    it.unanswered(NOW, NOW, "a", 1)
    it.left("a")
    assert it.begin(NOW, "a", 1) is None
    for _ in range(2):
        it.end(NOW, "a", 1, ("digits", "cpu", 0.1, 0.0, 0.0))
        it.left("a")
    assert it.begin(NOW, "a", 1) is not None
    assert it.num_open == {"a": 0}


def test_a_request_of_many_inferences_is_one_and_all_of_it_that_servers_do_counts() -> None:
    it = ledger(Limit(REQUESTS, "hour", 1), Limit(DEVICE_S, "hour", 10.0), Limit(BYTES, "hour", 45), concurrent=1)
    begun = [it.begin(NOW, "a", 10, is_first=number == 0) for number in range(5)]
    assert [excess is None for excess in begun] == [True] * 4 + [False], "bytes of all of them"
    for number in range(4):
        it.end(NOW, "a", 10, ("texts", "cpu", 0.5, 0.0, 0.0), is_first=number == 0)
    it.left("a")
    assert it.used(NOW, "a", "hour") == [1.0, 2.0, 0.0, 0.0, 40.0]
    assert it.sums["a", "texts", "cpu"][REQUESTS] == 1
    assert it.num_open == {"a": 0}


def test_who_was_not_answered_gives_back_nothing_in_a_later_window() -> None:
    it = ledger(Limit(REQUESTS, "second", 2), Limit(REQUESTS, "hour", 3))
    assert [it.begin(NOW, "a", 1) for _ in range(2)] == [None, None]
    for _ in range(2):
        it.unanswered(NOW + 1, NOW, "a", 1)
    assert [ask(it, NOW + 1) is None for _ in range(3)] == [True, True, False], "two a second, as ever"
    assert it.used(NOW + 1, "a", "hour")[REQUESTS] == 2, "the hour goes on"


def test_requests_of_before_a_quota_give_back_nothing() -> None:
    it = ledger()
    it.begin(NOW, "a", 1)
    it.quotas = {"a": Quotas((Limit(REQUESTS, "hour", 1),))}
    it.unanswered(NOW + 1, NOW, "a", 1)
    assert it.used(NOW + 1, "a", "hour")[REQUESTS] == 0


def test_seconds_that_are_over_do_not_pile_up_while_the_store_is_away() -> None:
    it = ledger(Limit(REQUESTS, "second", 5))
    ask(it)
    hand_over(it)
    for number in range(1, 100):
        ask(it, NOW + number)
    hear(it, {})
    assert len(hand_over(it).windows) <= 1


def test_what_is_handed_over_is_the_same_until_it_is_stored_and_others_counts_come_back() -> None:
    it = ledger(Limit(REQUESTS, "hour", 10))
    ask(it)
    first = hand_over(it)
    ask(it)
    assert hand_over(it) is first
    assert it.used(NOW, "a", "hour")[REQUESTS] == 2
    (window,) = first.windows
    hear(it, {window: [1.0 + 5.0, 0, 0, 0, 0]})  # another gateway's five
    assert it.used(NOW, "a", "hour")[REQUESTS] == 7
    second = hand_over(it)
    assert second is not first
    assert second.windows[window][REQUESTS] == 1
    assert {entry.model: amounts[REQUESTS] for entry, amounts in second.entries.items()} == {"digits": 1}
    assert isinstance(window, Window)


STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["ask", "unanswered", "sync", "restart"])), max_size=40)


@given(STEPS)
def test_a_store_has_all_that_several_gateways_counted_once_whenever_they_tell_and_begin(
    steps: list[tuple[int, str]],
) -> None:
    limits = Limit(REQUESTS, "hour", 1e6), Limit(BYTES, "month", 1e9)
    gateways, stored, num = [ledger(*limits), ledger(*limits)], dict[Window, list[float]](), 0

    def sync(it: Ledger) -> None:
        for window, amounts in hand_over(it).windows.items():
            stored[window] = list(map(sum, zip(stored.get(window, [0.0] * 5), amounts, strict=True)))
        hear(it, stored)

    for who, what in steps:
        it = gateways[who]
        if what == "ask":
            assert ask(it) is None
            num += 1
        elif what == "unanswered":
            assert it.begin(NOW, "a", 100) is None
            it.unanswered(NOW, NOW, "a", 100)
        else:
            sync(it)
        if what == "restart":
            gateways[who] = again = Ledger()
            hear(again, stored)
            again.quotas = it.quotas
    for it in gateways * 2:
        sync(it)
    for per in ("hour", "month"):
        assert all(it.used(NOW, "a", per) == [num, 0.5 * num, 1.0 * num, 8.0 * num, 100.0 * num] for it in gateways)
        assert sum(amounts[REQUESTS] for window, amounts in stored.items() if window.per == per) == num


def test_what_a_store_has_lost_counts_on_where_it_is_known() -> None:
    """As with a Redis that keeps nothing and is killed, twice."""
    it = ledger(Limit(REQUESTS, "hour", 100))

    def told(number: float, *, has_forgotten: bool = False) -> float:
        """How many are known after one more, and after so many that the store has, with that one."""
        ask(it)
        (window,) = hand_over(it).windows
        hear(it, {window: [number, 0, 0, 0, 0]}, has_forgotten=has_forgotten)
        return it.used(NOW, "a", "hour")[REQUESTS]

    assert told(40) == 40
    assert told(1, has_forgotten=True) == 41
    assert told(4) == 44, "two are another gateway's"
    assert told(1, has_forgotten=True) == 45
    ask(it, NOW + HOUR_S)
    assert it.used(NOW + HOUR_S, "a", "hour")[REQUESTS] == 1


@pytest.mark.parametrize(("per", "back_s"), [("second", 90.0), ("hour", 2 * HOUR_S), ("month", 40 * 86400.0)])
def test_a_clock_that_is_set_back_keeps_nobody_waiting_until_it_is_as_late_again(per: str, back_s: float) -> None:
    it = ledger(Limit(REQUESTS, per, 1))
    assert [ask(it) is None for _ in range(2)] == [True, False]
    assert ask(it, NOW - 0.5) is not None, "what a clock is corrected by all the time gives nothing"
    assert [ask(it, NOW - back_s) is None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("per", ["second", "hour"])
def test_who_looks_at_all_tenants_for_seconds_takes_nothing_of_windows_that_began_meanwhile(per: str) -> None:
    """As a scrape of thousands does, between whose parts requests come."""
    it = ledger(Limit(REQUESTS, per, 1))
    asks, ratios, later = it.asks(NOW, "here"), it.quota_ratios(NOW), NOW + HOUR_S
    assert ask(it, later) is None
    list(asks)
    assert [ratio for *_, ratio in ratios] == [1.0]
    assert ask(it, later) is not None


def test_a_document_that_comes_amid_a_look_leaves_no_limit_of_others_out() -> None:
    """Of what a gateway did not ask for it would have all, until it asks again."""
    of = {name: ((Limit(REQUESTS, "second", 4),), 2) for name in "abc"}
    it = Ledger()
    it.quotas = {name: Quotas(*given) for name, given in of.items()}
    asks, ratios = it.asks(NOW, "here"), it.quota_ratios(NOW)
    found, told = [next(asks)[0]], [next(ratios)[0]]
    it.quotas = {name: Quotas(*given) for name, given in (of | {"c": ((), 1)}).items()}
    found += [part for part, _ in asks]
    told += [tenant for tenant, *_ in ratios]
    assert found == [("a", "requests"), ("a", "concurrent"), ("b", "requests"), ("b", "concurrent")]
    assert told == ["a", "a", "b", "b"]


def test_what_is_used_after_a_clock_was_set_back_is_of_the_hour_that_it_tells() -> None:
    it = ledger()
    ask(it)
    hand_over(it)
    hear(it, {})
    ask(it, NOW - 2 * HOUR_S)
    assert [entry.hour for entry in hand_over(it).entries] == [int(NOW // HOUR_S) - 2]


@pytest.mark.parametrize(
    ("limit", "wants", "is_whole", "parts"),
    [
        (10, {"a": 0}, True, [10]),
        (10, {"a": 10, "b": 10}, True, [5, 5]),
        (10, {"a": 10, "b": 2}, True, [8, 2]),
        (10, {"a": 0, "b": 0, "c": 0}, True, [4, 3, 3]),
        (1, {"a": 0, "b": 1}, True, [0, 1]),
        (2, {"a": 2, "b": 2, "c": 2}, True, [1, 1, 0]),
        (0, {"a": 1, "b": 0}, True, [0, 0]),
        (9.0, {"a": 9.0, "b": 1.0, "c": 9.0}, False, [4.0, 1.0, 4.0]),
        (100, {"a": 100, "b": 0}, True, [98, 2]),
        (9.0, {"a": 9.0, "b": 18.0, "c": 0.0}, False, [9.0, 0.0, 0.0]),
        (1, {"a": 0, "b": 2}, True, [0, 1]),
    ],
)
def test_a_limit_is_shared_out_by_what_gateways_want_and_all_of_it(
    limit: float, wants: dict[str, float], is_whole: bool, parts: list[float]
) -> None:
    assert fair_parts(limit, wants, is_whole=is_whole) == dict(zip(wants, map(pytest.approx, parts), strict=True))


@given(st.floats(0, 1000), st.dictionaries(st.text(max_size=2), st.floats(0, 2000), min_size=1, max_size=6))
def test_parts_add_up_to_the_limit_and_never_beyond(limit: float, wants: dict[str, float]) -> None:
    assert sum(fair_parts(limit, wants, is_whole=False).values()) == pytest.approx(limit)
    whole = fair_parts(limit, wants, is_whole=True)
    assert all(part == int(part) >= 0 for part in whole.values())
    assert sum(whole.values()) == int(limit + 1e-9)


def num_calls(it: Ledger, given: Mapping[str, Quotas], begun: Mapping[str, Begun]) -> int:
    seen: list[None] = []
    sys.setprofile(lambda _frame, event, _argument: seen.append(None) if event == "call" else None)
    it.follow(given, begun)
    sys.setprofile(None)
    return len(seen)


def test_a_first_document_costs_little_where_what_it_needs_was_begun_elsewhere() -> None:
    """In calls of functions. The begun parts hold limits as others do, and what gateways share out."""
    limits = Limit(REQUESTS, "hour", 2), Limit(REQUESTS, "second", 9)
    document = {f"t{number}": Quotas(limits) for number in range(1000)}
    it = Ledger()
    hear(it, {}, {("t8", "requests"): Lease(0.0, {})})
    begun = {tenant: begin(tenant, quotas) for tenant, quotas in document.items()}
    assert num_calls(it, document, begun) < 2000 < num_calls(Ledger(), document, {}) / 3
    assert [it.begin(NOW, "t7", 1) is None for _ in range(3)] == [True, True, False]
    assert it.begin(NOW, "t8", 1) is not None, "this gateway's part of its second is nothing"
    changed = document | {"t7": Quotas((Limit(REQUESTS, "hour", 3),))}
    it.follow(changed, {tenant: begin(tenant, quotas) for tenant, quotas in changed.items()})
    assert [it.begin(NOW, "t7", 1) is None for _ in range(2)] == [True, False], "what was counted goes on"


def test_a_new_document_costs_little_for_tenants_whose_quotas_are_the_same_and_their_counts_go_on() -> None:
    """In calls of functions, which no other load changes."""

    def document() -> dict[str, Quotas]:
        limits = Limit(REQUESTS, "hour", 2), Limit(BYTES, "month", 1e9)
        return {f"t{number}": Quotas(limits, concurrent=3) for number in range(1000)}

    def calls(given: dict[str, Quotas]) -> int:
        return num_calls(it, given, {})

    it = Ledger()
    it.quotas = document()
    assert it.begin(NOW, "t7", 1) is None
    assert calls(document()) < 2000
    changed = document() | {"t7": Quotas((Limit(REQUESTS, "hour", 1),))}
    del changed["t8"]
    assert calls(changed) < 2000
    assert it.used(NOW, "t7", "hour")[REQUESTS] == 1
    assert it.begin(NOW, "t7", 1) is not None
    assert it.begin(NOW, "t8", 1) is None
    assert it.begin(NOW, "t9", 1) is None
