"""The example reports in docs/reports/ are what `python -m scripts.examples` writes: what-ifs, each with another answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import examples

ROOT = Path(__file__).resolve().parents[1]


def test_the_pages_are_as_they_were_generated(tmp_path: Path) -> None:
    assert examples.main(tmp_path) == 0
    for name in examples.EXAMPLES:
        page = f"{name}.html"
        assert (tmp_path / page).read_text() == (ROOT / "docs" / "reports" / page).read_text(), (
            f"docs/reports/{page} is old: run `python -m scripts.examples`"
        )


@pytest.mark.parametrize(
    ("name", "answer"),
    [("what-if", "does_not_pay"), ("what-if-does-not-pay", "does_not_pay"), ("what-if-depends", "depends")],
)
def test_no_card_was_measured_so_none_says_pays(name: str, answer: str) -> None:
    report = examples.example(examples.EXAMPLES[name])
    assert report.verdict.word == "inconclusive"
    assert report.verdict.what_if == answer
    (one,) = report.what_ifs
    assert one.break_even_low_rps is not None
    assert one.break_even_high_rps is not None
    assert one.break_even_low_rps < one.break_even_high_rps
