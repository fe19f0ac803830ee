"""Aims, verdicts and rounds of the benches: pure tables."""

from __future__ import annotations

import pytest

from loadtest.bench.verdicts import AtLeast, AtMost, Outcome, Verdict, exit_code, number, table


@pytest.mark.parametrize(
    ("aim", "value", "outcome"),
    [
        (AtMost(1.25), 1.25, Outcome.MET),
        (AtMost(1.25), 1.26, Outcome.MISSED),
        (AtMost(1.25), 2.5, Outcome.MISSED),
        (AtMost(1.25), 2.51, Outcome.FAILED),
        (AtMost(0), 0, Outcome.MET),
        (AtMost(0), 1, Outcome.FAILED),
        (AtLeast(0.95), 0.95, Outcome.MET),
        (AtLeast(0.95), 1.02, Outcome.MET),
        (AtLeast(0.95), 0.94, Outcome.MISSED),
        (AtLeast(0.95), 0.91, Outcome.MISSED),
        (AtLeast(0.95), 0.89, Outcome.FAILED),
        (AtLeast(0.65), 0.31, Outcome.MISSED),
        (AtLeast(0.65), 0.29, Outcome.FAILED),
    ],
)
def test_only_what_is_beyond_twice_the_aim_fails(aim: AtMost | AtLeast, value: float, outcome: Outcome) -> None:
    assert Verdict("x", value, aim).outcome is outcome


def test_what_never_happened_fails() -> None:
    verdict = Verdict("200 again", None, AtMost(5, "s"))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.cells() == ("200 again", "never", "≤ 5 s", Outcome.FAILED.value)


@pytest.mark.parametrize(
    ("values", "code"), [([1.0, 1.2], 0), ([1.0, 2.0], 0), ([], 0), ([1.0, 2.6], 1), ([2.6, None, 1.0], 1)]
)
def test_a_missed_aim_is_told_and_only_a_failed_one_ends_with_1(values: list[float | None], code: int) -> None:
    assert exit_code([Verdict("x", value, AtMost(1.25)) for value in values]) == code


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (3, "3"), (0.00456, "0.00456"), (1.2345, "1.23"), (12345.6, "12,346"), (100.4, "100")]
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_lines_its_columns_up() -> None:
    lines = table([("a", "value", "note"), ("long name", "1", "x"), ("b", "22", "")]).splitlines()
    assert lines == [
        "a          value  note",
        "---------  -----  ----",
        "long name      1  x",
        "b             22",
    ]
