"""A folder of images: every label known, every broken file named, and no more of them than agreed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.errors import UserError
from serving.export.data import folders
from serving.export.data.dataset import Dataset
from serving.export.data.reading import read
from serving.repository import Tensor
from serving.repository.preprocessing import ImagePreprocessing, TextPreprocessing

HOW = ImagePreprocessing("image", 2, 2, None, "nearest", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "RGB", "probabilities")
INPUTS = (Tensor("image", "FP32", (3, 2, 2)),)
NAMES = ("cat", "dog", "crane", "crane", "7")


def image(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (shade, shade, shade)).save(path)
    return path


def read_it(folder: Path, **changes: Any) -> tuple[Dataset, list[str]]:
    """(data, lines of warning)."""
    told: list[str] = []
    options = {"labels": NAMES, "preprocessing": HOW, "warn": told.append, **changes}
    return read(folder, options.pop("inputs", INPUTS), options.pop("num_labels", 5), **options), told


def shades(data: Dataset) -> list[int]:
    return [round(float(values.flat[0]) * 255) for values in data.inputs["image"]]


def test_sub_folders_give_the_labels_and_classes_come_in_turns(tmp_path: Path) -> None:
    for shade in (1, 2, 3):
        image(tmp_path / "dog" / f"{shade}.png", shade)
    image(tmp_path / "cat" / "4.PNG", 4)
    image(tmp_path / "2" / "deeper" / "5.png", 5)
    data, told = read_it(tmp_path)
    assert data.labels is not None
    assert (shades(data), data.labels.tolist(), data.labels.dtype) == ([4, 1, 5, 2, 3], [0, 1, 2, 1, 1], np.int64)
    assert (data.kind, data.name, data.inputs["image"].dtype) == ("images", tmp_path.name, np.float32)
    assert told == []


def test_a_folder_named_by_a_number_that_is_also_a_class_name_means_the_class(tmp_path: Path) -> None:
    image(tmp_path / "7" / "1.png")
    data, _ = read_it(tmp_path)
    assert data.labels is not None
    assert data.labels.tolist() == [4]


def test_a_table_gives_the_labels_of_a_flat_folder(tmp_path: Path) -> None:
    image(tmp_path / "a b.png", 1)
    image(tmp_path / "c.png", 2)
    (tmp_path / "labels.csv").write_text('\ufefffile,label\r\n"a b.png",dog\r\nc.png, 0 \r\n\r\n')
    data, _ = read_it(tmp_path)
    assert data.labels is not None
    assert sorted(zip(shades(data), data.labels.tolist(), strict=True)) == [(1, 1), (2, 0)]


def test_images_alone_have_no_labels(tmp_path: Path) -> None:
    image(tmp_path / "b.png", 2)
    image(tmp_path / "a.jpg", 1)
    (tmp_path / ".DS_Store").write_bytes(b"x")
    data, told = read_it(tmp_path, labels=None, num_labels=None)
    assert (data.labels, data.num_samples, told) == (None, 2, [])


def test_files_that_are_no_images_by_name_are_passed_over_and_told(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "a.png")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "README").write_text("x")
    _, [line] = read_it(tmp_path)
    assert line.endswith(": README; cat/notes.txt")


@pytest.mark.parametrize(
    ("folder", "changes", "says"),
    [
        ("catt", {}, "unknown label 'catt'; did you mean 'cat'"),
        ("crane", {}, "label 'crane' is the name of classes 2 and 3; give the index"),
        ("5", {}, r"label 5 is outside 0\.\.4"),
        ("cat", {"labels": None}, r"unknown label 'cat'; the model's classes have no names, so give an index, 0\.\.4"),
        ("zebra", {"labels": tuple(f"kind {i}" for i in range(1000))}, "'zebra'; it is none of the 1000 classes"),
        ("cat", {"labels": None, "num_labels": None}, "label 'cat' is not a number"),
    ],
)
def test_a_sub_folder_whose_name_is_no_class_is_named(
    tmp_path: Path, folder: str, changes: dict[str, Any], says: str
) -> None:
    image(tmp_path / folder / "1.png")
    with pytest.raises(UserError, match=says) as caught:
        read_it(tmp_path, **changes)
    assert f"{tmp_path}/{folder}: " in str(caught.value)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", "labels.csv line 1: want file,label; got nothing"),
        ("name,label\n", "labels.csv line 1: want file,label; got name,label"),
        ("file,label\na.png,cat\n", "no label for 1 image: b.png"),
        ("file,label\na.png,cat\nb.png\n", "labels.csv line 3: want 2 values"),
        ("file,label\na.png,cat\nb.png,cow\n", "labels.csv line 3: unknown label 'cow'"),
        ("file,label\na.png,cat\na.png,dog\n", "labels.csv line 3: a.png appears twice"),
        ("file,label\na.png,cat\nc.png,dog\n", "labels.csv line 3: there is no image c.png"),
        ("file,label\na.png,cat\n../b.png,dog\n", r"line 3: '\.\./b.png' is not the name of a file beside labels.csv"),
        ('file,label\n"a.png,cat\n', "labels.csv line 2: unexpected end of data"),
        (b"file,label\na.png,c\xe4t\n", "labels.csv line 2: byte 8 is not UTF-8"),
    ],
)
def test_a_table_that_does_not_fit_its_folder_is_named_by_line(tmp_path: Path, table: str | bytes, says: str) -> None:
    image(tmp_path / "a.png")
    image(tmp_path / "b.png")
    (tmp_path / "labels.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    with pytest.raises(UserError, match=says):
        read_it(tmp_path)


def test_an_empty_folder_and_a_mixed_one_say_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"images.*\.jpg"):
        read_it(tmp_path)
    image(tmp_path / "cat" / "a.png")
    image(tmp_path / "b.png")
    with pytest.raises(UserError, match=r"sub-folders.*sub-folders.*images"):
        read_it(tmp_path)


# -- images that do not decode ----------------------------------------------------------------------------------------


def test_one_broken_image_among_many_is_passed_over_with_its_name(tmp_path: Path) -> None:
    for i in range(10):
        image(tmp_path / ("cat" if i % 2 else "dog") / f"{i}.png", i)
    (tmp_path / "cat" / "3.png").write_bytes(b"not a PNG")
    data, [line] = read_it(tmp_path)
    assert data.labels is not None
    assert sorted(shades(data)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [label == shade % 2 for shade, label in zip(shades(data), 1 - data.labels, strict=True)] == [True] * 9
    assert "1 image of 10 skipped: cat/3.png" in line


@pytest.mark.parametrize(
    ("num_broken", "ratio", "passes"), [(1, 0.1, True), (2, 0.1, False), (2, 0.2, True), (1, 0.0, False)]
)
def test_the_threshold_is_what_decides(tmp_path: Path, num_broken: int, ratio: float, passes: bool) -> None:
    for i in range(10):
        image(tmp_path / f"{i}.png")
    for i in range(num_broken):
        (tmp_path / f"{i}.png").write_bytes(b"")
    if passes:
        assert read_it(tmp_path, max_bad_ratio=ratio)[0].num_samples == 10 - num_broken
        return
    with pytest.raises(UserError, match=rf"10.*used.*{ratio:.0%}.*0\.png"):
        read_it(tmp_path, max_bad_ratio=ratio)


def test_many_broken_images_are_counted_and_the_first_ones_named(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"16.*images.*16.*30.*07\.png.*8") as caught:
        read_it(tmp_path, max_bad_ratio=0.5)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_folder_that_does_not_fit_into_memory_says_how_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(tmp_path / "a.png")
    image(tmp_path / "b.png")
    monkeypatch.setattr(folders, "MAX_BYTES", 3 * 2 * 2 * 4)
    with pytest.raises(UserError, match=r"2.*images.*GiB.*1"):
        read_it(tmp_path)


# -- models that images are not for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"preprocessing": None}, "does not say how images become its input; give its inputs as .npz"),
        ({"preprocessing": TextPreprocessing("t.json", {}, 8, 0, "none", False)}, "this model takes texts; give its"),
        ({"preprocessing": replace(HOW, input="picture")}, "gives picture alone, but the model takes image"),
        ({"inputs": (*INPUTS, Tensor("size", "INT64", (2,)))}, "but the model takes image, size; give its inputs as"),
        (
            {"inputs": (Tensor("image", "FP32", (2, 2, 3)),)},
            r"images become float \[3, 2, 2\], but image is FP32 \[2, 2, 3\]",
        ),
        ({"inputs": (Tensor("image", "UINT8", (3, 2, 2)),)}, r"but image is UINT8"),
    ],
)
def test_a_model_that_images_are_not_for_says_to_give_arrays(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    image(tmp_path / "a.png")
    with pytest.raises(UserError, match=says) as caught:
        read_it(tmp_path, **changes)
    assert "as .npz" in str(caught.value)


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is made here."""

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match=rf"{tmp_path}.*Permission"):
        read_it(tmp_path)


def test_progress_ends_where_it_said(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    image(tmp_path / "b.png")
    steps: list[tuple[str, int, int]] = []
    read_it(tmp_path, progress=lambda *step: steps.append(step))
    assert steps[-1] == ("reading images", 2, 2)
