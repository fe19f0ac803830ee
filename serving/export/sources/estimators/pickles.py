"""Reads the pickle of a fitted estimator, or says in one line what it is instead.

Opening a pickle runs what its maker put into it: whoever calls this has asked for trust before. Rule: an estimator that
another scikit-learn wrote is refused, because it may load and answer something else.
"""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped, unused-ignore]
import sklearn  # type: ignore[import-untyped, unused-ignore]
from sklearn.exceptions import (  # type: ignore[import-untyped, unused-ignore]
    InconsistentVersionWarning,
    NotFittedError,
)
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped, unused-ignore]

from serving.errors import EnvironmentFault, UserError
from serving.export.onnx_session import first_line


def unpickled(path: Path) -> Any:
    """A fitted estimator with `predict`. Raises UserError for anything else, EnvironmentFault where a library of the system is missing."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    name = path.name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", InconsistentVersionWarning)
            estimator = joblib.load(path)
    except InconsistentVersionWarning as warning:
        raise _other_version(name, str(warning.original_sklearn_version)) from None
    except ModuleNotFoundError as error:
        raise UserError(f"{name} needs the package {error.name!r}, which is not installed here") from None
    except AttributeError as error:
        if "__main__'" in str(error):
            raise UserError(
                f"{name} holds a class of the script that pickled it, {_attribute(error)}: put the class into a module of its "
                "own, import it from there, pickle again, and have that module on PYTHONPATH"
            ) from None
        raise UserError(
            f"{name} holds a class that is not here, {first_line(error)}: put its module on PYTHONPATH"
        ) from None
    except OSError as error:
        if library := _missing_library(error):
            raise EnvironmentFault(
                f"{name} needs {library} of the system, which is not installed (LightGBM's is in the package libgomp1 on Debian and Ubuntu)"
            ) from None
        raise UserError(f"cannot read {path}: {error.strerror or first_line(error)}") from None
    except (Exception, SystemExit) as error:  # anything at all: a pickle is a program
        if (made_by := _version_inside(path)) not in (None, sklearn.__version__):
            raise _other_version(name, str(made_by)) from None
        raise UserError(f"{name} is no pickle that can be read, or only a part of one: {_reason(error)}") from None
    return _fitted(estimator, name)


def _missing_library(error: OSError) -> str | None:
    """The shared library that the linker did not find for a package, if that is what went wrong."""
    found = re.match(r"(\S+): cannot open shared object file", str(error))
    return found[1] if found else None


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it ends the program that opens it"
    is_cut = isinstance(error, EOFError | pickle.UnpicklingError) and not str(error)
    return "it ends too early" if is_cut else first_line(error)


def _attribute(error: AttributeError) -> str:
    """What was looked for; the interpreter does not always say it in a field."""
    found = re.search(r"attribute '([^']+)'", str(error))
    return found[1] if found else str(error.name)


def _other_version(name: str, made_by: str) -> UserError:
    return UserError(
        f"{name} was made by scikit-learn {made_by}, this is {sklearn.__version__}: pip install scikit-learn=={made_by} "
        "here, or fit and pickle the model again with this one"
    )


def _version_inside(path: Path) -> str | None:
    """What an estimator wrote beside its state, where the file is not compressed: it may fail before it can be asked."""
    match = re.search(rb"_sklearn_version[^0-9]{1,8}(\d+\.\d+(?:\.\w+)*)", path.read_bytes())
    return match[1].decode() if match else None


def _fitted(estimator: Any, name: str) -> Any:
    kind = type(estimator).__name__
    if isinstance(estimator, dict | list | tuple):
        held = f" with {', '.join(map(str, list(estimator)[:5]))}" if isinstance(estimator, dict) and estimator else ""
        raise UserError(f"{name} holds a {kind}{held}, not an estimator: pickle the fitted estimator itself")
    if kind == "Booster":
        raise UserError(
            f"{name} holds a Booster, which does not say what its numbers mean: pickle the LGBMClassifier or LGBMRegressor "
            "around it, or bring the model as FILE.onnx"
        )
    if isinstance(estimator, type) or not hasattr(estimator, "predict") or not hasattr(estimator, "get_params"):
        raise UserError(f"{name} holds a {kind}, which is no scikit-learn estimator with predict")
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise UserError(f"{name} holds a {kind} that is not fitted: call fit, then pickle it") from None
    except TypeError as error:
        raise UserError(f"{name} holds a {kind}, which is no scikit-learn estimator: {first_line(error)}") from None
    return estimator
