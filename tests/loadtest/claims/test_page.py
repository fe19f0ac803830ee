"""What a report says, and that the committed page says what the committed run measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from loadtest.claims import page, values
from loadtest.claims.claims_file import Claim
from loadtest.claims.command import result
from loadtest.claims.values import Bandwidth, EngineTime, Findings, Omission, Report
from loadtest.errors import ResultsError
from serving.measure.machine import Machine

HERE = Machine("AMD EPYC", ("avx2",), 2.0, "Linux")
PAIR: dict[str, Any] = {"variant": "int8", "engine": "cpu", "against_variant": "fp32", "against_engine": "cpu"}
CLAIMS = (
    Claim("int8", "INT8 suits CPUs | <b>", "articles", "speed_up", 1.0, models=("mlp",), **PAIR),
    Claim("gpu", "GPUs are fast.", "articles", "speed_up", 10.0, url="https://example.org", models=("mlp",), **PAIR | {"engine": "cuda"}),
)  # fmt: skip
FOUND = Findings(
    speeds=(
        EngineTime("mlp", "fp32", "cpu", 1, 100, (0.01, 0.01, 0.01)),
        EngineTime("mlp", "int8", "cpu", 1, 25, (0.005, 0.005, 0.005), (2.0, 2.0, 2.0)),
    ),
    left_out=(Omission("mlp", "fp32", "cpu", 64, "batch 64 was left"),),
    bandwidths=(Bandwidth("cpu", "NumPy", 2**28, (2e10, 2e10), (3e10, 3e10, 3e10)),),
    not_run={"trees": "scikit-learn is not there"},
)


def report(**changes: object) -> Report:
    made = Report(
        name="claims",
        machine=HERE,
        date="2026-11-21T21:00:00+00:00",
        command="tandem campaign run claims.yaml",
        versions={"tandem": "0.1.0"},
        num_threads=2,
        is_quick=False,
        is_partial=False,
        seconds=90.0,
        others_ratio=0.02,
        results=tuple(result(claim, FOUND, HERE) for claim in CLAIMS),
        findings=FOUND,
        note="The nets are untrained.",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_page_says_the_answer_the_number_and_what_is_missing() -> None:
    text = page.markdown(report())
    assert "| INT8 suits CPUs / <b> | **holds** | 2.00×; mlp (batch 1) |" in text
    assert re.search(r"\*\*not measured here\*\* \| .*no GPU", text)
    assert "| mlp int8 | cpu | 200; 2.00× (2.00..2.00) |" in text
    assert "| mlp fp32 | cpu | 100 |" in text
    assert "| CPU, before the nets | 20 GB/s (no interval) | 30 GB/s (30..30) |" in text
    assert "batch 64 was left" in text
    assert "scikit-learn" in text
    assert "nets are untrained" in text
    assert "Busy machine" not in text


def test_a_busy_machine_and_an_interruption_are_told_first() -> None:
    head = page.markdown(report(others_ratio=0.63, is_partial=True, is_quick=True)).split("##")[0]
    assert "63% of the cores" in head
    assert "it was interrupted" in head
    assert "not a measurement" in head


def test_the_html_page_is_one_file_and_escapes_what_comes_from_outside() -> None:
    html = page.render(report(is_partial=True))
    assert "INT8 suits CPUs | &lt;b&gt;" in html
    assert "<b>" not in html
    assert re.search("2 claims: 1 holds, 1 not measured", html)
    assert '<span class="flag">partial</span>' in html
    assert "src=" not in html
    assert "href=" not in html


def test_what_was_stored_is_read_again() -> None:
    text = values.to_json(report())
    assert values.to_json(values.from_json(text, "claims.json")) == text
    assert values.from_json(text, "claims.json") == report()


@pytest.mark.parametrize("change", [{"colour": 1}, {"findings": {"speed": []}}, {"results": [{"name": "a"}]}])
def test_a_file_that_is_no_report_is_refused(change: dict[str, object]) -> None:
    text = json.dumps({**json.loads(values.to_json(report())), **change})
    with pytest.raises(ResultsError, match=r"^c\.json: "):
        values.from_json(text, "c.json")
