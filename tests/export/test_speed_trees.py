"""Boosted trees for timing are really trained, and the file says what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
import pytest

from serving.export import speed_trees

pytestmark = pytest.mark.slow  # trains and converts for seconds


def test_the_file_answers_rows_that_were_held_out(tmp_path: Path) -> None:
    trees = speed_trees.write(tmp_path, num_rounds=5)
    assert trees.num_trees == 50
    assert trees.accuracy > 0.8  # of ten classes, after five rounds of boosting
    session = ort.InferenceSession(str(trees.file), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(["probabilities"], dict(trees.held_out))
    assert probabilities.shape == (len(trees.held_out["features"]), 10)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["trees.onnx"]  # no pickle is left
