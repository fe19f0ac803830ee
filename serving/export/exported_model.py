"""The result of loading any source: an FP32 file with all that is needed to judge, quantise and serve it.

Made by `sources/` and `recipes/`, used by everything after them. Rule: nothing behind this knows where a model came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.dimensions import Lengths, Place
from serving.export.large_model import Weights
from serving.repository import Tensor
from serving.repository.preprocessing import Preprocessing

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], list[NDArray[Any]]]


NUMPY_TYPES = {  # datatype of the Open Inference Protocol -> NumPy's name; BYTES is text, and BF16 NumPy has none for
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
DATATYPES = {numpy: datatype for datatype, numpy in NUMPY_TYPES.items()}


def num_rows(arrays: Arrays) -> int:
    """Counts the rows of arrays [n, …]; 0 where there are none."""
    return len(next(iter(arrays.values()))) if arrays else 0


def fits(wanted: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether an array's dimensions are as a shape says, where -1 is any length."""
    return len(wanted) == len(dims) and all(size in (-1, got) for size, got in zip(wanted, dims, strict=True))


def spread(arrays: Arrays, most: int) -> dict[str, NDArray[Any]]:
    """Picks at most `most` rows, evenly from the first to the last: data is often sorted by label."""
    count = num_rows(arrays)
    chosen = np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)
    return {name: np.asarray(values)[chosen] for name, values in arrays.items()}


def stacked(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """[n, …]: answers of one output, filled up with zeros where their lengths depend on their inputs. ValueError for other ranks."""
    if len({row.ndim for row in rows}) > 1:
        raise ValueError("another number of dimensions from row to row")
    shape = tuple(np.max([row.shape for row in rows], axis=0)) if rows[0].ndim else ()
    return np.stack([filled(row, shape) for row in rows])


def filled(values: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Fills up with zeros to a shape that is nowhere smaller."""
    if values.shape == tuple(shape):
        return values
    whole = np.zeros(shape, values.dtype)
    whole[tuple(slice(length) for length in values.shape)] = values
    return whole


def as_long(
    ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Returns both with the shorter rows filled up with zeros, as `in_batches` does; outputs of other ranks stay as they are."""
    pairs = [_both_as_long(a, b) for a, b in zip(ours, theirs, strict=True)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _both_as_long(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if a.ndim != b.ndim or len(a) != len(b):
        return a, b
    shape = tuple(map(max, a.shape, b.shape))
    return filled(a, shape), filled(b, shape)


DEFAULT_OPSET = 18  # the exporter's native one, and every Triton since 24.10 reads it
DEFAULT_MAX_BATCH_SIZE = 32  # guess, not measured: where a small net's throughput stops growing


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options for a source. None: what the source itself says."""

    opset: int = DEFAULT_OPSET
    max_batch_size: int | None = None  # 0: without batches
    is_trusted: bool = False  # code that came with the model may run
    task: str | None = None
    max_length: int | None = None  # tokens
    image_size: int | None = None  # pixels, both edges
    pooling: str | None = None
    is_normalised: bool | None = None
    example: Arrays | None = None  # inputs [n, …] for a source that has none of its own
    labels: tuple[str, ...] | None = None  # names of the classes, for a file that has none
    preprocessing: Preprocessing | None = None
    layout: str | None = None  # of its images, "NCHW" or "NHWC"
    weights: Weights | None = None  # of a file over 2 GB
    dims: Mapping[str, Lengths] | None = None  # names of open dimensions -> what they may be
    example_name: str = "the example"  # what messages call them
    is_from_data: bool = False  # they are rows of the user's data
    framework_python: Path | None = None  # of a framework that needs an environment without ours

    @property
    def max_rows(self) -> int:
        """The largest batch, for a source that says nothing about it."""
        return DEFAULT_MAX_BATCH_SIZE if self.max_batch_size is None else self.max_batch_size


@dataclass(frozen=True, slots=True, eq=False)
class ExportedModel:
    """A model on its way into a repository. Tensor shapes leave out the batch dimension."""

    model: bytes  # one ONNX file, FP32, IR version at most 10; over 2 GB a LargeModel
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int  # 0: the graph has no batch dimension
    task: str
    source: str  # for the record: what it was, without a path of this machine
    framework: str  # whose answers `run` gives: "pytorch", "scikit-learn", "keras"; "onnx" where there is no other
    run: Run | None  # all outputs of the framework itself; None: there is none beside the file
    example: Arrays  # valid inputs [n, …], n at least 4, different rows; dynamic dimensions longer than 1
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)  # that go beside the model: tokenizer.json
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16", "int8")  # worth trying
    is_cpu_only: bool = False  # GPU providers have no kernels for it
    is_untrained: bool = False
    quantised: bytes | None = None  # the source as its maker quantised it, where `model` is what is left without that
    takes_nan: bool = False  # NaN means that a value is unknown, and is answered
    toolchain: Mapping[str, str] = field(default_factory=dict)  # package -> version, of what made it
    ranges: Mapping[Place, Lengths] = field(default_factory=dict)  # of open dimensions, where the user said them
    notes: tuple[str, ...] = ()  # what the user should know of it, in sentences
