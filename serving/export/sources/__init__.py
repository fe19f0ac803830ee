"""Where models come from: one package or file per kind of source, each with `load(..., options, progress) -> ExportedModel`.

`load` here only reads how a source is spelled. Frameworks are imported when their kind of source is used, so that each
installs alone. Rule: what runs foreign code asks for `options.is_trusted` before it opens anything.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.sources.checks import (
    TREES,
    check_keras,
    check_onnx,
    check_paddle,
    check_pickle,
    check_tensorflow,
    check_trees,
    library_in_pickle,
    library_of_file,
)
from serving.repository import CLASSIFICATION, EMBEDDING, OTHER

KINDS = {  # how it is spelled -> the module that reads it
    "hf": "hugging_face",
    "module": "torch_module",
    "onnx": "onnx_file",
    "sklearn": "sklearn_file",
    "keras": "keras_file",
    "tensorflow": "tensorflow_file",
    "paddle": "paddle_model",
    "xgboost": "tree_file",
    "lightgbm": "tree_file",
    "catboost": "tree_file",
}
SPELLINGS = (
    "hf:DIR_OR_ID, module:PKG.MOD:CALLABLE, FILE.onnx, sklearn:FILE, xgboost:FILE, lightgbm:FILE, catboost:FILE, keras:FILE, "
    "tensorflow:PATH, paddle:PATH"
)
_ENDINGS = {  # of files -> kind
    ".pkl": "sklearn",
    ".pickle": "sklearn",
    ".joblib": "sklearn",
    ".keras": "keras",
    ".tflite": "tensorflow",
    ".h5": "tensorflow",
    ".hdf5": "tensorflow",
    ".pdmodel": "paddle",
    ".ubj": "xgboost",
    ".cbm": "catboost",
}
_WEIGHTS = (
    "weights alone say nothing of the net: write a function that makes it and loads them, module:FILE.py:FUNCTION"
)
_WAYS = {  # endings of files that are no source -> the way to one
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors"), _WEIGHTS),
    **dict.fromkeys((".params", "-symbol.json"), "MXNet's own exporter writes .onnx, and docs/models.md says how"),
}
_FILES: dict[str, Any] = {  # kinds that are one file -> its check
    "onnx": check_onnx,
    "sklearn": check_pickle,
    "keras": check_keras,
    "tensorflow": check_tensorflow,
    "paddle": check_paddle,
    **{library: partial(check_trees, kind=library) for library in TREES},
}
NEEDS = {  # kind -> extra
    "hf": "export",
    "module": "export",
    "keras": "keras",
    "onnx": "onnx",
    "sklearn": "onnx",
    "tensorflow": "tensorflow",
    "paddle": "onnx",  # PaddlePaddle itself has an environment of its own, SourceOptions.framework_python
    "xgboost": "xgboost",
    "lightgbm": "onnx",
    "catboost": "catboost",
}
_SHAPED = (
    CLASSIFICATION,
    EMBEDDING,
    OTHER,
)  # tasks that decide what a source makes; of the others its outputs are taken as they are


def split(spec: str) -> tuple[str, str]:
    """(kind, the rest). UserError for a spelling that nothing reads."""
    kind, colon, rest = spec.partition(":")
    if spec.endswith(".onnx"):
        return "onnx", rest if kind == "onnx" else spec
    if colon and kind in KINDS:
        if not rest:
            raise UserError(f"'{spec}' names nothing after '{kind}:'; sources are: {SPELLINGS}")
        return kind, rest
    if colon and _is_import(spec):  # PKG.MOD:CALLABLE, as import strings are spelled elsewhere
        return "module", spec
    raise UserError(f"'{spec}' is not a source{_hint(spec)}")


def _hint(spec: str) -> str:
    kind, colon, _ = spec.partition(":")
    if spec.lower().endswith(".onnx"):
        return ": its name has to end in .onnx, in small letters"
    if (prefix := _ENDINGS.get(Path(spec).suffix.lower())) and not colon:
        return f"; did you mean {prefix}:{spec}?"
    if not colon and (prefix := _kind_of_content(Path(spec))):
        return f"; did you mean {prefix}:{spec}?"
    if way := next((way for ending, way in _WAYS.items() if spec.lower().endswith(ending)), None):
        return f": {way}"
    return nearest(kind, KINDS) if colon else f"; sources are: {SPELLINGS}"


def _kind_of_content(path: Path) -> str | None:
    if (path / "config.json").is_file():
        return "hf"
    if (path / "saved_model.pb").is_file():
        return "tensorflow"
    if path.is_dir() and any(path.glob("*.pdiparams")):
        return "paddle"
    return library_of_file(path) if path.is_file() else None


def _is_import(spec: str) -> bool:
    module, _, name = spec.partition(":")
    return name.isidentifier() and "." in module and all(part.isidentifier() for part in module.split("."))


def check(spec: str, options: SourceOptions) -> None:
    """Raises UserError for what is wrong before the source's framework is imported."""
    kind, rest = split(spec)
    how = _shaped(options)
    if kind in _FILES:
        _FILES[kind](Path(rest), how)
    else:
        _module(KINDS[kind]).check(rest, how)


def load(spec: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    """The model as FP32 ONNX with all that is known of it. UserError for what cannot be read or exported."""
    kind, rest = split(spec)
    how = _shaped(options)
    exported: ExportedModel = _module(KINDS[kind]).load(Path(rest) if kind in _FILES else rest, how, progress)
    if how is options or options.task is None:
        return exported
    return replace(exported, task=options.task, labels=options.labels or exported.labels)


def _shaped(options: SourceOptions) -> SourceOptions:
    """What a source is told of a task that only says how answers are judged: take the outputs as they are."""
    return options if options.task in (None, *_SHAPED) else replace(options, task=OTHER, labels=None)


def _module(name: str) -> Any:
    return importlib.import_module(f"serving.export.sources.{name}")


# -- what has to be installed ------------------------------------------------------------------------------------------

PACKAGES = {  # extra -> what it brings
    "onnx": ("numpy", "onnx", "onnxruntime"),
    "export": ("onnx", "onnxruntime", "torch", "transformers"),
    "keras": ("onnx", "onnxruntime", "torch", "keras"),
    "tensorflow": ("onnx", "onnxruntime", "tensorflow", "tf2onnx"),
    "xgboost": ("onnx", "onnxruntime", "xgboost"),
    "catboost": ("onnx", "onnxruntime", "catboost"),
}
RECIPES = {"digits": "export", "minilm": "export", "efficientnet-lite0": "export"}
ALSO = {  # recipe or kind of source -> what it imports beside that, of the same extra
    **dict.fromkeys(("sklearn", *TREES), ("sklearn", "skl2onnx", "onnxmltools")),
    "digits": ("sklearn",),
    "minilm": ("tokenizers",),
    "efficientnet-lite0": ("sklearn", "skl2onnx", "PIL"),
}


def missing(source: str) -> str | None:
    """The extra that has to be installed, None where nothing is missing."""
    kind = source if source in RECIPES else "speed" if source.startswith("speed:") else split(source)[0]
    extra = "onnx" if kind == "speed" else RECIPES.get(kind) or NEEDS[kind]
    if kind == "sklearn":
        extra = NEEDS.get(library_in_pickle(Path(split(source)[1])) or kind, extra)
    return None if is_here(extra) and all(map(_is_found, ALSO.get(kind, ()))) else extra


def is_here(extra: str) -> bool:
    return all(map(_is_found, PACKAGES[extra]))


def _is_found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
