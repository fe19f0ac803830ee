"""Inputs that a fitted estimator tells apart, made from what it remembers of its training data.

Numbers around zero would all fall into the same leaf of most trees. Scalers remember means, trees their thresholds, neighbours
and support vectors the data itself. Rule: float32, always the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer  # type: ignore[import-untyped, unused-ignore]
from sklearn.pipeline import Pipeline  # type: ignore[import-untyped, unused-ignore]

from serving.export.sources.estimators.estimator import Estimator, steps

NUM_ROWS = 64  # enough that a wrong branch shows; a row costs microseconds
MIN_ROWS = 8
MIN_MARGIN = 1e-3  # between the two best classes: on a tie rounding decides, which no two programs do alike
_STRIDE = 8


def made_up(estimator: Estimator) -> NDArray[np.float32]:
    """float32 [n, num_features], within what the estimator has seen; the first rows are answered most differently."""
    low, high = spread(estimator.model, estimator.num_features)
    random = np.random.default_rng(0)
    shares = random.random((NUM_ROWS, estimator.num_features))
    along = np.linspace(0, 1, NUM_ROWS)[
        :, np.newaxis
    ]  # from low to high in all features at once, as they often grow together
    tried = [(low + (high - low) * share).astype(np.float32) for share in (shares, 0.2 * shares + 0.8 * along)]
    if (seen := _rows_seen(estimator)) is not None:
        one, other = (seen[random.integers(0, len(seen), NUM_ROWS)] for _ in range(2))
        tried.append((one + 0.3 * shares[:, :1] * (other - one)).astype(np.float32))  # between two, nearer to one
    rows, answers = max(((rows, estimator.answers(rows)[0]) for rows in tried), key=lambda pair: _deviation(pair[1]))
    if estimator.classes is not None:
        is_sure = np.ptp(np.sort(answers, axis=1)[:, -2:], axis=1) > MIN_MARGIN
        rows, answers = (rows[is_sure], answers[is_sure]) if is_sure.sum() >= MIN_ROWS else (rows, answers)
    return rows[_most_different_first(answers)]


def _rows_seen(estimator: Estimator) -> NDArray[np.float64] | None:
    """Rows [k, num_features] that an estimator keeps, or the means of its classes; None behind a step that changes rows."""
    if isinstance(estimator.model, Pipeline):
        return None
    for _, part in steps(estimator.model):
        for name in ("support_vectors_", "_fit_X", "theta_"):
            seen = getattr(part, name, None)
            if isinstance(seen, np.ndarray) and seen.ndim == 2 and seen.shape[1] == estimator.num_features:
                return seen
    return None


def _deviation(answers: NDArray[np.float32]) -> float:
    """Of the output that differs most, as a share of the largest."""
    return float(answers.std(axis=0).max() / max(float(np.abs(answers).max()), 1e-30))


def _most_different_first(answers: NDArray[np.float32]) -> NDArray[np.int64]:
    """An order of the rows in which any beginning is spread over all answers."""
    ranked = np.argsort(answers[:, answers.std(axis=0).argmax()], kind="stable")
    return np.concatenate([ranked[start::_STRIDE] for start in range(_STRIDE)])


def spread(model: Any, num_features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lowest and highest value of each feature [num_features]; -2 and 2 where nothing is remembered."""
    low, high = np.full(num_features, -2.0), np.full(num_features, 2.0)
    first = model.steps[0][1] if isinstance(model, Pipeline) else getattr(model, "best_estimator_", model)
    if first is not model and isinstance(first, Pipeline):
        return spread(first, num_features)
    if isinstance(first, ColumnTransformer):
        for _, part, columns in first.transformers_:
            picked = np.arange(num_features)[columns]
            if hasattr(part, "get_params"):
                low[picked], high[picked] = spread(part, np.size(picked))
        return low, high
    found = _remembered(first, num_features)
    if found is None:
        return low, high
    is_known = np.isfinite(found[0]) & np.isfinite(found[1]) & (found[1] > found[0])
    return np.where(is_known, found[0], low), np.where(is_known, found[1], high)


def _remembered(part: Any, num_features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    for middle in ("mean_", "center_"):
        centre, scale = np.asarray(getattr(part, middle, 0)), np.asarray(getattr(part, "scale_", 0))
        if centre.shape == scale.shape == (num_features,):
            return centre - 2 * scale, centre + 2 * scale
    if hasattr(part, "data_min_") and hasattr(part, "data_max_"):
        return part.data_min_, part.data_max_
    return _of_trees(part, num_features)


def _of_trees(part: Any, num_features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """A little more than from the lowest to the highest threshold."""
    low, high = np.full(num_features, np.inf), np.full(num_features, -np.inf)
    for _, inner in steps(part):
        for features, thresholds in _splits(inner):
            np.minimum.at(low, features, thresholds)
            np.maximum.at(high, features, thresholds)
    is_split = np.isfinite(low)
    if not is_split.any():
        return None
    low[is_split], high[is_split] = _wider(low[is_split], high[is_split])
    return low, high


def _wider(low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """So that the outer branches are taken too, also where all thresholds are the same."""
    margin = np.maximum(0.1 * (high - low), 1e-3 * np.maximum(1.0, np.abs(high)))
    return low - margin, high + margin


def _splits(part: Any) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    if hasattr(part, "tree_"):
        is_split = part.tree_.feature >= 0
        return [(part.tree_.feature[is_split], part.tree_.threshold[is_split])]
    if hasattr(part, "_predictors"):
        nodes = [tree.nodes[tree.nodes["is_leaf"] == 0] for trees in part._predictors for tree in trees]
        finite = [node[np.isfinite(node["num_threshold"])] for node in nodes]
        return [(node["feature_idx"].astype(np.int64), node["num_threshold"]) for node in finite]
    if hasattr(part, "_Booster"):
        return [_nodes_of(tree["tree_structure"]) for tree in part._Booster.dump_model()["tree_info"]]
    return []


def _nodes_of(node: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    features: list[int] = []
    thresholds: list[float] = []
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if "split_feature" in one:
            if one.get("decision_type") == "<=":
                features.append(one["split_feature"])
                thresholds.append(float(one["threshold"]))
            waiting += [one["left_child"], one["right_child"]]
    return np.array(features, np.int64), np.array(thresholds, np.float64)
