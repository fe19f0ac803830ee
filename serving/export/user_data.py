"""Reads a user's data for judging and for calibrating, as the arrays that one model takes.

The formats are read in `data`. Rule: Tandem's own handwritten digits go only into a model that takes such images.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.errors import GateRefused, UserError
from serving.export.data import reading
from serving.export.data import reading as digits
from serving.export.data.dataset import Dataset
from serving.export.dimensions import check_rows
from serving.export.exported_model import Arrays, ExportedModel, fits
from serving.export.gates.file import probability_outputs
from serving.export.gates.limits import ROW_DIFFERENCE, RULES, Limits, option
from serving.export.gates.tasks import Rows, measure
from serving.export.onnx_session import answers
from serving.export.progress import Progress, silent
from serving.export.sources.graphs.examples import NO_ANSWER, NUM_ROWS, first_rows
from serving.repository import CLASSIFICATION
from serving.repository.preprocessing import ImagePreprocessing

_NUM_ROWS = 4  # tell which numbers there are, not what they are


def to_judge(
    path: str | Path, exported: ExportedModel, max_bad_ratio: float | None = None, progress: Progress = silent
) -> Dataset:
    """Reads data to judge on. `max_bad_ratio` None: the default share of broken images is passed over. Raises UserError."""
    if str(path) == digits.DIGITS:
        return _digits(exported)[1]
    found = reading.read(
        Path(path),
        exported.inputs,
        num_labels=len(exported.labels) if exported.labels and exported.task == CLASSIFICATION else None,
        preprocessing=exported.preprocessing,
        beside=exported.files,
        labels=exported.labels,
        max_bad_ratio=reading.MAX_BAD_RATIO if max_bad_ratio is None else max_bad_ratio,
        progress=progress,
        has_batch=exported.max_batch_size > 0,
    )
    check_rows(found.inputs, exported.ranges, str(path))
    if not exported.takes_nan:
        _check_known(str(path), found.inputs)
    return found


def _check_known(path: str, inputs: Arrays) -> None:
    """Raises UserError for values that the model has no answer to."""
    for name, values in inputs.items():
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise UserError(f"{path}: {name}: holds NaN, which {NO_ANSWER}")


def to_calibrate(
    path: Path, exported: ExportedModel, max_bad_ratio: float | None = None, progress: Progress = silent
) -> Arrays:
    """Reads data to calibrate with; of the digits, those that no gate sees."""
    if str(path) == digits.DIGITS:
        return _digits(exported)[0].inputs
    return to_judge(path, exported, max_bad_ratio, progress).inputs


def first_images(folder: Path, how: ImagePreprocessing) -> Arrays | None:
    """Decodes some images of a folder to try a file on; None where none decodes, which the reader of the whole folder reports."""
    from serving.export.data import folders
    from serving.preprocessing import images
    from serving.preprocessing.containers import BadImage

    found: list[NDArray[np.float32]] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in folders.SUFFIXES):
        with contextlib.suppress(BadImage, OSError):
            found.append(images.decode(path.read_bytes(), how))
        if len(found) == NUM_ROWS:
            break
    return first_rows({how.input: np.stack(found)}) if found else None


def check_limits(limits: Limits, exported: ExportedModel, data: Dataset) -> None:
    """Raises UserError for a limit of what is not measured on such a model, because it would decide nothing."""
    chosen = [name for name in Limits.__dataclass_fields__ if getattr(limits, name) is not None]
    if not chosen or exported.is_untrained:
        return
    rows = {name: values[:_NUM_ROWS] for name, values in data.inputs.items()}
    labels = None if data.labels is None else data.labels[:_NUM_ROWS]
    try:
        found = answers(exported.model, rows, exported.max_batch_size)
        shares = probability_outputs(exported.model)
        measured = measure(Rows(exported.task, labels, exported.labels, rows, probabilities=shares), found, found)
    except GateRefused:
        return  # FP32's own gate says what is wrong
    known = {*(RULES[one.metric].limit for one in measured), RULES[ROW_DIFFERENCE].limit}
    if missing := [name for name in chosen if name not in known]:
        options = ", ".join(sorted(map(option, known)))
        raise UserError(
            f"{option(missing[0])} does not apply: that is not measured on this model and data; limits are {options}"
        )


def _digits(exported: ExportedModel) -> tuple[Dataset, Dataset]:
    """Returns (rows to learn from, rows held out)."""
    both = digits.digits()
    wanted = {name: values.shape[1:] for name, values in both[1].inputs.items()}
    taken = {tensor.name: tensor.shape for tensor in exported.inputs}
    if taken.keys() != wanted.keys() or not all(fits(taken[name], shape) for name, shape in wanted.items()):
        raise UserError(
            f"the data 'digits' is {_shapes_text(wanted)}, and this model takes {_shapes_text(taken)}: give its own"
        )
    if exported.labels and len(exported.labels) != 10:
        raise UserError(f"the data 'digits' has 10 classes, and this model has {len(exported.labels)}: give its own")
    return both


def _shapes_text(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
