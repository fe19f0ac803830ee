"""From the words of a campaign file to what is sent: real texts and photographs, as the files beside the model say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from loadtest.errors import PayloadError
from loadtest.records import Payload
from loadtest.sending import inputs
from loadtest.sending.prepared import SENTENCES, RequestSource, prepare

TEXT: dict[str, Any] = {
    "name": "words",
    "inputs": [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("ids", "attention_mask")],
    "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 4]}],
}
IMAGE: dict[str, Any] = {
    "name": "net",
    "inputs": [{"name": "pixels", "datatype": "FP32", "shape": [-1, 3, 32, 48]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
}
DIGIT: dict[str, Any] = {
    "name": "digits",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
}


def words(repository: Path, **changes: Any) -> Path:
    """A model of texts, with a tokenizer of one id a word."""
    folder = repository / "words-fp32"
    folder.mkdir(parents=True)
    spoken = sorted({word for line in SENTENCES.read_text().splitlines() for word in line.split()})
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{word: number + 2 for number, word in enumerate(spoken)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    inputs = {"input_ids": "ids", "attention_mask": "attention_mask"}
    told = {"version": 1, "kind": "text", "tokenizer": "tokenizer.json", "inputs": inputs, "max_length": 64}
    told |= {"pad_token_id": 0, "pooling": "mean", "is_normalised": True, **changes}
    (folder / "preprocessing.json").write_text(json.dumps(told))
    return repository


def net(repository: Path, **changes: Any) -> Path:
    (repository / "net-fp32").mkdir(parents=True)
    told = {"version": 1, "kind": "image", "input": "other", "height": 32, "width": 48, "resize_shortest": None}
    told |= {
        "interpolation": "bilinear",
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "mode": "RGB",
        "scores": "none",
        **changes,
    }
    (repository / "net-fp32" / "preprocessing.json").write_text(json.dumps(told))
    return repository


def made(
    data: str, metadata: dict[str, Any], folder: Path, repository: Path | None = None, **more: Any
) -> RequestSource:
    asked = Payload(data, more.pop("encoding", "json"), more.pop("batch_size", 1), **more)
    return prepare(asked, metadata["name"], metadata, folder, repository, seed=1)


def test_texts_are_distinct_of_mixed_length_and_in_the_same_order_for_a_seed(tmp_path: Path) -> None:
    first, again = (made("texts", TEXT, tmp_path, words(tmp_path / name)) for name in "ab")
    lengths = first.given.arrays["attention_mask"].sum(axis=1)
    assert first.payload.num_distinct == first.given.num_inputs == len(SENTENCES.read_text().splitlines())
    assert (lengths.min(), lengths.max()) == (2, 64)  # cut as the model says
    assert abs(lengths[:40].mean() - lengths.mean()) < 10  # not from short to long, as they are written
    assert first.payload.digest == again.payload.digest
    assert "mixed length" in first.payload.what
    other = prepare(Payload("texts", "json", 1), "words", TEXT, tmp_path, tmp_path / "a", seed=2)
    assert other.payload.digest != first.payload.digest


def test_the_first_body_is_one_row_without_padding(tmp_path: Path) -> None:
    given = made("texts", TEXT, tmp_path, words(tmp_path / "r"))
    (ids, mask) = json.loads(given.first.data)["inputs"]
    assert ids["shape"] == mask["shape"] == [1, int(given.given.arrays["attention_mask"][0].sum())]
    assert set(mask["data"]) == {1}


def test_texts_of_ones_own_are_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("Too cold.\n\nTurn the handle\nToo cold.\n")
    given = made("mine.txt", TEXT, tmp_path, words(tmp_path / "r"))
    assert given.given.num_inputs == 2
    assert given.payload.what == "texts of mine.txt"


def test_the_campaigns_own_repository_goes_before_the_commands(tmp_path: Path) -> None:
    words(tmp_path / "here")
    assert made("texts", TEXT, tmp_path, tmp_path, model_repository="here").given.num_inputs > 200


@pytest.mark.parametrize(("data", "metadata"), [("texts", TEXT), ("photographs", IMAGE)])
def test_a_repository_that_is_not_there_is_told_and_nothing_is_made_up(
    tmp_path: Path, data: str, metadata: Any
) -> None:
    with pytest.raises(PayloadError, match=r"--model-repository.*directory"):
        made(data, metadata, tmp_path, tmp_path / "gone")


@pytest.mark.thorough
def test_photographs_are_scaled_and_cut_as_the_model_says(tmp_path: Path) -> None:
    given = made("photographs", IMAGE, tmp_path, net(tmp_path / "r"), encoding="binary", batch_size=2)
    pixels = given.given.arrays["pixels"]
    assert pixels.shape[1:] == (3, 32, 48)
    assert pixels.dtype == np.float32
    assert given.payload.num_distinct == len(pixels) == 64
    assert -2.0 <= pixels.min() < -1.0
    assert 1.0 < pixels.max() <= 2.0  # (0..1 − 0.5) / 0.25
    assert given.payload.remark is None


def test_photographs_for_a_model_that_says_nothing_are_scaled_as_most_are_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MIN_INPUTS", 4)
    monkeypatch.setitem(inputs.MAX_BYTES, "json", 1)
    given = made("photographs", image([-1, 3, 260, 260]), tmp_path, tmp_path)  # so large that the fewest are enough
    assert given.given.num_inputs == 4
    assert re.search(r"preprocessing\.json .*net: .*ImageNet", given.payload.remark)


def image(shape: list[int]) -> dict[str, Any]:
    return IMAGE | {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": shape}]}


@pytest.mark.parametrize(
    ("data", "metadata", "problem"),
    [
        ("photographs", DIGIT, "photographs need a model of one FP32 image [3, H, W]; digits takes 'image' FP32 [1, 8, 8]"),
        ("photographs", TEXT, "photographs need a model of one FP32 image [3, H, W]; words takes 'ids' INT64 [-1], 'attention_mask' INT64 [-1]"),
        ("photographs", image([-1, 3, -1, -1]), "net takes images of any size, and no preprocessing.json says of which"),
        ("texts", DIGIT, "texts: no preprocessing.json of digits in "),
        ("digits", TEXT, "digits are one FP32 input; "),
        ("digits", IMAGE, "a digit has 64 values; the model takes [3, 32, 48]"),
        ("gone.npz", DIGIT, "gone.npz is not there"),
        ("gone.txt", TEXT, "gone.txt: No such file"),
        ("random", DIGIT | {"outputs": []}, "digits has 1 inputs and 0 outputs"),
        ("random", {"name": "x", "inputs": [{"name": "t", "datatype": "BYTES", "shape": [-1, 1]}], "outputs": [{}]}, "x takes BYTES as 't'"),
        ("random", IMAGE | {"inputs": [{"name": "p", "datatype": "FP16", "shape": [-1, 3]}]}, "input 'p' is FP16, which JSON does not carry"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_for_a_model_is_refused_and_says_why(
    tmp_path: Path, data: str, metadata: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PayloadError) as error:
        made(data, metadata, tmp_path, tmp_path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    words(tmp_path / "a").joinpath("words-fp32").rename(tmp_path / "a" / "net-fp32")
    net(tmp_path / "b").joinpath("net-fp32").rename(tmp_path / "b" / "words-fp32")
    with pytest.raises(PayloadError, match=r"images.*photographs"):
        made("photographs", IMAGE, tmp_path, tmp_path / "a")
    with pytest.raises(PayloadError, match=r"preprocessing\.json.*images"):
        made("texts", TEXT, tmp_path, tmp_path / "b")


def test_files_beside_the_model_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=r"images.*32×99.*\[3, 32, 48\]"):
        made("photographs", IMAGE, tmp_path, net(tmp_path / "a", width=99))
    with pytest.raises(PayloadError, match=r"model.*'id'.*'ids'"):
        made("texts", TEXT, tmp_path, words(tmp_path / "b", inputs={"input_ids": "id"}))
    with pytest.raises(PayloadError, match=r"nobody\.json.*read"):
        made("texts", TEXT, tmp_path, words(tmp_path / "c", tokenizer="nobody.json"))
    with pytest.raises(PayloadError, match="unknown key 'poolling'"):
        made("texts", TEXT, tmp_path, words(tmp_path / "d", poolling="mean"))
    (words(tmp_path / "e") / "words-fp32" / "tokenizer.json").write_text("{}")
    with pytest.raises(PayloadError, match=r"tokenizer.*file"):
        made("texts", TEXT, tmp_path, tmp_path / "e")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(PayloadError, match=r"empty\.txt.*holds"):
        made("empty.txt", TEXT, tmp_path, words(tmp_path / "f"))


def test_too_few_inputs_for_a_batch_are_told_before_anything_runs(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", image=np.zeros((3, 1, 8, 8), np.float32))
    with pytest.raises(PayloadError, match=r"3.*inputs.*4"):
        made("few.npz", DIGIT, tmp_path, batch_size=4)
    whole = made("few.npz", DIGIT, tmp_path, batch_size=3)
    assert (whole.payload.what, whole.payload.num_distinct) == ("inputs of few.npz", 1)


def test_random_inputs_say_their_length_only_where_the_model_leaves_it_open(tmp_path: Path) -> None:
    of_seven, fixed = made("random", TEXT, tmp_path, length=7).payload, made("random", DIGIT, tmp_path).payload
    assert of_seven.what.endswith(" length 7")
    assert "length" not in fixed.what
