"""What `.ci/run` promises about time: its stages' budgets fit into what all of them may take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / ".ci" / "run"


@pytest.mark.parametrize(("which", "minutes"), [("--all", 80), ("every change", 30)])
def test_the_budgets_of_the_stages_fit_into_that_of_the_run(which: str, minutes: int) -> None:
    whole, quick = RUN.read_text().split("\nif $all; then\n")[1].split("\nfi\n")[0].split("\nelse\n")
    branch = whole if which == "--all" else quick
    [allowed_s] = [int(found) for found in re.findall(r"^  budget_s=(\d+)$", branch, re.MULTILINE)]
    stages_s = [int(found) for found in re.findall(r"^  stage \S+ (\d+) ", branch, re.MULTILINE)]
    assert allowed_s == minutes * 60
    assert len(stages_s) >= 11
    assert sum(stages_s) <= allowed_s
