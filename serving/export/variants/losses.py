"""Measures which layers of a net lose most in INT8. A loss is noise over signal (power), 0 for none, per layer and by its own doing.

For static files ONNX Runtime's debugging tools compare values before and after each rounding; for dynamic ones the rounding of
each product is done here on values that were seen, or on the weights alone where no inputs are given. Rule: nothing here changes a net.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.export.variants.calibration import CalibrationRows
from serving.export.variants.candidate import translated
from serving.export.variants.graph import Graph, read
from serving.export.variants.quantiser import not_to_be_rounded, workshop

LAYERS = ("Conv", "Gemm", "MatMul")

# All values of all layers are in memory at once: about 4 photographs, or a whole portion of what is smaller. A guess.
_MAX_VALUES = 600_000
_MAX_ROWS = 16


def static_losses(prepared_fp32: bytes, quantised: bytes, inputs: Arrays) -> dict[str, float]:
    """Measures for each layer's node, by name, the noise that it adds to what came in, and that of its weights."""
    from onnxruntime.quantization import qdq_loss_debug as debug  # type: ignore[import-untyped, unused-ignore]

    with translated("int8", "looking for the layers that lose most"), workshop() as folder:
        fp32_file, int8_file = folder / "fp32.onnx", folder / "int8.onnx"
        fp32_file.write_bytes(prepared_fp32)
        int8_file.write_bytes(quantised)
        values = debug.create_activation_matching(*(_values(debug, file, inputs) for file in (int8_file, fp32_file)))
        weights = debug.create_weight_matching(str(fp32_file), str(int8_file))
    noise = {name: _noise(pair["float"], pair["post_qdq"]) for name, pair in values.items() if "float" in pair}
    rounding = {name: _noise([pair["float"]], [pair["dequantized"]]) for name, pair in weights.items()}
    graph = read(onnx.load_from_string(prepared_fp32))
    return {node.name: _added(graph, node, noise) + rounding.get(node.input[1], 0) for node in layers(graph)}


def _added(graph: Graph, node: onnx.NodeProto, noise: Mapping[str, float]) -> float:
    """A Relu or Clip behind a layer is rounded in its place."""
    behind = [n.output[0] for n in graph.nodes if n.op_type in ("Relu", "Clip") and n.input[0] == node.output[0]]
    out = next((noise[name] for name in (node.output[0], *behind) if name in noise), 0.0)
    return max(0.0, out - noise.get(node.input[0], 0))


def dynamic_losses(graph: Graph, inputs: Arrays | None, is_full_range: bool) -> dict[str, float]:
    """Measures the loss of each product with constant weights, by its node's name. `graph`: of the net as `opened`."""
    nodes = [node for node in layers(graph) if node.op_type != "Conv" and node.input[1] in graph.constants]
    with translated("int8", "looking for the layers that lose most"):
        values_by_name = _read_values(graph, [node.input[0] for node in nodes], inputs) if inputs is not None else {}
        levels = 127 if is_full_range else 64
        return {node.name: _product_loss(graph, node, values_by_name.get(node.input[0]), levels) for node in nodes}


def layers(graph: Graph) -> list[onnx.NodeProto]:
    stays = not_to_be_rounded(graph)
    return [node for node in graph.nodes if node.op_type in LAYERS and node.name not in stays]


def _values(debug: Any, file: Path, inputs: Arrays) -> Mapping[str, Sequence[NDArray[Any]]]:
    augmented = file.with_suffix(".all.onnx")
    debug.modify_model_output_intermediate_tensors(str(file), str(augmented))
    values: Mapping[str, Sequence[NDArray[Any]]] = debug.collect_activations(
        str(augmented), _few(onnx.load(file), inputs)
    )
    return values


def _few(model: onnx.ModelProto, inputs: Arrays) -> CalibrationRows:
    largest = max(int(np.prod(rows.shape[1:])) for rows in inputs.values())
    max_rows = max(1, min(_MAX_ROWS, _MAX_VALUES // max(1, largest)))
    return CalibrationRows(model, {name: rows[:max_rows] for name, rows in inputs.items()})


def _noise(exact: Sequence[Any], rough: Sequence[Any]) -> float:
    """Noise over signal of some portions. Computed here, because the tool's own measure fails on arrays without dimensions."""
    of_exact, of_rough = (np.concatenate([np.ravel(one) for one in part]).astype(np.float64) for part in (exact, rough))
    if of_exact.shape != of_rough.shape or not np.isfinite(of_exact).all():
        return 1.0
    found = _power(of_exact - of_rough) / (_power(of_exact) or 1.0)
    return found if math.isfinite(found) else 1.0


def _read_values(graph: Graph, names: Sequence[str], inputs: Arrays) -> dict[str, NDArray[Any]]:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    for name in sorted(set(names) - known):
        model.graph.output.append(helper.make_empty_tensor_value_info(name))
    session = onnx_session.opened(model.SerializeToString())
    portion = _few(model, inputs).get_next() or {}
    wanted = [output.name for output in session.get_outputs() if output.name in names]
    values = dict(zip(wanted, session.run(wanted, portion), strict=True))
    return {name: np.asarray(values.get(name, portion.get(name))) for name in names}


def _product_loss(graph: Graph, node: onnx.NodeProto, values: NDArray[Any] | None, levels: int) -> float:
    weights = numpy_helper.to_array(graph.constants[node.input[1]]).astype(np.float64)
    if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        weights = weights.T
    rough_weights = _round(weights, np.abs(weights).max(axis=-2, keepdims=True) / levels)
    if values is None:
        return _power(weights - rough_weights) / (_power(weights) or 1)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    rough_values = _round(values.astype(np.float64), np.array((high - low) / 255))
    exact = values @ weights
    return _power(exact - rough_values @ rough_weights) / (_power(exact) or 1)


def _round(values: NDArray[Any], step: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.round(values / np.where(step > 0, step, 1)) * step)


def _power(values: NDArray[Any]) -> float:
    return float(np.square(values).sum())
