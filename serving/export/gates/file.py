"""Could servers load this file as a variant of that model? Before anything is run.

One file, an IR version that old servers read, finite weights, and the inputs and outputs that FP32 has. What it answers is
for `accuracy`. Rule: what a user can mend is a UserError; weights that are broken are a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import NUMPY_TYPES, ExportedModel, fits
from serving.export.gates.limits import EXACT_ROWS, HALF_ROWS, ROUGH_ROWS, NonFinite
from serving.export.gates.metrics import count_non_finite
from serving.export.large_model import weights_of
from serving.export.onnx_parts import MAX_IR_VERSION
from serving.export.onnx_session import Session, first_line
from serving.repository import Record, Tensor

_ORT_TYPES = {datatype: f"tensor({numpy})" for datatype, numpy in NUMPY_TYPES.items()} | {
    "FP32": "tensor(float)",
    "FP64": "tensor(double)",
    "BF16": "tensor(bfloat16)",
    "BYTES": "tensor(string)",
}


@dataclass(frozen=True, slots=True)
class Interface:
    """What every variant of a model must have alike. Shapes leave out the batch dimension; `max_batch_size` 0: none."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int

    @classmethod
    def of(cls, model: ExportedModel | Record) -> Self:
        return cls(model.inputs, model.outputs, model.max_batch_size)


def check_file(name: str, model: bytes, interface: Interface) -> None:
    """UserError if servers could not load the file as a variant; NonFinite for bad weights."""
    proto = _parsed(name, model)
    if proto.ir_version > MAX_IR_VERSION:
        raise UserError(
            f"{name}: IR version {proto.ir_version}, servers read at most {MAX_IR_VERSION}; save it with an older one"
        )
    weights = weights_of(model)
    folder = str(weights.path.parent) if weights else ""
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor, base_dir=folder)
        if (count := count_non_finite(values)) and not _is_mask(values):
            raise NonFinite(name, f"weight {tensor.name!r}", count)
    session = Session(name, model)
    first = 1 if interface.max_batch_size else 0
    _check_tensors(name, "input", session.inputs, interface.inputs, first)
    _check_tensors(name, "output", session.outputs, interface.outputs, first)


def row_limit(model: bytes) -> float:
    """How much a row may depend on its batch, by what the file computes in."""
    proto = _parsed("the model", model)
    graphs = [proto.graph, *proto.functions]
    if any(node.op_type.startswith("DynamicQuantize") for graph in graphs for node in graph.node):
        return ROUGH_ROWS
    half = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return HALF_ROWS if any(tensor.data_type in half for tensor in proto.graph.initializer) else EXACT_ROWS


_PASSED_ON = (
    "Identity",
    "Cast",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Slice",
    "Gather",
    "Split",
    "Concat",
)
_ROUNDED = ("QuantizeLinear", "DequantizeLinear")
_SHARES = ("Sigmoid", "HardSigmoid", "Softmax")


def probability_outputs(model: bytes) -> frozenset[int]:
    """The outputs, by their place, that hold what comes out of a sigmoid or softmax, if only among other things."""
    graph = _parsed("the model", model).graph
    makers = {name: node for node in graph.node for name in node.output}

    def holds_shares(name: str, seen: set[str]) -> bool:
        node = makers.get(name)
        if node is None or name in seen:
            return False
        seen.add(name)
        if node.op_type in _SHARES:
            return True
        inputs = node.input if node.op_type == "Concat" else node.input[:1]
        return node.op_type in (*_PASSED_ON, *_ROUNDED) and any(holds_shares(one, seen) for one in inputs)

    return frozenset(index for index, output in enumerate(graph.output) if holds_shares(output.name, set()))


def _parsed(name: str, model: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.load_from_string(model)
        elsewhere = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer)
        if not elsewhere:
            onnx.checker.check_model(proto)
    except Exception as error:  # protobuf and the checker raise half a dozen unrelated classes
        raise UserError(f"{name}: this is not a sound ONNX file: {first_line(error)}") from None
    if elsewhere and weights_of(model) is None:
        raise UserError(f"{name}: its weights lie in another file; save it as one file (external_data=False)")
    return proto


def _is_mask(values: NDArray[Any]) -> bool:
    """Nothing but 0 and minus infinity, as causal masks are: they are added before a softmax and never seen after."""
    return bool(((values == 0) | np.isneginf(values)).all())


def _check_tensors(name: str, what: str, nodes: Sequence[Any], wanted: tuple[Tensor, ...], first: int) -> None:
    """`first`: the dimension that a row begins with. Outputs come in FP32's order, because answers do."""
    got = {node.name: (node.type, [d if isinstance(d, int) else -1 for d in node.shape]) for node in nodes}
    want = {tensor.name: (_ORT_TYPES.get(tensor.datatype, ""), list(tensor.shape)) for tensor in wanted}
    if set(got) != set(want) or (what == "output" and list(got) != list(want)):
        raise UserError(f"{name}: {what}s are {', '.join(got)}; FP32 has {', '.join(want)}, and variants share them")
    for key, (kind, shape) in want.items():
        row = got[key][1][first:]
        if got[key][0] != kind or not _is_within(shape, row, is_input=what == "input"):
            raise UserError(f"{name}: {what} {key!r} is {got[key][0]} {row} a row; FP32 has {kind} {shape}")


def _is_within(wanted: Sequence[int], row: Sequence[int], *, is_input: bool) -> bool:
    """An input may be open in the graph and narrower in the configuration, where it runs at one length only."""
    return fits(row, wanted) if is_input else list(row) == list(wanted)
