"""A detector that finds as many boxes as there are comes out with INT8, whose boxes are others in number, and its gate runs again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.export import onnx_session, pipeline
from serving.export.data.dataset import Dataset
from serving.export.exported_model import SourceOptions
from serving.export.gate_rerun import Rerun
from serving.export.job import ExportSpec
from serving.export.large_model import read_model
from serving.export.publish import writing
from serving.export.sources import onnx_file
from serving.local.devices import installed

from .gates.nets import net

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untimed")]

RANDOM = np.random.default_rng(0)
DETECTOR = net(
    """inner = Conv<pads = [2, 2, 2, 2]>(x, k)  on = Relu(inner)  heat = Conv<pads = [1, 1, 1, 1]>(on, w)
       shares = Sigmoid(heat)  s = Squeeze(shares, axes)  is = Greater(s, least)  found = NonZero(is)
       place = Transpose<perm = [1, 0]>(found)  low = Cast<to = 1>(place)  high = Add(low, two)
       boxes = Concat<axis = 1>(low, high)  scores = GatherND(s, place)  none = Mul(scores, zero)
       classes = Cast<to = 7>(none)""",
    "(float[1, 3, 16, 16] x) => (float[k, 4] boxes, float[k] scores, int64[k] classes)",
    k=RANDOM.normal(0, 0.3, (8, 3, 5, 5)),
    w=np.full((1, 8, 3, 3), 0.02),
    least=0.65,
    two=2.0,
    zero=0.0,
    axes=[0, 1],
)


def test_a_detector_and_its_int8_find_other_numbers_of_boxes_and_are_judged_by_them(tmp_path: Path) -> None:
    images = RANDOM.random((36, 1, 3, 16, 16), np.float32)
    file = tmp_path / "detector.onnx"
    file.write_bytes(DETECTOR)
    options = SourceOptions(example={"x": images[:4]})
    exported = replace(onnx_file.load(file, options, lambda *_: None), task="detection")
    data, asked = Dataset("images", {"x": images[:20]}, None), ExportSpec("net", precisions=("int8",), seconds=0.01)
    with writing(tmp_path, "net"):
        engines = {"cpu": installed()["cpu"]}
        outcome = pipeline.export(exported, data, {"x": images[20:]}, asked, tmp_path, engines)
    fp32, int8 = outcome.published
    assert int8.record.gate.checks[0].metric == "box_agreement"
    ours, theirs = (onnx_session.answers(read_model(one), data.inputs, 0)[1] for one in (int8, fp32))
    assert (ours > 0).sum(axis=1).tolist() != (theirs > 0).sum(axis=1).tolist()
    again = Rerun(fp32, None, {}, lambda *_: None).of(int8)
    assert again.problems == ()
    assert again.checks[0].value == int8.record.gate.checks[0].value
