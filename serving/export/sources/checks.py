"""What can be refused before the framework that reads a source is imported: options that its kind ignores, and wrong files.

One table says which option means something to which kind of source. It is asked before anything long begins, and again where
a source turns out to be of a finer kind. Folders of transformers and users' own modules are checked beside their loaders, which
need no framework for that. Rule: an option that a kind does not read is refused by name, never ignored; an option of every kind
has its row all the same.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.installation import how_to_add
from serving.repository.record import TASKS

EMBEDDING, IMAGES, TEXTS = "hf embedding", "hf images", "hf texts"
READY_MADE, SPEED = "ready-made", "speed"
HF = (EMBEDDING, IMAGES, TEXTS)
FINER = {"hf": HF}  # kind -> the kinds that it may turn out to be
KINDS = {  # kind -> what a message calls it
    EMBEDDING: "a sentence embedding",
    IMAGES: "an image classifier",
    TEXTS: "a text classifier",
    "module": "a module, whose own code says such things",
    "onnx": "an ONNX file",
    "tensorflow": "a model of TensorFlow",
    "paddle": "a model of PaddlePaddle",
    "sklearn": "a pickled estimator",
    "xgboost": "a file of XGBoost",
    "lightgbm": "a file of LightGBM",
    "catboost": "a file of CatBoost",
    "keras": "a Keras file",
    "digits": "digits, which is built as it is",
    "minilm": "minilm, which is built as it is",
    "efficientnet-lite0": "efficientnet-lite0, which is built as it is",
    SPEED: "an untrained net, which is drawn as it is",
    READY_MADE: "a ready-made variant, which is taken as it is and judged like its FP32",
}
EVERY = frozenset(KINDS)
_MODELS = EVERY - {READY_MADE}
TABLES = frozenset({"sklearn", "xgboost", "lightgbm", "catboost"})  # what takes rows of a table
_GRAPHS = frozenset({"onnx", "tensorflow", "paddle"})  # that are read as ONNX files
_FILES = frozenset({"module", "keras", *_GRAPHS, *TABLES})  # that do not say all of themselves
_TRAINED = EVERY - {SPEED}
_QUANTISED = _MODELS - TABLES  # they stay FP32

OPTIONS: Mapping[str, tuple[str, frozenset[str]]] = {  # field -> (how it is spelled, the kinds that read it)
    "variant": ("--variant", frozenset({READY_MADE})),
    "precisions": ("--precision", _MODELS),
    "data": ("--data", EVERY),
    "labels": ("--labels", _GRAPHS),
    "preprocessing": ("--preprocessing", _GRAPHS),
    "layout": ("--layout", _GRAPHS),
    "dims": ("--dim", frozenset({*_GRAPHS, "module"})),
    "calibration": ("--calibration", _QUANTISED),
    "example": ("--example", _FILES),
    "is_trusted": ("--trust", EVERY),  # a permission; --metric asks for it too
    "task": ("--task", _FILES | {*HF}),
    "opset": ("--opset", _MODELS),
    "max_batch_size": ("--max-batch", _MODELS),
    "max_length": ("--max-length", frozenset({EMBEDDING, TEXTS, *_GRAPHS, "keras", "minilm", SPEED})),
    "image_size": ("--image-size", frozenset({IMAGES, *_GRAPHS, "keras"})),
    "pooling": ("--pooling", frozenset({EMBEDDING, "minilm"})),
    "is_normalised": ("--normalise", frozenset({EMBEDDING, "minilm"})),
    "metric": ("--metric", _TRAINED),
    "limits": ("a limit", EVERY),  # of an untrained net only how far a row depends on its batch
    "max_bad_ratio": ("--max-bad-images", EVERY),
    "accepts_ungated": ("--i-accept-ungated", frozenset({*HF, *_FILES})),
    "accepts_worse": ("--worse-is-fine", _TRAINED - {READY_MADE}),
    "keeps_data": ("--keep-data", _MODELS),
    "num_kept": ("--keep-versions", _MODELS),
    "keeps_slow": ("--keep-slow", frozenset({READY_MADE})),
    "queue_delay_us": ("--queue-delay-us", EVERY),
    "is_for_tensorrt": ("--tensorrt", EVERY - TABLES),
    "int8_range": ("--int8-range", _QUANTISED),
    "fuses": ("--fuse", _QUANTISED),
    "budget_s": ("--budget", _QUANTISED),
    "seconds": ("--seconds", EVERY),
    "payload": ("--payload", _MODELS),
}


def refuse(kind: str, options: Any) -> None:
    """Raises UserError for the first option that the kind ignores, and for a task that nobody knows.

    `options`: a dataclass whose defaults mean that nothing was chosen.
    """
    kinds = FINER.get(kind, (kind,))
    for name in non_defaults(options):
        spelled, readers = OPTIONS.get(name, ("", EVERY))
        if readers.isdisjoint(kinds):
            raise UserError(f"{spelled} does not apply to {_title(kinds)}; leave it off")
    if (task := getattr(options, "task", None)) is not None and task not in TASKS:
        raise UserError(f"unknown task {task!r}{nearest(task, TASKS)}")


def non_defaults(options: Any) -> list[str]:
    """The fields that differ from their defaults."""
    return [field.name for field in fields(options) if field.init and getattr(options, field.name) != field.default]


def _title(kinds: Collection[str]) -> str:
    return KINDS[next(iter(kinds))] if len(kinds) == 1 else "a folder of transformers"


def not_installed(kind: str, error: ImportError, extra: str = "export") -> UserError:
    return UserError(f"{kind}: needs {error.name}, which is not installed here: {how_to_add(extra)}")


def check_onnx(path: Path, options: SourceOptions) -> None:
    refuse("onnx", options)
    if not path.exists():
        raise UserError(f"there is no file {path}")


def check_pickle(path: Path, options: SourceOptions) -> None:
    if not options.is_trusted:
        raise UserError(
            f"{path} is a pickle, and opening one runs what its maker put into it: say --trust if you trust them"
        )
    refuse("sklearn", options)
    _check_is_file(path)


# -- boosted trees ----------------------------------------------------------------------------------------------------

TREES = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost"}  # package -> its name in messages
_AS = {
    "xgboost": "model.save_model('model.ubj')",
    "lightgbm": "booster.save_model('model.txt')",
    "catboost": "model.save_model('model.cbm')",
}
_BEGINNING = 64  # bytes


def check_trees(path: Path, options: SourceOptions, kind: str | None = None) -> None:
    """`kind`: the library that the user named."""
    _check_is_file(path)
    library = library_of_file(path)
    wanted = kind or library or "xgboost"
    refuse(wanted, options)
    if library is None:
        raise UserError(
            f"{path.name} is no model of {TREES[wanted]}, or only a part of one: save it with {_AS[wanted]}"
        )
    if library != wanted:
        raise UserError(f"{path.name} is a model of {TREES[library]}: say {library}:{path}")


def library_of_file(path: Path) -> str | None:
    """Which library wrote it, by its first bytes; None: no model of any that is known."""
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if beginning.startswith((b"tree\n", b"tree\r\n")):
        return "lightgbm"
    if beginning.startswith(b"CBM1"):
        return "catboost"
    return "xgboost" if beginning.startswith(b"{") and b"learner" in beginning else None


_COMPRESSED: Mapping[
    bytes, Callable[[bytes], bytes]
] = {  # as joblib writes pickles: how such a file begins -> what undoes it
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
    b"\x78": zlib.decompress,
}


def library_in_pickle(path: Path) -> str | None:
    """Which library besides scikit-learn a pickle names, found in its bytes: it is not opened."""
    try:
        content = path.read_bytes()
        for signature, unpack in _COMPRESSED.items():
            if content.startswith(signature):
                content = unpack(content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        return None  # its reader says what is wrong with it
    found = re.search(rb"\b(xgboost|lightgbm|catboost)\.(sklearn|basic|core|_catboost)", content)
    return found[1].decode() if found else None


def check_keras(path: Path, options: SourceOptions) -> None:
    refuse("keras", options)
    _check_is_file(path)
    if path.suffix in (".h5", ".hdf5"):
        raise UserError(f"{path.name} is a model of old Keras, which TensorFlow reads: tensorflow:{path} with --trust")
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path.name} is not a .keras file, or only a part of one: save it with Keras 3 as model.save('model.keras'), "
            "or bring it as .onnx"
        )


def check_tensorflow(path: Path, options: SourceOptions) -> None:
    refuse("tensorflow", options)
    if path.suffix == ".tflite":
        _check_is_file(path)
        with path.open("rb") as file:
            if file.read(8)[4:] != b"TFL3":
                raise UserError(f"{path.name} is no TFLite file, or only a part of one")
        return
    if not options.is_trusted:
        raise UserError(
            f"{path} is a program that TensorFlow runs, and it can write files: say --trust if you trust its maker"
        )
    if path.suffix in (".h5", ".hdf5"):
        _check_is_file(path)
        with path.open("rb") as file:
            if file.read(4) != b"\x89HDF":
                raise UserError(f"{path.name} is no HDF5 file, or only a part of one")
    elif not (path / "saved_model.pb").is_file():
        raise UserError(
            f"{path} is no SavedModel, which is a folder with saved_model.pb; a .tflite or .h5 file is read as well"
        )


_PADDLE = (".pdmodel", ".json")  # how a program ends, of PaddlePaddle 2 and 3
_PADDLE_WEIGHTS = ".pdiparams"


def paddle_files(path: Path) -> tuple[Path, Path]:
    """(program, weights) of a folder, or of a program that is named. Raises UserError where they are not there, or not alone."""
    beside = f"a program ({' or '.join(_PADDLE)}) with its weights ({_PADDLE_WEIGHTS}) beside it, as paddle.jit.save writes them"
    if path.is_dir():
        programs = [one for ending in _PADDLE for one in sorted(path.glob(f"*{ending}"))]
        programs = [one for one in programs if one.with_suffix(_PADDLE_WEIGHTS).is_file()]
        if len({one.stem for one in programs}) > 1:
            raise UserError(
                f"{path} holds several models: name one, {' or '.join(f'paddle:{one}' for one in programs)}"
            )
        if not programs:
            raise UserError(f"{path} is no model of PaddlePaddle, which is {beside}")
        return programs[0], programs[0].with_suffix(_PADDLE_WEIGHTS)
    _check_is_file(path)
    weights = path.with_suffix(_PADDLE_WEIGHTS)
    if path.suffix not in _PADDLE or not weights.is_file():
        raise UserError(f"{path} is no model of PaddlePaddle, which is {beside}")
    return path, weights


def check_paddle(path: Path, options: SourceOptions) -> None:
    refuse("paddle", options)
    paddle_files(path)


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
