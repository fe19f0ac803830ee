"""Which rows judge a variant, and which calibrate it, where only one set of data was given?

What calibration does with them is `variants`'. Rule: no row does both, or the gate would see what the file was fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays
from serving.export.variants import int8
from serving.export.variants.graph import opened, read
from serving.export.variants.outcome import NothingToQuantise

CALIBRATION_SHARE = 5  # one row of so many calibrates
MIN_CALIBRATION_ROWS = 4  # fewer say nothing about the range of an activation (guess, not measured)
MAX_CALIBRATION_ROWS = 256  # ranges settle long before (guess, not measured)


def divide(
    model: bytes, precisions: Sequence[str], data: Dataset | None, calibration: Arrays | None
) -> tuple[Dataset | None, Arrays | None]:
    """(what judges, what calibrates): where nothing was given for the second, some rows of the first, which it then loses.

    FP16 looks at them for values that would overflow.
    """
    is_needed = "fp16" in precisions or ("int8" in precisions and _needs_calibration(model))
    if data is None or calibration is not None or not is_needed:
        return data, calibration
    rows = np.arange(data.num_samples)
    chosen = rows[::CALIBRATION_SHARE][:MAX_CALIBRATION_ROWS]
    if len(chosen) < MIN_CALIBRATION_ROWS:
        return data, None
    left = np.setdiff1d(rows, chosen)
    calibrating = {name: values[chosen] for name, values in data.inputs.items()}
    labels = None if data.labels is None else data.labels[left]
    judging = {name: values[left] for name, values in data.inputs.items()}
    return Dataset(f"{data.name}, without the rows that calibrate", judging, labels, data.kind), calibrating


def _needs_calibration(model: bytes) -> bool:
    try:
        return "static" in int8.ways(read(opened(model)), has_calibration=True)
    except NothingToQuantise:
        return False
