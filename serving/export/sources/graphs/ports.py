"""The inputs and outputs of an ONNX graph, as far as the graph itself says.

Only tensors can be served; what else a graph may take or give is turned away by name. Rule: -1 is a dimension of any length,
which only running the graph settles (`runnable.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx

from serving.errors import UserError
from serving.export.exported_model import NUMPY_TYPES

# ONNX's element type -> the datatype of the Open Inference Protocol
DATATYPES: dict[int, str] = {
    int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(numpy))): datatype for datatype, numpy in NUMPY_TYPES.items()
} | {int(onnx.TensorProto.STRING): "BYTES"}
_KINDS = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "an optional",
    "sparse_tensor_type": "sparse",
}


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output with every dimension, the first too."""

    name: str
    datatype: str
    dims: tuple[int, ...]


def ports(values: Iterable[onnx.ValueInfoProto], what: str, name: str) -> tuple[Port, ...]:
    """`what`: "input" or "output". Raises UserError that names the first one that cannot be served."""
    found = tuple(_port(value, what, name) for value in values)
    if not found:
        raise UserError(f"{name} has no {what}, so there is nothing to serve")
    return found


def _port(value: onnx.ValueInfoProto, what: str, name: str) -> Port:
    kind = value.type.WhichOneof("value")
    if kind in _KINDS:
        raise UserError(
            f"{name}: {what} {value.name!r} is {_KINDS[kind]}, and only tensors can be served: export the model without it"
            + (" (scikit-learn's converter: zipmap=False)" if what == "output" and kind == "sequence_type" else "")
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in DATATYPES:
        said = onnx.TensorProto.DataType.Name(tensor.elem_type) if kind else "of no type"
        raise UserError(f"{name}: {what} {value.name!r} is {said}, which no request can carry")
    if not tensor.HasField("shape"):
        follows = "" if what == "input" else ", nor does it follow from the operators"
        raise UserError(
            f"{name}: {what} {value.name!r} does not say how many dimensions it has{follows}: export it with a shape"
        )
    dims = tuple(_length(dim) for dim in tensor.shape.dim)
    return Port(value.name, DATATYPES[tensor.elem_type], dims)


def _length(dim: onnx.TensorShapeProto.Dimension) -> int:
    """Some exporters write 0 or a negative number for what may be of any length."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else -1
