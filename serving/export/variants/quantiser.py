"""Runs ONNX Runtime's quantiser: bytes in, bytes out, no files left behind and no tracebacks.

Which settings are worth trying is in `int8`. Rule: whatever the tool raises or logs stays in here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from onnx import helper, numpy_helper

from serving.export.exported_model import Arrays
from serving.export.onnx_parts import checked, in_order, unused
from serving.export.progress import quiet
from serving.export.scratch import scratch
from serving.export.variants import rounding
from serving.export.variants.calibration import CalibrationRows, rows_of_all_values
from serving.export.variants.candidate import translated
from serving.export.variants.graph import PRODUCTS, Graph, opened, read

_RANK = 4  # [n, channels, height, width]


def with_pools(graph: Graph) -> onnx.ModelProto:
    """Makes a GlobalAveragePool, which has an INT8 kernel, of each mean over height and width, which ReduceMean has not."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    ranks = _ranks(model)
    taken = set(graph.types) | {node.name for node in model.graph.node}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.extend(_pool(node, taken) if _is_spatial_mean(graph, node, ranks) else [node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _pool(node: onnx.NodeProto, taken: set[str]) -> list[onnx.NodeProto]:
    if _attribute(node, "keepdims", 1):
        return [helper.make_node("GlobalAveragePool", [node.input[0]], [node.output[0]], node.name)]
    pooled = unused(f"{node.output[0]}_pooled", taken)
    return [
        helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], node.name),
        helper.make_node("Flatten", [pooled], [node.output[0]], unused(f"{node.name}_flat", taken), axis=1),
    ]


def _is_spatial_mean(graph: Graph, node: onnx.NodeProto, ranks: dict[str, int]) -> bool:
    if node.op_type != "ReduceMean" or ranks.get(node.input[0]) != _RANK or not graph.is_float(node.input[0]):
        return False
    axes = _attribute(node, "axes", [])
    if len(node.input) > 1:
        tensor = graph.constants.get(node.input[1])
        axes = [] if tensor is None else np.ravel(numpy_helper.to_array(tensor)).tolist()
    return {axis % _RANK for axis in axes} == {2, 3}


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return values.get(name, default)


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


_MAX_HISTOGRAM_ROWS = 128  # a histogram is as good with fewer; a guess, not measured

_ORT_WARNINGS, _ORT_ERRORS = 2, 3  # severities of its logger; 2 is what it starts with


@dataclass(frozen=True, slots=True)
class Static:
    """Activations are scaled by ranges seen on calibration data."""

    takes: tuple[str, ...]  # types of operators
    method: str = "MinMax"  # MinMax, Percentile, Entropy
    is_per_channel: bool = True
    is_full_range: bool = False  # 8 bits of a weight instead of 7
    is_symmetric: bool = False  # signed activations and zero point 0, as TensorRT asks
    is_compensated: bool = False  # weights are rounded by what that does to answers, see `rounding`

    def __str__(self) -> str:
        signs = "INT8 activations" if self.is_symmetric else "UINT8 activations"
        symmetric = ", zero points 0" if self.is_symmetric else ""
        weights = _weights(self.is_full_range or self.is_symmetric, self.is_per_channel)
        of_products = "" if self.takes[-1:] == ("GlobalAveragePool",) else ", products alone"
        rounding = ", weights rounded by their effect" if self.is_compensated else ""
        return f"static QDQ, {signs}, {weights}{symmetric}, {self.method} ranges{of_products}{rounding}"


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Activations are scaled by what comes, in each run anew."""

    takes: tuple[str, ...]
    is_per_channel: bool = True
    is_full_range: bool = False

    def __str__(self) -> str:
        weights = _weights(self.is_full_range, self.is_per_channel)
        return f"dynamic, {' and '.join(self.takes)} with constant weights, {weights}"


def _weights(is_full_range: bool, is_per_channel: bool) -> str:
    return f"INT8 weights ({8 if is_full_range else 7} bits, per {'channel' if is_per_channel else 'tensor'})"


def prepared(fp32: bytes) -> bytes:
    """Prepares a net for static quantisation: pools as such, constants folded, batch norms in their convolutions."""
    from onnxruntime.quantization.shape_inference import (  # type: ignore[import-untyped, unused-ignore]
        quant_pre_process,
    )

    with translated("int8", "preparing the net"), workshop() as folder:
        source, made = folder / "source.onnx", folder / "prepared.onnx"
        onnx.save(with_flat_biases(with_pools(read(opened(fp32)))), str(source))
        quant_pre_process(str(source), str(made), skip_symbolic_shape=True)  # it fails on dynamo's exports
        return bytes(with_own_biases(opened(made.read_bytes())).SerializeToString())


def with_flat_biases(model: onnx.ModelProto) -> onnx.ModelProto:
    """Flattens a Gemm's constant bias to [n], in place. Converters write [1, n] or one number, over which the tool trips."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for index, node in enumerate(graph.node):
        if node.op_type != "Gemm" or len(node.input) < 3 or not {*node.input[1:3]} <= constants.keys():
            continue
        bias = numpy_helper.to_array(constants[node.input[2]])
        is_turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        length = constants[node.input[1]].dims[0 if is_turned else 1]
        if bias.shape != (length,) and bias.size in (1, length) and bias.shape[-1:] in ((), (1,), (length,)):
            flat = np.ascontiguousarray(np.broadcast_to(bias.ravel(), (length,)))
            node.input[2] = f"{node.input[2]}_flat_{index}"  # its own: other nodes may use the constant as it is
            graph.initializer.append(numpy_helper.from_array(flat, node.input[2]))
    return model


def with_own_biases(model: onnx.ModelProto) -> onnx.ModelProto:
    """Gives each Conv and Gemm a bias of its own, in place. The tool copies one that is shared, under a name that may be taken."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    taken = {name for node in graph.node for name in (*node.input, *node.output, node.name)} | constants.keys()
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3 or node.input[2] not in constants:
            continue
        if (name := node.input[2]) in seen:
            copy = graph.initializer.add()
            copy.CopyFrom(constants[name])
            copy.name = node.input[2] = unused(f"{name}_own", taken)
        seen.add(name)
    return model


def static(
    prepared_fp32: bytes, calibration: Arrays, settings: Static, left_out: frozenset[str] = frozenset()
) -> bytes:
    """`left_out`: names of nodes of the prepared net that stay FP32."""
    from onnxruntime.quantization import (  # type: ignore[import-untyped, unused-ignore]
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    with translated("int8", str(settings)), workshop() as folder:
        source, made = folder / "source.onnx", folder / "made.onnx"
        source.write_bytes(prepared_fp32)
        graph = read(onnx.load_from_string(prepared_fp32))
        options, rows = _options(graph, settings), CalibrationRows(graph.model, calibration)
        if settings.method != "MinMax":
            rows = CalibrationRows(graph.model, calibration, rows_of_all_values(graph.model), _MAX_HISTOGRAM_ROWS)
            options["CalibStridedMinMax"] = rows.batch_size  # of any method: so many rows are in memory at once
        quantize_static(
            str(source),
            str(made),
            rows,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(settings.takes),
            nodes_to_exclude=sorted(left_out | not_to_be_rounded(graph)),
            per_channel=settings.is_per_channel,
            reduce_range=not (settings.is_full_range or settings.is_symmetric),
            activation_type=QuantType.QInt8 if settings.is_symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[settings.method],
            extra_options=options,
        )
        content = checked(in_order(kept_exact(onnx.load(str(made)), left_out | not_to_be_rounded(graph))))
    return rounding.compensated(prepared_fp32, content, calibration) if settings.is_compensated else content


def kept_exact(model: onnx.ModelProto, left_out: frozenset[str]) -> onnx.ModelProto:
    """Keeps in FP32 what was left there, in place. ONNX Runtime (seen in 1.31.1) rounds the weights of a Conv or Gemm between a DQ and a Q
    when it loads a file, with 8 bits and one scale for all channels. A Clip to the range of the DQ, which changes nothing, stands between.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        before = makers.get(node.input[0]) if node.input else None
        if (
            node.name in left_out
            and node.op_type in PRODUCTS
            and before is not None
            and before.op_type == "DequantizeLinear"
        ):
            scale, zero = (numpy_helper.to_array(stored[name]) for name in before.input[1:3])
            whole = np.iinfo(zero.dtype)
            ends = [f"{node.name}_{end}" for end in ("low", "high")]
            for name, end in zip(ends, (whole.min, whole.max), strict=True):
                limit = np.array((end - int(zero)) * float(scale), np.float32)
                model.graph.initializer.append(numpy_helper.from_array(limit, name))
            nodes.append(helper.make_node("Clip", [node.input[0], *ends], [f"{node.name}_exact"], f"{node.name}_exact"))
            node.input[0] = f"{node.name}_exact"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _options(graph: Graph, settings: Static) -> dict[str, object]:
    options: dict[str, object] = {}
    if graph.captured:
        options["QDQKeepRemovableActivations"] = True  # it renames what bodies may use
    if settings.is_symmetric:
        options |= {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    return options


def dynamic(fp32: bytes, settings: Dynamic, left_out: frozenset[str] = frozenset()) -> bytes:
    """`left_out`: names of nodes of the net as `opened` that stay FP32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with translated("int8", str(settings)), workshop() as folder:
        source, made = folder / "source.onnx", folder / "made.onnx"
        model = opened(fp32)
        model.graph.ClearField("value_info")  # the tool turns a Gemm's weights round, and trips over their old shape
        onnx.save(model, str(source))
        names = left_out | not_to_be_rounded(read(model))
        quantize_dynamic(
            str(source),
            str(made),
            op_types_to_quantize=list(settings.takes),
            nodes_to_exclude=sorted(names | {f"{name}_MatMul" for name in names}),  # what a Gemm becomes on the way
            per_channel=settings.is_per_channel,
            reduce_range=not settings.is_full_range,
            weight_type=QuantType.QInt8,
        )
        return checked(in_order(onnx.load(str(made))))


def not_to_be_rounded(graph: Graph) -> frozenset[str]:
    """Nodes on masks and positions: one value of -3.4e38 would leave the others no digits."""
    return frozenset(
        node.name
        for node in graph.nodes
        if not graph.masks.isdisjoint(node.input if node.op_type in PRODUCTS else (*node.input, *node.output))
        or not graph.positions.isdisjoint(node.output)
    )


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """Gives the block a temporary folder and silence: the tool prints, and its advice was followed."""
    ort.set_default_logger_severity(_ORT_ERRORS)
    try:
        with scratch("int8") as folder, quiet():
            yield folder
    finally:
        ort.set_default_logger_severity(_ORT_WARNINGS)
