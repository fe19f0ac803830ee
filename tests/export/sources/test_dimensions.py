"""`--dim` and dimensions that only claim to be open, on graphs of other hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from serving.errors import UserError
from serving.export.dimensions import read_dims
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates.graph import check_graph
from serving.export.gates.limits import NotDynamic
from serving.export.sources import onnx_file
from serving.export.user_data import to_judge

from .graphs import FLOAT, constant, graph, node, value, weights


def reader(height: int | str = "?", width: int | str = "?", perm: tuple[int, ...] = (0, 2, 1)) -> onnx.ModelProto:
    """x [batch, 3, height, width] -> y [batch, width, 5], as readers of text lines are: 12 high, of any width."""
    nodes = [
        node("Conv", ["x", "k"], ["c"]),
        node("Squeeze", ["c", "two"], ["s"]),
        node("Transpose", ["s"], ["y"], perm=perm),
    ]
    inputs, outputs = [value("x", FLOAT, ["-1", 3, height, width])], [value("y", FLOAT, ["?", "?", 5])]
    return graph(nodes, inputs, outputs, [weights("k", 5, 3, 12, 1), constant("two", 2)])


def load(model: onnx.ModelProto, tmp_path: Path, dims: tuple[str, ...] = (), **options: Any) -> ExportedModel:
    path = tmp_path / "reader.onnx"
    path.write_bytes(model.SerializeToString())
    return onnx_file.load(path, SourceOptions(dims=read_dims(dims) or None, **options), lambda *_: None)


def lines(width: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((6, 3, 12, width)).astype(np.float32)}


def test_a_graph_that_runs_on_no_made_up_input_runs_where_its_dimensions_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data or --example"):
        load(reader(), tmp_path)
    exported = load(reader(), tmp_path, ("height=12", "width=16..40"))
    assert exported.inputs[0].shape == (3, 12, -1)
    assert exported.example["x"].shape[3] == 40  # the nearest to what is tried first
    check_graph("m-fp32", exported)  # at 16, too


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        (("x:2=12", "x:3=20"), (3, 12, 20)),
        (("tall=12", "wide=20"), (3, 12, 20)),  # the graph's own names
        (("tall=12", "x:3=8..9"), (3, 12, -1)),
    ],
)
def test_dimensions_are_named_by_the_graph_or_by_input_and_axis(
    tmp_path: Path, dims: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    assert load(reader("tall", "wide"), tmp_path, dims).inputs[0].shape == shape


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        (("hieght=12",), "height"),
        (("x:4=12",), "x:"),
        (("x:1=4",), "3 and not open"),
        (("x:0=1..4",), "--max-batch"),
        (("height",), "NAME=SIZE"),
        (("height=0",), "from 1"),
        (("width=40..16",), "smaller one first"),
        (("width=40", "width=41"), "two things"),
        (("width=40", "x:3=41"), "another --dim"),
    ],
)
def test_what_a_dimension_cannot_be_is_refused(tmp_path: Path, dims: tuple[str, ...], match: str) -> None:
    with pytest.raises(UserError, match=match):
        load(reader(), tmp_path, dims)


def test_rows_of_a_length_that_was_not_said_are_refused(tmp_path: Path) -> None:
    dims = ("width=16..40",)
    with pytest.raises(UserError, match=r"16\.\.40 where it has 44"):
        load(reader(), tmp_path, dims, example=lines(44))
    exported = load(reader(), tmp_path, dims, example=lines(40))
    np.savez(tmp_path / "rows.npz", **lines(15))
    with pytest.raises(UserError, match=r"16\.\.40 where it has 15"):
        to_judge(tmp_path / "rows.npz", exported)


def test_a_dimension_that_runs_at_one_length_only_is_fixed_at_that_of_the_rows(tmp_path: Path) -> None:
    exported = load(reader(), tmp_path, example=lines(20))
    assert exported.inputs[0].shape == (3, 12, -1)  # the height is 12 in truth, the width is free
    assert any("12" in note and "x:2" in note for note in exported.notes)
    check_graph("m-fp32", exported)


def test_a_range_that_does_not_hold_is_refused_by_the_gate(tmp_path: Path) -> None:
    exported = load(reader(), tmp_path, ("x:2=12..13",), example=lines(20))
    with pytest.raises(NotDynamic, match="at 13"):
        check_graph("m-fp32", exported)


def test_what_was_made_up_is_told(tmp_path: Path) -> None:
    assert any("made up" in note for note in load(reader(12, "w"), tmp_path).notes)
    assert not load(reader(12, "w"), tmp_path, example=lines(20)).notes


def test_rows_of_a_graph_that_answers_with_time_before_its_batch_become_whole_inputs(tmp_path: Path) -> None:
    exported = load(reader(perm=(2, 0, 1)), tmp_path, example=lines(20))  # y [width, batch, 5]
    assert exported.max_batch_size == 0
    assert exported.inputs[0].shape == (-1, 3, 12, -1)
    np.savez(tmp_path / "rows.npz", **lines(20))
    data = to_judge(tmp_path / "rows.npz", exported)
    assert data.inputs["x"].shape == (6, 1, 3, 12, 20)
    check_graph("m-fp32", exported, None, data.inputs)
