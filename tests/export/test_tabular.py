"""Tables in one command: trees from a native file, raw text, anomalies, several answers; a real Triton answers as the framework does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

from serving.repository import Repository

from .test_load_check import export

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.usefixtures("untimed")]

FLOWERS, KINDS = load_iris(return_X_y=True)
ROWS = FLOWERS.astype(np.float32)
HOLES = np.where(np.random.default_rng(0).random(ROWS.shape) < 0.3, np.nan, ROWS).astype(np.float32)
REVIEWS = np.array(["Good film!", "bad, awful", "Très élégant", "not so good", "größer", "the worst"] * 4)


def of_xgboost(folder: Path) -> str:
    xgboost = pytest.importorskip("xgboost")
    xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(HOLES, KINDS).save_model(folder / "model.ubj")
    return f"xgboost:{folder / 'model.ubj'}"


def pickled(model: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        joblib.dump(model, folder / "model.joblib")
        return f"sklearn:{folder / 'model.joblib'}"

    return write


CASES: dict[str, tuple[Callable[[Path], str], dict[str, Any], str]] = {
    "xgboost with holes": (of_xgboost, {"features": HOLES, "labels": KINDS}, "xgboost"),
    "raw text": (
        pickled(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(REVIEWS, [1, 0, 1, 0, 1, 0] * 4)),
        {"text": REVIEWS, "labels": np.array([1, 0, 1, 0, 1, 0] * 4)},
        "scikit-learn",
    ),
    "anomalies": (
        pickled(IsolationForest(n_estimators=9, random_state=0).fit(ROWS)),
        {"features": ROWS},
        "scikit-learn",
    ),
    "two questions": (
        pickled(MultiOutputClassifier(GaussianNB()).fit(ROWS, np.stack([KINDS, KINDS > 0], axis=1))),
        {"features": ROWS},
        "scikit-learn",
    ),
}


@pytest.mark.parametrize(
    "name", ["xgboost with holes", *(pytest.param(name, marks=pytest.mark.thorough) for name in list(CASES)[1:])]
)
def test_a_model_of_tables_is_one_command_and_is_served_as_its_framework_answers(tmp_path: Path, name: str) -> None:
    write, arrays, framework = CASES[name]
    np.savez(tmp_path / "data.npz", **arrays)
    done = export((write(tmp_path), "--data", str(tmp_path / "data.npz"), "--trust"), tmp_path / "models")
    assert done.code == 0, done.said
    [variant] = Repository(tmp_path / "models").variants()
    assert variant.record.gate.reference == framework
    assert variant.record.load_check.startswith("triton 2.")
    json.loads((variant.directory / "sample.json").read_text("utf-8"), parse_constant=lambda word: pytest.fail(word))


def test_unknown_values_are_refused_where_the_model_has_no_answer_to_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", features=HOLES, labels=KINDS)
    source = pickled(GaussianNB().fit(ROWS, KINDS))(tmp_path)
    np.savez(tmp_path / "example.npz", features=ROWS)
    words = (source, "--data", str(tmp_path / "data.npz"), "--example", str(tmp_path / "example.npz"), "--trust")
    done = export(words, tmp_path / "models")
    assert (done.code, "features: holds NaN" in done.said) == (2, True), done.said
