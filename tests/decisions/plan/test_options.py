"""Times with their unit, and a day's rates from a file; what is not one is told with its line and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.decisions.plan.command import read_rates, seconds
from serving.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"), [("20ms", 0.02), ("0.02s", 0.02), (" 1.5 s ", 1.5), ("500us", 5e-4), ("3600s", 3600), ("1e-05s", 1e-5)]
)  # fmt: skip
def test_a_time_has_its_unit(text: str, value: float) -> None:
    assert seconds(text, "--p99") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "ms", "20 min", "-20ms", "0", "0ms", "3601s", "1e4s", "nan", "20ms,50ms"])
def test_what_is_no_time_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UserError, match=r"--p99 .*write 20ms"):
        seconds(text, "--p99")


@pytest.mark.parametrize("text", ["50", "0.02", "1e4"])
def test_a_time_without_its_unit_is_asked_back(text: str) -> None:
    with pytest.raises(UserError, match=rf"--p99 .*{text}ms or {text}s"):
        seconds(text, "--p99")


def rates(tmp_path: Path, text: str) -> tuple[tuple[float, float], ...]:
    path = tmp_path / "rates.csv"
    path.write_text(text, encoding="utf-8")
    return read_rates(path)


def test_a_day_is_hours_and_rates_with_or_without_a_heading_and_comments(tmp_path: Path) -> None:
    assert rates(tmp_path, "hours,rate\n# by night\n16, 20\n\n8,300\n") == ((16, 20), (8, 300))
    assert rates(tmp_path, "\ufeff8,0\n8,10.5\n7.999,1\n") == ((8, 0), (8, 10.5), (7.999, 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rate above 0"),
        ("24,0\n", "no rate above 0"),
        ("8,200\n", "the hours add up to 8, a day has 24; add the rest at no load: 16,0"),
        ("20,1\n8,200\n", "the hours add up to 28, a day has 24; take away what is too much"),
        ("hours,rate\n24,many\n", "line 2: '24,many' is not hours,rate"),
        ("24\n", "line 1: '24' is not hours,rate"),
        ("24,1,2\n", "line 1"),
        ("24,-1\n", "a rate is 0 or more"),
        ("24,inf\n", "a rate is 0 or more"),
        ("0,5\n24,1\n", "hours are above 0"),
        ("nan,5\n", "hours are above 0"),
    ],
)
def test_a_wrong_day_is_one_sentence_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"rates\.csv") as error:
        rates(tmp_path, text)
    assert says in str(error.value)


def test_no_file_of_rates_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"read.*rates"):
        read_rates(tmp_path / "none.csv")
