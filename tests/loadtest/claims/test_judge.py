"""The answer word: from numbers, intervals and the claim's own threshold."""

from __future__ import annotations

import pytest

from loadtest.claims.judge import answer, judged, numbers, show, side_of
from loadtest.claims.values import (
    DEPENDS,
    DOES_NOT_HOLD,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED_HERE,
    NOT_RUN,
    Cell,
    Reading,
)

NO_CARD = Reading(absent=NOT_MEASURED_HERE, reason="no GPU on this machine")
TOO_SLOW = Reading(absent=NOT_RUN, reason="batch 32 was left out")
THREE, ONE, ABOUT_TWO, HALF = Reading(3, 2.9, 3.1), Reading(1, 0.9, 1.1), Reading(2, 1.9, 2.1), Reading(0.5, 0.4, 0.6)


@pytest.mark.parametrize(
    ("reading", "at_least", "at_most", "side"),
    [
        (THREE, 2, None, "holds"),
        (THREE, 2.9, None, "holds"),  # the end of the interval is in
        (THREE, 2.95, None, "unclear"),
        (THREE, 3.2, None, "fails"),
        (THREE, None, 3.1, "holds"),
        (THREE, None, 2, "fails"),
        (THREE, 1, 5, "holds"),
        (THREE, 3, 5, "unclear"),
        (THREE, 10, 100, "fails"),
        (Reading(200, 190, 210), 10, 100, "fails"),  # more than the claim says is not what it says
        (Reading(3), 2, None, "unclear"),  # one round has no interval
        (NO_CARD, 1, None, None),
        (TOO_SLOW, 1, None, None),
    ],
)
def test_a_number_counts_for_one_side_only_with_its_whole_interval(
    reading: Reading, at_least: float | None, at_most: float | None, side: str | None
) -> None:
    assert side_of(reading, at_least, at_most) == side


@pytest.mark.parametrize(
    ("readings", "word"),
    [
        ([THREE], HOLDS),
        ([THREE, THREE, TOO_SLOW], HOLDS),
        ([ONE, HALF], DOES_NOT_HOLD),
        ([THREE, ONE], DEPENDS),
        ([THREE, ONE, ABOUT_TWO], DEPENDS),  # known on both sides, whatever the third is
        ([THREE, ABOUT_TWO], INCONCLUSIVE),
        ([ONE, ABOUT_TWO], INCONCLUSIVE),
        ([Reading(7)], INCONCLUSIVE),
        ([THREE, Reading(1)], HOLDS),  # a number without an interval has no part in it
        ([ONE, Reading(7)], DOES_NOT_HOLD),
        ([NO_CARD, NO_CARD], NOT_MEASURED_HERE),
        ([NO_CARD, TOO_SLOW], NOT_MEASURED_HERE),
        ([TOO_SLOW], NOT_RUN),
        ([], NOT_RUN),
    ],
)
def test_the_answer_of_a_claim_of_at_least_two(readings: list[Reading], word: str) -> None:
    assert answer(judged([Cell("mlp", "batch 1", one) for one in readings], 2, None)) == word


def test_what_is_told_beside_a_claim_has_no_part_in_its_answer() -> None:
    beside = Cell("mlp", "CPU", HALF, is_judged=False)
    cells = judged([Cell("mlp", "batch 1", THREE), beside], 2, None)
    assert (answer(cells), cells[1]) == (HOLDS, beside)
    assert answer(judged([beside], 2, None)) == NOT_RUN


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([THREE], "3.00×; mlp (batch 0)"),
        ([THREE, THREE], "3.00×; in all 2"),
        ([HALF, ONE], "0.50× to 1.00×; in none of 2"),
        ([ABOUT_TWO, ABOUT_TWO], "2.00×; not to be told for any of 2"),
        ([THREE, ONE, ABOUT_TWO, TOO_SLOW], "1.00× to 3.00×; so for mlp (batch 0); not for mlp (batch 1); not to be told for mlp (batch 2); 1 not measured"),
        ([NO_CARD, NO_CARD], "no GPU on this machine"),
        ([NO_CARD, TOO_SLOW], "no GPU on this machine; batch 32 was left out"),
        ([], "nothing was asked for"),
    ],
)  # fmt: skip
def test_the_numbers_in_words_say_which_are_on_which_side(readings: list[Reading], words: str) -> None:
    cells = [Cell("mlp", f"batch {index}", one) for index, one in enumerate(readings)]
    assert numbers(judged(cells, 2, None)) == words


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (3.14159, "times", "3.14×"),
        (123.4, "times", "123×"),
        (0.876, "share", "88%"),
        (0.00321, "s", "3.21 ms"),
        (0.0000321, "s", "32.1 µs"),
        (0.1234, "$ per million", "0.123 $ per million"),
        (3480.4, "rows/s", "3,480 rows/s"),
    ],
)
def test_a_number_is_shown_in_its_unit(value: float, unit: str, words: str) -> None:
    assert show(value, unit) == words


@pytest.mark.parametrize(
    "given", [{}, {"value": 1.0, "absent": NOT_RUN}, {"value": 3.0, "low": 1.0, "high": 2.0}, {"value": 0.5, "low": 1.0}]
)  # fmt: skip
def test_a_reading_without_sense_cannot_be_made(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"has a value|not inside"):
        Reading(**given)  # type: ignore[arg-type]
