"""Gradient-boosted trees for timing: really trained, on scikit-learn's handwritten digits, and exported as any estimator is.

Needs scikit-learn and skl2onnx. Not here: how fast they are (`speed`). Rule: trained here and now, never fetched; a seed repeats it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped, unused-ignore]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]

from serving.export.exported_model import Arrays, SourceOptions
from serving.export.progress import silent
from serving.export.sources import sklearn_file
from serving.export.sources.sklearn_estimator import FEATURES

NUM_ROUNDS = 100  # scikit-learn's own default; each makes a tree for each of the ten classes
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """`accuracy`: of a quarter that was not learned from, which is `held_out`: inputs float32 [n, 64]."""

    file: Path
    held_out: Arrays
    num_trees: int
    accuracy: float


def write(folder: Path, num_rounds: int = NUM_ROUNDS) -> Trees:
    """trees.onnx in `folder`, input `features` float32 [n, 64]."""
    rows, labels = load_digits(return_X_y=True)
    learn, held_out, learn_labels, held_out_labels = train_test_split(rows, labels, test_size=0.25, random_state=_SEED)
    model = HistGradientBoostingClassifier(max_iter=num_rounds, early_stopping=False, random_state=_SEED)
    model.fit(learn, learn_labels)
    pickled = folder / "trees.pickle"
    pickled.write_bytes(pickle.dumps(model))
    file = folder / "trees.onnx"
    file.write_bytes(sklearn_file.load(pickled, SourceOptions(is_trusted=True), silent).model)
    pickled.unlink()
    return Trees(
        file,
        {FEATURES: held_out.astype(np.float32)},
        num_rounds * len(set(labels.tolist())),
        float(model.score(held_out, held_out_labels)),
    )
