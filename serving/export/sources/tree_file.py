"""xgboost:FILE, lightgbm:FILE, catboost:FILE: boosted trees in the format of their own library, which holds no code.

XGBoost writes JSON or UBJ, LightGBM text, CatBoost .cbm. Each becomes the estimator that its library has for scikit-learn, so that
it goes the way of a pickle from there (`sklearn_file.py`). Rule: which estimator it is, is what the
file says of its objective, never a guess by its name.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.onnx_session import first_line
from serving.export.progress import Progress
from serving.export.sources.checks import check_trees, library_of_file, not_installed


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for a file of another library or a part of one, and for trees that have no converter."""
    check_trees(path, options)
    from serving.export.sources import sklearn_file

    return sklearn_file.converted(path.name, lambda: _read(path), options, progress, kind=str(library_of_file(path)))


def _read(path: Path) -> Any:
    library = library_of_file(path)
    assert library is not None, "checked"
    readers = {"xgboost": _xgboost, "lightgbm": _lightgbm, "catboost": _catboost}
    try:
        module = importlib.import_module(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions before
            return readers[library](module, path)
    except ImportError as error:
        raise not_installed(library, error, library if library != "lightgbm" else "onnx") from None
    except UserError:
        raise
    except OSError as error:
        raise EnvironmentFault(f"{library} does not load here: {first_line(error)}") from None
    except Exception as error:  # each library has an exception of its own
        raise UserError(
            f"{library} cannot read {path.name}, or it is only a part of one: {first_line(error)}"
        ) from None


def _xgboost(xgboost: Any, path: Path) -> Any:
    from serving.export.sources.boosted_trees import estimator_of

    return estimator_of(xgboost.Booster(model_file=bytearray(path.read_bytes())))


def _lightgbm(lightgbm: Any, path: Path) -> Any:
    from serving.export.sources.boosted_trees import estimator_of

    return estimator_of(lightgbm.Booster(model_file=str(path), params={"verbosity": -1}))


def _catboost(catboost: Any, path: Path) -> Any:
    plain = catboost.CatBoost().load_model(str(path))
    loss = str(plain.get_all_params().get("loss_function", "")).partition(":")[0]
    is_classifier = loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll")
    kind = catboost.CatBoostClassifier if is_classifier else catboost.CatBoostRegressor
    return kind().load_model(str(path))
