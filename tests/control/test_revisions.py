"""Numbers, what an undo brings back, and texts that somebody else put there."""

from __future__ import annotations

import json

import pytest

from serving.control.revisions import MAX_BYTES, MAX_KEPT, History, difference, in_force
from serving.errors import UserError


def applied(*texts: str) -> History:
    history = History()
    for text in texts:
        history = history.then(text, at="2026-11-25T20:00:00Z", by="ann@host")
    return history


def test_revisions_are_numbered_and_survive_their_store() -> None:
    history = applied("a", "b", "c")
    assert [(it.number, it.text) for it in history.revisions] == [(1, "a"), (2, "b"), (3, "c")]
    assert History.of("c", history.recorded) == history
    assert in_force("c", history.newest) == history.current


def test_revisions_are_of_a_document_which_one_that_is_begun_later_is_not() -> None:
    history = applied("a", "b")
    (origin,) = {it.origin for it in history.revisions}
    assert History.of("b", history.recorded).current.origin == origin
    assert in_force("x", history.newest).origin == History.of("x", history.recorded).current.origin == origin
    assert History.of(None, history.recorded).then("c", at="2026-11-26", by="").current.origin == origin
    assert History().then("a", at="2026-11-26T00:00:00Z", by="").current.origin > origin
    assert in_force("a", None).origin == ""  # an editor's, who records nothing


def test_a_text_from_outside_has_the_next_number_and_its_own_digest() -> None:
    history = applied("a", "b")
    one, other = in_force("x", history.newest), in_force("y", history.newest)
    assert (one.number, other.number) == (3, 3)
    assert one.name != other.name
    following = History.of("x", history.recorded)
    assert following.current == one
    assert [it.text for it in following.then("z", at="", by="").revisions] == ["a", "b", "x", "z"]


def test_what_is_not_there_any_more_can_be_brought_back() -> None:
    history = applied("a", "b")
    gone = History.of(None, history.recorded)
    assert (gone.current.number, gone.current.text, gone.before().text) == (3, "", "b")
    assert History.of(None, gone.recorded) == gone
    assert difference(gone.current, "b", "new.yaml")


@pytest.mark.parametrize("broken", ["", "{", "null", "[1]", '{"number": "1"}', '[{"number": 1, "text": 2}]'])
def test_a_broken_record_leaves_the_text_in_force(broken: str) -> None:
    assert in_force("a", broken).number == 1
    assert History.of("a", broken).current.text == "a"


def test_an_undo_brings_back_the_one_before_or_any_that_is_kept() -> None:
    history = applied("a", "b", "c")
    assert history.before().text == "b"
    assert history.before(1).text == "a"
    for number in (3, 7):
        with pytest.raises(UserError):
            history.before(number)
    for few in (History(), applied("a")):
        with pytest.raises(UserError):
            few.before()


def test_a_bounded_number_is_kept() -> None:
    assert len(applied(*map(str, range(MAX_KEPT + 7))).revisions) == MAX_KEPT
    large = applied(*(letter * (MAX_BYTES // 2 - 1) for letter in "abcd"))
    assert [it.number for it in large.revisions] == [3, 4]
    assert len(json.loads(large.newest)["text"]) == 0
    cyrillic = applied(*(f"# {number}" + "ж" * (MAX_BYTES // MAX_KEPT) for number in range(MAX_KEPT)))
    assert len(cyrillic.recorded) < 2 * MAX_BYTES


def test_a_difference_names_both_sides() -> None:
    assert difference(applied("a\n").current, "b", "new.yaml").splitlines() == [
        "--- revision 1",
        "+++ new.yaml",
        "@@ -1 +1 @@",
        "-a",
        "+b",
    ]
    assert difference(applied("a").current, "a", "x") == ""
