"""What is wrong about a model file before the framework that opens it is there, and before anything in it runs?

A folder of transformers and a user's own module are checked beside their loaders, which need no framework for that.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.sources import applies


def check_onnx(path: Path, options: SourceOptions) -> None:
    applies.refuse("onnx", options)
    if not path.exists():
        raise UserError(f"there is no file {path}")


def check_pickle(path: Path, options: SourceOptions) -> None:
    if not options.is_trusted:
        raise UserError(
            f"{path} is a pickle, and opening one runs what its maker put into it: say --trust if you trust them"
        )
    applies.refuse("sklearn", options)
    _check_is_file(path)


def check_keras(path: Path, options: SourceOptions) -> None:
    applies.refuse("keras", options)
    _check_is_file(path)
    if not zipfile.is_zipfile(path):
        kind = (
            "is a model of old Keras" if path.suffix in (".h5", ".hdf5") else "is no .keras file, or only a part of one"
        )
        raise UserError(f"{path.name} {kind}: save it with Keras 3 as model.save('model.keras'), or bring it as .onnx")


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
