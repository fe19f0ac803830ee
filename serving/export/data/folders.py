"""A folder of images: sub-folders named by class, images beside a labels.csv (file,label), or images alone.

`images.decode` reads each image. One that does not decode is skipped with a warning that names it, until there are too many.
Rule: the rows come in turns from every class, so that any first part of them represents all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.data.dataset import IMAGES, MAX_BYTES, ClassNames, Dataset
from serving.export.data.texts import csv_rows
from serving.export.exported_model import NUMPY_TYPES, fits
from serving.export.progress import Progress, Warn
from serving.preprocessing import images
from serving.preprocessing.containers import BadImage
from serving.repository import Tensor
from serving.repository.preprocessing import ImagePreprocessing

LABELS_CSV = "labels.csv"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")
_MAX_NAMED = 8  # files in one message


@dataclass(frozen=True, slots=True)
class _Image:
    path: Path
    label: int | float | None


def read(
    folder: Path,
    inputs: tuple[Tensor, ...],
    num_labels: int | None,
    preprocessing: ImagePreprocessing,
    labels: tuple[str, ...] | None,
    max_bad_ratio: float,
    progress: Progress,
    warn: Warn,
) -> Dataset:
    tensor = _the_input(folder, inputs, preprocessing)
    classes = ClassNames(labels, num_labels)
    try:
        found, skipped = listed(folder, classes)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    if not found:
        raise UserError(f"{folder} holds no image; the names of images end in {', '.join(SUFFIXES)}")
    if skipped:
        warn(f"{folder}: {_counted(skipped, 'file')} skipped, not an image by name: {_named(skipped)}")
    dtype = np.dtype(NUMPY_TYPES[tensor.datatype])
    _check_memory(folder, len(found), preprocessing, dtype)
    values, good = _decoded(folder, found, preprocessing, dtype, max_bad_ratio, progress, warn)
    known = [image.label for image in good if image.label is not None]
    dtype_of_labels = np.int64 if num_labels is not None else None
    return Dataset(
        folder.name or str(folder),
        {tensor.name: values},
        np.asarray(known, dtype_of_labels) if known else None,
        IMAGES,
    )


def _the_input(folder: Path, inputs: tuple[Tensor, ...], preprocessing: ImagePreprocessing) -> Tensor:
    names = ", ".join(tensor.name for tensor in inputs)
    if len(inputs) != 1 or inputs[0].name != preprocessing.input:
        raise UserError(
            f"{folder} gives {preprocessing.input} alone, but the model takes {names}; give its inputs as .npz"
        )
    tensor, shape = inputs[0], preprocessing.shape
    if not fits(tensor.shape, shape) or tensor.datatype not in ("FP32", "FP16"):
        raise UserError(
            f"{folder}: images become float {list(shape)}, but {tensor.name} is {tensor.datatype} "
            f"{list(tensor.shape)}; give its inputs as .npz"
        )
    return tensor


# -- which images, with which label -----------------------------------------------------------------------------------


def listed(folder: Path, classes: ClassNames) -> tuple[list[_Image], list[str]]:
    """(images in turns from every class, names of files that are none)."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in entries if path.is_dir()]
    files = [path for path in entries if path.is_file() and path.name != LABELS_CSV]
    flat = [path for path in files if path.suffix.lower() in SUFFIXES]
    others = [path.name for path in files if path not in flat]
    table = folder / LABELS_CSV
    if folders and (flat or table.exists()):
        raise UserError(
            f"{folder} holds images or {LABELS_CSV} beside sub-folders; want sub-folders named by class, "
            f"or images beside a {LABELS_CSV}"
        )
    if folders:
        return _by_folder(folders, classes, others)
    if table.exists():
        return _in_turns(_by_table(table, flat, classes)), others
    return [_Image(path, None) for path in flat], others


def _by_folder(folders: Sequence[Path], classes: ClassNames, others: list[str]) -> tuple[list[_Image], list[str]]:
    found: list[_Image] = []
    for folder in folders:
        label = classes.value(folder.name, str(folder))
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
            if path.suffix.lower() in SUFFIXES:
                found.append(_Image(path, label))
            else:
                others.append(f"{folder.name}/{path.relative_to(folder).as_posix()}")
    return _in_turns(found), others


def _by_table(table: Path, flat: Sequence[Path], classes: ClassNames) -> list[_Image]:
    """Every image has one line, every line has its image."""
    labels: dict[str, int | float] = {}
    present = {path.name for path in flat}
    for where, name, written in _rows(table):
        if name in labels:
            raise UserError(f"{where}: {name} appears twice")
        if PurePosixPath(name).name != name:
            raise UserError(f"{where}: {name!r} is not the name of a file beside {LABELS_CSV}")
        if name not in present:
            raise UserError(f"{where}: there is no image {name}")
        labels[name] = classes.value(written, where)
    if left := [path.name for path in flat if path.name not in labels]:
        raise UserError(f"{table}: no label for {_counted(left, 'image')}: {_named(left)}")
    return [_Image(path, labels[path.name]) for path in flat]


def _rows(table: Path) -> Iterator[tuple[str, str, str]]:
    """(place, file, label) of each line."""

    def check(where: str, header: list[str]) -> None:
        if header != ["file", "label"]:
            raise UserError(f"{where}: want file,label; got {','.join(header)[:80] or 'nothing'}")

    for where, row in csv_rows(table, check):
        yield where, row["file"].strip(), row["label"]


def _in_turns(found: Sequence[_Image]) -> list[_Image]:
    """The first of every class, then the second of every class, …"""
    turns: dict[int | float | None, int] = defaultdict(int)
    keyed = []
    for image in found:
        keyed.append((turns[image.label], image))
        turns[image.label] += 1
    return [image for _, image in sorted(keyed, key=lambda pair: (pair[0], pair[1].label or 0, str(pair[1].path)))]


# -- pixels -----------------------------------------------------------------------------------------------------------


def _check_memory(
    folder: Path, num_images: int, preprocessing: ImagePreprocessing, dtype: np.dtype[np.generic]
) -> None:
    one = prod(preprocessing.shape) * dtype.itemsize
    if num_images * one > MAX_BYTES:
        raise UserError(
            f"{folder}: {num_images} images unpack to {num_images * one / 2**30:.1f} GiB; "
            f"give at most {MAX_BYTES // one} of them"
        )


def _decoded(
    folder: Path,
    found: Sequence[_Image],
    preprocessing: ImagePreprocessing,
    dtype: np.dtype[np.generic],
    max_bad_ratio: float,
    progress: Progress,
    warn: Warn,
) -> tuple[NDArray[np.generic], list[_Image]]:
    """(values [n, channels, height, width], the images that they are of)."""
    values = np.empty((len(found), *preprocessing.shape), dtype)
    good: list[_Image] = []
    bad: list[str] = []
    for done, image in enumerate(found):
        progress("reading images", done, len(found))
        try:
            values[len(good)] = images.decode(image.path.read_bytes(), preprocessing)
            good.append(image)
        except BadImage as problem:
            bad.append(f"{image.path.relative_to(folder).as_posix()} {problem.reason}")
        except OSError as error:
            bad.append(f"{image.path.relative_to(folder).as_posix()} cannot be read: {error.strerror}")
        if len(bad) > max_bad_ratio * len(found):
            raise UserError(
                f"{folder}: {_counted(bad, 'image')} of the first {done + 1} of {len(found)} cannot be used, more than "
                f"{max_bad_ratio:.0%} of all: {_named(bad)}"
            )
    progress("reading images", len(found), len(found))
    if bad:
        warn(f"{folder}: {_counted(bad, 'image')} of {len(found)} skipped: {_named(bad)}")
    return values[: len(good)], good


def _counted(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _named(names: Sequence[str]) -> str:
    left = len(names) - _MAX_NAMED
    return "; ".join(names[:_MAX_NAMED]) + (f"; and {left} more" if left > 0 else "")
