"""The bench of foreign models: a part of it from the packages to what is served, and what it makes of answers that are not the framework's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .conftest import ROOT

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]
# A file out of a package, trees, a pipeline; others with THOROUGH=1.
QUICK = ("magika", "xgboost", "scaled-network")
OTHERS = ("xgboost-holes", "lightgbm")


@pytest.mark.parametrize("names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.thorough)], ids=["quick", "others"])
def test_models_of_other_hands_are_served_as_their_own_framework_answers(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "scripts.foreign", "--folder", tmp_path, "--json", results]
    command += [word for name in names for word in ("--only", name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(results.read_text())["rows"]}
    assert set(rows) == set(names)
    for row in rows.values():
        fp32 = row["differences"]["fp32"]
        assert fp32["worst"] <= 1e-3 * max(fp32["scale"], 1e-9), row
        assert fp32["num_unequal"] == 0
        assert "fp32" in row["kept"]
        assert row["took"]["cpu_s"] > 0
        assert 50 < row["took"]["peak_mb"] < 6 * row["size_mb"] + 2000  # what an export may take


def test_a_row_tells_numbers_and_labels_that_are_not_the_frameworks() -> None:
    from scripts.foreign.__main__ import NotThere, difference

    right = {"scores": np.array([[0.5, 2.0]]), "label": np.array([1])}
    found = difference({"scores": np.array([[0.5, 1.5]], np.float32), "label": np.array([2])}, right)
    assert (found.worst, found.scale, found.num_unequal, found.num_labels) == (0.5, 2.0, 1, 1)
    assert difference({"0": np.array([np.nan], np.float32)}, {"0": np.array([1.0])}).worst == np.inf
    with pytest.raises(NotThere, match="no output 'label'"):
        difference({"scores": right["scores"]}, right)
    with pytest.raises(NotThere, match="shape"):
        difference({"0": np.zeros(3)}, {"0": np.zeros(4)})
