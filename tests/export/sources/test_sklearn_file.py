"""sklearn:FILE: what becomes of fitted estimators, beside their own answers, and which pickles are turned away."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.compose import ColumnTransformer
from sklearn.covariance import EllipticEnvelope
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    SplineTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC, OneClassSVM
from threadpoolctl import threadpool_limits

from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.sources import sklearn_file
from serving.export.sources.graphs.onnx_model import output_ports
from serving.export.sources.graphs.runnable import Trial
from serving.export.sources.sklearn_estimator import describe
from serving.export.sources.sklearn_graph import down
from serving.repository import Tensor

try:
    import lightgbm
except OSError as error:  # its wheel brings no OpenMP, and a bare Debian has none; machines that compile anything do
    pytest.skip(f"LightGBM needs a library of the system, libgomp1: {error}", allow_module_level=True)


class Nameless(BaseEstimator):  # type: ignore[misc]
    """Predicts, and is nothing that scikit-learn has a word for."""

    def fit(self, rows: Any, labels: Any = None) -> Any:  # noqa: ARG002 - scikit-learn passes it by name
        self.n_features_in_ = rows.shape[1]
        return self

    def predict(self, rows: Any) -> Any:
        return np.zeros(len(rows))


FLOWERS, KINDS = load_iris(return_X_y=True)
NAMES = np.array(load_iris().target_names)[KINDS]
IS_FIRST = (KINDS > 0).astype(int)
PATIENTS, PROGRESS = load_diabetes(return_X_y=True)


def load(path: Path, **options: Any) -> ExportedModel:
    return sklearn_file.load(path, SourceOptions(**{"is_trusted": True, **options}), lambda *_: None)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of OpenMP spin for each other, which takes longer than these fits wherever cores are shared."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def export(tmp_path: Path) -> Any:
    """Pickles an estimator and exports the file."""

    def run(model: Any, **options: Any) -> ExportedModel:
        joblib.dump(model, tmp_path / "model.joblib")
        return load(tmp_path / "model.joblib", **options)

    return run


def difference(exported: ExportedModel, rows: Any = None) -> float:
    """Largest difference of the numbers from the framework's, relative to their largest value; labels must be equal."""
    inputs = exported.example if rows is None else {"features": rows}
    ours, theirs = Trial(exported.model, "it").run(inputs), exported.run(inputs)  # type: ignore[misc]
    assert [v.shape for v in ours] == [v.shape for v in theirs]
    pairs = list(zip(ours, theirs, strict=True))
    assert all(np.array_equal(mine, other) for mine, other in pairs if other.dtype.kind != "f")
    numbers = [(mine, other) for mine, other in pairs if other.dtype.kind == "f"]
    return max(float(np.abs(mine - other).max() / np.abs(other).max()) for mine, other in numbers)


# -- what estimators become -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(max_iter=500),
        make_pipeline(StandardScaler(), SVC()),
        make_pipeline(StandardScaler(), LogisticRegression()),
        LinearSVC(),
        make_pipeline(StandardScaler(), LinearSVC()),
        RidgeClassifier(),
        RandomForestClassifier(10, random_state=0),
        HistGradientBoostingClassifier(max_iter=10),
        AdaBoostClassifier(n_estimators=5),
        KNeighborsClassifier(),
        GaussianNB(),
        VotingClassifier([("a", GaussianNB()), ("b", LogisticRegression(max_iter=500))], voting="soft"),
        GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.5, 1]}, cv=2),
        lightgbm.LGBMClassifier(n_estimators=5, verbose=-1),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize(("kinds", "count"), [(NAMES, 3), (IS_FIRST, 2)], ids=["three words", "two numbers"])
def test_a_classifier_gives_its_scores_first_then_its_label(export: Any, model: Any, kinds: Any, count: int) -> None:
    fitted = sklearn.base.clone(model).fit(FLOWERS, kinds)
    exported = export(fitted)
    name = "probabilities" if hasattr(fitted, "predict_proba") else "scores"
    text = kinds is NAMES
    assert exported.inputs == (Tensor("features", "FP32", (4,)),)
    assert exported.outputs == (Tensor(name, "FP32", (count,)), Tensor("label", "BYTES" if text else "INT64", (1,)))
    assert exported.labels == (("setosa", "versicolor", "virginica") if text else ("0", "1"))
    assert (exported.task, exported.max_batch_size) == ("classification", 32)
    assert (exported.is_cpu_only, exported.precisions) == (True, ("fp32",))
    assert exported.source.endswith("; for CPUs only")
    assert difference(exported) < 1e-4
    assert difference(exported, FLOWERS.astype(np.float32)) < 1e-4


def test_the_highest_score_is_the_label(export: Any) -> None:
    """Not for SVC with three classes: there scikit-learn itself counts votes for the label, and so does the graph."""
    for model in (RidgeClassifier(), LinearSVC(), GaussianNB()):
        for kinds in (NAMES, IS_FIRST):
            exported = export(model.fit(FLOWERS, kinds))
            scores, label = Trial(exported.model, "it").run(exported.example)
            assert np.array_equal(np.array(exported.labels)[scores.argmax(axis=1)], label[:, 0].astype(str))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        LinearRegression(),
        make_pipeline(StandardScaler(), Ridge()),
        RandomForestRegressor(10, random_state=0),
        GradientBoostingRegressor(n_estimators=10),
        HistGradientBoostingRegressor(max_iter=10),
        lightgbm.LGBMRegressor(n_estimators=10, verbose=-1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_regressor_gives_its_prediction_as_a_column(export: Any, model: Any) -> None:
    exported = export(sklearn.base.clone(model).fit(PATIENTS, PROGRESS))
    assert exported.outputs == (Tensor("prediction", "FP32", (1,)),)
    assert (exported.task, exported.labels) == ("regression", None)
    assert difference(exported) < 1e-4
    assert difference(exported, PATIENTS.astype(np.float32)) < 1e-4


def test_a_regressor_of_several_numbers_gives_them_side_by_side(export: Any) -> None:
    exported = export(Ridge().fit(FLOWERS[:, :2], FLOWERS[:, 2:]))
    assert exported.outputs == (Tensor("prediction", "FP32", (2,)),)
    assert difference(exported) < 1e-5


BOTH = np.stack([KINDS, IS_FIRST], axis=1)
LARGER = (FLOWERS.mean(axis=0) < FLOWERS).astype(int)[:, :3]


@pytest.mark.parametrize(
    ("model", "labels", "outputs", "task"),
    [
        (IsolationForest(n_estimators=5, random_state=0), None, {"scores": 1, "label": 1}, "anomaly"),
        (make_pipeline(StandardScaler(), OneClassSVM()), None, {"scores": 1, "label": 1}, "anomaly"),
        (KMeans(3, n_init=1, random_state=0), None, {"distances": 3, "label": 1}, "other"),
        (make_pipeline(StandardScaler(), MiniBatchKMeans(3, n_init=1)), None, {"distances": 3, "label": 1}, "other"),
        (GaussianMixture(3, random_state=0), None, {"probabilities": 3, "label": 1}, "other"),
        (MultiOutputClassifier(GaussianNB()), BOTH, {"probabilities_0": 3, "probabilities_1": 2, "label": 2}, "other"),
        (
            MultiOutputClassifier(LogisticRegression()),
            BOTH,
            {"probabilities_0": 3, "probabilities_1": 2, "label": 2},
            "other",
        ),
        (
            RandomForestClassifier(5, random_state=0),
            BOTH,
            {"probabilities_0": 3, "probabilities_1": 2, "label": 2},
            "other",
        ),
        (OneVsRestClassifier(LogisticRegression()), LARGER, {"probabilities": 3, "label": 3}, "multi-label"),
        (MLPClassifier((8,), max_iter=9, random_state=0), LARGER, {"probabilities": 3, "label": 3}, "multi-label"),
        (MultiOutputRegressor(Ridge()), FLOWERS[:, :2], {"prediction": 2}, "regression"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_anomalies_clusters_and_several_answers_at_once_are_outputs_by_name(
    export: Any, model: Any, labels: Any, outputs: dict[str, int], task: str
) -> None:
    exported = export(model.fit(FLOWERS) if labels is None else model.fit(FLOWERS, labels))
    assert {one.name: one.shape[0] for one in exported.outputs} == outputs
    assert (exported.task, exported.labels) == (task, None)
    ports = output_ports(onnx.load_from_string(exported.model), "m")
    assert {port.name: port.dims[1] for port in ports if port.name.startswith("prob")} == {
        name: count for name, count in outputs.items() if name.startswith("prob")
    }
    assert difference(exported) < 1e-3
    assert difference(exported, FLOWERS.astype(np.float32)) < 1e-3


def test_clusters_that_were_learnt_from_float32_are_exported_too(export: Any) -> None:
    exported = export(KMeans(3, n_init=1, random_state=0).fit(FLOWERS.astype(np.float32)))
    assert difference(exported) < 1e-3


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (GridSearchCV(Ridge(), {"alpha": [0.5, 1]}, cv=2), "regression"),
        (make_pipeline(StandardScaler(), LocalOutlierFactor(novelty=True)), "anomaly"),
        (lightgbm.LGBMRanker(n_estimators=2, verbose=-1), "reranking"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else value,
)
def test_the_task_follows_from_the_estimator(export: Any, model: Any, task: str) -> None:
    groups = {"group": [75, 75]} if task == "reranking" else {}
    fitted = model.fit(FLOWERS, KINDS, **groups)
    assert describe(fitted, "it").task == task
    if task != "anomaly":  # whose scores its converter computes otherwise
        assert export(fitted).task == task
        assert export(fitted, task="other").task == "other"


@pytest.mark.parametrize("kinds", [NAMES, KINDS])
def test_a_forest_decides_a_tie_as_scikit_learn_does(export: Any, kinds: Any) -> None:
    """Ten trees, five votes each: in float32 their sums differ in the last digit."""
    rows = np.random.default_rng(0).random((400, 4)) * 8
    model = RandomForestClassifier(10, random_state=0).fit(FLOWERS, kinds)
    best = np.sort(model.predict_proba(rows.astype(np.float32)), axis=1)
    assert (best[:, -1] == best[:, -2]).sum() > 3
    assert difference(export(model), rows.astype(np.float32)) < 1e-5


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        (LogisticRegression(max_iter=500), "scikit-learn"),
        (lightgbm.LGBMClassifier(n_estimators=2, verbose=-1), "lightgbm"),
    ],
)
def test_the_framework_and_its_versions_are_told(export: Any, model: Any, framework: str) -> None:
    exported = export(model.fit(FLOWERS, KINDS))
    assert exported.framework == framework
    assert exported.toolchain["scikit-learn"] == sklearn.__version__
    assert ("lightgbm" in exported.toolchain) == (framework == "lightgbm")
    assert exported.source == f"sklearn: model.joblib ({type(model).__name__}); for CPUs only"


def test_the_graph_has_the_opset_that_was_asked_for_and_an_old_one_for_trees(export: Any) -> None:
    model = onnx.load_from_string(export(RandomForestClassifier(2).fit(FLOWERS, KINDS), opset=19).model)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    assert versions.get("", 19) == 19
    assert versions["ai.onnx.ml"] <= 3
    assert model.ir_version <= 10


def test_a_plain_pickle_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Ridge().fit(PATIENTS, PROGRESS)))
    assert load(tmp_path / "model.pkl").framework == "scikit-learn"


def test_the_estimator_that_was_given_keeps_its_thresholds(export: Any) -> None:
    """The converter's copy has rounded ones; the answers that judge it come from the real ones."""
    exported = export(HistGradientBoostingRegressor(max_iter=3).fit(PATIENTS, PROGRESS))
    model = next(cell.cell_contents for cell in exported.run.__closure__ if hasattr(cell.cell_contents, "model")).model  # type: ignore[union-attr]
    thresholds = model._predictors[0][0].nodes["num_threshold"]
    assert not np.array_equal(thresholds, thresholds.astype(np.float32))


# -- thresholds -------------------------------------------------------------------------------------------------------


def splits(model: Any) -> list[tuple[int, float]]:
    if hasattr(model, "_predictors"):
        nodes = [node for trees in model._predictors for tree in trees for node in tree.nodes if not node["is_leaf"]]
        return [(int(node["feature_idx"]), float(node["num_threshold"])) for node in nodes]
    frame, waiting = [], [tree["tree_structure"] for tree in model.booster_.dump_model()["tree_info"]]
    while waiting:
        node = waiting.pop()
        if "threshold" in node:
            frame.append((node["split_feature"], node["threshold"]))
            waiting += [node["left_child"], node["right_child"]]
    return frame


@pytest.mark.parametrize(
    "model", [HistGradientBoostingRegressor(max_iter=10), lightgbm.LGBMRegressor(n_estimators=10, verbose=-1)]
)
def test_an_input_that_equals_a_rounded_threshold_takes_the_same_branch(export: Any, model: Any) -> None:
    model.fit(PATIENTS, PROGRESS)
    rows = np.random.default_rng(0).choice(PATIENTS, 500).astype(np.float32)
    for index, (feature, threshold) in enumerate(splits(model)[:500]):
        rows[index, feature] = np.float32(threshold)
    assert difference(export(model), rows) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scaler", [StandardScaler(), MaxAbsScaler()])
def test_scaled_inputs_take_the_same_branch_in_every_tree(export: Any, scaler: Any) -> None:
    """A scaler that differs in the last digit sends some of many rows another way."""
    random = np.random.default_rng(0)
    rows = random.lognormal(size=(2000, 5)).astype(np.float32) * 7
    labels = (rows[:, 0] * rows[:, 1] > rows[:, 2] * 5).astype(int)
    model = make_pipeline(scaler, HistGradientBoostingClassifier(max_iter=15, random_state=0)).fit(rows, labels)
    assert difference(export(model), rows) < 1e-5


def test_rounding_down_never_passes_the_value() -> None:
    values = np.array([0.1, -0.1, 1.0, np.inf, 1e-60, -1e-60, 16777217.0])
    assert (down(values) <= values).all()
    assert (down(values) == down(values).astype(np.float32)).all()
    assert down(values)[2] == 1.0


# -- the rows that it is judged on ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(5, random_state=0),
        HistGradientBoostingClassifier(max_iter=5),
        lightgbm.LGBMClassifier(n_estimators=5, verbose=-1),
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(
            ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", MinMaxScaler(), [2, 3])]), GaussianNB()
        ),
        KNeighborsClassifier(),
        GaussianNB(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_made_up_rows_are_spread_over_what_the_estimator_has_seen(export: Any, model: Any) -> None:
    exported = export(model.fit(FLOWERS + 100, KINDS))  # numbers around zero would all look alike to it
    assert exported.example["features"].dtype == np.float32
    assert len(exported.example["features"]) >= 4
    assert exported.run(exported.example)[0].std(axis=0).max() > 0.05


def test_the_first_rows_are_answered_differently_and_no_row_is_a_tie(export: Any) -> None:
    exported = export(RandomForestClassifier(4, random_state=0).fit(FLOWERS, KINDS))
    probabilities = exported.run(exported.example)[0]
    assert len(set(probabilities[:8].argmax(axis=1))) > 1
    assert np.ptp(np.sort(probabilities, axis=1)[:, -2:], axis=1).min() > 0.001


def test_rows_of_the_users_are_taken_before_made_up_ones(export: Any) -> None:
    exported = export(Ridge().fit(PATIENTS, PROGRESS), example={"features": PATIENTS[:6]})
    assert np.array_equal(exported.example["features"], PATIENTS[:6].astype(np.float32))


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ({"features": PATIENTS[:6, :9]}, r"input 'features' of the example has shape \[n, 9\], want FP32 \[n, 10\]"),
        ({"features": PATIENTS[:2]}, "the example has 2 rows, want at least 4"),
        ({"x": PATIENTS[:6]}, r"one array, 'features', FP32 \[n, 10\]; the example has 'x'"),
        ({"features": np.full((6, 10), np.nan)}, "the example holds NaN.*SimpleImputer"),
        ({"features": np.full((6, 10), "a")}, "is <U1, want FP32"),
    ],
)
def test_rows_that_do_not_fit_say_what_is_wanted(export: Any, example: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        export(Ridge().fit(PATIENTS, PROGRESS), example=example)


# -- tables with words in them ----------------------------------------------------------------------------------------

AGE = np.linspace(20, 60, 30)
COLOUR = np.array(["red", "green", "blue"] * 10)


def of_columns(*, is_named: bool) -> Any:
    """Fitted on [age, colour]. Named: as a pickle looks that was fitted on a data frame."""
    table = np.empty((30, 2), object)
    table[:, 0], table[:, 1] = AGE, COLOUR
    columns = ColumnTransformer(
        [("age", StandardScaler(), [0]), ("colour", OneHotEncoder(handle_unknown="ignore"), [1])]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(table, (AGE > 40) ^ (COLOUR == "red"))
    if is_named:
        columns = model.steps[0][1]
        columns.feature_names_in_ = np.array(["age (years)", "colour"], object)
        names = (["age (years)"], ["colour"])
        columns.transformers_ = [
            (name, part, named) for (name, part, _), named in zip(columns.transformers_, names, strict=True)
        ]
    return model


@pytest.mark.parametrize(("is_named", "names"), [(True, ("age (years)", "colour")), (False, ("column_0", "column_1"))])
def test_a_table_with_words_has_an_input_for_each_column(export: Any, is_named: bool, names: tuple[str, str]) -> None:
    exported = export(of_columns(is_named=is_named), example={names[0]: AGE, names[1]: COLOUR})
    assert [(t.datatype, t.shape) for t in exported.inputs] == [("FP32", (1,)), ("BYTES", (1,))]
    assert difference(exported) < 1e-6
    assert exported.files == ({"columns.txt": b"age (years)\ncolour\n"} if is_named else {})


def test_a_table_with_words_needs_rows_and_the_message_names_its_columns(export: Any) -> None:
    with pytest.raises(UserError, match=r"columns.*--example.*\(years\).*colour$"):
        export(of_columns(is_named=True))


def test_a_column_that_is_missing_in_the_rows_is_named(export: Any) -> None:
    with pytest.raises(UserError, match=r"example.*'age \(years\)'.*FP32 \[n, 1\]"):
        export(of_columns(is_named=True), example={"colour": COLOUR})


def test_columns_of_numbers_only_are_one_input_in_the_order_of_their_names(export: Any) -> None:
    columns = ColumnTransformer([("a", StandardScaler(), [1]), ("b", "passthrough", [0])])
    model = make_pipeline(columns, Ridge()).fit(PATIENTS[:, :2], PROGRESS)
    columns.feature_names_in_ = np.array(["age", "sex"], object)
    columns.transformers_ = [
        (name, part, [["sex"], ["age"]][index]) for index, (name, part, _) in enumerate(columns.transformers_)
    ]
    exported = export(model, example={"sex": PATIENTS[:9, 1], "age": PATIENTS[:9, 0]})
    assert exported.inputs == (Tensor("features", "FP32", (2,)),)
    assert np.allclose(exported.example["features"], PATIENTS[:9, :2])
    assert difference(exported) < 1e-5


# -- raw text and unknown values --------------------------------------------------------------------------------------

REVIEWS = np.array(
    ["Good film, I liked it!", "a bad Film; awful", "Très ÉLÉGANT ça va", "don't go I a b", "größer x_1", ""] * 2
)


@pytest.mark.parametrize(
    "vectorizer",
    [
        TfidfVectorizer(),
        CountVectorizer(ngram_range=(1, 2)),
        TfidfVectorizer(stop_words="english"),
        TfidfVectorizer(analyzer="char", ngram_range=(1, 3)),
    ],
)
def test_raw_text_is_one_input_and_its_words_are_scikit_learns(export: Any, vectorizer: Any) -> None:
    model = make_pipeline(vectorizer, LogisticRegression()).fit(REVIEWS, [1, 0, 1, 0, 1, 0] * 2)
    exported = export(model, example={"text": REVIEWS})
    assert exported.inputs == (Tensor("text", "BYTES", (1,)),)
    assert exported.task == "classification"
    assert difference(exported) < 1e-5


def test_raw_text_needs_rows(export: Any) -> None:
    with pytest.raises(UserError, match=r"--data or --example.*: text$"):
        export(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(REVIEWS, [1, 0] * 6))
    with pytest.raises(UserError, match=r"'text'; .*'features'"):
        export(
            make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(REVIEWS, [1, 0] * 6),
            example={"features": np.array(REVIEWS)},
        )


def test_a_vectorizer_without_a_converter_is_named(export: Any) -> None:
    model = make_pipeline(HashingVectorizer(n_features=32), LogisticRegression()).fit(REVIEWS, [1, 0] * 6)
    with pytest.raises(UserError, match="hashingvectorizer"):
        export(model, example={"text": REVIEWS})


def with_holes(rows: Any) -> Any:
    """Three values of ten unknown."""
    holes = rows.astype(np.float32)
    holes[np.random.default_rng(1).random(rows.shape) < 0.3] = np.nan
    return holes


@pytest.mark.parametrize(
    ("model", "takes_nan"),
    [
        (HistGradientBoostingClassifier(max_iter=5), True),
        (lightgbm.LGBMClassifier(n_estimators=5, verbose=-1), True),
        (make_pipeline(SimpleImputer(), GaussianNB()), True),
        (GaussianNB(), False),  # scikit-learn refuses them
        (IsolationForest(n_estimators=5, random_state=0), False),  # its converter sends them another way
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("has_learnt", [False, True], ids=["never seen", "learnt from"])
def test_an_unknown_value_is_a_value_where_framework_and_graph_answer_it_alike(
    export: Any, model: Any, takes_nan: bool, has_learnt: bool
) -> None:
    if has_learnt and not takes_nan:
        pytest.skip("it cannot learn from unknown values")
    exported = export(model.fit(with_holes(FLOWERS) if has_learnt else FLOWERS, KINDS))
    assert exported.takes_nan == takes_nan
    assert not takes_nan or difference(exported, with_holes(FLOWERS)) < 1e-4


# -- what is turned away ----------------------------------------------------------------------------------------------


def test_without_trust_the_file_is_not_even_opened(tmp_path: Path) -> None:
    """Not a pickle and not readable: a look inside would say something else."""
    with pytest.raises(UserError, match=r"opening.*--trust"):
        load(tmp_path / "nothing.pkl", is_trusted=False)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"file.*nothing\.pkl"):
        load(tmp_path / "nothing.pkl")


@pytest.mark.parametrize("cut", [0, 1, 100, -20])
def test_a_pickle_that_is_cut_off_is_said_to_be(tmp_path: Path, cut: int) -> None:
    content = pickle.dumps(Ridge().fit(PATIENTS, PROGRESS))
    (tmp_path / "model.pkl").write_bytes(content[:cut])
    with pytest.raises(UserError, match=r"model\.pkl.*readable") as error:
        load(tmp_path / "model.pkl")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04", b"\x80\x04\x95garbage", b"\x00" * 64])
def test_something_else_than_a_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.pkl.*readable"):
        load(tmp_path / "model.pkl")


def test_a_pickle_of_another_scikit_learn_names_the_version_that_made_it(tmp_path: Path) -> None:
    here = sklearn.__version__.encode()
    content = pickle.dumps(Ridge().fit(PATIENTS, PROGRESS)).replace(here, b"1.2.2"[: len(here)])
    (tmp_path / "model.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"scikit-learn 1\.2\.2.*install.*scikit-learn==1\.2\.2"):
        load(tmp_path / "model.pkl")


def test_a_pickle_of_another_scikit_learn_that_breaks_while_it_is_read_names_the_version_too(tmp_path: Path) -> None:
    here = sklearn.__version__.encode()
    content = pickle.dumps(Ridge().fit(PATIENTS, PROGRESS)).replace(here, b"1.2.2"[: len(here)])[:-1]
    (tmp_path / "model.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"scikit-learn 1\.2\.2"):
        load(tmp_path / "model.pkl")


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"model": 1, "scaler": 2}, "holds a dict with model, scaler, not an estimator: pickle the fitted estimator itself"),
        ([1, 2], "holds a list, not an estimator"),
        (np.zeros(3), "holds a ndarray, which is not a scikit-learn estimator with predict"),
        (Ridge, "holds a ABCMeta, which is not a scikit-learn estimator with predict"),
        (Ridge(), "holds a Ridge that is not fitted: call fit, then pickle it"),
        (make_pipeline(StandardScaler(), Ridge()), "holds a Pipeline that is not fitted"),
        (lightgbm.LGBMClassifier(), "holds a LGBMClassifier that is not fitted"),
        (StandardScaler().fit(PATIENTS), "holds a StandardScaler, which is not a scikit-learn estimator with predict"),
        (EllipticEnvelope().fit(FLOWERS), r"step EllipticEnvelope .* has no converter to ONNX"),
        (Nameless().fit(FLOWERS), "holds a Nameless, which has no answer that is known here: classifiers, regressors"),
        (
            make_pipeline(StandardScaler(), SplineTransformer(), Ridge()).fit(PATIENTS, PROGRESS),
            r"step splinetransformer \(sklearn\.preprocessing\._polynomial\.SplineTransformer\) has no converter to ONNX",
        ),
        (
            make_pipeline(FunctionTransformer(np.log1p), Ridge()).fit(FLOWERS, KINDS),
            r"step functiontransformer \(FunctionTransformer\) cannot be converted to ONNX",
        ),
    ],
)  # fmt: skip
def test_what_is_no_fitted_classifier_or_regressor_is_refused_by_its_name(export: Any, held: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        export(held)
    assert "\n" not in str(error.value)
    assert "model.joblib" in str(error.value)


class Doubling(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A step of the user's own."""

    def fit(self, rows: Any, labels: Any = None) -> Any:  # noqa: ARG002 - scikit-learn passes it by name
        self.n_features_in_ = rows.shape[1]
        return self

    def transform(self, rows: Any) -> Any:
        return rows * 2


def test_a_step_of_the_users_own_is_named_where_it_stands(export: Any) -> None:
    inner = ColumnTransformer([("mine", Doubling(), [0, 1])])
    with pytest.raises(UserError, match=r"columntransformer\.mine.*converter.*ONNX"):
        export(make_pipeline(inner, Ridge()).fit(PATIENTS, PROGRESS))


class Silent(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with labels only."""

    def fit(self, rows: Any, labels: Any) -> Any:
        self.n_features_in_, self.classes_ = rows.shape[1], np.unique(labels)
        return self

    def predict(self, rows: Any) -> Any:
        return self.classes_[np.zeros(len(rows), int)]


def test_a_classifier_without_scores_is_refused(export: Any) -> None:
    with pytest.raises(UserError, match=r"neither.*probabilities"):
        export(Silent().fit(FLOWERS, KINDS))


@pytest.mark.parametrize(
    ("leaves", "says"),
    [
        ("module", "needs the package 'tandem_test_gone', which is not installed here"),
        ("class", r"holds a class that is not here, .*Gone.*: put its module on PYTHONPATH"),
    ],
)
def test_a_class_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str, says: str
) -> None:
    module = types.ModuleType("tandem_test_gone")
    module.Gone = type("Gone", (Doubling,), {"__module__": "tandem_test_gone"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tandem_test_gone", module)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(module.Gone()))  # type: ignore[attr-defined]
    if leaves == "module":
        monkeypatch.delitem(sys.modules, "tandem_test_gone")
    else:
        del module.Gone  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=says):
        load(tmp_path / "model.pkl")


def test_a_model_that_made_up_inputs_break_asks_for_real_ones(export: Any) -> None:
    """The features are categories by number, and no other number is known."""
    known = np.random.default_rng(0).choice([100.0, 200.0], (30, 2))
    model = make_pipeline(OneHotEncoder(), Ridge()).fit(known, known[:, 0])
    with pytest.raises(UserError, match=r"made-up.*--example.*categories"):
        export(model)
    assert difference(export(model, example={"features": known})) < 1e-5
    with pytest.raises(UserError, match=r"example.*categories"):
        export(model, example={"features": known + 1})


@pytest.mark.parametrize(
    ("task", "says"),
    [("classification", "is not a classifier: it holds a regressor"), ("regresion", "unknown task 'regresion'")],
)
def test_a_task_that_it_cannot_have_is_refused(export: Any, task: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        export(Ridge().fit(PATIENTS, PROGRESS), task=task)


class Ending:
    """Ends the program that opens it."""

    def __reduce__(self) -> Any:
        return sys.exit, (0,)


def test_a_pickle_that_ends_the_program_is_told_and_does_not_end_it(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Ending()))
    with pytest.raises(UserError, match=r"program.*opens"):
        load(tmp_path / "model.pkl")


def test_a_class_of_the_script_that_pickled_it_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = sys.modules["__main__"]
    monkeypatch.setattr(script, "Mine", type("Mine", (Doubling,), {"__module__": "__main__"}), raising=False)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(script.Mine()))
    monkeypatch.delattr(script, "Mine")
    with pytest.raises(UserError, match=r"script.*pickled"):
        load(tmp_path / "model.pkl")


def test_a_bare_booster_becomes_the_estimator_that_its_objective_says(export: Any) -> None:
    regressor = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(PATIENTS, PROGRESS)
    exported = export(regressor.booster_)
    assert exported.outputs == (Tensor("prediction", "FP32", (1,)),)
    answers = Trial(exported.model, "it").run({"features": PATIENTS.astype(np.float32)})[0]
    assert np.allclose(answers[:, 0], regressor.predict(PATIENTS), rtol=1e-4)


def test_a_step_without_a_converter_is_told_without_the_converters_advice(export: Any) -> None:
    with pytest.raises(UserError, match=r"converted.*ONNX") as error:
        export(make_pipeline(FunctionTransformer(np.log1p), Ridge()).fit(FLOWERS, KINDS))
    assert "https://" not in str(error.value)


def test_the_step_that_a_converter_stumbled_over_is_named_where_its_words_name_none(export: Any) -> None:
    table = np.empty((30, 2), object)
    table[:, 0], table[:, 1] = AGE, COLOUR
    words = make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder())
    model = make_pipeline(ColumnTransformer([("age", StandardScaler(), [0]), ("colour", words, [1])]), Ridge())
    with pytest.raises(UserError, match=r"step columntransformer\.colour\.simpleimputer \(SimpleImputer\)"):
        export(model.fit(table, AGE), example={"column_0": AGE, "column_1": COLOUR})


def test_a_library_of_the_system_that_a_package_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "boosting_without_openmp.py"
    module.write_text("class Model: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    joblib.dump(__import__(module.stem).Model(), tmp_path / "model.joblib")
    module.write_text("raise OSError('libgomp.so.1: cannot open shared object file: No such file or directory')\n")
    del sys.modules[module.stem]
    with pytest.raises(EnvironmentFault, match=r"model.joblib.*libgomp.so.1.*system.*libgomp1"):
        load(tmp_path / "model.joblib")
