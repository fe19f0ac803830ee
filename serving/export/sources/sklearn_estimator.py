"""What a fitted estimator of scikit-learn or of boosted trees says about itself: its steps, features, classes, answers, and the
range of its inputs.

Made-up inputs lie within what it remembers of its training data, because numbers around zero would all fall into the same leaf
of most trees: scalers remember means, trees their thresholds, neighbours and support vectors the data itself. How it becomes a
graph is in `sklearn_graph.py`. Rule: the estimator that was given is never changed; what has to be changed is a copy.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import (  # type: ignore[import-untyped, unused-ignore]
    is_classifier,
    is_clusterer,
    is_outlier_detector,
    is_regressor,
)
from sklearn.compose import ColumnTransformer  # type: ignore[import-untyped, unused-ignore]
from sklearn.pipeline import FeatureUnion, Pipeline  # type: ignore[import-untyped, unused-ignore]

from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.sources import boosted_trees
from serving.repository.record import ANOMALY, CLASSIFICATION, MULTI_LABEL, OTHER, REGRESSION, RERANKING

FEATURES = "features"  # the one input of a model whose columns are all numbers
TEXT = "text"  # the one input of a model that begins with a vectorizer of raw text
PROBABILITIES, SCORES, DISTANCES = "probabilities", "scores", "distances"
LABEL, PREDICTION = "label", "prediction"
_METHODS = {  # output -> what of the estimator gives it
    PROBABILITIES: "predict_proba",
    SCORES: "decision_function",
    DISTANCES: "transform",
    LABEL: "predict",
    PREDICTION: "predict",
}
VECTORIZERS = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")


@dataclass(frozen=True, slots=True, eq=False)
class Estimator:
    """`model` takes columns by position, so that it runs on arrays whatever it was fitted on."""

    model: Any
    name: str  # of the file
    num_features: int
    columns: tuple[str, ...] | None  # names, where it was fitted on a data frame
    classes: tuple[Any, ...] | None  # None: no classifier of one question
    answer: tuple[str, ...]  # of `_METHODS`, the one that the task is about first
    questions: tuple[int, ...] = ()  # several classifiers in one: how many classes each has
    is_multilabel: bool = False  # a yes or no for each class, so that they do not exclude each other
    takes_text: bool = False  # one raw text a row

    @property
    def task(self) -> str:
        """The one that its answers are judged by if nobody says another; several questions at once and clusters have none."""
        if self.classes is not None:
            return CLASSIFICATION
        if self.is_multilabel:
            return MULTI_LABEL
        if self.answer == (PREDICTION,):
            return RERANKING if is_ranker(self.model) else REGRESSION
        return ANOMALY if is_outlier_detector(self.model) else OTHER

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names, in order."""
        if not self.questions:
            return self.answer
        return (*(f"{PROBABILITIES}_{index}" for index in range(len(self.questions))), LABEL)

    @property
    def column_names(self) -> tuple[str, ...]:
        if self.takes_text:
            return (TEXT,)
        return self.columns or tuple(f"column_{index}" for index in range(self.num_features))

    def answers(self, matrix: NDArray[Any]) -> list[NDArray[Any]]:
        """The framework's own, [n, …] for each of `outputs`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of feature names, which arrays do not have
            rows = matrix.ravel() if self.takes_text else matrix
            if is_by_centres(self.model):
                # As its centres are, which is as the rows were that it learnt from: scikit-learn does not compare two precisions.
                rows = rows.astype(final(self.model).cluster_centers_.dtype)
            return [values for name in self.answer for values in self._values(name, rows)]

    def _values(self, name: str, rows: NDArray[Any]) -> list[NDArray[Any]]:
        found = getattr(self.model, _METHODS[name])(rows)
        if isinstance(found, list):  # of several questions
            return [np.asarray(values).astype(np.float32) for values in found]
        values = np.asarray(found)
        if name == LABEL:
            return [_column(values).astype(object if values.dtype.kind in "OUS" else np.int64)]
        if name == SCORES and self.classes is not None and values.ndim == 1:
            return [np.stack([-values, values], axis=1).astype(np.float32)]  # so that the largest is the class
        return [_column(values).astype(np.float32)]


def _column(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, np.newaxis] if values.ndim == 1 else values


def describe(model: Any, name: str) -> Estimator:
    """Raises UserError for what answers nothing that can be compared, or takes neither a table nor one text."""
    takes_text = type(first(model)).__name__ in VECTORIZERS
    if not takes_text and not hasattr(model, "n_features_in_"):
        raise UserError(
            f"{name}: {type(model).__name__} does not say how many features it takes (n_features_in_): fit it on a table"
        )
    names = None if takes_text else getattr(model, "feature_names_in_", None)
    classes = model.classes_ if is_classifier(model) else None
    is_multilabel = _is_multilabel(final(model))
    is_single = classes is not None and not isinstance(classes, list) and not is_multilabel
    return Estimator(
        model=_by_position(copy.deepcopy(model)),
        name=name,
        num_features=1 if takes_text else boosted_trees.num_features(model),
        columns=None if names is None else tuple(map(str, names)),
        classes=tuple(np.asarray(classes).tolist()) if is_single else None,
        answer=_answer(model, name),
        questions=tuple(map(len, classes)) if isinstance(classes, list) else (),
        is_multilabel=is_multilabel,
        takes_text=takes_text,
    )


def _answer(model: Any, name: str) -> tuple[str, ...]:
    kind = type(model).__name__
    has_probabilities, has_scores = hasattr(model, "predict_proba"), hasattr(model, "decision_function")
    if is_classifier(model) and (has_probabilities or has_scores):
        return (PROBABILITIES if has_probabilities else SCORES, LABEL)
    if is_classifier(model):
        raise UserError(f"{name}: {kind} gives neither probabilities nor scores, so nothing can be compared")
    if is_regressor(model) or is_ranker(model):
        return (PREDICTION,)
    if is_outlier_detector(model) and has_scores:
        return (SCORES, LABEL)
    if type(final(model)).__name__.endswith("GaussianMixture"):
        return (PROBABILITIES, LABEL)
    if is_clusterer(model) and hasattr(model, "transform"):
        return (DISTANCES, LABEL)
    raise UserError(
        f"{name} holds a {kind}, which has no answer that is known here: classifiers, regressors, rankers, anomaly detectors with "
        "decision_function and clusters with transform have"
    )


def is_ranker(model: Any) -> bool:
    return type(final(model)).__name__.endswith("Ranker")


def is_by_centres(model: Any) -> bool:
    return type(final(model)).__name__ in ("KMeans", "MiniBatchKMeans")


def _is_multilabel(model: Any) -> bool:
    binarizer = getattr(model, "_label_binarizer", None) or getattr(model, "label_binarizer_", None)
    return str(getattr(binarizer, "y_type_", "")).startswith("multilabel")


# -- the parts of an estimator ----------------------------------------------------------------------------------------


def first(model: Any) -> Any:
    """The step that reads the rows; the model itself where it has none."""
    while True:
        if isinstance(model, Pipeline | FeatureUnion):
            model = (model.steps if isinstance(model, Pipeline) else model.transformer_list)[0][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def final(model: Any) -> Any:
    """The estimator that answers, behind pipelines and searches."""
    while True:
        if isinstance(model, Pipeline):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def steps(model: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every estimator in it by the names that pipelines give: `columntransformer.num.standardscaler`; itself first."""
    yield name or type(model).__name__, model
    for part, inner in _parts(model):
        yield from steps(inner, f"{name}.{part}" if name else part)


def _parts(model: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(model, Pipeline):
        found = list(model.steps)
    elif isinstance(model, FeatureUnion):
        found = list(model.transformer_list)
    elif isinstance(model, ColumnTransformer):
        found = [(name, part) for name, part, _ in model.transformers_]
    else:
        found = [(name, part) for key, value in vars(model).items() for name, part in _held(key, value)]
    return [(name, part) for name, part in found if hasattr(part, "get_params") and not isinstance(part, type)]


def _held(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Estimators in an attribute: alone, or in lists and arrays as ensembles keep them."""
    if hasattr(value, "get_params"):
        if key.endswith("_") and not key.startswith("_"):  # fitted; without the underscore it is what was asked for
            yield key, value
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for index, part in enumerate(np.ravel(value) if isinstance(value, np.ndarray) else value):
            pair = part if isinstance(part, tuple) and len(part) == 2 else (f"{key}{index}", part)
            yield from ([pair] if hasattr(pair[1], "get_params") and key.endswith("_") else [])


def _by_position(model: Any) -> Any:
    """In place: columns by number instead of by name, and arrays out of every step instead of data frames."""
    for _, part in steps(model):
        vars(part).pop("_sklearn_output_config", None)
        if isinstance(part, ColumnTransformer) and hasattr(part, "feature_names_in_"):
            numbers = {name: index for index, name in enumerate(part.feature_names_in_)}
            part.transformers_ = [(n, p, _numbered(columns, numbers)) for n, p, columns in part.transformers_]
            del part.feature_names_in_
    return model


def _numbered(columns: Any, numbers: dict[str, int]) -> Any:
    if isinstance(columns, str):
        return numbers[columns]
    if isinstance(columns, slice):
        start, stop = (numbers[edge] if isinstance(edge, str) else edge for edge in (columns.start, columns.stop))
        is_named = isinstance(columns.stop, str)  # slices of names include their end
        return slice(start, stop + 1 if is_named and stop is not None else stop, columns.step)
    return [numbers.get(column, column) if isinstance(column, str) else column for column in columns]


def text_columns(model: Any) -> bool:
    """Whether an encoder in it knows words."""
    known = (c for _, part in steps(model) for c in getattr(part, "categories_", ()) if hasattr(c, "dtype"))
    return any(any(isinstance(word, str) for word in categories.tolist()) for categories in known)


def table_of(inputs: Arrays) -> NDArray[Any]:
    """What the framework takes: float32 [n, features], or objects where a column is text. Inputs are in its order."""
    if set(inputs) == {FEATURES}:
        return inputs[FEATURES]
    columns = list(inputs.values())
    table = np.empty((len(columns[0]), len(columns)), object)
    for index, values in enumerate(columns):
        table[:, index] = values[:, 0]
    return table


NUM_ROWS = 64  # enough that a wrong branch shows; a row costs microseconds
MIN_ROWS = 8
MIN_MARGIN = 1e-3  # between the two best classes: on a tie rounding decides, which no two programs do alike
_STRIDE = 8


def made_up_rows(estimator: Estimator) -> NDArray[np.float32]:
    """float32 [n, num_features], within what the estimator has seen; the first rows are answered most differently."""
    low, high = spread(estimator.model, estimator.num_features)
    random = np.random.default_rng(0)
    shares = random.random((NUM_ROWS, estimator.num_features))
    along = np.linspace(0, 1, NUM_ROWS)[
        :, np.newaxis
    ]  # from low to high in all features at once, as they often grow together
    candidates = [(low + (high - low) * share).astype(np.float32) for share in (shares, 0.2 * shares + 0.8 * along)]
    if (training_rows := _rows_seen(estimator)) is not None:
        one, other = (training_rows[random.integers(0, len(training_rows), NUM_ROWS)] for _ in range(2))
        candidates.append((one + 0.3 * shares[:, :1] * (other - one)).astype(np.float32))  # between two, nearer to one
    rows, answers = max(
        ((rows, estimator.answers(rows)[0]) for rows in candidates), key=lambda pair: _deviation(pair[1])
    )
    if estimator.classes is not None:
        is_sure = np.ptp(np.sort(answers, axis=1)[:, -2:], axis=1) > MIN_MARGIN
        rows, answers = (rows[is_sure], answers[is_sure]) if is_sure.sum() >= MIN_ROWS else (rows, answers)
    return rows[_most_different_first(answers)]


def _rows_seen(estimator: Estimator) -> NDArray[np.float64] | None:
    """Rows [k, num_features] that an estimator keeps, or the means of its classes; None behind a step that changes rows."""
    if isinstance(estimator.model, Pipeline):
        return None
    for _, part in steps(estimator.model):
        for name in ("support_vectors_", "_fit_X", "theta_", "cluster_centers_", "means_"):
            rows = getattr(part, name, None)
            if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] == estimator.num_features:
                return rows
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
            indices = np.arange(num_features)[columns]
            if hasattr(part, "get_params"):
                low[indices], high[indices] = spread(part, np.size(indices))
        return low, high
    remembered = _remembered(first, num_features)
    if remembered is None:
        return low, high
    lowest, highest = remembered
    is_known = np.isfinite(lowest) & np.isfinite(highest) & (highest > lowest)
    return np.where(is_known, lowest, low), np.where(is_known, highest, high)


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
    found = boosted_trees.splits(part)
    return [] if found is None else [found]
