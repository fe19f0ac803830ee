"""Which reader a path is for: .npz, a folder of images, .csv or .jsonl of texts.

Images and texts need to know how the model wants them: that is the preprocessing its source came with. `digits` are those of
scikit-learn, split once and for all. Rule: their held-out part is what every gate of the digits ran on; another split makes
their records say something else.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from serving.errors import EnvironmentFault, UserError
from serving.export.data import folders, texts
from serving.export.data.dataset import Dataset
from serving.export.data.npz import COLUMNS_FILE, read_npz
from serving.export.progress import Progress, Warn, silent, to_stderr
from serving.installation import how_to_add
from serving.repository import Tensor
from serving.repository.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing

DIGITS = "digits"
HELD_OUT_RATIO = 0.25  # of 1,797 images: 450, so that one point of accuracy is 4.5 images
_SPLIT_SEED = 0


def digits() -> tuple[Dataset, Dataset]:
    """(to learn from, held out). Input `image` is float32 [n, 1, 8, 8] in 0..1."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
        from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise EnvironmentFault(f"the digits need scikit-learn: {how_to_add('onnx')}, or give --data FILE.npz") from None
    raw = load_digits()
    images = (raw.images / 16).astype(np.float32)[:, None]  # pixels are 0..16, so sixteenths are exact
    labels = raw.target.astype(np.int64)
    learn, held_out = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT_RATIO, random_state=_SPLIT_SEED, stratify=labels
    )
    return (
        Dataset("scikit-learn digits, training part", {"image": images[learn]}, labels[learn]),
        Dataset("scikit-learn digits, held-out part", {"image": images[held_out]}, labels[held_out]),
    )


MAX_BAD_RATIO = 0.1  # guess, not measured: more than one broken image in ten is a broken folder
KINDS = "an .npz file, a folder of images, or a .csv or .jsonl file of texts"


def read(
    path: Path,
    inputs: tuple[Tensor, ...],
    num_labels: int | None,
    preprocessing: Preprocessing | None = None,
    beside: Mapping[str, bytes] | None = None,
    labels: tuple[str, ...] | None = None,
    max_bad_ratio: float = MAX_BAD_RATIO,
    progress: Progress = silent,
    warn: Warn = to_stderr,
    *,
    has_batch: bool = True,
) -> Dataset:
    """`beside`: files of the model by name, as its tokenizer. `labels`: names of its classes. UserError for what is wrong.

    `num_labels` None: the model has no classes. `warn` gets a line for each thing that was skipped.
    """
    if not 0 <= max_bad_ratio < 1:
        raise UserError(f"max_bad_ratio is {max_bad_ratio}, want 0 or more and less than 1")
    if path.is_dir():
        wanted = _image_preprocessing(path, preprocessing)
        rows = inputs if has_batch else tuple(map(_one_image, inputs))
        found = folders.read(path, rows, num_labels, wanted, labels, max_bad_ratio, progress, warn)
        return found if rows == inputs else replace(found, inputs={k: v[:, None] for k, v in found.inputs.items()})
    if not path.is_file():
        raise UserError(f"{path} {'is not a regular file' if path.exists() else 'is not there'}; give {KINDS}")
    if path.suffix in (".csv", ".jsonl"):
        text_wanted = _text_preprocessing(path, preprocessing, inputs)
        return texts.read(path, inputs, num_labels, text_wanted, beside or {}, labels, progress)
    if path.suffix == ".npz" or zipfile.is_zipfile(path):
        columns = (beside or {}).get(COLUMNS_FILE, b"").decode().splitlines()
        return read_npz(path, inputs, num_labels, labels, tuple(columns), has_batch=has_batch)
    raise UserError(f"{path} cannot be read: its kind is unknown; give {KINDS}")


def _one_image(tensor: Tensor) -> Tensor:
    """Of a graph without batches that takes [1, channels, height, width], or any number of those."""
    is_whole = len(tensor.shape) == 4 and tensor.shape[0] in (1, -1)
    return replace(tensor, shape=tensor.shape[1:]) if is_whole else tensor


def _image_preprocessing(path: Path, preprocessing: Preprocessing | None) -> ImagePreprocessing:
    if isinstance(preprocessing, ImagePreprocessing):
        return preprocessing
    why = "takes texts" if preprocessing else "does not say how images become its input"
    way = "" if preprocessing else ", or say it of a FILE.onnx with --preprocessing"
    raise UserError(f"{path} is a folder of images, but this model {why}; give its inputs as .npz{way}")


def _text_preprocessing(
    path: Path, preprocessing: Preprocessing | None, inputs: tuple[Tensor, ...]
) -> TextPreprocessing:
    if isinstance(preprocessing, TextPreprocessing):
        return preprocessing
    why = "takes images" if preprocessing else "came without a tokenizer"
    arrays = ", ".join(tensor.name for tensor in inputs)
    raise UserError(
        f"{path} is read as texts, but this model {why}; give its inputs as .npz, an array for each: {arrays}, and labels"
    )
