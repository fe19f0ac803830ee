"""What was tried is remembered by all that decides about it, never wrongly, and never longer than the time that was given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.export.variants import attempts
from serving.export.variants.attempts import Attempts


def test_a_refused_attempt_is_not_made_again_and_of_one_that_passed_the_file_is_there(tmp_path: Path) -> None:
    first = Attempts(tmp_path / "net", 60)
    assert not first.skips("a", "way a")
    assert first.file("a") is None
    first.note("a", "way a", b"file a", "worse by far")
    assert not first.skips("b", "way b")
    first.note("b", "way b", b"file b", None)
    said: list[str] = []
    again = Attempts(tmp_path / "net", 60, said.append)
    assert again.skips("a", "way a")
    assert not again.skips("b", "way b")
    assert again.file("b") == b"file b"
    assert again.refusals == {"way a": "worse by far"}
    assert ["worse by far" in line for line in said] == [True, False]
    assert not Attempts(tmp_path / "another net", 60).skips("a", "way a")


def test_a_file_that_changed_is_made_anew(tmp_path: Path) -> None:
    search = tmp_path / "net"
    Attempts(search, 60).note("b", "way b", b"file b", None)
    [file] = search.glob("*.onnx")
    file.write_bytes(b"another")
    assert Attempts(search, 60).file("b") is None
    [words] = search.glob("*.json")
    words.write_text("{")
    assert not Attempts(search, 60).skips("b", "way b")


def test_the_first_attempt_is_made_and_no_other_where_there_is_no_time() -> None:
    given = Attempts(None, 0)
    assert [given.skips(key, key) for key in "abc"] == [False, True, True]
    assert given.num_left_out == 2


def test_an_attempt_as_long_as_the_longest_is_begun_only_where_it_ends_within_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    given = Attempts(None, 100)
    given.share = 0.6
    skipped = []
    for now_s in (0.0, 25.0, 40.0):  # the first took 25 s, so that a third might end at 65
        skipped.append(given.skips(str(now_s), "a way"))
    assert skipped == [False, False, True]
    given.share = 1.0
    assert not given.skips("the finer ones", "a way")


def test_the_oldest_searches_go_where_there_are_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MAX_BYTES", 2500)
    for number in range(4):
        folder = tmp_path / str(number)
        Attempts(folder, 60).note("a", "a", bytes(1000), None)
        os.utime(folder, (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Attempts(tmp_path / "file" / "net", 60).note("a", "way a", b"", None)
