"""Rounds the weights of a static INT8 file so that the answers of each layer change least, instead of each weight by itself.

GPTQ (Frantar et al., 2022, after Hassibi's Optimal Brain Surgeon): weights are rounded one input after another, and what rounding one
changes in the answers to values seen in calibration is taken back by those still to come. The bias takes back the mean that is left
(Nagel et al., 2019). Scales, types and speed stay the same. Rule: a layer whose values cannot be gathered keeps its plain rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.export.variants.calibration import CalibrationRows, rows_of_all_values
from serving.export.variants.candidate import translated

Array = NDArray[Any]

_BATCH_SIZE = 2  # all values of all layers are in memory at once
_MAX_ROWS = 32
_MAX_PLACES = 2048  # of each layer, over all rows: more than the widest of usual nets has inputs (guess, not measured)
_PLACES_PER_INPUT = 8  # of narrow layers, as depthwise ones are (guess, not measured)
_DAMPING = 0.01  # of the mean diagonal, as in the paper: keeps what is hardly ever on from being given everything


@dataclass(frozen=True, slots=True)
class _Layer:
    """`weights`: float64 [groups, outputs, inputs × kernel]. `steps`: the scale of each output, [groups, outputs]."""

    node: onnx.NodeProto
    weights: Array
    steps: Array
    rounded: onnx.TensorProto  # INT8, in the file
    bias: tuple[onnx.TensorProto, Array] | None  # INT32, and its scales

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.rounded.dims[2:]) if self.node.op_type == "Conv" else ()


def compensated(prepared_fp32: bytes, quantised: bytes, calibration: Arrays) -> bytes:
    """`quantised`: made of the net by the quantiser, with static ranges. Returns it with other weights and biases."""
    with translated("int8", "rounding weights by what they do to answers"):
        net, file = onnx.load_from_string(prepared_fp32), onnx.load_from_string(quantised)
        layers = _layers(net, file)
        seen = _seen(net, layers, calibration) if layers else {}
        for layer in layers:
            if layer.node.name in seen:
                _round(layer, seen[layer.node.name])
        return bytes(file.SerializeToString())


def with_weights_of(full: bytes, partial: bytes) -> bytes:
    """`partial`: the same net with fewer layers in INT8. Layers that both have get the weights and biases of `full`.

    What was done for one layer was done by itself, so that it need not be done again.
    """
    stored = {tensor.name: tensor for tensor in onnx.load_from_string(full).graph.initializer}
    file = onnx.load_from_string(partial)
    own = {tensor.name: tensor for tensor in file.graph.initializer}
    for node in file.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in own and stored.keys() >= {*node.input[:2]}:
            whole, scale = node.input[:2]
            if stored[whole].dims != own[whole].dims:
                continue
            if stored[scale] == own[scale]:
                own[whole].CopyFrom(stored[whole])
            elif own[whole].data_type == onnx.TensorProto.INT32:  # a bias, whose layer now takes values in other steps
                theirs, ours = (numpy_helper.to_array(of[scale]).astype(np.float64) for of in (stored, own))
                bias = np.round(numpy_helper.to_array(stored[whole]) * theirs / np.where(ours > 0, ours, 1))
                own[whole].CopyFrom(numpy_helper.from_array(bias.astype(np.int32), whole))
    return bytes(file.SerializeToString())


def _layers(net: onnx.ModelProto, file: onnx.ModelProto) -> list[_Layer]:
    """Those whose weights are INT8 in the file."""
    constants = {tensor.name: tensor for tensor in net.graph.initializer}
    stored = {tensor.name: tensor for tensor in file.graph.initializer}
    makers = {name: node for node in file.graph.node for name in node.output}
    made = {node.name: node for node in file.graph.node}
    found = []
    for node in net.graph.node:
        twin = made.get(node.name)
        if node.op_type not in ("Conv", "Gemm") or twin is None or node.input[1] not in constants:
            continue
        rounding = makers.get(twin.input[1])
        if rounding is None or rounding.op_type != "DequantizeLinear" or rounding.input[0] not in stored:
            continue
        weights = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
        scales = numpy_helper.to_array(stored[rounding.input[1]]).astype(np.float64)
        if node.op_type == "Gemm" and not _attribute(node, "transB", 0):
            weights = weights.T
        groups = int(_attribute(node, "group", 1))
        shaped = weights.reshape(groups, len(weights) // groups, -1)
        steps = np.broadcast_to(scales, len(weights)).reshape(shaped.shape[:2])
        bias = makers.get(twin.input[2]) if len(twin.input) > 2 else None
        kept = None
        if bias is not None and bias.op_type == "DequantizeLinear" and bias.input[0] in stored:
            kept = (stored[bias.input[0]], numpy_helper.to_array(stored[bias.input[1]]).astype(np.float64))
        found.append(_Layer(node, shaped, steps, stored[rounding.input[0]], kept))
    return found


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((one for one in node.attribute if one.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


# -- values that layers take ------------------------------------------------------------------------------------------


class _Moments:
    """Of what a layer's outputs are sums of: `squares` float64 [groups, inputs × kernel, inputs × kernel], and `mean` of each."""

    def __init__(self) -> None:
        self._squares: Any = 0.0
        self._sums: Any = 0.0
        self._count = 0

    def add(self, values: Array) -> None:
        """float32 [groups, places, inputs × kernel]."""
        self._squares = self._squares + np.matmul(np.swapaxes(values, 1, 2), values).astype(np.float64)
        self._sums = self._sums + values.sum(axis=1, dtype=np.float64)
        self._count += values.shape[1]

    @property
    def squares(self) -> Array:
        return np.asarray(self._squares / self._count)

    @property
    def mean(self) -> Array:
        return np.asarray(self._sums / self._count)


def _seen(net: onnx.ModelProto, layers: list[_Layer], calibration: Arrays) -> dict[str, _Moments]:
    """Layer -> what is seen of its values in FP32's own run over the calibration rows."""
    model = onnx.ModelProto()
    model.CopyFrom(net)
    names = dict.fromkeys(layer.node.input[0] for layer in layers)
    given = {value.name for value in (*net.graph.input, *net.graph.output)}
    for name in names:
        if name not in given:
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    session = onnx_session.opened(model.SerializeToString())
    outputs = [output.name for output in session.get_outputs() if output.name in names]
    rows = CalibrationRows(net, calibration, min(_BATCH_SIZE, rows_of_all_values(net)), _MAX_ROWS)
    random = np.random.default_rng(0)
    found: dict[str, _Moments] = {}
    while (portion := rows.get_next()) is not None:
        made = session.run(outputs, portion) if outputs else []  # asked for none, it gives all
        values = {**portion, **dict(zip(outputs, made, strict=True))}
        for layer in layers:
            places = min(_MAX_PLACES, _PLACES_PER_INPUT * layer.weights.shape[2]) * rows.batch_size // len(rows)
            part = _taken(layer, np.asarray(values[layer.node.input[0]]), max(1, places), random)
            if part is not None:
                found.setdefault(layer.node.name, _Moments()).add(part)
    return found


def _taken(layer: _Layer, values: Array, num_places: int, random: np.random.Generator) -> Array | None:
    """float32 [groups, places, inputs × kernel], at random places."""
    if layer.node.op_type == "Gemm":
        return None if values.ndim != 2 or _attribute(layer.node, "transA", 0) else values[None]
    kernel, node = layer.kernel, layer.node
    if len(kernel) != 2 or _attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    strides, dilations = _attribute(node, "strides", [1, 1]), _attribute(node, "dilations", [1, 1])
    top, left, bottom, right = _attribute(node, "pads", [0, 0, 0, 0])
    is_padded = any((top, left, bottom, right))
    padded = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right))) if is_padded else values
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    sizes = [(length - r - 1) // s + 1 for length, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
    image = random.integers(0, len(values), num_places)
    y, x = (random.integers(0, size, num_places) * stride for size, stride in zip(sizes, strides, strict=True))
    parts = [
        padded[image, :, y + i * dilations[0], x + j * dilations[1]] for i in range(kernel[0]) for j in range(kernel[1])
    ]
    patches = np.stack(parts, axis=-1)  # [places, channels, kernel]
    return np.ascontiguousarray(np.moveaxis(patches.reshape(num_places, len(layer.weights), -1), 1, 0))


# -- rounding ---------------------------------------------------------------------------------------------------------


def _round(layer: _Layer, seen: _Moments) -> None:
    """Writes the layer's weights and bias into the file, in place."""
    before = numpy_helper.to_array(layer.rounded)
    largest = max(1, int(np.abs(before.astype(np.int16)).max()))
    rounded = _one_after_another(layer.weights, layer.steps, seen.squares, largest)
    lost = layer.weights - rounded * layer.steps[..., None]
    flat = rounded.reshape(-1, rounded.shape[-1])
    is_turned = layer.node.op_type == "Gemm" and not _attribute(layer.node, "transB", 0)
    content = (flat.T if is_turned else flat).reshape(before.shape).astype(np.int8)
    layer.rounded.CopyFrom(numpy_helper.from_array(content, layer.rounded.name))
    if layer.bias is not None:
        tensor, scales = layer.bias
        mean = np.einsum("god,gd->go", lost, seen.mean).reshape(-1)
        bias = numpy_helper.to_array(tensor) + np.round(mean / np.where(scales > 0, scales, 1))
        tensor.CopyFrom(numpy_helper.from_array(bias.astype(np.int32), tensor.name))


def _one_after_another(weights: Array, steps: Array, squares: Array, largest: int) -> Array:
    """Whole numbers [groups, outputs, inputs] up to ± `largest`."""
    left, num_inputs = weights.copy(), weights.shape[2]
    diagonal = np.einsum("gdd->gd", squares)
    damping = _DAMPING * diagonal.mean(axis=1) + 1e-12
    damped = squares + damping[:, None, None] * np.eye(num_inputs)
    upper = np.swapaxes(np.linalg.cholesky(np.linalg.inv(damped)), 1, 2)
    rounded = np.zeros_like(left)
    safe = np.where(steps > 0, steps, 1)
    for place in range(num_inputs):
        rounded[..., place] = np.clip(np.round(left[..., place] / safe), -largest, largest)
        error = (left[..., place] - rounded[..., place] * steps) / upper[:, place, place][:, None]
        left[..., place:] -= error[..., None] * upper[:, place, place:][:, None, :]
    return rounded
