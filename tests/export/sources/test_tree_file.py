"""xgboost:FILE, lightgbm:FILE, catboost:FILE and their pickles: the trees answer as their own library does, also without a value."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from serving.errors import UserError
from serving.export import sources
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.sources import sklearn_file, tree_file
from serving.export.sources.graphs.runnable import Trial

FLOWERS, KINDS = load_iris(return_X_y=True)
ROWS = FLOWERS.astype(np.float32)
IS_FIRST = (KINDS > 0).astype(int)
UNKNOWN = np.where(np.random.default_rng(0).random(ROWS.shape) < 0.3, np.nan, ROWS).astype(np.float32)


def load(path: Path) -> ExportedModel:
    return tree_file.load(path, SourceOptions(), lambda *_: None)


def unpickled(model: Any, path: Path) -> ExportedModel:
    joblib.dump(model, path)
    return sklearn_file.load(path, SourceOptions(is_trusted=True), lambda *_: None)


def check(exported: ExportedModel, model: Any, library: str) -> None:
    """Against the very model that was saved; labels must be equal."""
    assert (exported.framework, exported.is_cpu_only, exported.takes_nan) == (library, True, True)
    assert library in exported.toolchain
    for rows in (ROWS, UNKNOWN):
        ours = Trial(exported.model, "it").run({"features": rows})
        if exported.task == "classification":
            assert np.array_equal(ours[1].ravel().astype(str), np.ravel(model.predict(rows)).astype(str))
        wanted = model.predict_proba(rows) if hasattr(model, "predict_proba") else model.predict(rows)
        assert np.allclose(ours[0], wanted.reshape(len(rows), -1), rtol=1e-5, atol=1e-6)


# -- XGBoost ----------------------------------------------------------------------------------------------------------


def xgboost_models() -> dict[str, tuple[Any, Any]]:
    """name -> (unfitted, labels)."""
    xgboost = pytest.importorskip("xgboost")
    few = {"n_estimators": 4, "n_jobs": 1}
    return {
        "three classes": (xgboost.XGBClassifier(**few), KINDS),
        "two classes": (xgboost.XGBClassifier(**few), IS_FIRST),
        "a forest of three classes": (xgboost.XGBRFClassifier(**few), KINDS),
        "a number": (xgboost.XGBRegressor(**few), FLOWERS[:, 3]),
        "two numbers": (xgboost.XGBRegressor(**few), FLOWERS[:, 2:]),
        "counts": (xgboost.XGBRegressor(objective="count:poisson", **few), FLOWERS[:, 3]),
        "a share": (xgboost.XGBRegressor(objective="reg:logistic", **few), IS_FIRST),
        "trees that were dropped": (xgboost.XGBRegressor(booster="dart", rate_drop=0.5, **few), FLOWERS[:, 3]),
    }


NAMES = ("three classes", "two classes", "a forest of three classes", "a number", "two numbers", "counts", "a share")


@pytest.mark.parametrize("name", [*NAMES, "trees that were dropped"])
def test_a_model_of_xgboost_answers_alike_from_json_ubj_and_pickle(tmp_path: Path, name: str) -> None:
    model, labels = xgboost_models()[name]
    model.fit(ROWS, labels)
    for ending in ("json", "ubj"):
        model.save_model(tmp_path / f"model.{ending}")
        check(load(tmp_path / f"model.{ending}"), model, "xgboost")
    check(unpickled(model, tmp_path / "model.joblib"), model, "xgboost")


def test_a_booster_of_xgboost_that_stopped_early_and_names_its_columns_answers_alike(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    data = xgboost.DMatrix(ROWS, KINDS, feature_names=["sepal length", "b", "c", "d"])
    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "nthread": 1},
        data,
        40,
        evals=[(xgboost.DMatrix(ROWS[::2], KINDS[::-2], feature_names=data.feature_names), "other")],
        early_stopping_rounds=2,
        verbose_eval=False,
    )
    booster.save_model(tmp_path / "model.ubj")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(booster))
    wanted = booster.predict(data, iteration_range=(0, booster.best_iteration + 1))
    for exported in (load(tmp_path / "model.ubj"), unpickled(booster, tmp_path / "model.joblib")):
        assert np.allclose(Trial(exported.model, "it").run({"features": ROWS})[0], wanted, atol=1e-6)


def test_a_pipeline_that_ends_in_xgboost_answers_alike(tmp_path: Path) -> None:
    model, labels = xgboost_models()["three classes"]
    pipeline = make_pipeline(StandardScaler(), model).fit(ROWS, labels)
    check(unpickled(pipeline, tmp_path / "model.joblib"), pipeline, "xgboost")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"booster": "gblinear"}, "XGBRegressor cannot be converted to ONNX: its booster gblinear is a linear model"),
        ({"objective": "reg:absoluteerror", "multi_strategy": "multi_output_tree"}, "a vector in each leaf"),
    ],
)
def test_what_is_not_trees_of_numbers_is_named(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    labels = FLOWERS[:, 2:] if "multi_strategy" in settings else FLOWERS[:, 3]
    model = xgboost.XGBRegressor(n_estimators=2, n_jobs=1, **settings).fit(ROWS, labels)
    model.save_model(tmp_path / "model.json")
    with pytest.raises(UserError, match=says):
        load(tmp_path / "model.json")


# -- LightGBM and CatBoost --------------------------------------------------------------------------------------------


def library_of(name: str) -> Any:
    """Skips where it is not installed, or lacks a library of the system: a Debian without gcc has no libgomp, which LightGBM needs."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.mark.parametrize("labels", [KINDS, IS_FIRST, FLOWERS[:, 3]], ids=["three classes", "two classes", "a number"])
def test_a_text_file_of_lightgbm_answers_alike(tmp_path: Path, labels: Any) -> None:
    lightgbm = library_of("lightgbm")
    kind = lightgbm.LGBMRegressor if labels.dtype.kind == "f" else lightgbm.LGBMClassifier
    model = kind(n_estimators=4, verbose=-1, n_jobs=1).fit(ROWS, labels)
    model.booster_.save_model(tmp_path / "model.txt")
    check(load(tmp_path / "model.txt"), model, "lightgbm")


@pytest.mark.models
@pytest.mark.parametrize("labels", [KINDS, IS_FIRST, np.array(["a", "b", "c"])[KINDS], FLOWERS[:, 3]])
def test_a_model_of_catboost_answers_alike_from_cbm_and_pickle(tmp_path: Path, labels: Any) -> None:
    catboost = pytest.importorskip("catboost")
    kind = catboost.CatBoostRegressor if labels.dtype.kind == "f" else catboost.CatBoostClassifier
    model = kind(iterations=4, thread_count=1, verbose=0, allow_writing_files=False).fit(UNKNOWN, labels)
    model.save_model(str(tmp_path / "model.cbm"))
    check(load(tmp_path / "model.cbm"), model, "catboost")
    check(unpickled(model, tmp_path / "model.joblib"), model, "catboost")


@pytest.mark.models
@pytest.mark.parametrize(("loss", "says"), [("Poisson", "without its exponential"), ("MultiRMSE", "several targets")])
def test_what_catboost_itself_exports_otherwise_is_named(tmp_path: Path, loss: str, says: str) -> None:
    catboost = pytest.importorskip("catboost")
    labels = FLOWERS[:, 2:] if loss == "MultiRMSE" else FLOWERS[:, 3]
    model = catboost.CatBoostRegressor(
        iterations=2, thread_count=1, verbose=0, loss_function=loss, allow_writing_files=False
    )
    model.fit(ROWS, labels).save_model(str(tmp_path / "model.cbm"))
    with pytest.raises(UserError, match=says):
        load(tmp_path / "model.cbm")


# -- which file it is, before any library is imported -----------------------------------------------------------------

BEGINNINGS = {"lightgbm": b"tree\nversion=v4\n", "catboost": b"CBM1\x00\x00", "xgboost": b'{"learner":{"attributes"'}


@pytest.mark.parametrize("library", sources.TREES)
def test_a_file_of_another_library_names_the_right_source(tmp_path: Path, library: str) -> None:
    (tmp_path / "model").write_bytes(BEGINNINGS[library])
    for said in sources.TREES:
        if said != library:
            with pytest.raises(UserError, match=rf" {library}:.*model$"):
                sources.check(f"{said}:{tmp_path / 'model'}", SourceOptions())


@pytest.mark.parametrize("library", sources.TREES)
@pytest.mark.parametrize("content", [b"", b"hello", b'{"model": 1}', b"\x80\x04\x95"])
def test_something_else_is_told_how_that_library_saves_a_model(tmp_path: Path, library: str, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(UserError, match="save_model"):
        sources.check(f"{library}:{tmp_path / 'model'}", SourceOptions())


@pytest.mark.parametrize(("library", "ending"), [("xgboost", "json"), ("lightgbm", "txt")])
def test_a_file_that_is_cut_off_is_said_to_be(tmp_path: Path, library: str, ending: str) -> None:
    library_of(library)
    (tmp_path / f"model.{ending}").write_bytes(BEGINNINGS[library])
    with pytest.raises(UserError, match=rf"{library} .*model.{ending}") as error:
        load(tmp_path / f"model.{ending}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("compress", [0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("xz", 3)])
@pytest.mark.parametrize("library", ["xgboost", "catboost"])
def test_a_pickle_asks_for_the_library_that_it_names_without_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, compress: Any
) -> None:
    joblib.dump({"of": f"{library}.core"}, tmp_path / "model.joblib", compress=compress)
    monkeypatch.setattr(sources, "_is_found", lambda package: package != library)
    assert sources.missing(f"sklearn:{tmp_path / 'model.joblib'}") == library
    assert sources.missing("sklearn:nothing.pkl") is None
