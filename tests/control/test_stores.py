"""A file and a real Redis: what is written is what is read, of two writers one is refused, and what is away is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from serving.control.followers import Follower
from serving.control.revisions import History
from serving.control.stores import Conflict, FileStore, RedisStore, Store, store_at
from serving.errors import EnvironmentFault, UserError
from serving.redis_client import RedisClient, Refused, Unreachable
from tests.local.harness import wait_until
from tests.redis_server import RedisServer

Open = Callable[[], Store]


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    is_file = request.param == "file"
    place = str(tmp_path / "control.yaml") if is_file else f"{request.getfixturevalue('redis').url}/3?key=own"
    with contextlib.ExitStack() as stores:
        yield lambda: stores.enter_context(store_at(place))


def text_of(store: Store) -> str:
    current = store.current()
    assert current is not None
    return current.text


def test_what_is_written_is_read_by_another(opened: Open) -> None:
    store, empty = opened(), History()
    assert store.history() == empty
    one = empty.then("version: 1\n", at="2026-11-25T20:00:00Z", by="ann", why="first")
    store.write(one, empty)
    two = one.then("version: 1 # ü\n", at="2026-11-25T20:01:00Z", by="bob")
    opened().write(two, one)
    assert opened().history() == two
    assert opened().current() == two.current


def test_of_two_who_write_at_once_one_is_refused(opened: Open) -> None:
    store = opened()
    before = store.history()
    store.write(before.then("a", at="", by=""), before)
    with pytest.raises(Conflict):
        opened().write(before.then("b", at="", by=""), before)
    assert opened().history().current.text == "a"


def test_gateways_announce_themselves_and_one_that_falls_silent_is_not_forgotten(opened: Open) -> None:
    a, b = opened(), opened()
    assert a.followers() == []
    began = time.monotonic()
    a.announce(Follower("a:1", "d1", 1))
    b.announce(Follower("b:1", "d1", 1, "ü", {"m": "0 of 1"}, every_s=0.0))
    a.announce(Follower("a:1", "d2", 2))
    found = {it.name: it for it in opened().followers()}
    assert {name: replace(it, age_s=0.0) for name, it in found.items()} == {
        "a:1": Follower("a:1", "d2", 2),
        "b:1": Follower("b:1", "d1", 1, "ü", {"m": "0 of 1"}, every_s=0.0),
    }
    assert all(-1 <= it.age_s <= time.monotonic() - began + 1 for it in found.values())  # Redis counts whole seconds
    wait_until(lambda: max(it.age_s for it in b.followers()) > 1, "time passes by the store's clock")
    silent = {it.name: bool(it.is_silent) for it in b.followers()}
    assert silent == {"a:1": False, "b:1": True}
    b.withdraw("b:1")
    assert [it.name for it in a.followers()] == ["a:1"]


def test_a_full_disk_keeps_a_gateway_from_telling_anything_and_forgets_no_other(small_disk: Path) -> None:
    store, filler = FileStore(small_disk / "control.yaml"), small_disk / "filler"
    store.announce(Follower("silent:1", "d1", 1))
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    long = Follower("other:1", "d1", 1, lacks={"m": "0 of 1" * 4096})
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="No space left"):
            store.announce(long)
        assert [it.name for it in store.followers()] == ["silent:1"]
    filler.unlink()
    store.announce(long)
    assert [it.name for it in store.followers()] == ["other:1", "silent:1"]
    store.withdraw("other:1")
    assert [it.name for it in store.followers()] == ["silent:1"]


def test_zeros_behind_the_gateways_that_announced_themselves_hide_none(tmp_path: Path) -> None:
    """As a file system leaves them that had room for a part of what was to be written."""
    store = FileStore(tmp_path / "control.yaml")
    store.announce(Follower("a:1", "d1", 1))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + bytes(4096))
    assert [it.name for it in store.followers()] == ["a:1"]
    store.announce(Follower("b:1", "d1", 1))
    assert [it.name for it in store.followers()] == ["a:1", "b:1"]
    assert file.stat().st_size < 4096


def test_a_file_is_never_read_between_its_text_and_its_record(tmp_path: Path) -> None:
    store, reader = FileStore(tmp_path / "control.yaml"), FileStore(tmp_path / "control.yaml")
    history = History().then("0", at="", by="ann")
    store.write(history, History())
    is_over = threading.Event()
    seen: set[tuple[int, str, str]] = set()

    def read_on() -> None:
        while not is_over.is_set():
            current = reader.current()
            assert current is not None
            seen.add((current.number, current.text, current.by))

    reading = threading.Thread(target=read_on)
    reading.start()
    for number in range(1, 60):
        following = history.then(str(number), at="", by="ann")
        store.write(following, history)
        history = following
    is_over.set()
    reading.join()
    assert len(seen) > 1
    assert seen <= {(number + 1, str(number), "ann") for number in range(60)}


def test_a_text_that_an_editor_wrote_is_in_force(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    store = FileStore(path)
    with pytest.raises(UserError):
        store.current()
    store.write(History().then("a", at="", by="ann"), History())
    path.write_text("b")
    assert text_of(store) == "b"
    assert [it.text for it in store.history().revisions] == ["a", "b"]


def test_a_redis_that_is_away_is_told_and_found_again(redis: RedisServer) -> None:
    with RedisStore(redis.url) as store:
        store.write(History().then("a", at="", by=""), History())
        redis.kill()
        with pytest.raises(Unreachable):
            store.current()
        redis.start()
        assert text_of(store) == "a"


def test_several_threads_may_ask_at_once(redis: RedisServer) -> None:
    """One follows, while another writes what was decided about a rollout."""
    with store_at(redis.url) as store, ThreadPoolExecutor(8) as threads:
        found = [threads.submit(store.history) for _ in range(400)]
        assert {it.result() for it in found} == {History()}


def test_a_password_is_sent_and_never_told(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "s:cret/")
    try:
        address = f"127.0.0.1:{server.port}"
        with RedisClient(f"redis://:s%3Acret%2F@{address}") as client:
            assert client.ask("PING") == b"PONG"
        for url in (f"redis://{address}", f"redis://:wr0ng@{address}"):
            with RedisStore(url) as store, pytest.raises(Refused) as error:
                store.current()
            assert "wr0ng" not in str(error.value)
    finally:
        server.kill()


def test_replies_of_every_kind_are_read(redis: RedisServer) -> None:
    commands = [("SET", "n", 1), ("INCRBY", "n", 4), ("GET", "n"), ("GET", "none"), ("LRANGE", "l", 0, -1)]
    with RedisClient(redis.url) as client:
        assert client.ask_all(commands) == [b"OK", 5, b"5", None, []]
        client.ask("RPUSH", "l", b"\r\n$", "é")
        assert client.ask("EVAL", "return {1, {'a'}, false}", 0) == [1, [b"a"], None]
        assert client.ask("LRANGE", "l", 0, -1) == [b"\r\n$", "é".encode()]
        with pytest.raises(Refused):
            client.ask("LPUSH", "n", 1)
        assert client.ask("GET", "n") == b"5"


@pytest.mark.parametrize(
    "place", ["redis://", "redis://host:port", "redis://h/x", "redis://h?kee=a", "http://host/x", "s3://bucket/x"]
)
def test_an_address_that_cannot_be_is_refused(place: str) -> None:
    with pytest.raises(UserError):
        store_at(place)


def test_what_is_no_redis_is_an_error_of_the_environment(redis: RedisServer) -> None:
    with RedisClient(redis.url) as client:
        client.ask("SET", "tandem:control", "not a hash")
    for url in (redis.url, "redis://127.0.0.1:1"):
        with RedisStore(url) as store, pytest.raises(EnvironmentFault):
            store.current()
