"""Ways to really spoil an ONNX file, each for one gate to find. They take and give the file's bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def _weights(model: bytes, change: Callable[[NDArray[np.float32]], NDArray[np.float32]], which: int) -> bytes:
    proto = onnx.load_from_string(model)
    floats = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1]
    tensor = floats[which]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))
    return bytes(proto.SerializeToString())


def perturbed(model: bytes, scale: float = 3.0) -> bytes:
    """Noise on the last layer, larger than its weights by far."""

    def change(weights: NDArray[np.float32]) -> NDArray[np.float32]:
        noise = np.random.default_rng(0).standard_normal(weights.shape)
        return (weights + scale * weights.std() * noise).astype(np.float32)

    return _weights(model, change, -1)


def with_weight(model: bytes, value: float) -> bytes:
    """One weight of the first layer is NaN or infinite."""

    def change(weights: NDArray[np.float32]) -> NDArray[np.float32]:
        weights.flat[0] = value
        return weights

    return _weights(model, change, 0)


def with_nan_answers(model: bytes) -> bytes:
    """Sound weights, but the logits become log(-1), so every answer is NaN."""
    return _before_softmax(
        model,
        [helper.make_node("Constant", [], ["minus"], value_float=-1.0), helper.make_node("Log", ["minus"], ["bad"])],
        "bad",
    )


def with_leaking_batch(model: bytes) -> bytes:
    """Each row also gets a little of the mean of its batch."""
    nodes = [
        helper.make_node("Constant", [], ["axis"], value_ints=[0]),
        helper.make_node("Constant", [], ["little"], value_float=0.05),
        helper.make_node("ReduceMean", ["logits_before", "axis"], ["mean"], keepdims=1),
        helper.make_node("Mul", ["mean", "little"], ["leak"]),
    ]
    return _before_softmax(model, nodes, "leak")


def with_attribute(model: bytes, kind: str, name: str, value: object) -> bytes:
    """The operators of a kind compute with another setting."""
    proto = onnx.load_from_string(model)
    for node in (node for node in proto.graph.node if node.op_type == kind):
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return bytes(proto.SerializeToString())


def _before_softmax(model: bytes, nodes: list[onnx.NodeProto], added: str) -> bytes:
    """Insert nodes before the softmax; its input becomes `logits_before` + `added`."""
    proto = onnx.load_from_string(model)
    at, softmax = next((i, node) for i, node in enumerate(proto.graph.node) if node.op_type == "Softmax")
    for node in nodes:
        for i, name in enumerate(node.input):
            node.input[i] = softmax.input[0] if name == "logits_before" else name
    nodes = [*nodes, helper.make_node("Add", [softmax.input[0], added], ["logits_after"])]
    softmax.input[0] = "logits_after"
    for offset, node in enumerate(nodes):
        proto.graph.node.insert(at + offset, node)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def without_softmax(model: bytes) -> bytes:
    """Scores under the name of the probabilities."""
    proto = onnx.load_from_string(model)
    softmax = next(node for node in proto.graph.node if node.op_type == "Softmax")
    softmax.op_type = "Identity"
    del softmax.attribute[:]
    return bytes(proto.SerializeToString())


def slowed(model: bytes, num_convolutions: int = 12) -> bytes:
    """The same answers after real redundant work: convolutions that pass their input on unchanged."""
    proto = onnx.load_from_string(model)
    at, relu = [(i, node) for i, node in enumerate(proto.graph.node) if node.op_type == "Relu"][1]
    kernel = np.zeros((64, 64, 3, 3), np.float32)
    kernel[range(64), range(64), 1, 1] = 1
    proto.graph.initializer.append(numpy_helper.from_array(kernel, "identity"))
    last, name = relu.output[0], "idle_0"
    relu.output[0] = name
    for i in range(1, num_convolutions + 1):
        made = last if i == num_convolutions else f"idle_{i}"
        node = helper.make_node("Conv", [name, "identity"], [made], pads=[1, 1, 1, 1])
        proto.graph.node.insert(at + i, node)
        name = made
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def with_fixed_batch(model: bytes) -> bytes:
    """The batch dimension became a constant 1, as an export with an example batch of 1 makes it."""
    proto = onnx.load_from_string(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return bytes(proto.SerializeToString())


def with_renamed_input(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    old, proto.graph.input[0].name = proto.graph.input[0].name, "picture"
    for node in proto.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = "picture" if name == old else name
    return bytes(proto.SerializeToString())


def with_fp64_output(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    output, last = proto.graph.output[0], proto.graph.node[-1]
    last.output[0] = "single"
    proto.graph.node.append(helper.make_node("Cast", ["single"], [output.name], to=onnx.TensorProto.DOUBLE))
    output.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return bytes(proto.SerializeToString())


def with_later_ir(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    proto.ir_version = 11
    return bytes(proto.SerializeToString())


def with_weights_elsewhere(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return bytes(proto.SerializeToString())
