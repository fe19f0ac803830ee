"""Decides which operators of a net compute in FP16, and which stay FP32. Inputs and outputs stay FP32 always.

What overflows at 65,504, loses its small terms, or is a mask, a position or a count stays FP32: those are cheap, and one wrong
value there spoils an answer. The products (Conv, MatMul, …) and what lies between them go. The file itself is made in
`casts`. Rule: an operator goes to FP16 only if its schema says that it may, and nothing beyond FP16 gets there unclamped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.export.onnx_parts import checked, subgraphs
from serving.export.variants import fusion
from serving.export.variants.calibration import CalibrationRows, rows_of_all_values
from serving.export.variants.candidate import Candidate, NothingToQuantise, NotMade, translated
from serving.export.variants.casts import may_be_fp16, rewritten
from serving.export.variants.graph import MAX_FP16, MIN_FP16, PRODUCTS, Graph, has_beyond_fp16, opened, read

LARGE = MAX_FP16 / 8  # other inputs may well give values a few times larger than those seen; guess, not measured
_MAX_ROWS = 64  # guess, not measured: a net that overflows at all does so on some of the first rows


def large_values(fp32: bytes, inputs: Arrays) -> frozenset[str]:
    """Names the nodes, as `opened` gives them, that make or read a value beyond LARGE on these inputs."""
    with translated("fp16", "looking for large values"):
        graph = read(opened(fp32))
        values = [value.name for value in graph.model.graph.input if graph.is_float(value.name)]
        values += [name for node in graph.nodes for name in graph.floats_out(node)]
        values = [name for name in values if name not in graph.masks]  # those stay FP32 anyway
        magnitudes = _magnitudes(graph, values, inputs)
        large = {name for name, value in zip(values, magnitudes, strict=True) if not value <= LARGE}
        return frozenset(node.name for node in graph.nodes if not large.isdisjoint((*node.input, *node.output)))


def _magnitudes(graph: Graph, names: list[str], inputs: Arrays) -> list[float]:
    """Measures the largest magnitude of each value over all rows; NaN where there was one."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.output[:]
    for index, name in enumerate(names):
        absolute, largest = f"magnitude_{index}_all", f"magnitude_{index}"
        model.graph.node.append(helper.make_node("Abs", [name], [absolute]))
        model.graph.node.append(helper.make_node("ReduceMax", [absolute], [largest], keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info(largest, TensorProto.FLOAT, []))
    num_at_once = rows_of_all_values(graph.model)
    session = onnx_session.opened(model.SerializeToString())
    runs = [session.run(None, portion) for portion in CalibrationRows(model, inputs, num_at_once, _MAX_ROWS)]
    found: list[float] = np.max(np.array(runs, np.float64), axis=0).tolist() if names else []
    return found


# A norm squares and sums, which overflows or loses the small terms.
_NORMS = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization"}
_NORMS |= {"SkipLayerNormalization", "MeanVarianceNormalization", "LpPool", "Softmax", "LogSoftmax"}
_SUMS = {"ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "CumSum"}
_SUMS |= {"ReduceLogSum", "ReduceLogSumExp"}
_POWERS = {"Pow", "Sqrt", "Reciprocal", "Exp", "Log"}
_COORDINATES = {
    "Sin",
    "Cos",
    "Tan",
    "Resize",
    "Upsample",
    "GridSample",
    "Range",
    "EyeLike",
    "TopK",
    "NonMaxSuppression",
}
_DRAWN = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
_STAYS = frozenset(_NORMS | _SUMS | _POWERS | _COORDINATES | _DRAWN | _QUANTISED)

# One over a norm may be as large as the norm is small, so that what is multiplied by it stays too.
_MAKES_SCALES = frozenset({"Sqrt", "Reciprocal", "Pow", "Exp"})
_MOVES = frozenset({"Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Identity", "Clip", "Add", "Max"})


def candidates(fp32: bytes, calibration: Arrays | None, *, fuses: bool = False) -> Iterator[Candidate]:
    """Yields one: rules that hold for every net and, if inputs are given, FP32 where values come near FP16's end on them.

    `fuses`: before it the same of the net with fused operators, where it has any to fuse.
    """
    large = frozenset[str]() if calibration is None else large_values(fp32, calibration)
    failure = ""
    if fuses:
        try:
            if (found := fusion.fused(fp32, large)) is not None:
                yield _fused_candidate(found, calibration)
        except NotMade as reason:
            failure = reason.reason
    yield Candidate("fp16", to_fp16(fp32, large), _how(large, calibration), not_fused=failure)


def _fused_candidate(found: fusion.Fusion, calibration: Arrays | None) -> Candidate:
    large = frozenset[str]() if calibration is None else large_values(found.model, calibration)
    counts = ", ".join(f"{count} {name}" for name, count in found.operators.items())
    how = f"{_how(large, calibration)}; fused in operators of ONNX Runtime {onnx_session.VERSION}: {counts}"
    return Candidate("fp16", to_fp16(found.model, large), how, fused=found.operators)


def _how(large: frozenset[str], calibration: Arrays | None) -> str:
    how = "FP16, with norms, sums, Softmax and masks in FP32"
    if large:
        how += f", and {len(large)} operators with values over {LARGE:g}"
    elif calibration is None:
        how += "; whether values overflow was not seen, without inputs"
    return how


def to_fp16(fp32: bytes, also_fp32: frozenset[str]) -> bytes:
    """Converts the file. `also_fp32`: names of nodes, as `opened` gives them, that stay FP32 beside those that always do."""
    with translated("fp16", "changing the types of the graph"):
        graph = read(opened(fp32))
        stays = in_fp32(graph, also_fp32)
        if not any(node.op_type in PRODUCTS and node.name not in stays for node in graph.nodes):
            raise NothingToQuantise("fp16", _reason(graph))
        return checked(rewritten(graph, stays))


def in_fp32(graph: Graph, also: frozenset[str]) -> frozenset[str]:
    """Names the nodes that stay FP32."""
    stays = {node.name for node in graph.nodes if node.name in also or _must_stay(graph, node)}
    stays |= _norm_tails(graph)
    return frozenset(_with_islands(graph, stays))


def _must_stay(graph: Graph, node: onnx.NodeProto) -> bool:
    names = {*node.input, *node.output}
    is_mask = not graph.masks.isdisjoint(node.output if node.op_type in PRODUCTS else names)
    return (
        node.op_type in _STAYS
        or is_mask
        or not graph.positions.isdisjoint(node.output)
        or has_beyond_fp16(graph, node)
        or _has_only_tiny(graph, node)
        or not may_be_fp16(graph, node)
    )


def _has_only_tiny(graph: Graph, node: onnx.NodeProto) -> bool:
    """1e-12, that keeps a divisor from zero, would be zero; so would weights so small. A small bias is no loss."""
    names = [name for name in node.input if 0 < graph.largest.get(name, 0) < MIN_FP16]
    if node.op_type in PRODUCTS:
        return any(name in node.input[:2] for name in names)
    return any(np.prod(graph.constants[name].dims) == 1 for name in names)


def _norm_tails(graph: Graph) -> set[str]:
    """x / norm and x · (1 / norm): where a row is all zeros the scale overflows FP16, and infinity times zero is NaN."""
    stays, scales = set(), set()
    for node in graph.nodes:
        floats = graph.floats_in(node)
        has_scale = any(name in scales for name in floats)
        if node.op_type == "Div" and floats and floats[-1] not in graph.constants:
            stays.add(node.name)
            if floats[0] in graph.constants:
                scales.update(node.output)
        elif node.op_type in _MAKES_SCALES or (node.op_type in _MOVES and has_scale):
            scales.update(node.output)
        elif node.op_type in ("Mul", "Div") and has_scale:
            stays.add(node.name)
    return stays


def _with_islands(graph: Graph, stays: set[str]) -> set[str]:
    """Adds what lies between FP32 operators only: to FP16 and back would be two casts for nothing."""
    stays = set(stays)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    home = {value.name for value in graph.model.graph.input}
    while True:
        fp32 = home | {name for node in graph.nodes if node.name in stays for name in node.output}
        found = {
            node.name
            for node in graph.nodes
            if node.name not in stays and node.op_type not in PRODUCTS and _is_island(graph, node, fp32, readers, stays)
        }
        if not found:
            return stays
        stays |= found


def _is_island(
    graph: Graph, node: onnx.NodeProto, fp32: set[str], readers: dict[str, list[onnx.NodeProto]], stays: set[str]
) -> bool:
    derived = [name for name in graph.floats_in(node) if name not in graph.constants]
    made = graph.floats_out(node)
    if not made:  # a comparison or a shape: compares what is there
        return any(name in fp32 for name in derived)
    comes_from_fp32 = bool(derived) and all(name in fp32 for name in derived)
    return comes_from_fp32 and all(reader.name in stays for name in made for reader in readers.get(name, []))


def _reason(graph: Graph) -> str:
    kinds = sorted({node.op_type for node in graph.nodes})
    if any(node.op_type in PRODUCTS for node in graph.nodes):
        return "every product of this net has values beyond FP16, or no FP16 form"
    if any(any(subgraphs(node)) for node in graph.nodes):
        return "its arithmetic is inside the bodies of If, Loop or Scan, which stay FP32"
    return f"this net has no convolution or matrix product ({', '.join(kinds[:5])})"
