"""A silence is logged once, and a gateway that comes and goes does not fill the log."""

from __future__ import annotations

from collections.abc import Iterable

from serving.cluster.scaler.reconcile import QUIET_S, SilenceLog

A, B = "10.0.0.1:9090", "10.0.0.2:9090"


def names_and_ends(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Of whom each line tells, and its last word."""
    return [(next(name for name in (A, B) if name in line), line.split()[-1]) for line in lines]


def test_a_silence_and_its_end_are_told_once() -> None:
    silences = SilenceLog()
    logged = [list(silences.lines(float(now), [B], {A: "refused"})) for now in range(100)]
    assert [len(lines) for lines in logged] == [1, *[0] * 99]
    assert names_and_ends(logged[0]) == [(A, "refused")]
    assert names_and_ends(silences.lines(100.0, [A, B], {})) == [(A, "again")]
    assert list(silences.lines(101.0, [A, B], {})) == []


def test_one_that_misses_every_other_look_has_two_lines_a_minute() -> None:
    silences = SilenceLog()
    lines = [
        line
        for now in range(600)
        for line in silences.lines(now, [A] if now % 2 else [], {} if now % 2 else {A: "late"})
    ]
    assert len(lines) == 2 * 600 / QUIET_S


def test_a_silence_that_lasts_is_told_though_a_short_one_was_told_before_it() -> None:
    silences = SilenceLog()
    list(silences.lines(0.0, [], {A: "late"}))
    list(silences.lines(1.0, [A], {}))
    logged = [line for now in range(2, 100) for line in silences.lines(float(now), [], {A: "refused"})]
    assert names_and_ends(logged) == [(A, "refused")]


def test_of_one_that_is_no_longer_named_nothing_is_remembered() -> None:
    silences = SilenceLog()
    list(silences.lines(0.0, [], {A: "late"}))
    list(silences.lines(1.0, [B], {}))
    assert names_and_ends(silences.lines(2.0, [B], {A: "late"})) == [(A, "late")]
