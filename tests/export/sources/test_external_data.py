"""Weights beside an ONNX file: merged into it where they lie in its own folder, and not opened where they do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import set_external_data

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.sources import onnx_file
from serving.export.sources.graphs.external_data import read_whole

from .graphs import FLOAT, graph, linear, node, value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """mine/model.onnx, whose weights `w` and `b` lie in mine/model.onnx.data."""
    (tmp_path / "mine").mkdir()
    model = linear()
    onnx.save(
        model,
        tmp_path / "mine" / "model.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="model.onnx.data",
    )
    return tmp_path / "mine"


def point_to(folder: Path, location: str, **place: int) -> Path:
    """Says of every weight that it lies there."""
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
        for key, number in place.items():
            tensor.external_data.add(key=key, value=str(number))
    path.write_bytes(model.SerializeToString())
    return path


def test_the_weights_are_merged_into_one_file(folder: Path) -> None:
    expected = onnx.load(folder / "model.onnx").graph.initializer
    exported = onnx_file.load(folder / "model.onnx", SourceOptions(), lambda *_: None)
    made = onnx.load_from_string(exported.model)
    assert not any(tensor.external_data for tensor in made.graph.initializer)
    for tensor in expected:
        found = next(t for t in made.graph.initializer if t.name == tensor.name)
        assert np.array_equal(onnx.numpy_helper.to_array(found), onnx.numpy_helper.to_array(tensor))


def test_a_folder_below_the_models_own_is_fine(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "model.onnx.data").rename(folder / "weights" / "all.bin")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "weights/all.bin"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    assert len(read_whole(folder / "model.onnx").graph.initializer[0].raw_data) == 48


def test_a_link_within_the_models_folder_is_fine(folder: Path) -> None:
    (folder / "model.onnx.data").rename(folder / "blob")
    (folder / "model.onnx.data").symlink_to("blob")
    read_whole(folder / "model.onnx")


@pytest.mark.parametrize(
    "location",
    ["../secret", "weights/../../secret", "/etc/hostname", "..\\secret", "C:\\secret", "\\\\host\\share", ""],
)
def test_a_place_outside_the_models_folder_is_refused_by_its_name(folder: Path, location: str) -> None:
    (folder.parent / "secret").write_bytes(bytes(1000))
    with pytest.raises(UserError, match=r"weights.*model's"):
        read_whole(point_to(folder, location))


def test_a_name_with_a_zero_byte_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"model's.*folder"):
        read_whole(point_to(folder, "a\0b"))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_that_leaves_the_models_folder_is_refused(folder: Path, link: str) -> None:
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "secret").write_bytes(bytes(1000))
    if link == "file":
        (folder / "weights").symlink_to("../outside/secret")
    else:
        (folder / "inner").symlink_to("../outside")
    path = point_to(folder, "weights" if link == "file" else "inner/secret")
    with pytest.raises(UserError, match=r"leaves.*model's"):
        read_whole(path)


def test_one_bad_place_is_refused_before_any_other_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    model.graph.initializer[1].external_data[0].value = "../secret"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    opened: list[str] = []
    plain = Path.open

    def watched(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(self.name)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", watched)
    with pytest.raises(UserError, match="own folder"):
        read_whole(folder / "model.onnx")
    assert "model.onnx.data" not in opened


def test_a_pipe_in_the_place_of_weights_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UserError, match=r"weights in pipe.*regular"):
        read_whole(point_to(folder, "pipe"))


def test_weights_that_are_not_there_are_named(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    with pytest.raises(UserError, match=r"weights.*model\.onnx\.data"):
        read_whole(folder / "model.onnx")


def test_weights_that_are_cut_off_are_named_with_where_they_should_end(folder: Path) -> None:
    os.truncate(folder / "model.onnx.data", 20)
    with pytest.raises(UserError, match=r"model\.onnx\.data.*tensor.*'w'.*model\.onnx.*48.*20"):
        read_whole(folder / "model.onnx")


@pytest.mark.parametrize("place", [{"offset": -5}, {"length": -5}, {"offset": 10**9}, {"length": 10**9}])
def test_a_place_that_no_file_has_is_refused(folder: Path, place: dict[str, int]) -> None:
    with pytest.raises(UserError, match="is cut off"):
        read_whole(point_to(folder, "model.onnx.data", **place))


def test_a_place_that_is_no_number_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"tensor.*'w'.*model\.onnx\.data"):
        read_whole(point_to(folder, "model.onnx.data", length="many"))  # type: ignore[arg-type]


def test_more_than_2_gb_in_all_stay_in_one_file_beside_the_model_and_several_are_refused(folder: Path) -> None:
    with (folder / "model.onnx.data").open("wb") as file:
        os.truncate(file.fileno(), 2**30 + 10)  # a hole: takes no space
    path = point_to(folder, "model.onnx.data")  # both weights are the whole file
    assert all(not tensor.raw_data for tensor in read_whole(path).graph.initializer)
    model = onnx.load(path, load_external_data=False)
    os.link(folder / "model.onnx.data", folder / "second.data")
    model.graph.initializer[1].external_data[0].value = "second.data"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"2 GB.*2 files"):
        read_whole(path)


def test_weights_in_the_branches_of_a_graph_are_confined_too(tmp_path: Path) -> None:
    """A constant inside a branch is a tensor as well."""
    tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    set_external_data(tensor, "../secret")
    tensor.ClearField("raw_data")
    branch = helper.make_graph([node("Constant", [], ["c"], value=tensor)], "b", [], [value("c", FLOAT, [4])])
    nodes = [node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)]
    model = graph(nodes, [value("x", onnx.TensorProto.BOOL, [])], [value("y", FLOAT, [4])])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"model's.*folder"):
        read_whole(tmp_path / "model.onnx")
