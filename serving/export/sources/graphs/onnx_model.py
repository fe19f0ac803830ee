"""What must hold for an ONNX graph before anything else is asked of it: tensors in and out, valid, without foreign operators,
at an opset that servers read.

Old opsets are raised by ONNX's own converter; functions that came with the model are dissolved, because neither that converter
nor the quantisers see into them. Rules: -1 is a dimension of any length, which only running the graph settles (`runnable.py`);
whatever leaves `finished` loads in the oldest server that is supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import inliner, version_converter

from serving.errors import UserError
from serving.export.exported_model import NUMPY_TYPES
from serving.export.large_model import DIGEST_KEY, LargeModel, Weights
from serving.export.onnx_parts import MAX_BYTES, MS_DOMAIN, cleaned, inferred, nodes_of, operators
from serving.export.onnx_session import first_line
from serving.protocol.budget import INPUTS

# ONNX's element type -> the datatype of the Open Inference Protocol
DATATYPES: dict[int, str] = {
    int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(numpy))): datatype for datatype, numpy in NUMPY_TYPES.items()
} | {int(onnx.TensorProto.STRING): "BYTES"}
MAX_DIMENSIONS = 32  # of NumPy 1, in which the embedded Triton hands tensors over
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


def input_ports(model: onnx.ModelProto, name: str) -> tuple[Port, ...]:
    """Raises UserError that names the first input that cannot be served."""
    return _ports(model.graph.input, "input", name)


def output_ports(model: onnx.ModelProto, name: str) -> tuple[Port, ...]:
    """Raises UserError that names the first output that cannot be served."""
    return _ports(model.graph.output, "output", name)


def _ports(values: Iterable[onnx.ValueInfoProto], what: str, name: str) -> tuple[Port, ...]:
    found = tuple(_port(value, what, name) for value in values)
    if not found:
        raise UserError(f"{name} has no {what}, so there is nothing to serve")
    if len(found) > INPUTS.most:
        raise UserError(
            f"{name} has {len(found)} {what}s, and a request carries {INPUTS.most} at most: join them in the graph"
        )
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
        kind_text = onnx.TensorProto.DataType.Name(tensor.elem_type) if kind else "of no type"
        raise UserError(f"{name}: {what} {value.name!r} is {kind_text}, which no request can carry")
    if not tensor.HasField("shape"):
        why = "" if what == "input" else ", nor does it follow from the operators"
        raise UserError(
            f"{name}: {what} {value.name!r} does not say how many dimensions it has{why}: export it with a shape"
        )
    dims = tuple(_length(dim) for dim in tensor.shape.dim)
    if len(dims) > MAX_DIMENSIONS:
        raise UserError(
            f"{name}: {what} {value.name!r} has {len(dims)} dimensions, and Triton hands over {MAX_DIMENSIONS} at most"
        )
    return Port(value.name, DATATYPES[tensor.elem_type], dims)


def _length(dim: onnx.TensorShapeProto.Dimension) -> int:
    """Some exporters write 0 or a negative number for what may be of any length."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else -1


MAX_OPSET = 22  # ONNX Runtime from 1.21 on loads it; 1.19 (Triton 24.10) reads 21 at most: tried
OLD_SERVERS_OPSET = 21
OLDEST_OPSET = 7  # ONNX Runtime promises nothing for older ones
MAX_ML_OPSET = 5  # the same, for ai.onnx.ml
_RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
_DOMAINS = {"": MAX_OPSET, "ai.onnx": MAX_OPSET, "ai.onnx.ml": MAX_ML_OPSET, MS_DOMAIN: 1}


def checked(model: onnx.ModelProto, name: str, *, is_whole: bool = True) -> onnx.ModelProto:
    """The model with its functions dissolved, valid, with shapes inferred. `name` is what messages call it.

    `is_whole` False: weights lie outside, and ONNX's own check, which would look for them, is ONNX Runtime's when it loads.
    """
    try:
        whole = inferred(inliner.inline_local_functions(model) if model.functions else model)
        _check_operators(whole, name)
        input_ports(whole, name)
        output_ports(whole, name)
        if is_whole:
            onnx.checker.check_model(whole)
    except UserError:
        raise
    except Exception as error:  # the checker raises its own, the others RuntimeError
        raise UserError(f"{name} is not a valid ONNX model: {first_line(error)}") from None
    del whole.training_info[:]
    constants = {tensor.name for tensor in whole.graph.initializer}
    inputs = [value for value in whole.graph.input if value.name not in constants]  # up to IR 3 weights are inputs too
    del whole.graph.input[:]
    whole.graph.input.extend(inputs)
    return whole


def _check_operators(model: onnx.ModelProto, name: str) -> None:
    foreign = sorted({f"{n.domain}:{n.op_type}" for n in nodes_of(model.graph) if n.domain not in _DOMAINS})
    if foreign:
        raise UserError(
            f"{name} uses {_listed('operator', foreign)}, of a library that no server here has: "
            "export the model without custom operators"
        )
    used = {node.domain for node in nodes_of(model.graph)}
    for entry in model.opset_import:
        if entry.domain in used and entry.version > _DOMAINS[entry.domain]:
            raise UserError(
                f"{name} needs opset {entry.version} of {entry.domain or 'ai.onnx'}, servers here read up to "
                f"{_DOMAINS[entry.domain]}: export the model again with that opset or an older one"
            )


def random_operators(model: onnx.ModelProto) -> list[str]:
    """Kinds of operators in it that may draw random numbers; Dropout does so in training mode only."""
    return sorted(operators(model) & _RANDOM)


def opset_of(model: onnx.ModelProto) -> int | None:
    """Of the standard operators; None where the model uses none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)


def upgraded(model: onnx.ModelProto, opset: int, name: str) -> onnx.ModelProto:
    """The model at `opset` or, where it came newer, at its own."""
    if opset > MAX_OPSET:
        raise UserError(f"opset {opset} is newer than servers here read: ask for {MAX_OPSET} or an older one")
    before = opset_of(model)
    if before is None:
        model.opset_import.append(onnx.helper.make_opsetid("", opset))
        return model
    if before >= opset:
        return model
    model.ir_version = max(model.ir_version, 4)  # the converter would make inputs of the weights again
    try:
        raised = version_converter.convert_version(model, opset)
        onnx.checker.check_model(raised)
        return inferred(raised)
    except Exception as error:  # RuntimeError, or the checker's own
        keep = f", or keep it as it is with --opset {before}" if before >= OLDEST_OPSET else ""
        raise UserError(
            f"{name}: {_culprit(error, model)} of opset {before} cannot be upgraded to {opset}: "
            f"export the model again with opset {opset}{keep}"
        ) from None


def _culprit(error: Exception, model: onnx.ModelProto) -> str:
    """The operator that the converter's message is about; it writes names into other words."""
    names = sorted(operators(model), key=len, reverse=True)
    found = next((op for op in names if re.search(rf"(?<![A-Za-z]){op}(?![A-Za-z])", str(error))), None)
    return f"operator {found}" if found else f"an operator ({first_line(error)})"


def finished(model: onnx.ModelProto, name: str, weights: Weights | None = None) -> bytes:
    """One file, at an IR version that old servers read, without traces of what made it. `weights`: of a model over 2 GB."""
    if "/" in model.graph.name or "\\" in model.graph.name:
        model.graph.name = "model"  # some exporters name the graph by the path that it came from
    cleaned(model)
    if weights is not None:
        model.metadata_props.add(key=DIGEST_KEY, value=weights.digest)
        return LargeModel.of(model.SerializeToString(deterministic=True), weights)
    try:
        content = bytes(model.SerializeToString(deterministic=True))
    except ValueError:  # protobuf's, over its limit
        content = None
    if content is None or len(content) > MAX_BYTES:
        raise UserError(f"{name} is over the 2 GB that one ONNX file holds")
    return content


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{what}{'s' if len(names) > 1 else ''} {shown}"
