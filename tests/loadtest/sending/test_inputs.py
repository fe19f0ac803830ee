"""What is sent fits the model, differs from request to request, and is the same again for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.errors import PayloadError
from loadtest.sending.bodies import NUMPY_TYPES, Body, Signature, Tensor
from loadtest.sending.inputs import DIGITS, Inputs, batches, bodies, digits, fitted, named, noise, read_npz, share

IMAGE = Signature((Tensor("image", "FP32", (1, 8, 8)),), "probabilities")
TEXTS = Signature(
    (
        Tensor("input_ids", "INT64", (-1,)),
        Tensor("attention_mask", "INT64", (-1,)),
        Tensor("token_type_ids", "INT64", (-1,)),
    ),
    "embedding",
)


def test_digits_are_real_labelled_and_of_the_models_shape() -> None:
    given = digits(IMAGE)
    assert given.labels is not None
    pixels = given.arrays["image"]
    assert pixels.shape == (len(given.labels), 1, 8, 8)
    assert pixels.dtype == np.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    assert set(given.labels.tolist()) == set(range(10))
    assert given.num_distinct == given.num_inputs == 450


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            Signature((Tensor("x", "FP32", (3, 224, 224)),), "y"),
            r"a digit has 64 values; the model takes \[3, 224, 224\]",
        ),
        (Signature((Tensor("x", "FP32", (-1,)),), "y"), r"a digit has 64 values; the model takes \[-1\]"),
        (
            Signature((Tensor("x", "INT64", (64,)),), "y"),
            r"digits are one FP32 input; the model takes 'x' INT64 \[64\]",
        ),
        (TEXTS, "digits are one FP32 input; the model takes 'input_ids' INT64"),
    ],
)
def test_digits_for_a_model_that_takes_none_are_refused(model: Signature, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem):
        named("digits", model, "json", 1)


def test_random_inputs_are_the_same_for_a_seed_and_have_no_truth() -> None:
    first, again, other = (noise(IMAGE, "json", seed) for seed in (5, 5, 6))
    assert first.labels is None
    assert first.digest == again.digest != other.digest
    assert first.num_distinct == first.num_inputs >= 32


@pytest.mark.parametrize("datatype", sorted(NUMPY_TYPES))
def test_random_inputs_of_every_type_are_of_that_type(datatype: str) -> None:
    model = Signature((Tensor("x", datatype, (7,)),), "y")
    values = noise(model, "binary", 1).arrays["x"]
    assert values.dtype == np.dtype(NUMPY_TYPES[datatype])
    assert fitted({"x": values}, model, "noise").num_inputs == len(values)
    if values.dtype.kind in "iu" and datatype != "UINT8":
        assert 1 <= values.min() < values.max() <= 99


def test_random_texts_are_ids_with_nothing_masked_and_of_the_length_that_was_asked_for() -> None:
    arrays = noise(TEXTS, "json", 1, length=9).arrays
    assert {values.shape[1:] for values in arrays.values()} == {(9,)}
    assert arrays["attention_mask"].all()
    assert not arrays["token_type_ids"].any()
    assert arrays["input_ids"].min() >= 1
    assert noise(TEXTS, "json", 1).arrays["input_ids"].shape[1:] == (128,)


def test_large_inputs_are_as_many_as_memory_should_hold_and_never_too_few_for_a_batch() -> None:
    photograph = Signature((Tensor("x", "FP32", (3, 260, 260)),), "y")
    assert noise(photograph, "binary", 1).num_inputs == 78
    assert noise(photograph, "json", 1).num_inputs == 32


def npz(file: Path, **arrays: Any) -> str:
    np.savez(file, **arrays)
    return str(file)


IDS = np.array([[5, 6, 0], [7, 0, 0], [8, 9, 3]])
MASK = (IDS > 0).astype(np.int64)


def test_an_npz_is_read_by_the_models_input_names_and_comes_back(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", input_ids=IDS, attention_mask=MASK, token_type_ids=0 * IDS, labels=[2, 0, 1])
    given = named(file, TEXTS, "json", 1)
    assert (given.num_inputs, given.num_distinct) == (3, 3)
    assert given.labels is not None
    assert given.labels.tolist() == [2, 0, 1]
    given.write(tmp_path / "b.npz")
    assert read_npz(tmp_path / "b.npz", TEXTS).digest == given.digest
    assert read_npz(DIGITS, IMAGE).digest == digits(IMAGE).digest


def test_the_same_row_twice_is_told_as_one() -> None:
    assert Inputs({"x": np.zeros((5, 2))}, None).num_distinct == 1


X = {"image": np.zeros((2, 1, 8, 8), np.float32)}


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"imgae": X["image"]}, "f: the model has no input 'imgae'; did you mean 'image'?"),
        ({"zz": X["image"]}, "f: the model has no input 'zz'; known are image"),
        ({}, "f: no array for the model's input 'image'"),
        ({"labels": np.array([1, 2])}, "f: no array for the model's input 'image'"),
        ({"image": np.zeros((2, 8, 8))}, "f: 'image' is [8, 8] a row; the model takes [1, 8, 8]"),
        ({"image": np.zeros((2, 1, 8, 9))}, "f: 'image' is [1, 8, 9] a row; the model takes [1, 8, 8]"),
        ({"image": np.float32(3)}, "f: every input needs as many rows as the others, at least one; there are of 'image' 0"),
        ({"image": np.zeros((0, 1, 8, 8))}, "f: every input needs as many rows as the others, at least one; there are of 'image' 0"),
        ({"image": np.full((2, 1, 8, 8), "a")}, "f: 'image' holds <U1; the model takes FP32"),
        ({**X, "labels": np.array([1, 2, 3])}, "f: 'labels' must be 2 whole numbers, one for each row"),
        ({**X, "labels": np.array(["a", "b"])}, "f: 'labels' must be 2 whole numbers, one for each row"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_the_model_are_refused(arrays: dict[str, Any], problem: str) -> None:
    with pytest.raises(PayloadError) as error:
        fitted(arrays, IMAGE, "f")
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("datatype", "values", "problem"),
    [
        ("INT64", np.array([[0.5]]), "f: 'x' holds float64; the model takes INT64"),
        ("UINT8", np.array([[300]]), "f: 'x' holds numbers that UINT8 has not"),
        ("INT32", np.array([[2**40]]), "f: 'x' holds numbers that INT32 has not"),
        ("BOOL", np.array([[1]]), "f: 'x' holds int64; the model takes BOOL"),
        ("INT64", np.array([[True]]), "f: 'x' holds bool; the model takes INT64"),
    ],
)
def test_numbers_that_would_change_are_refused(datatype: str, values: Any, problem: str) -> None:
    with pytest.raises(PayloadError) as error:
        fitted({"x": values}, Signature((Tensor("x", datatype, (1,)),), "y"), "f")
    assert str(error.value) == problem


def test_inputs_of_different_lengths_are_refused() -> None:
    arrays = {"input_ids": IDS, "attention_mask": MASK[:2], "token_type_ids": IDS}
    with pytest.raises(PayloadError, match="'input_ids' 3, 'attention_mask' 2, 'token_type_ids' 3"):
        fitted(arrays, TEXTS, "f")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "is not there"), (b"text", "is no npz file"), (b"PK\x05\x06" + bytes(18), "no array for")],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "a.npz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PayloadError, match=rf"a\.npz.* {problem}"):
        read_npz(file, IMAGE)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=r"read.*npz"):
        read_npz(Path(npz(tmp_path / "a.npz", image=np.array([object()], dtype=object))), IMAGE)


def test_scores_instead_of_classes_are_no_labels() -> None:
    assert fitted({**X, "labels": np.array([0.5, 1.5])}, IMAGE, "f").labels is None


def test_batches_are_whole_and_keep_their_labels() -> None:
    given = digits(IMAGE)
    made = bodies(IMAGE, given, "json", 7)
    assert given.labels is not None
    assert len(made) == given.num_inputs // 7
    assert made[1].labels == tuple(given.labels[7:14].tolist())
    with pytest.raises(ValueError, match=r"450.*inputs.*451"):
        bodies(IMAGE, given, "json", 451)


@pytest.mark.parametrize(("num_inputs", "num_parts"), [(5, 1), (5, 2), (6, 2), (3, 4), (1, 3)])
def test_several_processes_send_together_what_one_would_send_alone(num_inputs: int, num_parts: int) -> None:
    made = [Body(bytes([number]), None, ()) for number in range(num_inputs)]
    shares = [share(made, part, num_parts) for part in range(num_parts)]
    together = [shares[number % num_parts][number // num_parts % num_inputs] for number in range(4 * num_inputs)]
    assert together == made * 4


def test_padding_that_no_row_of_a_batch_needs_is_not_sent() -> None:
    given = fitted({"input_ids": IDS, "attention_mask": MASK, "token_type_ids": 0 * IDS}, TEXTS, "f")
    lengths = [{values.shape for values in batch.values()} for batch, _ in batches(TEXTS, given, 1)]
    assert lengths == [{(1, 2)}, {(1, 1)}, {(1, 3)}]
    (pair,) = [batch for batch, _ in batches(TEXTS, given, 2)]
    assert pair["input_ids"].tolist() == [[5, 6], [7, 0]]


def test_what_has_a_fixed_length_or_no_mask_is_sent_whole() -> None:
    fixed = Signature((Tensor("ids", "INT64", (3,)), Tensor("mask", "INT64", (3,))), "y")
    bare = Signature((Tensor("ids", "INT64", (-1,)),), "y")
    pair = fitted({"ids": IDS, "mask": MASK}, fixed, "f")
    assert {v.shape for batch, _ in batches(fixed, pair, 1) for v in batch.values()} == {(1, 3)}
    assert {v.shape for batch, _ in batches(bare, fitted({"ids": IDS}, bare, "f"), 1) for v in batch.values()} == {
        (1, 3)
    }


def test_a_row_that_is_masked_whole_keeps_one_place() -> None:
    given = fitted({"input_ids": IDS, "attention_mask": 0 * IDS, "token_type_ids": 0 * IDS}, TEXTS, "f")
    assert next(batches(TEXTS, given, 3))[0]["input_ids"].shape == (3, 1)
