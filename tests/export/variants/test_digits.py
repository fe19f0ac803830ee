"""FP16 and INT8 of the committed net: real weights, real images, real accuracy. No torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from serving.export.data.reading import digits
from serving.export.exported_model import Arrays
from serving.export.onnx_parts import MAX_IR_VERSION
from serving.export.variants import candidates
from serving.export.variants.as_on_gpu import as_on_gpu

from .nets import answers

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def fp32() -> bytes:
    return (ROOT / "model_repo" / "digits-fp32" / "1" / "model.onnx").read_bytes()


@pytest.fixture(scope="module")
def learn() -> Arrays:
    return {name: values[:300] for name, values in digits()[0].inputs.items()}


@pytest.fixture(scope="module")
def int8(fp32: bytes, learn: Arrays) -> bytes:
    return next(candidates("int8", fp32, learn)).model


@pytest.fixture(scope="module")
def fp16(fp32: bytes, learn: Arrays) -> bytes:
    return next(candidates("fp16", fp32, learn)).model


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["fp16", "int8"])
def test_a_variant_is_right_as_often_as_fp32(request: pytest.FixtureRequest, variant: str, fp32: bytes) -> None:
    with np.load(ROOT / "loadtest" / "payloads" / "digits.npz") as held_out:
        images, labels = held_out["image"], held_out["labels"]
    full = answers(fp32, image=images)[0]
    low = answers(as_on_gpu(request.getfixturevalue(variant)), image=images)[0]
    assert np.mean(full.argmax(1) == labels) > 0.97
    assert np.mean(low.argmax(1) == labels) >= np.mean(full.argmax(1) == labels) - 0.005  # two images of 450
    assert 0 < np.abs(low - full).max() < 0.5


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


def test_int8_depends_on_its_calibration_data(fp32: bytes, int8: bytes, learn: Arrays) -> None:
    darker = {name: values[:64] * np.float32(0.1) for name, values in learn.items()}
    assert next(candidates("int8", fp32, darker)).model != int8


def test_making_int8_twice_gives_the_same_bytes(fp32: bytes, learn: Arrays) -> None:
    few = {name: values[:32] for name, values in learn.items()}
    assert next(candidates("int8", fp32, few)).model == next(candidates("int8", fp32, few)).model


@pytest.mark.thorough
@pytest.mark.slow
def test_making_variants_leaves_no_files_behind_and_prints_nothing(
    fp32: bytes, learn: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    few = {name: values[:8] for name, values in learn.items()}
    for precision in ("fp16", "int8"):
        for is_second in (False, True):
            list(candidates(precision, fp32, few, second_try=is_second))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
