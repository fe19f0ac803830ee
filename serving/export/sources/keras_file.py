"""keras:FILE.keras: a model that Keras 3 saved, on its torch backend, by the same exporter as any torch module.

Models of old Keras (.h5) and of TensorFlow are `tensorflow_file.py`'s. Rule: Lambda layers are code in the file, so they are
loaded only after --trust; Keras computes on the CPU here, whatever else the machine has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress, quiet
from serving.export.sources.checks import check_keras, not_installed


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for a file that Keras cannot read, a Lambda layer without trust, an operator that does not export."""
    check_keras(path, options)
    keras = _keras()
    step = f"reading {path.name}"
    progress(step, 0, 1)
    model = _loaded(keras, path, options.is_trusted)
    progress(step, 1, 1)
    from serving.export.sources import keras_model  # behind the choice of the backend

    return keras_model.export(model, path.name, options, progress)


def _keras() -> Any:
    """Keras on torch. It chooses its backend when it is imported first."""
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu", TF_CPP_MIN_LOG_LEVEL="3")
    try:
        with quiet():
            import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise not_installed("keras", error, "keras") from None
    if (backend := keras.backend.backend()) != "torch":
        raise UserError(f"Keras runs on {backend} in this process already, want torch: set KERAS_BACKEND=torch")
    return keras


def _loaded(keras: Any, path: Path, is_trusted: bool) -> Any:
    try:
        with quiet():
            return keras.saving.load_model(path, compile=False, safe_mode=not is_trusted)
    except Exception as error:  # Keras wraps whatever a layer's own code raises
        words = str(error)
        if not is_trusted and ("safe_mode" in words or "enable_unsafe_deserialization" in words):
            raise UserError(
                f"{path.name} has a Lambda layer, which is code in the file: say --trust if you trust whoever made it"
            ) from None
        if "Could not locate class" in words or "Could not locate function" in words:
            name = words.partition("Could not locate ")[2].split("'")
            what = f"{name[0].strip()} {name[1]}" if len(name) > 1 else "class"
            raise UserError(
                f"{path.name} needs the {what}, which Keras does not have: load the model where it is, and export it by "
                "module:FILE.py:CALLABLE, or with TensorFlow by model.export('folder') and tensorflow:folder"
            ) from None
        raise UserError(f"Keras cannot read {path.name}: {_short(words)}") from None


def _short(words: str) -> str:
    line = next((line.strip() for line in words.splitlines() if line.strip()), "it says nothing")
    return line if len(line) <= 200 else f"{line[:197]}..."
