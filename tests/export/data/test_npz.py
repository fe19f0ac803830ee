"""Data that came as npz: what a file must hold, and what is said of one that does not."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import UserError
from serving.export.data.npz import read_npz
from serving.export.data.reading import read
from serving.repository import Tensor

IMAGE = (Tensor("image", "FP32", (1, 8, 8)),)
GOOD: dict[str, Any] = {"image": np.zeros((4, 1, 8, 8), np.float32), "labels": np.array([0, 1, 2, 9])}


def write(path: Path, **changes: Any) -> Path:
    arrays = {name: values for name, values in {**GOOD, **changes}.items() if values is not None}
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def test_a_good_file_is_read(tmp_path: Path) -> None:
    data = read_npz(write(tmp_path), IMAGE, 10)
    assert data.labels is not None
    assert (data.name, data.kind, data.num_samples, data.labels.tolist()) == ("data.npz", "arrays", 4, [0, 1, 2, 9])


def test_labels_are_left_off_where_nobody_knows_them(tmp_path: Path) -> None:
    data = read_npz(write(tmp_path, labels=None), IMAGE, 10)
    assert (data.num_samples, data.labels) == (4, None)


def test_labels_may_be_names_of_the_classes(tmp_path: Path) -> None:
    data = read_npz(write(tmp_path, labels=np.array(["b", "a", "c", "b"])), IMAGE, 3, ("a", "b", "c"))
    assert data.labels is not None
    assert (data.labels.dtype.name, data.labels.tolist()) == ("int64", [1, 0, 2, 1])
    with pytest.raises(UserError, match="unknown label 'd'; known are a, b, c"):
        read_npz(write(tmp_path, labels=np.array(["b", "a", "c", "d"])), IMAGE, 3, ("a", "b", "c"))
    with pytest.raises(UserError, match=r"want 0..2, got 5..9; or give names.*labels.astype\(str\)"):
        read_npz(write(tmp_path, labels=np.array([5, 7, 9, 5])), IMAGE, 3, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("names", "labels", "places"),
    [
        (("1", "2", "3"), [1, 2, 2, 1], [0, 1, 1, 0]),  # 3 does not occur, so that these might be places
        (("-1", "1"), [1, -1, 1, 1], [1, 0, 1, 1]),
        (("1.0", "2.0", "3.0"), [1.0, 3.0, 2.0, 1.0], [0, 2, 1, 0]),
        (("False", "True"), [True, False, True, True], [1, 0, 1, 1]),
        (("1", "2", "3"), [0, 1, 2, 0], [0, 1, 2, 0]),  # 0 is no name: these are places
        (("one", "two", "three"), [1, 2, 2, 1], [1, 2, 2, 1]),
    ],
)
def test_labels_that_all_are_names_of_classes_are_names(
    tmp_path: Path, names: tuple[str, ...], labels: list[Any], places: list[int]
) -> None:
    data = read_npz(write(tmp_path, labels=np.array(labels)), IMAGE, len(names), names)
    assert data.labels is not None
    assert (data.labels.dtype.name, data.labels.tolist()) == ("int64", places)


def test_columns_of_a_table_may_be_arrays_of_their_own(tmp_path: Path) -> None:
    features = (Tensor("features", "FP32", (2,)),)
    np.savez(tmp_path / "table.npz", size=np.array([[3.5], [4.5]]), age=np.array([1, 2]), labels=np.array([0, 1]))
    rows = read_npz(tmp_path / "table.npz", features, 2, None, ("age", "size")).inputs["features"]
    assert (rows.dtype.name, rows.tolist()) == ("float32", [[1, 3.5], [2, 4.5]])
    with pytest.raises(UserError, match="unknown array"):
        read_npz(tmp_path / "table.npz", features, 2)
    np.savez(tmp_path / "uneven.npz", size=np.array([1.0]), age=np.array([1, 2]))
    with pytest.raises(UserError, match=r"column 'size': want numbers \[2\] as 'age' has, got float64 \[1\]"):
        read_npz(tmp_path / "uneven.npz", features, 2, None, ("age", "size"))


def test_a_model_without_classes_takes_labels_of_any_numbers(tmp_path: Path) -> None:
    data = read_npz(write(tmp_path, labels=np.array([0.5, -3.0, 1e6, 0.0])), IMAGE, None)
    assert data.labels is not None
    assert data.labels.tolist() == [0.5, -3.0, 1e6, 0.0]


def test_a_dimension_of_any_length_takes_any_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", ids=np.ones((3, 17), np.int64))
    assert read_npz(tmp_path / "ids.npz", (Tensor("ids", "INT64", (-1,)),), None).num_samples == 3


def test_text_is_read_from_an_array_of_strings_without_unpickling(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", text=np.array([["grüße"], ["b"]]))
    data = read_npz(tmp_path / "texts.npz", (Tensor("text", "BYTES", (1,)),), None)
    assert data.inputs["text"].tolist() == [["grüße"], ["b"]]


def test_a_column_may_leave_out_its_second_dimension(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", text=np.array(["grüße", "b"]))
    data = read_npz(tmp_path / "texts.npz", (Tensor("text", "BYTES", (1,)),), None)
    assert data.inputs["text"].tolist() == [["grüße"], ["b"]]


def test_an_input_called_labels_is_an_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", labels=np.ones((3, 2), np.float32))
    data = read_npz(tmp_path / "data.npz", (Tensor("labels", "FP32", (2,)),), 10)
    assert data.labels is None
    assert data.num_samples == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image": None}, "array 'image' is missing; there are labels"),
        ({"image": np.float32(1)}, r"image: want shape \[4, 1, 8, 8\], got \[\]"),
        ({"image": np.float32(1), "labels": None}, r"want shape \[n at least 1, 1, 8, 8\], got \[\]"),
        ({"image": np.zeros((0, 1, 8, 8), np.float32), "labels": None}, r"n at least 1, 1, 8, 8\], got \[0, 1, 8, 8\]"),
        ({"lables": np.array([0, 1, 2, 9])}, "unknown array 'lables'; did you mean 'labels'"),
        ({"labels": np.int64(1)}, r"labels: want whole numbers \[n\], n at least 1; got int64 \[\]"),
        ({"imago": np.zeros(1)}, "unknown array 'imago'; did you mean 'image'"),
        ({"image": np.zeros((4, 1, 8, 8))}, "image: want float32, got float64"),
        ({"image": np.zeros((4, 1, 8, 8), np.uint8)}, "image: want float32, got uint8"),
        ({"image": np.zeros((4, 8, 8), np.float32)}, r"image: want shape \[4, 1, 8, 8\], got \[4, 8, 8\]"),
        ({"image": np.zeros((3, 1, 8, 8), np.float32)}, r"image: want shape \[4, 1, 8, 8\], got \[3, 1, 8, 8\]"),
        ({"image": np.full((4, 1, 8, 8), np.inf, np.float32)}, "image: holds infinite values"),
        ({"image": np.zeros((4, 1, 8, 8))}, r"got float64; convert it: image.astype\('float32'\)$"),
        ({"image": np.full((4, 1, 8, 8), "x")}, "image: want float32, got text$"),
        ({"image": np.zeros((1, 8, 8), np.float32), "labels": None}, "counts rows, and each row is a whole input"),
        ({"image": np.zeros((3, 1, 8, 8), np.float32)}, "it has 3 rows, the arrays beside it 4"),
        ({"labels": np.array([0, 1, 2, 10])}, r"labels: want 0..9, got 0..10"),
        ({"labels": np.array([-1, 1, 2, 3])}, r"labels: want 0..9, got -1..3"),
        ({"labels": np.array([0.0, 1.0, 2.0, 3.0])}, "labels: want whole numbers"),
        ({"labels": np.array([[0, 1], [2, 3]])}, r"labels: want whole numbers \[n\], n at least 1; got int64 \[2, 2\]"),
        ({"labels": np.array([], np.int64), "image": np.zeros((0, 1, 8, 8), np.float32)}, "n at least 1"),
        ({"labels": np.array(["a", "b", "c", "d"])}, "labels: want whole numbers"),
        (
            {"labels": np.array([object()] * 4)},
            r"cannot be read as npz.*numpy\.array\(texts, str\)",
        ),  # a pickle, which would run code
    ],
)
def test_a_file_that_does_not_fit_says_what_it_wants_and_what_it_got(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_npz(write(tmp_path, **changes), IMAGE, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([[b"a"], [b"b"]]), r"text: want text as np.array\(\[…\], dtype=str\), got bytes8"),
        (np.zeros((2, 1), np.float32), r"want text as np.array\(\[…\], dtype=str\), got float32"),
        (np.array([["a", "b"]] * 2), r"text: want shape \[2, 1\], got \[2, 2\]"),
    ],
)
def test_what_is_no_array_of_text_says_so(tmp_path: Path, array: Any, says: str) -> None:
    np.savez(tmp_path / "texts.npz", text=array)
    with pytest.raises(UserError, match=says):
        read_npz(tmp_path / "texts.npz", (Tensor("text", "BYTES", (1,)),), None)


def test_a_type_that_numpy_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"image.*BF16"):
        read_npz(write(tmp_path), (Tensor("image", "BF16", (1, 8, 8)),), 10)


@pytest.mark.parametrize("labels", [np.array(["a"] * 4), np.array([1, 2, 3, np.nan]), np.array([True] * 4)])
def test_labels_of_a_model_without_classes_are_finite_numbers(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(UserError, match=r"numbers.*\[n, …\].*1"):
        read_npz(write(tmp_path, labels=labels), IMAGE, None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"image,label\n1,2\n"])
def test_a_file_that_is_no_npz_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"data.npz.*file"):
        read_npz(tmp_path / "data.npz", IMAGE, 10)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.npz"):
        read_npz(tmp_path / "nowhere.npz", IMAGE, 10)


def test_a_zip_file_of_something_else_says_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        file.writestr("image", "not an array")
    with pytest.raises(UserError, match=r"data.npz.*'image'.*array"):
        read_npz(tmp_path / "data.npz", IMAGE, 10)


@pytest.mark.parametrize("name", ["pipe.npz", "pipe.csv", "pipe"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}.*regular"):
        read(tmp_path / name, IMAGE, 10)
