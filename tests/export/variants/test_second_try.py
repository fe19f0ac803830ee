"""After the gate's refusal: files with the worst layers in FP32, which lose less the more stay."""

from __future__ import annotations

import re
from collections import Counter

import onnx
import pytest

from serving.export.exported_model import Arrays
from serving.export.variants import candidates
from serving.export.variants.candidate import CalibrationMissing, NothingToQuantise
from serving.export.variants.graph import opened, read
from serving.export.variants.losses import dynamic_losses

from . import nets

SEEN: Arrays = {"x": nets.outlying_rows(300, seed=1)}
GIVEN: Arrays = {"x": nets.outlying_rows(16)}


def test_the_layer_that_loses_most_is_left_in_fp32_and_the_answers_come_back() -> None:
    fp32 = nets.outlying()
    usual = [nets.difference(fp32, candidate.model, **GIVEN) for candidate in candidates("int8", fp32, SEEN)]
    assert min(usual) > 0.1
    second = next(candidates("int8", fp32, SEEN, second_try=True))
    assert re.findall(r"\b\d of \d\b|MatMul_\d", second.how)[-2:] == ["1 of 4", "MatMul_0"]
    assert nets.difference(fp32, second.model, **GIVEN) < 0.05


def test_values_show_which_product_of_a_dynamic_file_loses_most() -> None:
    graph = read(opened(nets.outlying()))
    seen, blind = dynamic_losses(graph, SEEN, False), dynamic_losses(graph, None, False)
    assert max(seen, key=seen.__getitem__) == "MatMul_0"
    assert seen["MatMul_0"] > 10 * seen["MatMul_2"]
    assert blind.keys() == seen.keys()


def test_a_tenth_a_quarter_and_half_of_the_layers_are_tried() -> None:
    hows = [candidate.how for candidate in candidates("int8", nets.encoder(), nets.texts(16), second_try=True)]
    assert [re.search(r"(\d) of 6 layers", how)[1] for how in hows] == ["1", "2", "3"]  # type: ignore[index]
    assert hows[2].count("MatMul_") == 3
    models = list(candidates("int8", nets.encoder(), nets.texts(16), second_try=True))
    counts = [Counter(n.op_type for n in onnx.load_from_string(c.model).graph.node)["MatMulInteger"] for c in models]
    assert counts == [5, 4, 3]


def test_a_layer_of_a_static_file_is_left_with_the_gates_behind_it() -> None:
    images: Arrays = {"image": nets.images(32, seed=1)}
    for candidate in candidates("int8", nets.swish(), images, second_try=True):
        graph = onnx.load_from_string(candidate.model).graph
        left = candidate.how.rpartition(": ")[2].split(", ")
        by_name = {node.name: node for node in graph.node}
        rounded = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        for name in left:
            assert by_name[name].input[1] not in rounded
        assert nets.difference(nets.swish(), candidate.model, image=nets.images()) < 0.06


def test_symmetric_files_have_a_second_try_too() -> None:
    [candidate, *_] = candidates(
        "int8", nets.swish(), {"image": nets.images(32)}, second_try=True, is_for_tensorrt=True
    )
    assert "zero points 0" in candidate.how
    assert "of 5 layers" in candidate.how


def test_a_gemm_is_left_out_under_the_name_that_it_gets_on_the_way() -> None:
    models = list(candidates("int8", nets.perceptron(), None, second_try=True))
    counts = [Counter(n.op_type for n in onnx.load_from_string(c.model).graph.node)["MatMulInteger"] for c in models]
    assert counts == [2, 1]


def test_a_net_of_one_layer_has_no_second_try() -> None:
    fp32 = nets.net("(float[n, 16] x) => (float[n, 4] y)", "y = MatMul (x, w)", w=(16, 4))
    assert list(candidates("int8", fp32, None, second_try=True)) == []
    assert list(candidates("int8", nets.recurrent("LSTM"), None, second_try=True)) == []


def test_refusals_are_the_same_as_at_first() -> None:
    with pytest.raises(CalibrationMissing):
        next(candidates("int8", nets.swish(), None, second_try=True))
    with pytest.raises(NothingToQuantise):
        next(candidates("int8", nets.arithmetic(), None, second_try=True))


def test_scalar_weights_as_converters_write_them_are_no_obstacle() -> None:
    """x * 2 + 1 with 0-d constants between convolutions: hard swishes of Paddle's and Keras' converters."""
    fp32 = nets.net(
        "(float[n, 3, 16, 16] image) => (float[n, 4] y)",
        """a = Conv <pads = [1, 1, 1, 1]> (image, w1) b = Add (a, three) c = Clip (b, zero, six) d = Mul (a, c) e = Div (d, six)
        f = Conv <pads = [1, 1, 1, 1]> (e, w2) g = Mul (f, half) h = GlobalAveragePool (g) i = Flatten (h) y = MatMul (i, w3)""",
        w1=(8, 3, 3, 3), w2=(8, 8, 3, 3), w3=(8, 4), zero=0.0, three=3.0, six=6.0, half=0.5,
    )  # fmt: skip
    images: Arrays = {"image": nets.images(16, seed=1)}
    second = list(candidates("int8", fp32, images, second_try=True))
    assert [re.search(r"(\d) of 3 layers", one.how)[1] for one in second] == ["1", "2"]  # type: ignore[index]
    assert nets.difference(fp32, second[-1].model, image=nets.images()) < 0.1
