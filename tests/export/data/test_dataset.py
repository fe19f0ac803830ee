"""A dataset is its content: the same digest for the same arrays, another for any change."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from serving.errors import UserError
from serving.export.data.dataset import Dataset
from serving.export.data.reading import digits, read

IMAGES = np.zeros((4, 1, 8, 8), np.float32)
LABELS = np.array([0, 1, 2, 9])


def test_the_digits_are_split_without_overlap_and_the_payload_is_their_held_out_part(held_out: Dataset) -> None:
    learn, judge = digits()
    assert (learn.num_samples, judge.num_samples) == (1347, 450)
    assert judge.digest == held_out.digest
    learnt = {image.tobytes() for image in learn.inputs["image"]}
    assert not any(image.tobytes() in learnt for image in judge.inputs["image"])
    assert judge.inputs["image"].min() == 0.0
    assert judge.inputs["image"].max() == 1.0


def test_the_digest_changes_with_any_value_name_type_or_label() -> None:
    other = IMAGES.copy()
    other[0, 0, 0, 0] = 1
    digests = {
        Dataset("x", inputs, labels).digest
        for inputs, labels in [
            ({"image": IMAGES}, LABELS),
            ({"image": IMAGES}, None),
            ({"image": IMAGES}, LABELS[::-1]),
            ({"image": other}, LABELS),
            ({"picture": IMAGES}, LABELS),
            ({"image": IMAGES[:, 0]}, LABELS),
            ({"image": IMAGES.astype(np.float16)}, LABELS),
        ]
    }
    assert len(digests) == 7


def test_the_digest_is_of_the_content_alone() -> None:
    arrays = {"b": np.arange(6).reshape(3, 2)[:, ::-1], "a": np.ones((3, 1), np.float32)}
    same = {"a": arrays["a"].copy(), "b": np.ascontiguousarray(arrays["b"])}
    assert Dataset("one", arrays, None).digest == Dataset("another", same, None, "texts").digest


@settings(max_examples=30, deadline=None)
@given(st_numpy.arrays(st.sampled_from(["<f4", "<i8", "<f2", "|b1", "<U3"]), st_numpy.array_shapes(max_dims=3)))
def test_the_digest_is_sha256_over_the_bytes(values: Any) -> None:
    told = f"x {values.dtype.str} {values.shape}\n".encode()
    assert Dataset("x", {"x": values}, None).digest == hashlib.sha256(told + values.tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [({}, None), ({"a": IMAGES[:0]}, None), ({"a": IMAGES}, LABELS[:3]), ({"a": IMAGES, "b": IMAGES[:2]}, None)],
)
def test_arrays_of_different_lengths_are_no_dataset(inputs: Any, labels: Any) -> None:
    with pytest.raises(UserError, match=r"number.*1"):
        Dataset("x", inputs, labels)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.npz", "is not there"),
        ("nowhere.csv", "is not there"),
        ("nowhere", "is not there; give an .npz file, a folder of images"),
        (
            "notes.txt",
            r"cannot be read: its kind is unknown; give an \.npz file, a folder of images, or a \.csv or \.jsonl",
        ),
    ],
)
def test_what_no_reader_reads_says_what_is_read(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=says):
        read(tmp_path / name, (), 10)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, float("nan")])
def test_a_threshold_that_makes_no_sense_says_so(tmp_path: Path, ratio: float) -> None:
    with pytest.raises(UserError, match="max_bad_ratio is"):
        read(tmp_path, (), 10, max_bad_ratio=ratio)
