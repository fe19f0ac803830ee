"""What several gateways see of one rollout: one log, one judgement, whoever reads it and however it was interleaved."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.control.document import ModelControl, RolloutSettings, Target
from serving.control.evidence import Comparison, Entry, Joined, comparison_of, read_line
from serving.control.followers import Follower, Renewals, read_followers
from serving.control.revisions import Revision
from serving.control.stores import MAX_LINES, FileStore, Later, RedisStore, Store
from serving.decisions.rollout import Arm, Block, Judge, Losses, judged
from tests.control.test_stores import Open, opened  # noqa: F401 - a fixture
from tests.decisions.test_rollout import blocks

CANARY = RolloutSettings(candidate=Target(version=2), step="canary")
OF = ModelControl(pin=Target(version=1), rollout=CANARY)


def revision(number: int, origin: str = "") -> Revision:
    return Revision(number, "", "", origin=origin)


ONE = comparison_of("m", OF, revision(3))


def read_all(store: Store, comparison: Comparison = ONE) -> list[str]:
    began, place, lines = "", 0, list[str]()
    while True:
        read = store.exchange(comparison, began, place, ())
        began, place = read.began, read.place
        lines += read.lines
        if not read.has_more:
            return lines


def test_two_gateways_read_the_same_lines_and_one_that_starts_reads_them_all(opened: Open) -> None:  # noqa: F811
    a, b = opened(), opened()
    first = a.exchange(ONE, "", 0, ["a1"])
    assert (list(first.lines), first.has_more) == (["a1"], False)
    of_b = b.exchange(ONE, "", 0, ["b1", "b2"])
    assert list(of_b.lines) == ["a1", "b1", "b2"]
    assert of_b.began == first.began
    assert list(a.exchange(ONE, first.began, first.place, ["a2"]).lines) == ["b1", "b2", "a2"]
    assert list(b.exchange(ONE, of_b.began, of_b.place, ()).lines) == ["a2"]
    many = [f"a{number}" for number in range(3, MAX_LINES + 3)]
    a.exchange(ONE, "", 0, many)
    assert read_all(opened()) == ["a1", "b1", "b2", "a2", *many]


def test_the_same_rollout_begun_again_has_no_evidence_of_the_first_time(opened: Open) -> None:  # noqa: F811
    store, over = opened(), comparison_of("m", None, revision(4))
    began = store.exchange(ONE, "", 0, ["a1"]).began
    store.exchange(comparison_of("other", OF, revision(3)), "", 0, ["o1"])
    assert list(store.exchange(over, "", 0, ()).lines) == []
    with pytest.raises(Later):
        store.exchange(ONE, began, 1, ["a2"])  # a gateway that has not heard of it yet
    again = comparison_of("m", OF, revision(5))
    assert list(store.exchange(again, began, 1, ["c1"]).lines) == ["c1"]
    assert read_all(store, replace(ONE, model="other")) == ["o1"]


def test_a_document_that_is_begun_anew_has_no_evidence_of_the_one_before(opened: Open) -> None:  # noqa: F811
    a, b = opened(), opened()
    for day, number in ((25, 3), (26, 1)):  # deleted with all that was recorded of it, and written again
        history = a.history()
        for _ in range(number):
            following = history.then(f"version: 1 # {number}", at=f"2026-11-{day}T20:00:00Z", by="ann")
            a.write(following, history)
            history = following
        (current,) = {it.current() for it in (a, b)}
        assert current is not None
        assert current.number == number
        of = comparison_of("m", OF, current)
        assert list(a.exchange(of, "", 0, [f"day {day}"]).lines) == [f"day {day}"]
        if day == 25:
            before = of
            if isinstance(a, FileStore):
                a.path.unlink()
                a.path.with_name(f"{a.path.name}.revisions").unlink()
            else:
                assert isinstance(a, RedisStore)
                a._ask("DEL", "own")
    with pytest.raises(Later):  # a gateway that has the document of before in force
        b.exchange(before, "", 0, ["late"])
    assert read_all(b, of) == ["day 26"]


@pytest.mark.parametrize(
    ("mine", "its", "goes_on", "is_behind"),
    [
        ((3, ""), (3, ""), True, False),
        ((3, ""), (9, ""), True, False),  # the same of a model in a later revision
        ((3, "a"), (9, "a"), True, False),
        ((1, "b"), (57, "a"), False, False),
        ((57, "a"), (1, "b"), False, True),
        ((1, ""), (57, "a"), False, False),  # nobody recorded when it was begun
        ((57, "a"), (1, ""), False, False),
    ],
)
def test_evidence_is_of_a_document_and_not_of_a_number(
    mine: tuple[int, str], its: tuple[int, str], goes_on: bool, is_behind: bool
) -> None:
    one, log = comparison_of("m", OF, revision(*mine)), comparison_of("m", OF, revision(*its)).head("w")
    assert (one.goes_on(log), one.is_behind(log)) == (goes_on, is_behind)


def test_a_log_of_before_documents_were_told_apart_goes_on() -> None:
    """Evidence outlives the update of a gateway."""
    earlier = json.dumps(json.loads(comparison_of("m", OF, revision(5)).head("w"))[:3])
    for origin in ("", "2026-11-25T20:00:00Z ab"):
        same, later, before = (comparison_of("m", OF, revision(number, origin)) for number in (5, 7, 4))
        assert [it.goes_on(earlier) for it in (same, later, before)] == [True] * 3
        others = (comparison_of("m", None, revision(number, origin)) for number in (6, 4))
        assert [(it.goes_on(earlier), it.is_behind(earlier)) for it in others] == [(False, False), (False, True)]


def test_gateways_that_write_at_once_lose_nothing(opened: Open) -> None:  # noqa: F811
    def write(name: str) -> None:
        store = opened()
        for number in range(50):
            store.exchange(ONE, "", 0, [f"{name}{number}"])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read_all(opened())
    for name in "abc":
        assert [it for it in lines if it.startswith(name)] == [f"{name}{number}" for number in range(50)]


@pytest.mark.parametrize(
    "arm",
    [
        "[1e400,0,[],null,null]",
        "[1,0,[NaN],null,null]",
        "[1,0,[-5],null,null]",
        "[1,0,[1e999],null,null]",
        "[1,0,[],NaN,1]",
        "[1,0,[],-1,1]",
        "[1,0,[],1,-3]",
        "[99999999999999999999,0,[],null,null]",
        "[" * 100_000,
    ],
)
def test_numbers_that_cannot_be_are_no_evidence(arm: str) -> None:
    good = "[3,0,[5],null,null]"
    assert read_line(f'["w",1,{good},{good},[]]') is not None
    assert read_line(f'["w",1,{arm},{good},[]]') is None


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00\n", b"[" * 100_000 + b"\n", b'["x",1e999,"w"]\n'])
def test_a_log_whose_beginning_is_damaged_begins_anew(tmp_path: Path, damage: bytes) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.exchange(ONE, "", 0, ["a1"])
    (tmp_path / "control.yaml.m.evidence").write_bytes(damage)
    assert list(store.exchange(ONE, "", 0, ["a2"]).lines) == ["a2"]


def test_a_log_that_somebody_cut_off_is_read_on(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "control.yaml")
    read = store.exchange(ONE, "", 0, ["a1", "a2"])
    log = tmp_path / "control.yaml.m.evidence"
    log.write_bytes(log.read_bytes().partition(b"\n")[0] + b"\n")
    assert list(store.exchange(ONE, read.began, read.place, ["a3"]).lines) == ["a3"]


@pytest.mark.parametrize("skew_s", [-7200, -100, 0, 100, 7200])
@pytest.mark.parametrize(("killed_s", "is_silent"), [(None, False), (100, True), (250, False)])
def test_who_is_alive_is_judged_by_the_clock_of_who_looks(skew_s: int, killed_s: int | None, is_silent: bool) -> None:
    """One that announces itself every 15 s by a clock that is wrong, and was killed, for somebody who looks every 15 s by another."""
    renewals, found = Renewals(), []
    for now_s in range(0, 300, 15):
        renewed_s = now_s if killed_s is None else min(now_s, killed_s)
        line = Follower("a", every_s=15.0).line
        told = {"a": f"{1_000_000 + skew_s + renewed_s} {line}"}
        ages_s = renewals.ages(told, 50.0 + now_s)
        found = read_followers([(line, ages_s["a"])])
    assert [it.is_silent for it in found] == [is_silent]


def test_of_one_that_is_seen_first_the_age_is_what_is_said_of_it_and_one_that_went_is_forgotten() -> None:
    renewals = Renewals()
    assert renewals.ages({"a": "1", "b": "1"}, 100.0, lambda _: 30.0) == {"a": 30.0, "b": 30.0}
    assert renewals.ages({"a": "1", "b": "2"}, 110.0, lambda _: 30.0) == {"a": 40.0, "b": 0.0}
    assert renewals.ages({"b": "2"}, 120.0) == {"b": 10.0}
    assert renewals.ages({"a": "1", "b": "2"}, 130.0, lambda _: -5.0) == {"a": 0.0, "b": 20.0}


@pytest.mark.parametrize("told", ["[]", "7", '{"old": "a line"}', '{"old": [1]}', '{"old": ["x", "y"]}', "{"])
def test_announcements_of_another_form_keep_nobody_from_announcing(tmp_path: Path, told: str) -> None:
    store = FileStore(tmp_path / "control.yaml")
    (tmp_path / "control.yaml.gateways").write_text(told)
    store.announce(Follower("new"))
    assert [it.name for it in store.followers()] == ["new"]


def test_half_a_line_of_one_that_was_killed_spoils_no_other(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.exchange(ONE, "", 0, [Entry("a", 1, blocks(1)[0]).line])
    with (tmp_path / "control.yaml.m.evidence").open("a") as file:
        file.write('["a",2,[40,0')
    store.exchange(ONE, "", 0, [Entry("b", 1, blocks(1)[0]).line])
    assert [entry.writer for line in read_all(store) if (entry := read_line(line)) is not None] == ["a", "b"]


@pytest.mark.parametrize(
    "line", ["", "1", "{}", '["a",1,[1,2,[],null,null],[0,0,[],null,null],[]]', '["a",1,[1,0,[],null,null],[0,0,[],null,null],[["cosine","r",[2]]]]']
)  # fmt: skip
def test_what_is_no_block_is_none(line: str) -> None:
    assert read_line(line) is None


def test_a_line_is_read_as_it_was_written() -> None:
    block = Block(Arm((0.0125, 0.000003), 3, 1, 0.25, 12.0), Arm((), 0), (Losses("cosine", [0.001], "http://a:1"),))
    entry = read_line(Entry("w", 7, block).line)
    assert entry is not None
    assert (entry.writer, entry.number) == ("w", 7)
    assert (list(entry.block.candidate.latencies_s), entry.block.candidate.num_failed) == ([0.0125, 0.000003], 1)
    assert (entry.block.candidate.cost_each, entry.block.primary.cost_each) == (0.25 / 12, None)
    assert entry.block.losses == [Losses("cosine", [0.001], "http://a:1")]


def shared(num: int, of: Sequence[Block]) -> list[list[Entry]]:
    """Of each gateway: its part of every block."""
    found: list[list[Entry]] = [[] for _ in range(num)]
    for number, block in enumerate(of, 1):
        for gateway, entries in enumerate(found):
            ours, theirs = (
                Arm(arm.latencies_s[gateway::num], len(arm.latencies_s[gateway::num]))
                for arm in (block.candidate, block.primary)
            )
            losses = [replace(it, values=it.values[gateway::num]) for it in block.losses]
            entries.append(Entry(f"g{gateway}", number, Block(ours, theirs, losses)))
    return found


@cache
def eight_blocks() -> list[list[Entry]]:
    """Of three gateways."""
    return shared(3, blocks(8))


def joined(entries: Sequence[Entry]) -> list[Block]:
    making = Joined()
    return [block for entry in entries for block in making.add(entry)]


@pytest.mark.parametrize(
    ("planted", "outcome"),
    [
        ({"wrong": 0.03}, "rolled_back"),
        ({}, "held"),
        pytest.param({}, "promoted", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("num", [*(pytest.param(num, marks=pytest.mark.thorough) for num in (1, 2)), 4])
def test_several_gateways_judge_as_one_that_sees_all(num: int, planted: dict[str, float], outcome: str) -> None:
    of = blocks(700 if outcome == "promoted" else 60, **planted)  # type: ignore[arg-type]
    alone = judged(of, Judge())
    parts = shared(num, of)
    found = judged(joined([it for entries in zip(*parts, strict=True) for it in entries]), Judge())
    assert (found.outcome, found.because) == (alone.outcome, alone.because) == (outcome, alone.because)
    assert abs(found.num_blocks - alone.num_blocks) <= num
    assert found.num_candidate == pytest.approx(alone.num_candidate, rel=0.1)


@given(st.data())
def test_however_lines_come_each_block_counts_once(data: st.DataObject) -> None:
    """In any order of gateways, sent twice, and with gateways that fall silent or begin later."""
    parts = eight_blocks()
    places = [0, 0, 0]
    lasting = [data.draw(st.integers(0, 8)) for _ in range(3)]
    entries: list[Entry] = []
    draws: Callable[[], int] = lambda: data.draw(st.integers(0, 2))  # noqa: E731
    while any(place < last for place, last in zip(places, lasting, strict=True)):
        gateway = draws()
        if places[gateway] < lasting[gateway]:
            entries += [parts[gateway][places[gateway]]] * data.draw(st.integers(1, 2))
            places[gateway] += 1
    making = Joined()
    whole = [block for entry in entries for block in making.add(entry)]
    told = sum(len({entry.number for entry in entries if entry.writer == f"g{it}"}) for it in range(3))
    counted = sum(block.candidate.num for block in whole)
    all_ = sum(entry.block.candidate.num for entry in {(it.writer, it.number): it for it in entries}.values())
    assert all_ - counted <= 2 * 14  # what the last block has so far, of two gateways at most
    assert told >= len(whole)


def test_a_models_share_of_servers_is_no_part_of_what_evidence_is_of() -> None:
    more = OF.model_copy(update={"weight": 3.0, "reserved_ratio": 0.1})
    assert more.answering == OF
    assert comparison_of("m", more, revision(3)) == ONE
