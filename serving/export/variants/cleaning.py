"""What leaves the house loads in old servers and says nothing of the machine that made it.

`cleaned` takes out traces and lowers the IR version, `checked` has ONNX's own checker read the result. Rule: the opset stays
as it came; whoever changes a graph passes it through here before it becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

MAX_IR_VERSION = 10  # ONNX Runtime 1.19 in Triton 24.10 reads no later one


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without stack traces, paths and notes of the exporter, at an IR version that old servers read."""
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


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _domains(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    for node in graph.node:
        yield node.domain
        for inner in subgraphs(node):
            yield from _domains(inner)
