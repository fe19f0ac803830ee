"""What a model is judged on: held-out inputs with their right answers.

An npz file has one array per model input, named like it, float32 [n, …] as the model takes it, and `labels`, int [n]: the
index of the right output. Scaling and cutting are done before. Rule: what a variant is calibrated on is never in here.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import EnvironmentFault, UserError
from serving.repository import Tensor
from serving.repository.record import nearest

DIGITS = "digits"
HELD_OUT_RATIO = 0.25  # of 1,797 images: 450, so that one point of accuracy is 4.5 images
_SPLIT_SEED = 0

_NUMPY_TYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`inputs` maps input names to arrays [n, …], `labels` is int64 [n]."""

    name: str
    inputs: Mapping[str, NDArray[Any]]
    labels: NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """SHA-256 over names, types, shapes and values."""
        hasher = hashlib.sha256()
        for name, values in [*sorted(self.inputs.items()), ("labels", self.labels)]:
            hasher.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            hasher.update(np.ascontiguousarray(values).tobytes())
        return hasher.hexdigest()

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        return {name: values[start:stop] for name, values in self.inputs.items()}


def digits() -> tuple[Dataset, Dataset]:
    """scikit-learn's 1,797 handwritten digits: (to learn from, held out). Input `image` is float32 [n, 1, 8, 8] in 0..1."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
        from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise EnvironmentFault(
            "the digits need scikit-learn: pip install 'tandem-serving[export]', or give --data FILE.npz"
        ) from None
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


def read_npz(path: Path, inputs: tuple[Tensor, ...], num_labels: int) -> Dataset:
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} {'is no npz file' if path.is_file() else 'is not there'}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as npz: {error}") from None
    known = [tensor.name for tensor in inputs] + ["labels"]
    for name in arrays:
        if name not in known:
            raise UserError(f"{path}: unknown array {name!r}{nearest(name, known)}")
    for name in known:
        if name not in arrays:
            raise UserError(f"{path}: array {name!r} is missing; there are {', '.join(sorted(arrays)) or 'none'}")
    labels = arrays.pop("labels")
    _check_labels(path, labels, num_labels)
    for tensor in inputs:
        _check_input(path, tensor, arrays[tensor.name], len(labels))
    return Dataset(path.name, arrays, labels.astype(np.int64))


def _check_labels(path: Path, labels: NDArray[Any], num_labels: int) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise UserError(
            f"{path}: labels: want whole numbers [n], n at least 1; got {labels.dtype} {list(labels.shape)}"
        )
    if labels.min() < 0 or labels.max() >= num_labels:
        raise UserError(f"{path}: labels: want 0..{num_labels - 1}, got {labels.min()}..{labels.max()}")


def _check_input(path: Path, tensor: Tensor, values: NDArray[Any], num_samples: int) -> None:
    want = _NUMPY_TYPES.get(tensor.datatype)
    if want != values.dtype.name:
        raise UserError(f"{path}: {tensor.name}: want {want}, got {values.dtype.name}")
    fits = len(values.shape) == len(tensor.shape) + 1 and all(
        size in (-1, got) for size, got in zip(tensor.shape, values.shape[1:], strict=True)
    )
    if not fits or len(values) != num_samples:
        shape = ", ".join(["n" if size == -1 else str(size) for size in (num_samples, *tensor.shape)])
        raise UserError(f"{path}: {tensor.name}: want shape [{shape}], got {list(values.shape)}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UserError(f"{path}: {tensor.name}: holds NaN or infinite values")
