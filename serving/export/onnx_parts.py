"""The parts of an ONNX model wherever they stand, and the file that leaves the house.

Graphs have inner graphs: the bodies of If, Loop and Scan. Rule: whoever changes a graph passes it through `cleaned` or `checked`
before it becomes bytes, so that it loads in old servers and says nothing of the machine that made it; the opset stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

MAX_BYTES = 2**31 - 1  # of one protobuf message, and so of one ONNX file
MS_DOMAIN = "com.microsoft"  # ONNX Runtime's own operators, in every build of it
MAX_IR_VERSION = 10  # ONNX Runtime 1.19 in Triton 24.10 reads no later one


# -- parts ------------------------------------------------------------------------------------------------------------


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the bodies of an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields every node, including those in the bodies of If, Loop and Scan."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from nodes_of(inner)


def operators(model: onnx.ModelProto) -> set[str]:
    """The types of the operators in a model."""
    return {node.op_type for node in nodes_of(model.graph)}


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yields every tensor, in graphs, in the graphs inside nodes and in functions."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        single = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for sparse in (*single, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
    for graph in subgraphs(node):
        yield from _tensors_of_graph(graph)


def uses(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names of all values that a node reads, including those read inside its bodies."""
    yield from node.input
    for inner in subgraphs(node):
        yield from outer_names(inner)


def outer_names(body: onnx.GraphProto) -> Iterator[str]:
    """Yields the names that a body uses and does not make."""
    made = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    made |= {name for node in body.node for name in node.output}
    for node in body.node:
        yield from (name for name in uses(node) if name and name not in made)
    yield from (value.name for value in body.output if value.name not in made)


def captured_names(graph: onnx.GraphProto) -> frozenset[str]:
    """The values of this graph that inner graphs use."""
    return frozenset(name for node in graph.node for inner in subgraphs(node) for name in outer_names(inner))


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infers shapes from the inputs; those that do not follow stay unknown."""
    return onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)


# -- changes ----------------------------------------------------------------------------------------------------------


def unused(name: str, taken: set[str]) -> str:
    """Returns `name`, or `name_1`, `name_2`, … where it is taken, and adds the result to `taken`."""
    made, count = name, 1
    while made in taken:
        made, count = f"{name}_{count}", count + 1
    taken.add(made)
    return made


def rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Renames a value wherever nodes make or use it, inner graphs included; not among the graph's inputs and outputs."""
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
        for inner in subgraphs(node):
            rename(inner, old, new)
            for value in inner.output:  # an inner graph may hand out a value of the outer one
                if value.name == old:
                    value.name = new


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sorts the nodes so that each comes after what it uses, in its bodies too; otherwise they keep their order."""
    makers = {name: index for index, node in enumerate(model.graph.node) for name in node.output if name}
    nodes, done = list(model.graph.node), set[int]()
    made: list[onnx.NodeProto] = []
    for start in range(len(nodes)):
        waiting = [start]
        while waiting:
            index = waiting[-1]
            needed = {makers[name] for name in uses(nodes[index]) if name in makers} - done - {index}
            if needed and index not in done:
                waiting.extend(sorted(needed, reverse=True))
                continue
            waiting.pop()
            if index not in done:
                done.add(index)
                made.append(nodes[index])
    del model.graph.node[:]
    model.graph.node.extend(made)
    return model


# -- the file that leaves ---------------------------------------------------------------------------------------------


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Removes stack traces, paths and notes of the exporter, and lowers the IR version to one that old servers read."""
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for graph in (model.graph, *model.functions):
        _clean(graph)
    used = {"", *_domains(model.graph), *(domain for function in model.functions for domain in _domains(function))}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)  # the quantiser declares domains that it does not use and old servers do not know
    return model


def checked(model: onnx.ModelProto) -> bytes:
    onnx.checker.check_model(cleaned(model), full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _clean(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    parts: list[Any] = [graph, *graph.node, *graph.value_info]
    if isinstance(graph, onnx.GraphProto):
        parts += [*graph.input, *graph.output, *graph.initializer]
    for part in parts:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for node in graph.node:
        for inner in subgraphs(node):
            _clean(inner)


def _domains(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    for node in graph.node:
        yield node.domain
        for inner in subgraphs(node):
            yield from _domains(inner)
