"""sklearn:FILE: a pickled estimator of scikit-learn, LightGBM, XGBoost or CatBoost, as an FP32 graph for CPUs.

The graph takes float32, and the framework whose answers judge it gets the same float32 values. No GPU provider has kernels
for trees and encoders, so no other precision is tried. Rules: opening a pickle runs what its maker put into it, so nothing of
the file is opened before its user said --trust; an estimator that another scikit-learn wrote is refused, because it may load and
answer something else.
"""

from __future__ import annotations

import importlib
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import onnx
import skl2onnx  # type: ignore[import-untyped, unused-ignore]
import sklearn  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray
from sklearn.exceptions import InconsistentVersionWarning, NotFittedError  # type: ignore[import-untyped, unused-ignore]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped, unused-ignore]

from serving.errors import EnvironmentFault, UserError
from serving.export.data.npz import COLUMNS_FILE
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.onnx_session import first_line
from serving.export.progress import Progress
from serving.export.sources import boosted_trees
from serving.export.sources.checks import TREES, check_pickle, not_installed
from serving.export.sources.graphs import examples
from serving.export.sources.graphs.onnx_model import Port, finished, input_ports, output_ports
from serving.export.sources.graphs.runnable import AS_IT_IS, RunFailed, Trial
from serving.export.sources.sklearn_estimator import (
    FEATURES,
    LABEL,
    Estimator,
    describe,
    final,
    made_up_rows,
    table_of,
    text_columns,
)
from serving.export.sources.sklearn_graph import to_onnx
from serving.repository import Tensor
from serving.repository.record import CLASSIFICATION

_UNKNOWN_RATIO = 0.3  # of values, so that rows with several are among them
_NAN_TOLERANCE = 1e-3  # a row that takes another branch moves by more


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for a file without trust, a pickle that holds something else, a step without a converter."""
    check_pickle(path, options)
    return converted(path.name, lambda: read_pickle(path), options, progress)


def converted(
    name: str, read: Callable[[], Any], options: SourceOptions, progress: Progress, kind: str = "sklearn"
) -> ExportedModel:
    """Of the fitted estimator that `read` gives. `name` is its file's, `kind` how the source is spelled."""
    step = f"converting {name}"
    progress(step, 0, 2)
    estimator = describe(read(), name)
    progress(step, 1, 2)
    exported = _exported(estimator, options, kind)
    progress(step, 2, 2)
    return exported


def _exported(estimator: Estimator, options: SourceOptions, kind: str) -> ExportedModel:
    task = _task(estimator, options)
    texts = _texts(estimator, options)
    graph = to_onnx(estimator, texts, options.opset)
    columns = _rows(estimator, options, texts)
    content = finished(graph, estimator.name)
    takes, gives = input_ports(graph, estimator.name), output_ports(graph, estimator.name)
    rows = {port.name: values for port, values in zip(takes, columns.values(), strict=True)}
    framework = _framework(estimator, rows, options.example_name)
    trial = Trial(content, estimator.name)
    _check(trial, rows, framework, estimator)
    shapes = [values.shape[1:] for values in framework]
    library = boosted_trees.library_of(final(estimator.model))
    return ExportedModel(
        model=content,
        inputs=tuple(Tensor(port.name, port.datatype, port.dims[1:]) for port in takes),
        outputs=tuple(Tensor(p.name, p.datatype, shape) for p, shape in zip(gives, shapes, strict=True)),
        max_batch_size=max(1, options.max_rows),
        task=task,
        source=f"{kind}: {estimator.name} ({_title(estimator.model)}); for CPUs only",
        framework=library or "scikit-learn",
        run=lambda inputs: estimator.answers(table_of({port.name: inputs[port.name] for port in takes})),
        example=rows,
        labels=None if estimator.classes is None else tuple(str(label) for label in estimator.classes),
        files={COLUMNS_FILE: ("\n".join(estimator.columns) + "\n").encode()} if estimator.columns else {},
        precisions=AS_IT_IS,
        is_cpu_only=True,
        toolchain=_toolchain(library),
        takes_nan=_takes_nan(trial, rows, estimator),
    )


def _framework(estimator: Estimator, rows: Arrays, where: str) -> list[NDArray[Any]]:
    try:
        return estimator.answers(table_of(rows))
    except ValueError as error:
        has_holes = any(values.dtype.kind == "f" and np.isnan(values).any() for values in rows.values())
        way = f": {where} holds NaN, which {examples.NO_ANSWER}" if has_holes else f" on {where}: {first_line(error)}"
        raise UserError(f"{estimator.name} does not run{way}") from None


def _task(estimator: Estimator, options: SourceOptions) -> str:
    if options.task == CLASSIFICATION and estimator.classes is None:
        what = "it answers several questions at once" if LABEL in estimator.answer else "it holds a regressor"
        raise UserError(f"{estimator.name} is not a classifier: {what}")
    return options.task or estimator.task


def _title(model: Any) -> str:
    last = final(model)
    return type(last).__name__ if last is model else f"{type(model).__name__} with {type(last).__name__}"


def _toolchain(library: str | None) -> dict[str, str]:
    versions = {"scikit-learn": sklearn.__version__, "skl2onnx": skl2onnx.__version__, "onnx": onnx.__version__}
    others = {"lightgbm": ("lightgbm", "onnxmltools")}.get(library or "", (library,) if library else ())
    return versions | {name: str(importlib.import_module(name).__version__) for name in others}


def _takes_nan(trial: Trial, rows: Arrays, estimator: Estimator) -> bool:
    """Whether the framework answers rows with unknown values, as boosted trees do, and the graph answers them alike."""
    numbers = {name: values.copy() for name, values in rows.items() if values.dtype.kind == "f"}
    random = np.random.default_rng(0)
    for values in numbers.values():
        values[random.random(values.shape) < _UNKNOWN_RATIO] = np.nan
    unknown = {**rows, **numbers}
    try:
        pairs = list(zip(trial.run(unknown), estimator.answers(table_of(unknown)), strict=True))
    except (ValueError, RunFailed):
        return False
    return all(
        np.allclose(ours, theirs, rtol=_NAN_TOLERANCE, atol=_NAN_TOLERANCE)
        if theirs.dtype.kind == "f"
        else np.array_equal(ours, theirs)
        for ours, theirs in pairs
    )


# -- inputs to judge it on --------------------------------------------------------------------------------------------


def _texts(estimator: Estimator, options: SourceOptions) -> list[bool] | None:
    """For each column whether it is text; None where all are numbers, and one input takes them."""
    if options.example is None and (estimator.takes_text or text_columns(estimator.model)):
        raise UserError(
            f"{estimator.name} takes columns of text: give rows of them as .npz with --data or --example, one array for each column: "
            f"{', '.join(estimator.column_names)}"
        )
    given = options.example or {}
    texts = [name in given and _is_text(given[name]) for name in estimator.column_names]
    return texts if any(texts) else None


def _rows(estimator: Estimator, options: SourceOptions, texts: list[bool] | None) -> Arrays:
    """Inputs in the order of the graph's; the names of columns are still the user's."""
    if options.example is None:
        try:
            return {FEATURES: made_up_rows(estimator)}
        except ValueError as error:  # an estimator's, about the numbers
            raise UserError(
                f"{estimator.name} does not run on made-up inputs, give real ones with --example: {first_line(error)}"
            ) from None
    if estimator.takes_text and not set(estimator.column_names) & options.example.keys():
        raise UserError(
            f"{estimator.name} takes a text a row, as an array {estimator.column_names[0]!r}; {options.example_name} has "
            f"{', '.join(map(repr, options.example)) or 'none'}"
        )
    if FEATURES in options.example:
        return examples.given(
            options.example, [Port(FEATURES, "FP32", (estimator.num_features,))], options.example_name
        )
    if not (texts or estimator.takes_text) and not set(estimator.column_names) & options.example.keys():
        raise UserError(
            f"{estimator.name} takes one array, {FEATURES!r}, FP32 [n, {estimator.num_features}]; {options.example_name} has "
            f"{', '.join(map(repr, options.example)) or 'none'}"
        )
    kinds = ("BYTES" if is_text else "FP32" for is_text in texts or [False] * estimator.num_features)
    wanted = [Port(name, kind, (1,)) for name, kind in zip(estimator.column_names, kinds, strict=True)]
    columns = examples.given(options.example, wanted, options.example_name)
    return columns if texts else {FEATURES: np.concatenate(list(columns.values()), axis=1)}


def _is_text(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "US" or any(
        isinstance(value, str | bytes) for value in np.ravel(values)[:1]
    )


def _check(trial: Trial, rows: Arrays, framework: list[NDArray[Any]], estimator: Estimator) -> None:
    """The graph runs and gives what the framework gives in shape; whether the values agree is the gate's question."""
    try:
        answers = trial.run(rows)
    except RunFailed as error:
        raise UserError(f"{estimator.name}, converted, does not run: {error}") from None
    for name, ours, theirs in zip(trial.outputs, answers, framework, strict=True):
        if ours.shape != theirs.shape:
            raise UserError(
                f"{estimator.name}: converted, output {name} has shape {list(ours.shape)}, scikit-learn's has "
                f"{list(theirs.shape)}: export the model as .onnx yourself"
            )


def read_pickle(path: Path) -> Any:
    """A fitted estimator with `predict`. Raises UserError for anything else, EnvironmentFault where a library of the system is missing."""
    name = path.name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", InconsistentVersionWarning)
            estimator = joblib.load(path)
    except InconsistentVersionWarning as warning:
        raise _other_version(name, str(warning.original_sklearn_version)) from None
    except ModuleNotFoundError as error:
        if error.name in TREES:
            raise not_installed(name, error, error.name if error.name != "lightgbm" else "onnx") from None
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
        raise UserError(f"{name} is not a readable pickle, or only a part of one: {_reason(error)}") from None
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
    if kind == "Booster" and boosted_trees.library_of(estimator):
        return boosted_trees.estimator_of(estimator)
    if isinstance(estimator, type) or not hasattr(estimator, "predict") or not hasattr(estimator, "get_params"):
        raise UserError(f"{name} holds a {kind}, which is not a scikit-learn estimator with predict")
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise UserError(f"{name} holds a {kind} that is not fitted: call fit, then pickle it") from None
    except TypeError as error:
        raise UserError(f"{name} holds a {kind}, which is not a scikit-learn estimator: {first_line(error)}") from None
    return estimator
