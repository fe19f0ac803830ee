"""The graph decides how INT8 is made; every file loads in old servers, is right on every processor and near FP32."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.onnx_parts import MAX_IR_VERSION
from serving.export.variants import candidates
from serving.export.variants.as_on_gpu import as_on_gpu
from serving.export.variants.calibration import rows_of_all_values
from serving.export.variants.candidate import CalibrationMissing, Candidate, NothingToQuantise, NotMade
from serving.export.variants.int8 import EVERYTHING
from serving.export.variants.quantiser import Dynamic, Static, dynamic, prepared, static
from serving.measure.machine import processor_key

from . import nets

IMAGES: Arrays = {"image": nets.images(32, seed=1)}
ROWS: Arrays = {"x": nets.rows(300, seed=1)}  # many: what they do not show is cut off
HAS_VNNI = "vnni" in processor_key() or "amx" in processor_key()
of_the_engine = pytest.mark.skipif(
    "HIDDEN" in os.environ and "EMULATED" not in os.environ,
    reason="ONNX Runtime sees what tests/as_avx2.sh hides: EMULATED=1",
)


def first(fp32: bytes, calibration: Arrays | None = None, **options: Any) -> Candidate:
    return next(candidates("int8", fp32, calibration, **options))


_made: dict[tuple[Callable[[], bytes], int], list[Candidate]] = {}


def every(build: Callable[[], bytes], calibration: Arrays | None) -> list[Candidate]:
    """All of one net on one of the module's calibrations, made once for all tests."""
    key = (build, id(calibration))
    if key not in _made:
        _made[key] = list(candidates("int8", build(), calibration))
    return _made[key]


def kinds(model: bytes) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)


def optimised(model: bytes, folder: Path) -> Counter[str]:
    """Operators of the graph that ONNX Runtime's CPU provider really runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return kinds((folder / "optimised.onnx").read_bytes())


def constants(model: bytes) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(model).graph.initializer}


# -- which way --------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[[], bytes], Arrays | None, list[str]]] = {
    "convolutions": (nets.swish, IMAGES, ["static"]),
    "transformer": (nets.encoder, None, ["dynamic"]),
    "transformer with calibration data": (nets.encoder, nets.texts(16), ["dynamic"]),
    "lstm": (lambda: nets.recurrent("LSTM"), None, ["dynamic"]),
    "perceptron": (nets.perceptron, ROWS, ["static", "dynamic"]),
    "perceptron without calibration data": (nets.perceptron, None, ["dynamic"]),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_graph_decides_which_way(name: str) -> None:
    build, calibration, ways = WAYS[name]
    found = [candidate.how.split()[0].rstrip(",") for candidate in every(build, calibration)]
    assert list(dict.fromkeys(found)) == ways


def test_a_net_of_convolutions_without_calibration_data_says_which_option_gives_it() -> None:
    with pytest.raises(CalibrationMissing, match="--calibration, or --data"):
        first(nets.swish())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (nets.arithmetic, r"no convolution or matrix product has constant weights \(its operators are Mul, Tanh\)"),
        (nets.looping, "inside the bodies of If, Loop or Scan"),
        (lambda: nets.recurrent("GRU"), "no INT8 kernel for GRU"),
    ],
)
def test_a_net_with_nothing_to_quantise_is_refused_with_its_reason(build: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(NothingToQuantise, match=rf"^int8: .*{reason}.*; leave int8 out$"):
        first(build(), ROWS)


def test_a_file_that_is_int8_already_is_not_quantised_again() -> None:
    with pytest.raises(NothingToQuantise, match="quantised already"):
        first(first(nets.perceptron(), ROWS).model, ROWS)


# -- the files --------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[Callable[[], bytes], Arrays | None, Arrays]] = {
    "swish": (nets.swish, IMAGES, {"image": nets.images()}),
    "perceptron": (nets.perceptron, ROWS, {"x": nets.rows(8)}),
    "perceptron, dynamic": (nets.perceptron, None, {"x": nets.rows(8)}),
    "branching": (nets.branching, None, {"x": nets.rows(8)}),
    "overflowing": (nets.overflowing, ROWS, {"x": nets.rows(8)}),
    "rotary": (nets.rotary, None, {"x": np.random.default_rng(0).random((2, 50, 8)).astype(np.float32)}),
    "lstm": (lambda: nets.recurrent("LSTM"), None, {"x": np.random.default_rng(0).random((5, 3, 16), np.float32)}),
    **{f"encoder, {mask}": (lambda mask=mask: nets.encoder(mask), None, nets.texts(8, 9)) for mask in nets.MASKS},
}


@pytest.mark.parametrize("name", FILES)
def test_every_candidate_is_near_fp32_and_loads_in_old_servers(name: str) -> None:
    build, calibration, inputs = FILES[name]
    fp32 = build()
    found = every(build, calibration)
    assert len({candidate.model for candidate in found}) == len(found)
    for candidate in found:
        assert nets.difference(fp32, candidate.model, **inputs) < 0.1, candidate.how
        assert (candidate.precision, candidate.needs) == ("int8", frozenset())
        proto = onnx.load_from_string(candidate.model)
        onnx.checker.check_model(proto, full_check=True)
        assert proto.ir_version <= MAX_IR_VERSION
        domains = {"com.microsoft"} if name == "lstm" else set()
        assert {entry.domain for entry in proto.opset_import} == {"", *domains}
        assert [value.name for value in proto.graph.input] == list(inputs)


@pytest.mark.parametrize("candidate", [0, 2, 3, 4], ids=["MinMax", "Percentile", "Entropy", "per tensor"])
def test_everything_in_a_net_of_convolutions_becomes_an_integer_kernel(candidate: int, tmp_path: Path) -> None:
    found = every(nets.swish, IMAGES)[candidate]
    kernels = optimised(found.model, tmp_path)
    assert kernels["QLinearConv"] == 4
    assert kernels["QLinearSigmoid"] == kernels["QLinearMul"] == 3
    assert kernels["QLinearGlobalAveragePool"] == 2
    assert kernels["QLinearAdd"] == kernels["QGemm"] == 1
    assert kernels["QuantizeLinear"] == kernels["DequantizeLinear"] == 1  # in and out
    assert not {"Conv", "Gemm", "Mul", "Sigmoid", "ReduceMean"} & set(kernels)


def test_one_candidate_leaves_the_gates_in_fp32(tmp_path: Path) -> None:
    found = every(nets.swish, IMAGES)[1]
    kernels = optimised(found.model, tmp_path)
    assert (kernels["QLinearConv"], kernels["Sigmoid"], kernels["Mul"]) == (4, 3, 3)


def test_a_transformer_s_products_of_two_values_and_its_masks_stay_fp32() -> None:
    found = kinds(first(nets.encoder()).model)
    assert found["MatMulInteger"] == 6
    assert found["MatMul"] == 2  # attention's own


def test_static_scales_are_made_without_the_masks() -> None:
    """Symmetric files are static for every net: a scale that spans -3.4e38 would be there."""
    made = first(nets.encoder(), nets.texts(16), is_for_tensorrt=True).model
    scales = [values for name, values in constants(made).items() if name.endswith("_scale")]
    assert scales
    assert max(values.max() for values in scales) < 1


def test_masked_rows_give_numbers() -> None:
    made = first(nets.encoder()).model
    assert np.isfinite(nets.answers(made, **nets.texts(3, 6, is_last_empty=True))[0]).all()


@pytest.mark.parametrize("size", [1, 3])
def test_a_static_file_gives_a_row_the_same_answer_in_every_batch(size: int) -> None:
    made, batch = first(nets.swish(), IMAGES).model, nets.images(8)
    together = nets.answers(made, image=batch)[0][:size]
    np.testing.assert_array_equal(nets.answers(made, image=batch[:size])[0], together)


def test_shapes_of_weights_that_an_exporter_wrote_down_do_not_matter() -> None:
    fp32 = onnx.load_from_string(nets.perceptron())
    for tensor in fp32.graph.initializer:
        fp32.graph.value_info.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    made = first(fp32.SerializeToString()).model
    assert nets.difference(nets.perceptron(), made, x=nets.rows(8)) < 0.1


# -- ranges of weights ------------------------------------------------------------------------------------------------


def large_sums() -> bytes:
    """All weights and values large and of one sign: what saturates first."""
    weights = 0.5 + 0.01 * np.random.default_rng(0).random((64, 32))
    return nets.net("(float[n, 64] x) => (float[n, 32] y)", "y = MatMul (x, w)", w=weights)


ONES = np.ones((8, 64), np.float32)


@pytest.mark.parametrize("calibration", [{"x": ONES}, None], ids=["static", "dynamic"])
def test_weights_of_7_bits_never_saturate_on_this_processor(calibration: Arrays | None) -> None:
    fp32 = large_sums()
    for candidate in candidates("int8", fp32, calibration):
        assert "7 bits" in candidate.how
        assert nets.difference(fp32, candidate.model, x=ONES) < 0.01


@of_the_engine
def test_weights_of_8_bits_are_right_exactly_where_there_is_vnni() -> None:
    if not processor_key().startswith("x86_64"):
        pytest.skip("only x86 saturates")
    fp32 = large_sums()
    settings = Static(EVERYTHING, is_full_range=True)
    for made in (
        static(prepared(fp32), {"x": ONES}, settings),
        dynamic(fp32, Dynamic(("MatMul",), is_full_range=True)),
    ):
        assert (nets.difference(fp32, made, x=ONES) < 0.01) is HAS_VNNI
        assert max(np.abs(v).max() for v in constants(made).values() if v.dtype == np.int8) > 64


@pytest.mark.parametrize("build", [nets.swish, nets.encoder])
def test_the_full_range_is_made_on_request_and_says_what_it_needs(build: Callable[[], bytes]) -> None:
    if HAS_VNNI:
        for candidate in candidates("int8", build(), IMAGES, int8_range="full"):
            assert candidate.needs == frozenset({"vnni"})
            assert "8 bits" in candidate.how
    else:
        for is_second in (False, True):
            with pytest.raises(UserError, match=r"processor.*VNNI.*--int8-range"):
                next(candidates("int8", build(), IMAGES, int8_range="full", second_try=is_second))


def test_an_unknown_range_is_an_error() -> None:
    with pytest.raises(UserError, match=r"unknown.*INT8.*'8bit'"):
        first(nets.swish(), IMAGES, int8_range="8bit")


# -- for TensorRT -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "calibration", "inputs"),
    [
        (nets.swish, IMAGES, {"image": nets.images()}),
        (nets.perceptron, ROWS, {"x": nets.rows(8)}),
        (nets.encoder, nets.texts(32, 7, seed=4), nets.texts(4)),
    ],
)
def test_a_file_for_tensorrt_is_symmetric_throughout_and_near_fp32(
    build: Callable[[], bytes], calibration: Arrays, inputs: Arrays
) -> None:
    fp32 = build()
    candidate = first(fp32, calibration, is_for_tensorrt=True)
    assert "zero points 0" in candidate.how
    held, proto = constants(candidate.model), onnx.load_from_string(candidate.model)
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert held[node.input[2]].dtype == np.int8
            assert not held[node.input[2]].any()
    weights = [held[n.input[0]] for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in held]
    assert max(np.abs(values.astype(np.int64)).max() for values in weights) > 64
    assert np.int32 not in {values.dtype for values in weights}  # biases stay FP32
    assert candidate.needs == frozenset({"tensorrt"})
    assert nets.difference(fp32, as_on_gpu(candidate.model), **inputs) < 0.1


@of_the_engine
def test_8_bits_for_tensorrt_would_be_misjudged_on_a_processor_without_vnni() -> None:
    """Why the gates need a stand-in for these files as well."""
    fp32 = large_sums()
    made = first(fp32, {"x": ONES}, is_for_tensorrt=True).model
    assert nets.difference(fp32, as_on_gpu(made), x=ONES) < 0.01
    assert (nets.difference(fp32, made, x=ONES) < 0.01) is HAS_VNNI


@pytest.mark.parametrize(
    ("build", "inputs"),
    [(nets.swish, {"image": nets.images()}), (nets.branching, {"x": nets.rows(3)}), (nets.encoder, nets.texts())],
)
def test_the_stand_in_of_a_file_that_rounds_nothing_answers_the_same(
    build: Callable[[], bytes], inputs: Arrays
) -> None:
    assert nets.difference(build(), as_on_gpu(build()), **inputs) == 0


def test_the_stand_in_of_a_file_that_is_right_everywhere_answers_alike() -> None:
    made = first(nets.swish(), IMAGES).model
    assert nets.difference(made, as_on_gpu(made), image=nets.images()) < 0.02


def test_convolutions_for_tensorrt_have_a_scale_per_channel() -> None:
    made = first(nets.swish(), IMAGES, is_for_tensorrt=True).model
    assert constants(made)["w1_scale"].shape == (nets.WIDTH,)


def test_a_file_for_tensorrt_needs_calibration_data_whatever_the_net() -> None:
    with pytest.raises(CalibrationMissing, match=r"INT8.*TensorRT.*calibration"):
        first(nets.encoder(), is_for_tensorrt=True)


# -- calibration data -------------------------------------------------------------------------------------------------


def test_calibration_data_without_an_input_names_it() -> None:
    with pytest.raises(UserError, match=r"'image'.*picture"):
        first(nets.swish(), {"picture": nets.images()})


def test_no_rows_are_no_calibration_data() -> None:
    with pytest.raises(UserError, match="has 0 rows"):
        first(nets.swish(), {"image": nets.images()[:0]})


def test_a_net_with_a_fixed_batch_gets_batches_of_that_size() -> None:
    fp32 = nets.net(
        "(float[3, 16] x) => (float[3, 4] y)",
        "a = MatMul (x, w1) b = Relu (a) y = MatMul (b, w2)",
        w1=(16, 16),
        w2=(16, 4),
    )
    candidate = first(fp32, {"x": nets.rows(10)})  # the tenth is left out
    assert nets.difference(fp32, candidate.model, x=nets.rows(3)) < 0.05
    with pytest.raises(UserError, match=r"2.*rows.*3"):
        first(fp32, {"x": nets.rows(2)})


@pytest.mark.parametrize(("size", "num_rows"), [(64, 4), (1300, 2), (4096, 1)])  # 0.3, 108 and 1,074 MB
def test_fewer_rows_run_at_once_where_all_values_of_a_row_are_large(size: int, num_rows: int) -> None:
    shape = f"{size}, {size}"
    fp32 = nets.net(
        f"(float[n, 3, {shape}] x) => (float[n, 8, {shape}] y)",
        "a = Conv <pads = [1, 1, 1, 1]> (x, w1) b = Relu (a) y = Conv <pads = [1, 1, 1, 1]> (b, w2)",
        w1=(8, 3, 3, 3),
        w2=(8, 8, 3, 3),
    )
    assert rows_of_all_values(onnx.load_from_string(fp32)) == num_rows


def test_a_net_without_a_batch_dimension_gets_one_row_at_a_time() -> None:
    fp32 = nets.net("(float[16] x) => (float[4] y)", "a = MatMul (x, w1) y = Relu (a)", w1=(16, 4))
    assert nets.difference(fp32, first(fp32, {"x": nets.rows(10)}).model, x=nets.rows(1)[0]) < 0.1


# -- failures of the tool ---------------------------------------------------------------------------------------------


def test_what_the_tool_raises_is_one_line_with_the_operator(capfd: pytest.CaptureFixture[str]) -> None:
    fp32 = nets.net(
        "(float[n, 3, 16, 16] image) => (float[n, 2, 384] y)",
        "a = Conv <pads = [1, 1, 1, 1]> (image, w1) y = Reshape (a, size)",
        w1=(3, 3, 3, 3), size=[-1, 2, 384],
    )  # fmt: skip
    broken = onnx.load_from_string(fp32)
    for tensor in broken.graph.initializer:
        if tensor.name == "size":
            tensor.CopyFrom(numpy_helper.from_array(np.array([-1, 2, 5], np.int64), "size"))
    del broken.graph.value_info[:]
    broken.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 5
    with pytest.raises(NotMade, match=r"int8.*QDQ.*Reshape.*'Reshape_1'.*int8") as caught:
        first(broken.SerializeToString(), IMAGES)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "bias",
    [
        pytest.param(0.5, id="scalar"),
        pytest.param([0.5], id="one", marks=pytest.mark.thorough),
        pytest.param([[0.5] * 8], id="row"),
        pytest.param([0.5] * 8, id="flat", marks=pytest.mark.thorough),
    ],
)
def test_a_bias_in_any_shape_that_converters_write_is_quantised(bias: object) -> None:
    fp32 = nets.net(
        "(float[n, 16] x) => (float[n, 8] y)", "a = Gemm (x, w1, b) y = Relu (a)", w1=(16, 8), b=np.array(bias)
    )  # fmt: skip
    rows: Arrays = {"x": np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)}
    for is_for_tensorrt in (False, True):
        made = list(candidates("int8", fp32, rows, is_for_tensorrt=is_for_tensorrt))
        static = [one for one in made if one.how.startswith("static")]
        assert {"MinMax", "Percentile", "Entropy"} == {re.search(r"(\w+) ranges", one.how)[1] for one in static}  # type: ignore[index]
        shown = [as_on_gpu(one.model) if is_for_tensorrt else one.model for one in static]  # VNNI may be missing here
        assert min(nets.difference(fp32, model, **rows) for model in shown) < 0.1


def test_a_bias_of_two_layers_is_copied_under_a_name_that_nothing_has() -> None:
    """TFLite's converter names a layer's answer as ONNX Runtime's quantiser would name the copy."""
    fp32 = nets.net(
        "(float[n, 3, 16, 16] image) => (float[n, 8, 16, 16] y)",
        "b0 = Conv <pads = [1, 1, 1, 1]> (image, w1, b) c = Neg (b0) d = Conv <pads = [1, 1, 1, 1]> (image, w2, b) y = Add (c, d)",
        w1=(8, 3, 3, 3), w2=(8, 3, 3, 3), b=(8,),
    )  # fmt: skip
    assert nets.difference(fp32, first(fp32, IMAGES).model, **IMAGES) < 0.1
