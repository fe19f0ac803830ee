"""Graphs that may have a batch dimension, made from one graph: the caller runs each and keeps the first that answers right.

A batch is a first dimension that all inputs and outputs have. Exporters fix it at 1 although most graphs allow more, and
write shapes [1, …] into the graph's Reshapes. Rule: nothing here is believed; only `Trial.mixing` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from serving.export.onnx_parts import inferred, rename
from serving.export.sources.graphs.onnx_model import Port

BATCH = "batch"


def may_have_batch(ports: Sequence[Port]) -> bool:
    """Every first dimension is 1 or of any length."""
    return all(port.dims[:1] in ((1,), (-1,)) for port in ports)


def candidates(model: onnx.ModelProto) -> Iterator[tuple[onnx.ModelProto, str]]:
    """Graphs with a batch dimension and what was done for it; most faithful first. `model` stays as it is."""
    is_fixed = any(_first(value) == 1 for value in model.graph.input)
    yield _declared(model), "its batch dimension freed" if is_fixed else ""
    if (reshaped := _with_free_reshapes(model)) is not None:
        yield _declared(reshaped), "its batch dimension freed, in its Reshapes too"


def _first(value: onnx.ValueInfoProto) -> int:
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_value if dims else 0


def _declared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that says `batch`; what was inferred from the old shapes is dropped and inferred again."""
    free = onnx.ModelProto()
    free.CopyFrom(model)
    del free.graph.value_info[:]
    for value in (*free.graph.input, *free.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    _columns(free.graph)
    return inferred(free)


def _with_free_reshapes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy whose Reshapes to [1, …] copy their first length from what they reshape; None where there is no such."""
    free = onnx.ModelProto()
    free.CopyFrom(model)
    graph, has_changed = free.graph, False
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    }
    for number, node in enumerate(graph.node):
        if node.op_type != "Reshape" or node.input[1] not in constants or _allows_zero(node):
            continue
        shape = numpy_helper.to_array(constants[node.input[1]])
        if len(shape) < 2 or shape[0] != 1:
            continue
        name = f"{node.input[1]}_free_{number}"  # its own: other nodes may use the constant for something else
        graph.initializer.append(numpy_helper.from_array(np.concatenate([[0], shape[1:]]).astype(np.int64), name))
        node.input[1] = name
        has_changed = True
    return free if has_changed else None


def _allows_zero(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)


# -- one number per row -----------------------------------------------------------------------------------------------


def without_zipmaps(model: onnx.ModelProto) -> None:
    """In place: probabilities that ZipMap gives as dictionaries by class become what it was given, float [n, classes].

    That is what scikit-learn's converter writes if nothing is said. Triton carries tensors alone.
    """
    by_name = {value.name: value for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type != "ZipMap" or node.output[0] not in by_name:
            continue
        classes = next((len(each.strings) or len(each.ints) for each in node.attribute), None)
        value = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, [None, classes])
        by_name[node.output[0]].CopyFrom(value)
        node.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output, node.name))


def without_scalars(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs and outputs without dimensions have one, of 1: no request to Triton carries a scalar."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    for name, shape in (("tandem_no_dimensions", []), ("tandem_one_dimension", [1])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    for value in [value for value in graph.input if _rank(value) == 0]:
        inner = f"{value.name}_scalar"
        rename(graph, value.name, inner)
        graph.node.insert(0, onnx.helper.make_node("Reshape", [value.name, "tandem_no_dimensions"], [inner]))
        value.type.tensor_type.shape.dim.add().dim_value = 1
    for value in [value for value in graph.output if _rank(value) == 0]:
        inner = f"{value.name}_scalar"
        rename(graph, value.name, inner)
        graph.node.append(onnx.helper.make_node("Reshape", [inner, "tandem_one_dimension"], [value.name]))
        value.type.tensor_type.shape.dim.add().dim_value = 1
    return changed


def has_scalars(model: onnx.ModelProto) -> bool:
    return any(_rank(value) == 0 for value in (*model.graph.input, *model.graph.output))


def scalar(takes: Sequence[Port], gives: Sequence[Port]) -> str | None:
    """The first input or output without dimensions, as a message calls it."""
    every = [*(("input", port) for port in takes), *(("output", port) for port in gives)]
    return next((f"{what} {port.name!r}" for what, port in every if not port.dims), None)


def columns(model: onnx.ModelProto) -> None:
    """Makes [batch] of the graph's inputs and outputs [batch, 1], in place: Triton takes no row without dimensions."""
    _columns(model.graph)


def _columns(graph: onnx.GraphProto) -> None:
    axis = "tandem_axis_1"
    flat_inputs = [value for value in graph.input if _rank(value) == 1]
    flat_outputs = [value for value in graph.output if _rank(value) == 1]
    if not flat_inputs and not flat_outputs:
        return
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), axis))
    for value in flat_inputs:
        inner = f"{value.name}_of_rows"
        rename(graph, value.name, inner)
        graph.node.insert(0, onnx.helper.make_node("Squeeze", [value.name, axis], [inner]))
        value.type.tensor_type.shape.dim.add().dim_value = 1
    for value in flat_outputs:
        inner = f"{value.name}_of_rows"
        rename(graph, value.name, inner)
        graph.node.append(onnx.helper.make_node("Unsqueeze", [inner, axis], [value.name]))
        value.type.tensor_type.shape.dim.add().dim_value = 1


def _rank(value: onnx.ValueInfoProto) -> int | None:
    return len(value.type.tensor_type.shape.dim) if value.type.tensor_type.HasField("shape") else None
