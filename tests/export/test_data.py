"""Held-out data: what a file must hold, and that the digits are split once and for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import UserError
from serving.export.data import Dataset, digits, read_npz
from serving.repository import Tensor

IMAGE = (Tensor("image", "FP32", (1, 8, 8)),)
GOOD: dict[str, Any] = {"image": np.zeros((4, 1, 8, 8), np.float32), "labels": np.array([0, 1, 2, 9])}


def write(path: Path, **changes: Any) -> Path:
    arrays = {name: values for name, values in {**GOOD, **changes}.items() if values is not None}
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def test_a_good_file_is_read(tmp_path: Path) -> None:
    data = read_npz(write(tmp_path), IMAGE, 10)
    assert (data.name, data.num_samples, data.labels.tolist()) == ("data.npz", 4, [0, 1, 2, 9])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image": None}, "array 'image' is missing; there are labels"),
        ({"labels": None}, "array 'labels' is missing; there are image"),
        ({"imago": np.zeros(1)}, "unknown array 'imago', did you mean 'image'"),
        ({"image": np.zeros((4, 1, 8, 8))}, "image: want float32, got float64"),
        ({"image": np.zeros((4, 1, 8, 8), np.uint8)}, "image: want float32, got uint8"),
        ({"image": np.zeros((4, 8, 8), np.float32)}, r"image: want shape \[4, 1, 8, 8\], got \[4, 8, 8\]"),
        ({"image": np.zeros((3, 1, 8, 8), np.float32)}, r"image: want shape \[4, 1, 8, 8\], got \[3, 1, 8, 8\]"),
        ({"image": np.full((4, 1, 8, 8), np.nan, np.float32)}, "image: holds NaN"),
        ({"labels": np.array([0, 1, 2, 10])}, r"labels: want 0..9, got 0..10"),
        ({"labels": np.array([-1, 1, 2, 3])}, r"labels: want 0..9, got -1..3"),
        ({"labels": np.array([0.0, 1.0, 2.0, 3.0])}, "labels: want whole numbers"),
        ({"labels": np.array([[0, 1], [2, 3]])}, r"labels: want whole numbers \[n\], n at least 1; got int64 \[2, 2\]"),
        ({"labels": np.array([], np.int64), "image": np.zeros((0, 1, 8, 8), np.float32)}, "n at least 1"),
        ({"labels": np.array(["a", "b", "c", "d"])}, "labels: want whole numbers"),
        ({"labels": np.array([object()] * 4)}, "cannot be read as npz"),  # a pickle, which would run code
    ],
)
def test_a_file_that_does_not_fit_says_what_it_wants_and_what_it_got(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_npz(write(tmp_path, **changes), IMAGE, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"image,label\n1,2\n"])
def test_a_file_that_is_no_npz_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"data.npz is no npz file"):
        read_npz(tmp_path / "data.npz", IMAGE, 10)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.npz is not there"):
        read_npz(tmp_path / "nowhere.npz", IMAGE, 10)


def test_the_digits_are_split_without_overlap_and_the_payload_is_their_held_out_part(held_out: Dataset) -> None:
    learn, judge = digits()
    assert (learn.num_samples, judge.num_samples) == (1347, 450)
    assert judge.digest == held_out.digest
    learnt = {image.tobytes() for image in learn.inputs["image"]}
    assert not any(image.tobytes() in learnt for image in judge.inputs["image"])
    assert judge.inputs["image"].min() == 0.0
    assert judge.inputs["image"].max() == 1.0


def test_the_digest_changes_with_any_value_name_or_label() -> None:
    def digest(**changes: Any) -> str:
        arrays = {**GOOD, **changes}
        return Dataset("x", {"image": arrays["image"]}, arrays["labels"]).digest

    other = GOOD["image"].copy()
    other[0, 0, 0, 0] = 1
    digests = {digest(), digest(image=other), digest(labels=GOOD["labels"][::-1]), digest(image=GOOD["image"][:, 0])}
    assert len(digests) == 4
