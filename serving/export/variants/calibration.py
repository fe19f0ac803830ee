"""Hands out inputs in the portions that the quantiser asks for: as many rows at once as the graph takes.

Whether the arrays fit the net was checked where they were read. Rule: no row is used twice, and a rest that does not fill a
batch of a graph with a fixed batch dimension is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays

# Every value of every layer of a portion is in memory at once. A ConvNeXt of 15 MB took 2,849 MB for 32 photographs and 867 MB for 4,
# and half the processor time (2026-11-25, AMD EPYC).
_BATCH_SIZE = 4
MAX_VALUES_BYTES = (
    2**28
)  # of all values of a portion, where all are kept: twice that is taken, and at least a row (a guess)

_MAX_SHAPE_BYTES = 1024  # of a constant that says a shape; there are no tensors of so many dimensions


def rows_of_all_values(model: onnx.ModelProto) -> int:
    """How many rows may run at once where every value of every layer is kept, as far as the graph tells their shapes."""
    single = onnx.ModelProto()
    single.CopyFrom(model)
    for value in (*single.graph.input, *single.graph.output):
        if dims := value.type.tensor_type.shape.dim:
            dims[0].dim_value = 1
    for tensor in single.graph.initializer:
        if len(tensor.raw_data) > _MAX_SHAPE_BYTES:
            tensor.ClearField("raw_data")  # weights, which would be copied twice and say nothing of shapes
    single.graph.ClearField("value_info")
    shapes = [v.type.tensor_type.shape.dim for v in onnx.shape_inference.infer_shapes(single).graph.value_info]
    row_bytes: int = 4 * sum(math.prod(max(1, dim.dim_value) for dim in dims) for dims in shapes)
    return min(_BATCH_SIZE, max(1, MAX_VALUES_BYTES // max(1, row_bytes)))


class CalibrationRows:
    """The reader that onnxruntime's quantiser expects: `get_next` until None. Range and length are in rows."""

    def __init__(
        self, model: onnx.ModelProto, inputs: Arrays, batch_size: int = _BATCH_SIZE, max_rows: int | None = None
    ) -> None:
        initializers = {tensor.name for tensor in model.graph.initializer}
        values = [value for value in model.graph.input if value.name not in initializers]
        missing = [value.name for value in values if value.name not in inputs]
        if missing:
            raise UserError(
                f"calibration data lacks the net's input {missing[0]!r}; it has {', '.join(inputs) or 'none'}"
            )
        self._inputs = {value.name: inputs[value.name] for value in values}
        num_rows = min((len(rows) for rows in self._inputs.values()), default=0)
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
        self._is_unbatched = any(rows.ndim > ranks[name] for name, rows in self._inputs.items())
        fixed = {value.type.tensor_type.shape.dim[0].dim_value for value in values if ranks[value.name]} - {0}
        self.batch_size = 1 if self._is_unbatched else min(fixed, default=min(batch_size, max(1, num_rows)))
        limit = num_rows if max_rows is None else min(num_rows, max_rows)
        is_rest_used = not fixed and max_rows is None
        self._num_rows = limit if is_rest_used else limit // self.batch_size * self.batch_size
        if self._num_rows == 0:
            raise UserError(f"calibration data has {num_rows} rows, the net takes {self.batch_size} at once; give more")
        self.set_range(0, self._num_rows)

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self._batches

    def set_range(self, start_index: int, end_index: int) -> None:
        self._batches = self._portions(start_index, end_index)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._batches, None)

    def _portions(self, start: int, end: int) -> Iterator[dict[str, NDArray[Any]]]:
        for first in range(start, end, self.batch_size):
            cut = slice(first, min(first + self.batch_size, end))
            portion = {name: np.ascontiguousarray(rows[cut]) for name, rows in self._inputs.items()}
            yield {name: rows[0] for name, rows in portion.items()} if self._is_unbatched else portion
