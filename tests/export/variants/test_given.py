"""Files that are quantised already: their FP32 comes back, and what is not plain Q/DQ is left alone."""

from __future__ import annotations

import onnx
import pytest

from serving.export.exported_model import Arrays
from serving.export.variants import candidates, given

from . import nets

ROWS: Arrays = {"x": nets.rows()}
IMAGES: Arrays = {"image": nets.images(32)}


@pytest.mark.parametrize(
    ("fp32", "calibration", "held_out"),
    [(nets.perceptron(), ROWS, {"x": nets.rows(8, 1)}), (nets.swish(), IMAGES, {"image": nets.images(8, 1)})],
)
def test_without_roundings_a_file_is_nearer_to_its_fp32_than_with_them(
    fp32: bytes, calibration: Arrays, held_out: Arrays
) -> None:
    made = next(candidates("int8", fp32, calibration, is_for_tensorrt=True)).model
    exact = given.without_rounding(made)
    assert exact is not None
    assert nets.difference(fp32, exact, **held_out) < nets.difference(fp32, made, is_fused=False, **held_out)
    assert given.without_rounding(exact) is None


def test_nodes_of_such_a_file_need_no_names() -> None:
    made = onnx.load_from_string(next(candidates("int8", nets.perceptron(), ROWS, is_for_tensorrt=True)).model)
    named = given.without_rounding(made.SerializeToString())
    for node in made.graph.node:
        node.name = ""
    nameless = given.without_rounding(made.SerializeToString())
    assert named is not None
    assert nameless is not None
    assert nets.difference(named, nameless, x=nets.rows(8, 1)) == 0


def test_what_is_no_plain_quantisation_is_left_alone() -> None:
    dynamic = next(candidates("int8", nets.encoder(), None)).model
    assert given.without_rounding(dynamic) is None
    assert given.without_rounding(nets.swish()) is None
    assert given.needs_of(dynamic) == frozenset()  # 7 bits
