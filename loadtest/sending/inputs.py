"""What is sent: arrays for every input of a model, from digits, seeded noise or an npz file, and cut into batches.

Pure but for reading and writing npz files. `real_inputs.py` makes texts and photographs. Rule: what does not fit the model is an error
that names the input; nothing is cast where numbers would change.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.errors import PayloadError
from loadtest.sending.bodies import NUMPY_TYPES, Array, Arrays, Body, Signature, Tensor, encode
from serving.documents.nearest import nearest

DIGITS = Path(__file__).resolve().parents[1] / "payloads" / "digits.npz"
LABELS = "labels"
# Requests are made beforehand and lie in memory; JSON takes three to five times as much as the numbers themselves.
MAX_BYTES = {"binary": 64_000_000, "json": 16_000_000}
MAX_INPUTS = 4096  # distinct ones beyond that no cache that could matter tells apart (guess)
MIN_INPUTS = 32  # the largest batch that a campaign may ask for
LENGTH = 128  # of dimensions that the model leaves open, where nobody says: the usual cut of sentence models
# Token ids that are text in any vocabulary, and 0 is mostly padding: the first hundred (guess; smaller vocabularies are toys).
SMALLEST_ID, LARGEST_ID = 1, 99


@dataclass(frozen=True, slots=True)
class Inputs:
    """`arrays`: input name -> [n, …], as the model takes them. `labels`: int64 [n], None where no truth is known."""

    arrays: Arrays
    labels: npt.NDArray[np.int64] | None

    @property
    def num_inputs(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def num_distinct(self) -> int:
        return len({_digest([values[row] for values in self.arrays.values()]) for row in range(self.num_inputs)})

    @property
    def digest(self) -> str:
        return f"sha256:{_digest([self.arrays[name] for name in sorted(self.arrays)])}"

    def write(self, path: Path) -> None:
        labels = {} if self.labels is None else {LABELS: self.labels}
        arrays: dict[str, Any] = {**self.arrays, **labels}
        np.savez(path, **arrays)


def _digest(arrays: list[Array]) -> str:
    whole = hashlib.sha256()
    for values in arrays:
        whole.update(np.ascontiguousarray(values).tobytes())
    return whole.hexdigest()


def num_that_fit(bytes_each: int, encoding: str) -> int:
    return max(MIN_INPUTS, min(MAX_INPUTS, MAX_BYTES[encoding] // max(1, bytes_each)))


# -- where they come from ----------------------------------------------------------------------------------------------


def named(data: str, model: Signature, encoding: str, seed: int) -> Inputs:
    """What `--data` of the locustfile names: `digits`, `random` or an npz file. Raises PayloadError."""
    if data == "digits":
        return digits(model)
    if data == "random":
        return noise(model, encoding, seed)
    return read_npz(Path(data), model)


def digits(model: Signature) -> Inputs:
    """Real handwritten digits with their labels, held out of training."""
    if len(model.inputs) != 1 or model.inputs[0].datatype != "FP32":
        raise PayloadError("digits are one FP32 input; the model takes " + _told(model))
    (given,) = model.inputs
    with np.load(DIGITS, allow_pickle=False) as file:
        (name,) = (name for name in file.files if name != LABELS)
        pixels, labels = file[name], file[LABELS]
    if given.is_dynamic or pixels[0].size != int(np.prod(given.shape)):
        raise PayloadError(f"a digit has {pixels[0].size} values; the model takes {list(given.shape)}")
    return Inputs({given.name: pixels.astype("<f4").reshape(len(pixels), *given.shape)}, labels.astype(np.int64))


def noise(model: Signature, encoding: str, seed: int, length: int = LENGTH) -> Inputs:
    """Seeded: floats in 0..1, bytes in 0..255, small ids for other whole numbers, ones for masks, zeros for types of tokens."""
    shapes = {given.name: tuple(length if size < 0 else size for size in given.shape) for given in model.inputs}
    bytes_each = sum(int(np.prod(shapes[g.name])) * np.dtype(NUMPY_TYPES[g.datatype]).itemsize for g in model.inputs)
    count, random = num_that_fit(bytes_each, encoding), np.random.default_rng(seed)
    return Inputs({given.name: _noise(given, (count, *shapes[given.name]), random) for given in model.inputs}, None)


def _noise(given: Tensor, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    numpy_type, name = NUMPY_TYPES[given.datatype], given.name.lower()
    if given.datatype in ("FP16", "BF16", "FP32", "FP64"):
        return random.random(shape, dtype=np.float64 if given.datatype == "FP64" else np.float32).astype(numpy_type)
    if "mask" in name:
        return np.ones(shape, numpy_type)
    if "type" in name or "segment" in name:
        return np.zeros(shape, numpy_type)
    if "position" in name and len(shape) > 1:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(numpy_type)
    if given.datatype == "BOOL":
        return random.random(shape) < 0.5
    low, high = (0, 255) if given.datatype == "UINT8" else (SMALLEST_ID, LARGEST_ID)
    return random.integers(low, high + 1, shape).astype(numpy_type)


def read_npz(path: Path, model: Signature) -> Inputs:
    """One array [n, …] for each input, and `labels` [n] if there are any: what `tandem export --payload` writes. Raises PayloadError."""
    try:
        if not zipfile.is_zipfile(path):
            raise PayloadError(f"{path} is {'no npz file' if path.is_file() else 'not there'}")
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Array] = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise PayloadError(f"{path} cannot be read as npz: {error}") from None
    return fitted(arrays, model, str(path))


def fitted(arrays: dict[str, Array], model: Signature, where: str) -> Inputs:
    """Checked against the model, of its types. Raises PayloadError."""
    known = [given.name for given in model.inputs]
    labels = arrays.pop(LABELS) if LABELS in arrays and LABELS not in known else None
    for name in arrays:
        if name not in known:
            raise PayloadError(f"{where}: the model has no input {name!r}{nearest(name, known)}")
    for name in known:
        if name not in arrays:
            raise PayloadError(f"{where}: no array for the model's input {name!r}")
    lengths = {name: len(values) if values.ndim else 0 for name, values in arrays.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        told = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise PayloadError(f"{where}: every input needs as many rows as the others, at least one; there are of {told}")
    made = {given.name: _cast(given, arrays[given.name], where) for given in model.inputs}
    return Inputs(made, _labels(labels, min(lengths.values()), where))


def _cast(given: Tensor, values: Array, where: str) -> Array:
    wanted = np.dtype(NUMPY_TYPES[given.datatype])
    shape = values.shape[1:]
    if len(shape) != len(given.shape) or any(w not in (-1, s) for w, s in zip(given.shape, shape, strict=True)):
        raise PayloadError(f"{where}: {given.name!r} is {list(shape)} a row; the model takes {list(given.shape)}")
    is_float = wanted.kind == "f"
    if values.dtype.kind not in ("biuf" if is_float else "biu") or (wanted.kind == "b") != (values.dtype.kind == "b"):
        raise PayloadError(f"{where}: {given.name!r} holds {values.dtype}; the model takes {given.datatype}")
    cast: Array = values.astype(wanted)
    if not is_float and not np.array_equal(cast, values):
        raise PayloadError(f"{where}: {given.name!r} holds numbers that {given.datatype} has not")
    return cast


def _labels(labels: Array | None, num_rows: int, where: str) -> npt.NDArray[np.int64] | None:
    if labels is None or labels.dtype.kind == "f":  # scores, not classes: `--payload` of a model that tells none apart
        return None
    if labels.dtype.kind not in "iu" or labels.shape != (num_rows,):
        raise PayloadError(f"{where}: '{LABELS}' must be {num_rows} whole numbers, one for each row")
    return labels.astype(np.int64)


def _told(model: Signature) -> str:
    return ", ".join(f"{given.name!r} {given.datatype} {list(given.shape)}" for given in model.inputs)


# -- batches ------------------------------------------------------------------------------------------------------------


def bodies(model: Signature, given: Inputs, encoding: str, batch_size: int) -> list[Body]:
    """One body per whole batch, in order. Raises ValueError where there is not one."""
    if given.num_inputs < batch_size:
        raise ValueError(f"{given.num_inputs} inputs are too few for a batch of {batch_size}")
    return [encode(model, batch, labels, encoding) for batch, labels in batches(model, given, batch_size)]


def batches(model: Signature, given: Inputs, batch_size: int) -> Iterator[tuple[Arrays, tuple[int, ...]]]:
    for start in range(0, given.num_inputs - batch_size + 1, batch_size):
        chosen = slice(start, start + batch_size)
        labels = () if given.labels is None else tuple(int(label) for label in given.labels[chosen])
        yield without_padding(model, {name: values[chosen] for name, values in given.arrays.items()}), labels


def share(made: list[Body], part: int, num_parts: int) -> list[Body]:
    """What one of several processes sends, in its order: every n-th, round and round."""
    return [made[number % len(made)] for number in range(part, part + len(made) * num_parts, num_parts)]


def without_padding(model: Signature, batch: Arrays) -> Arrays:
    """Cut to the longest row, as a client pads: where an input's name holds `mask`, its length is open, and 0 marks padding at the end."""
    masks = [g.name for g in model.inputs if "mask" in g.name.lower() and g.shape == (-1,) and g.datatype[:2] != "FP"]
    if len(masks) != 1:
        return batch
    mask = batch[masks[0]]
    used = np.flatnonzero(mask.any(axis=0))
    padded, length = mask.shape[1], int(used[-1]) + 1 if len(used) else 1
    cut = {g.name for g in model.inputs if g.shape[:1] == (-1,) and batch[g.name].shape[1] == padded}
    return {name: values[:, :length] if name in cut else values for name, values in batch.items()}
