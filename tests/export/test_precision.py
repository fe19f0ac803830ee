"""FP16 and INT8 made from the committed FP32 file, without torch: their shape, not their speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from serving.export import gates
from serving.export.data import Dataset, digits
from serving.export.gates import Interface, Limits
from serving.export.precision import MAX_IR_VERSION, to_fp16, to_int8


@pytest.fixture(scope="module")
def learn() -> Dataset:
    return digits()[0]


@pytest.fixture(scope="module")
def int8(fp32: bytes, learn: Dataset) -> bytes:
    return to_int8(fp32, learn.inputs)


@pytest.fixture(scope="module")
def fp16(fp32: bytes) -> bytes:
    return to_fp16(fp32)


@pytest.mark.parametrize("variant", ["fp16", "int8"])
def test_a_variant_made_here_passes_every_gate_of_accuracy(
    request: pytest.FixtureRequest, variant: str, fp32: bytes, held_out: Dataset, interface: Interface
) -> None:
    model = request.getfixturevalue(variant)
    gates.check_file(variant, model, interface)
    reference = gates.run("fp32", fp32, held_out, interface)
    gate = gates.check_accuracy(variant, model, reference, held_out, interface, Limits())
    assert gate.fp32_value > 0.97
    assert gate.num_samples == 450
    assert gate.batch_sizes == (1, 3, 32)
    assert 0 < gate.max_probability_difference < 0.5


@pytest.mark.parametrize("variant", ["fp16", "int8"])
def test_a_variant_is_one_small_file_that_old_servers_read(
    request: pytest.FixtureRequest, variant: str, fp32: bytes
) -> None:
    model = request.getfixturevalue(variant)
    proto = onnx.load_from_string(model)
    assert proto.ir_version <= MAX_IR_VERSION
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert len(model) < 0.6 * len(fp32)
    assert not any(trace in model for trace in (b"/home/", b"/tmp/", b"site-packages"))


def test_fp16_keeps_its_inputs_outputs_and_softmax_in_fp32(fp16: bytes) -> None:
    proto = onnx.shape_inference.infer_shapes(onnx.load_from_string(fp16))
    for value in (*proto.graph.input, *proto.graph.output):
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    made_by = {output: node.op_type for node in proto.graph.node for output in node.output}
    [softmax] = [node for node in proto.graph.node if node.op_type == "Softmax"]
    assert types[softmax.input[0]] == onnx.TensorProto.FLOAT
    assert made_by[softmax.input[0]] == "Cast"
    convolutions = [node for node in proto.graph.node if node.op_type == "Conv"]
    assert {types[node.output[0]] for node in convolutions} == {onnx.TensorProto.FLOAT16}


def test_int8_has_unsigned_activations_and_weights_of_7_bits(int8: bytes) -> None:
    proto = onnx.load_from_string(int8)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    weights = [values for values in arrays.values() if values.dtype == np.int8 and values.ndim > 1]
    assert len(weights) == 4  # three convolutions and the last layer
    for values in weights:
        assert np.abs(values).max() <= 64  # with 8 bits, sums saturate on processors without VNNI
    quantise = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    assert {arrays[node.input[2]].dtype for node in quantise} == {np.dtype(np.uint8)}


def test_int8_depends_on_its_calibration_data(fp32: bytes, int8: bytes, learn: Dataset) -> None:
    darker = {name: values[:64] * np.float32(0.1) for name, values in learn.inputs.items()}
    assert to_int8(fp32, darker) != int8


def test_making_int8_leaves_no_files_behind(
    fp32: bytes, learn: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    to_int8(fp32, {name: values[:8] for name, values in learn.inputs.items()})
    assert list(tmp_path.iterdir()) == []
