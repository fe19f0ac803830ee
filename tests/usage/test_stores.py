"""Counts in a file and in Redis: added once, summed over gateways, there after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from serving import redis_client
from serving.errors import EnvironmentFault, UserError
from serving.usage import stores
from serving.usage.ledger import BYTES, HOUR_S, REQUESTS, Batch, Entry, Ledger, Limit, Quotas, Window, month_of
from serving.usage.stores import Servers, Slot, UsageStore, store_at
from tests.local.harness import LIMIT_S, wait_until
from tests.redis_server import RedisServer

NOW = 1_800_000_000.0
HOUR = int(NOW // HOUR_S)
ENTRY = Entry(HOUR, 'team "a":b', "digits", "cpu")
BATCH = Batch(
    {ENTRY: [1.0, 0.1, 0.25, 8.0, 100.0]},
    {
        Window("second", int(NOW), "a"): [1.0, 0.0, 0.0, 0.0, 0.0],
        Window("month", month_of(NOW), "a"): [1.0, 0.1, 0.0, 0.0, 0.0],
    },
)


@pytest.fixture(params=["file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "usage.db")
        return
    server = RedisServer(tmp_path)
    yield server.url
    server.kill()


def both(place: str) -> tuple[UsageStore, UsageStore]:
    return store_at(place), store_at(place)


def test_two_gateways_add_up_and_a_batch_that_comes_again_does_not(place: str) -> None:
    a, b = both(place)
    slot = Slot(int(NOW // 60), "cpu")
    assert a.add("a", 1, BATCH, {slot: Servers(2, 1)})
    assert a.add("a", 1, BATCH, {slot: Servers(2, 1)})
    assert b.add("b", 1, BATCH, {slot: Servers(2, 2)})
    assert a.add("a", 2, BATCH, {})
    assert b.entries(NOW) == {ENTRY: pytest.approx([3.0, 0.3, 0.75, 24.0, 300.0])}
    assert b.totals(NOW) == {
        window: pytest.approx([3 * it for it in amounts]) for window, amounts in BATCH.windows.items()
    }
    assert a.servers(NOW) == {slot: Servers(2, 2)}, "both see the same servers"
    a.close()
    b.close()
    again = store_at(place)
    assert again.entries(NOW)[ENTRY][0] == 3.0
    assert again.entries(NOW + HOUR_S) == {}
    assert Window("second", int(NOW), "a") not in again.totals(NOW + 1)
    again.close()


def test_servers_that_were_seen_since_are_kept_where_a_batch_comes_again(place: str) -> None:
    store = store_at(place)
    first, later = Slot(int(NOW // 60), "cpu"), Slot(int(NOW // 60) + 1, "cpu")
    store.add("a", 1, BATCH, {first: Servers(1, 1)})
    store.add("a", 1, BATCH, {first: Servers(2, 1), later: Servers(3, 3)})
    assert store.servers(NOW) == {first: Servers(2, 1), later: Servers(3, 3)}
    assert store.entries(NOW)[ENTRY][0] == 1.0
    store.close()


def test_a_file_that_nobody_has_written_is_an_error_to_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    with pytest.raises(EnvironmentFault, match="is not there"):
        store_at(str(path)).entries(NOW)
    assert not path.exists()


def test_redis_forgets_gateways_that_are_gone(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        store = store_at(server.url)
        store.add("a", 1, BATCH, {Slot(int(NOW // 60), "cpu"): Servers(1, 1)})
        with server.client() as client:
            keys = client.ask("KEYS", "tandem:usage:*")
            assert isinstance(keys, list)
            assert len(keys) == 5
            expiries = client.ask_all([("TTL", key) for key in keys])  # type: ignore[misc]
        assert all(isinstance(it, int) and it > 0 for it in expiries)
        store.close()
    finally:
        server.kill()


def test_a_store_that_lost_what_it_was_given_says_so_once(tmp_path: Path) -> None:
    """A Redis that keeps nothing, and is killed and started again."""
    server = RedisServer(tmp_path, "--appendonly", "no")
    store = store_at(server.url)
    try:
        assert [store.add("a", number, BATCH, {}) for number in (1, 2)] == [True, True]
        server.kill()
        server.start()
        with suppress(EnvironmentFault):  # of the connection that is gone
            store.totals(NOW)
        assert [store.add("a", number, BATCH, {}) for number in (3, 4)] == [False, True]
        assert store.entries(NOW)[ENTRY][REQUESTS] == 2.0
        assert store.add("b", 1, BATCH, {}), "one that starts has given nothing before"
    finally:
        store.close()
        server.kill()


def test_parts_of_before_a_clock_was_set_back_keep_nobody_from_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = gateways(str(tmp_path / "usage.db"), Quotas(concurrent=6), 2)
    look(NOW, *each, *each)
    wall = stores.time.time
    monkeypatch.setattr(stores.time, "time", lambda: wall() - HOUR_S)
    (_, a, _), _ = each
    look(NOW, each[0], each[0])
    assert dict(a.asks(NOW, "a"))["t", "concurrent"].target == 6.0
    for _, _, store in each:
        store.close()


def test_seconds_of_servers_are_those_of_each_minute() -> None:
    by_minute: dict[int, tuple[float, float]] = {}
    for begin, end, present, answering in ((50.0, 70.0, 2, 0), (70.0, 190.0, 2, 2), (190.0, 190.5, 3, 2)):
        stores.add_seconds(by_minute, begin, end, present, answering)
    assert by_minute == {0: (20.0, 0.0), 1: (120.0, 100.0), 2: (120.0, 120.0), 3: (21.5, 21.0)}


def test_windows_that_are_over_are_not_kept(tmp_path: Path) -> None:
    store = store_at(str(tmp_path / "usage.db"))
    windows = [Window("second", int(NOW), "a"), Window("hour", HOUR, "a"), Window("month", month_of(NOW), "a")]
    store.add("a", 1, Batch({}, {window: [1.0, 0.0, 0.0, 0.0, 0.0] for window in windows}), {})
    store.totals(NOW + 90 * 86400)
    assert store.totals(NOW) == {}
    store.close()


def test_a_place_that_cannot_be_used_is_told() -> None:
    with pytest.raises(UserError, match="redis://"):
        store_at("postgres://x")
    for gone in ("/nowhere/usage.db", "redis://127.0.0.1:1"):
        store = store_at(gone)
        with pytest.raises(EnvironmentFault):
            store.totals(NOW)


def test_a_folder_that_is_not_there_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault, match=f"{tmp_path}/none/usage.db .*name a file"):
        store_at("none/usage.db").add("a", 1, BATCH, {})


def test_what_a_scaler_saw_is_kept_beside_what_gateways_did(place: str) -> None:
    store = store_at(place)
    slot = Slot(int(NOW // 60), "cpu")
    store.add("gateway", 1, BATCH, {slot: Servers(3, 3)})
    store.add("scaler", 1, Batch(), {slot: Servers(1.25, 0.5)}, is_scaler=True)
    store.add("scaler", 2, Batch(), {slot: Servers(1.75, 1.25)}, is_scaler=True)  # the minute went on
    store.add("other", 1, Batch(), {slot: Servers(1.5, 1.0)}, is_scaler=True)
    assert (store.servers(NOW), store.nodes(NOW)) == ({slot: Servers(3, 3)}, {slot: Servers(1.75, 1.25)})
    store.close()


def gateways(place: str, quotas: Quotas, number: int) -> list[tuple[str, Ledger, UsageStore]]:
    found = []
    for name in "abc"[:number]:
        ledger = Ledger()
        ledger.quotas = {"t": quotas}
        found.append((name, ledger, store_at(place)))
    return found


@pytest.fixture(autouse=True)
def _whatever_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LEASE_S", 600.0)  # which goes by a real clock, and all else here by `NOW`
    monkeypatch.setattr(redis_client, "TIMEOUT_S", LIMIT_S)  # one that is away is killed here, and none is slow


def look(now: float, *each: tuple[str, Ledger, UsageStore]) -> None:
    for name, ledger, store in each:
        for _ in ledger.hears({}, store.lease(name, dict(ledger.asks(now, name)))):
            pass


def test_gateways_share_out_a_limit_of_a_second_and_of_requests_at_once(place: str) -> None:
    """None lets in more than its part, whoever of them is asked, and the part moves to where requests come."""
    each = gateways(place, Quotas((Limit(REQUESTS, "second", 40),), concurrent=12), 2)
    (_, a, _), (_, b, _) = each
    look(NOW, *each, *each, *each)  # the first had asked when it was alone

    def let_in(ledger: Ledger, now: float, *, is_over: bool = True) -> int:
        number = 0
        for _ in range(100):
            if ledger.begin(now, "t", 0) is None:
                number += 1
                if is_over:
                    ledger.left("t")
        return number

    assert [let_in(it, NOW + 0.1) for it in (a, b)] == [20, 20]
    look(NOW + 0.5, *each)
    for second in (1, 2, 3):  # b alone is asked from now on
        counts = let_in(b, NOW + second)
        assert counts <= 40
        look(NOW + second + 0.5, *each)
    assert [let_in(it, NOW + 4) for it in (b, a)] == [39, 1], "where nobody comes one may begin"
    look(NOW + 4.5, *each, *each)
    assert [let_in(it, NOW + 4.6) for it in (a, b)] == [0, 0], "what was used in this second is no other's"
    look(NOW + 5, *each, *each)
    assert [let_in(it, NOW + 6) for it in (a, b)] == [20, 20]
    look(NOW + 9, *each, *each, *each)
    assert sum(let_in(it, NOW + 10, is_over=False) for it in (a, b)) == 12
    look(NOW + 10.2, *each, *each)
    assert sum(let_in(it, NOW + 11, is_over=False) for it in (a, b)) == 0, "those are still there"
    for _, _, store in each:
        store.close()


@pytest.mark.parametrize("quotas", [Quotas((Limit(REQUESTS, "second", 12),)), Quotas(concurrent=12)])
def test_who_uses_all_of_a_limit_all_the_time_yields_to_who_comes_later(place: str, quotas: Quotas) -> None:
    each = gateways(place, quotas, 2)
    look(NOW, *each, *each)
    num_begun = [0, 0]
    for second in range(12):
        for number, (_, ledger, _) in enumerate(each if second >= 4 else each[:1]):
            for _ in range(num_begun[number]):  # they end, and the next are there at once
                ledger.left("t")
            num_begun[number] = sum(ledger.begin(NOW + second, "t", 0) is None for _ in range(20))
        assert sum(num_begun) <= 12
        look(NOW + second + 0.5, *each, *each)
        assert second != 3 or num_begun == [12, 0]
    assert num_begun == [6, 6]


@pytest.mark.parametrize(
    ("quotas", "num_bytes"),
    [
        (Quotas((Limit(BYTES, "second", 1000),)), 800),
        (Quotas((Limit(REQUESTS, "second", 2),)), 8),
        (Quotas(concurrent=1), 8),
    ],
)
def test_what_fits_into_no_gateways_part_passes_when_it_is_their_turn(
    quotas: Quotas, num_bytes: int, tmp_path: Path
) -> None:
    each = gateways(str(tmp_path / "usage.db"), quotas, 3)
    num_let_in = dict.fromkeys(range(3), 0)
    for tick in range(96):
        now, in_second = NOW + tick / 2, 0
        look(now, *each)
        for number, (_, ledger, _) in enumerate(each):
            if ledger.begin(now, "t", num_bytes) is None:
                num_let_in[number] += 1
                in_second += 1
                ledger.left("t")
        assert in_second <= 2
    assert min(num_let_in.values()) >= 8, num_let_in
    assert sum(num_let_in.values()) >= 30, num_let_in


def test_a_part_of_a_gateway_that_is_gone_is_the_others_again(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = gateways(place, Quotas(concurrent=6), 2)
    look(NOW, *each, *each)
    (_, a, _), _ = each
    assert dict(a.asks(NOW, "a"))["t", "concurrent"].target == 3.0
    monkeypatch.setattr(stores, "LEASE_S", 0.05)
    look(NOW, *each)

    def has_all() -> bool:
        look(NOW, each[0])
        return dict(a.asks(NOW, "a"))["t", "concurrent"].target == 6.0

    wait_until(has_all, "the other's part ends")
    for _, _, store in each:
        store.close()
