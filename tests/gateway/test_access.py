"""From headers to a caller, without a gateway: what is looked at, in which order, and what the answer depends on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serving import errors
from serving.gateway import access
from serving.gateway.access import ANYBODY, MOST_COMPARED, Access, Caller, is_allowed, meant, require_name, table_of
from serving.gateway.key_watch import KeyWatch
from serving.gateway.request.request_headers import priority
from serving.keys import changes
from serving.keys.key import Key, digest_of, id_of, make_text
from serving.keys.key_file import render
from serving.scheduling.routing import Fleet, Pool, Variant

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
TEXT = make_text()


def key(text: str = TEXT, **more: object) -> Key:
    return Key(id_of(text) or "", "x", digest_of(text), frozenset({"infer"}), NOW, **more)  # type: ignore[arg-type]


def bearer(text: str = TEXT) -> bytes:
    return f"Bearer {text}".encode()


def at(seconds: float, *keys: Key) -> Access:
    return Access(table_of(keys), lambda: NOW.timestamp() + seconds)


def test_without_keys_whatever_is_sent_everybody_is_anybody() -> None:
    for authorization in (None, b"", b"Basic x", bearer()):
        assert Access().caller(authorization, b"other") is ANYBODY


def test_a_key_ends_at_the_very_moment_it_expires() -> None:
    expiring = key(expires=NOW)
    assert at(-0.001, expiring).caller(bearer(), None).name == "x"
    for late_s in (0, 0.001, 1e9):
        with pytest.raises(errors.Unauthenticated, match="expired"):
            at(late_s, expiring).caller(bearer(), None)
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        at(0, key(expires=NOW, revoked=NOW)).caller(bearer(), None)


def test_an_unknown_id_costs_the_same_look_up_hash_and_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return one == other

    monkeypatch.setattr(access, "compare_digest", counting)
    for unknown in (make_text(), TEXT[:-1] + "g"):
        with pytest.raises(errors.Unauthenticated):
            at(0, key()).caller(bearer(unknown), None)
    assert compared == [64, 64]


def test_a_key_that_was_good_is_compared_once_and_ends_with_its_time_and_with_a_change_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[bytes] = []
    monkeypatch.setattr(access, "compare_digest", lambda one, other: not compared.append(one) and one == other)
    now_s = [NOW.timestamp()]
    here = Access(table_of([key(expires=NOW + timedelta(seconds=1))]), lambda: now_s[0])
    for _ in range(3):
        assert here.caller(bearer(), None).name == "x"
    assert len(compared) == 1
    for _ in range(2):  # not kept, or who has a key could fill the memory
        assert here.caller(b"Bearer" + b" " * 9999 + TEXT.encode(), None).name == "x"
    assert len(compared) == 3
    with pytest.raises(errors.BadRequest):
        here.caller(bearer(), make_text().encode())
    now_s[0] += 1.0
    with pytest.raises(errors.Unauthenticated, match="expired"):
        here.caller(bearer(), None)
    here.table = table_of([key(revoked=NOW)])
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        here.caller(bearer(), None)
    here.table = table_of([])
    with pytest.raises(errors.Unauthenticated, match="not valid"):
        here.caller(bearer(), None)
    assert len(compared) == 5


def test_an_empty_file_lets_nobody_in() -> None:
    for sent in (bearer(), bearer("tdm_" + "0" * 12 + "_" + "0" * 64)):
        with pytest.raises(errors.Unauthenticated):
            at(0).caller(sent, None)


def test_priorities_better_than_a_keys_own_count_as_that_one() -> None:
    assert [priority(value, 3) for value in (b"1", b"3", b"5", None)] == [3, 3, 5, 3]
    assert [priority(value, 1) for value in (b"1", b"3", b"5", None)] == [1, 3, 5, 3]
    assert [priority(value, 5) for value in (b"1", b"3", b"5", None)] == [5, 5, 5, 5]
    assert at(0, key(highest_priority=4)).caller(bearer(), None).highest_priority == 4
    assert ANYBODY.highest_priority == 1


def variant(model: str, precision: str) -> Variant:
    return Variant(f"{model}-{precision}", model, precision, "cpu", "", "cpu")


FLEET = Fleet(
    (Pool("cpu", True, (variant("a", "fp32"), variant("b", "fp32"))), Pool("gpu", False, (), (variant("a", "fp16"),))),
    frozenset({"a", "a-fp32", "a-fp16", "b", "b-fp32"}),
)


def test_a_caller_of_some_models_may_ask_their_variants_wherever_they_were_and_nothing_else() -> None:
    caller = Caller("x", frozenset(), frozenset({"a", "later"}))
    for name in ("a", "a-fp32", "a-fp16", "later"):
        require_name(caller, name, FLEET)
    for name in ("b", "b-fp32", "a-int8", "nothing", "", "A"):
        assert not is_allowed(caller, name, FLEET)
        with pytest.raises(errors.Forbidden):
            require_name(caller, name, FLEET)
        require_name(ANYBODY, name, FLEET)


def test_before_anything_was_seen_nothing_is_told_of_any_name() -> None:
    require_name(Caller("x", frozenset(), frozenset({"a"})), "b", Fleet())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("serving.gateway.key_watch.log.warning", lambda text, *values: lines.append(text % values))
    return lines


def in_file(watch: KeyWatch) -> Callable[[str], bool]:
    def is_let_in(text: str) -> bool:
        try:
            watch.access.caller(bearer(text), None)
        except errors.Unauthenticated:
            return False
        return True

    return is_let_in


async def _looks(watch: KeyWatch) -> bool:
    await watch.look()
    return watch.is_readable


def test_the_watch_reads_only_what_changed_and_says_each_trouble_once(tmp_path: Path, told: list[str]) -> None:
    file = tmp_path / "keys.json"
    first = changes.add(file, "one", frozenset({"infer"}), NOW).text
    own = make_text()
    watch = KeyWatch(file, key(own))
    is_let_in = in_file(watch)
    look = lambda: asyncio.run(_looks(watch))  # noqa: E731
    table = watch.access.table
    assert look()
    assert watch.access.table is table
    second = changes.add(file, "two", frozenset({"infer"}), NOW).text
    assert look()
    assert [is_let_in(text) for text in (first, second, own)] == [True, True, True]
    good = file.read_bytes()
    for broken in (b"", b"{}"):
        file.write_bytes(broken)
        told.clear()
        assert [look(), look(), look()] == [False, False, False]
        assert len(told) == 1
        assert is_let_in(first)
    file.unlink()
    told.clear()
    assert [look(), look()] == [False, False]
    assert len(told) == 1
    file.write_bytes(good)
    assert look()
    file.write_bytes(render([]))
    assert look()
    assert [is_let_in(text) for text in (first, own)] == [False, True]


@pytest.mark.thorough
@pytest.mark.slow
def test_many_keys_are_read_in_seconds_and_looked_up_like_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    texts = [make_text() for _ in range(20_000)]
    file.write_bytes(render(key(text, expires=NOW + timedelta(days=36500)) for text in texts))
    began = time.process_time()
    watch = KeyWatch(file)
    assert time.process_time() - began < 20  # of CPU; 0.5 s where this was written
    sent = [bearer(text) for text in texts[::20]]
    began = time.process_time()
    for one in sent:
        watch.access.caller(one, None)
    assert (time.process_time() - began) / len(
        sent
    ) < 100e-6  # about 2 µs; a look through all would take half a millisecond


def test_the_nearest_name_is_one_that_the_caller_may_ask() -> None:
    models = tuple(Variant(f"{m}-fp32", m, "fp32", "onnx", "", "cpu") for m in ("digits", "wine"))
    fleet = Fleet((Pool("cpu", True, models),))
    assert meant(ANYBODY, "Digit", fleet) == "; did you mean 'digits'?"
    assert meant(ANYBODY, "zebra", fleet) == ""
    assert meant(ANYBODY, "d" * 5000, fleet) == ""
    assert meant(Caller("c", frozenset(), frozenset({"wine"})), "digit", fleet) == ""


def test_few_of_many_models_are_compared_with_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    models = tuple(
        Variant(f"m{n}-{v}", f"model-{n}", v, "onnx", "", "cpu") for n in range(500) for v in ("fp32", "int8")
    )
    compared: list[str] = []
    monkeypatch.setattr(access, "closest", lambda _, names: compared.extend(names))
    assert meant(ANYBODY, "model-5x", Fleet((Pool("cpu", True, models),))) == ""
    assert len(compared) == len(set(compared)) == MOST_COMPARED
