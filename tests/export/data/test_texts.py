"""Texts in tables: tokens as the model's own tokenizer makes them, and every broken line named by its number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from serving.errors import UserError
from serving.export.data import texts
from serving.export.data.dataset import Dataset
from serving.export.data.reading import read
from serving.repository import Tensor
from serving.repository.preprocessing import ImagePreprocessing, TextPreprocessing

WORDS = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "grüße"])}
HOW = TextPreprocessing(
    tokenizer="tokenizer.json",
    inputs={"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"},
    max_length=8,
    pad_token_id=0,
    pooling="mean",
    is_normalised=True,
)
INPUTS = tuple(Tensor(name, "INT64", (-1,)) for name in ("ids", "mask", "types"))
CSV = "text,label\na b,cat\nc,dog\n"


def tokenizer_file() -> bytes:
    """Words between [CLS] and [SEP]; pads to 128 and cuts at 4 by itself, which the preprocessing overrules."""
    made = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_padding(length=128, pad_id=1, direction="left")
    made.enable_truncation(max_length=4)
    return made.to_str().encode()


TOKENIZER = tokenizer_file()


def read_it(path: Path, content: str | bytes, **changes: Any) -> Dataset:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    options = {"labels": ("cat", "dog"), "preprocessing": HOW, "beside": {"tokenizer.json": TOKENIZER}, **changes}
    return read(path, options.pop("inputs", INPUTS), options.pop("num_labels", 2), **options)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_texts_become_ids_mask_and_types_padded_on_the_right_to_the_longest(tmp_path: Path) -> None:
    data = read_it(tmp_path / "x.csv", CSV)
    assert data.inputs["ids"].tolist() == [[2, 4, 5, 3], [2, 6, 3, 0]]
    assert data.inputs["mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert data.inputs["types"].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert data.labels is not None
    assert (data.labels.tolist(), data.kind, data.name) == ([0, 1], "texts", "x.csv")
    assert {values.dtype for values in data.inputs.values()} == {np.dtype(np.int64)}


def test_csv_and_jsonl_give_the_same(tmp_path: Path) -> None:
    rows = lines({"text": "a b", "label": "cat", "id": 7}, {"text": "c", "label": 1})
    assert read_it(tmp_path / "x.jsonl", rows).digest == read_it(tmp_path / "x.csv", CSV).digest


def test_columns_in_another_order_others_beside_them_quotes_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    content = '\ufeffid,label,text\r\n1,cat,"a\nb"\r\n2,dog,c\r\n\r\n'
    assert read_it(tmp_path / "x.csv", content).digest == read_it(tmp_path / "y.csv", CSV).digest


def test_pairs_are_two_texts_of_one_row(tmp_path: Path) -> None:
    data = read_it(
        tmp_path / "x.jsonl", lines({"text": "a", "text_pair": "grüße b"}, {"text": "a b", "text_pair": "c"})
    )
    assert data.inputs["ids"].tolist() == [[2, 4, 3, 7, 5, 3], [2, 4, 5, 3, 6, 3]]
    assert data.inputs["types"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert data.labels is None


def test_long_texts_are_cut_and_the_padding_is_the_models(tmp_path: Path) -> None:
    data = read_it(
        tmp_path / "x.csv", "text\na b c a b c\na\n", preprocessing=replace(HOW, max_length=5, pad_token_id=9)
    )
    assert data.inputs["ids"].tolist() == [[2, 4, 5, 6, 3], [2, 4, 3, 9, 9]]


def test_a_model_of_one_length_and_of_32_bits_gets_that(tmp_path: Path) -> None:
    fixed = tuple(Tensor(tensor.name, "INT32", (6,)) for tensor in INPUTS)
    data = read_it(tmp_path / "x.csv", "text\na\na b c a b c\n", inputs=fixed)
    assert data.inputs["ids"].tolist() == [[2, 4, 3, 0, 0, 0], [2, 4, 5, 6, 4, 3]]
    assert data.inputs["ids"].dtype == np.int32


def test_an_input_that_the_model_does_not_take_is_left_off(tmp_path: Path) -> None:
    two = replace(HOW, inputs={"input_ids": "ids", "attention_mask": "mask"})
    assert set(read_it(tmp_path / "x.csv", CSV, preprocessing=two, inputs=INPUTS[:2]).inputs) == {"ids", "mask"}


def test_labels_of_a_model_without_classes_are_numbers(tmp_path: Path) -> None:
    data = read_it(tmp_path / "x.csv", "text,label\na,4.5\nb,-1\n", labels=None, num_labels=None)
    assert data.labels is not None
    assert data.labels.tolist() == [4.5, -1.0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.csv", "", "line 1: column 'text' is missing; there are none"),
        ("x.csv", "sentence,label\na,cat\n", "line 1: column 'text' is missing; there are sentence, label"),
        ("x.csv", "text,lable\na,cat\n", "line 1: unknown column 'lable'; did you mean 'label'"),
        ("x.csv", "Text\na\n", "line 1: unknown column 'Text'; did you mean 'text'"),
        ("x.csv", "text,text_pairs\na,b\n", "line 1: unknown column 'text_pairs'; did you mean 'text_pair'"),
        ("x.csv", "text,text\na,b\n", "line 1: column 'text' appears twice"),
        ("x.csv", "text\n", "holds no text"),
        ("x.csv", "text,label\na,cat\nb\n", "line 3: want 2 values as in the header, got 1"),
        ("x.csv", "text,label\na,cat\nb,c,dog\n", "line 3: want 2 values as in the header, got 3"),
        ("x.csv", 'text,label\na,cat\n"b,dog\n', "line 3: unexpected end of data"),
        ("x.csv", "text,label\na,cat\n ,dog\n", "line 3: text is no text"),
        ("x.csv", "text,label\na,cat\nb,\n", "line 3: label is missing, and other lines have one"),
        ("x.csv", "text,label\na,cat\nb,cow\n", "line 3: unknown label 'cow'; known are cat, dog"),
        ("x.csv", "text,label\na,cat\nb,2\n", r"line 3: label 2 is outside 0\.\.1"),
        ("x.csv", b"text\na\ngr\xfc\xdfe\n", "line 3: byte 3 is not UTF-8; save the file as UTF-8"),
        ("x.csv", "text\na\n".encode("utf-16"), "line 1: byte 1 is not UTF-8"),
        ("x.jsonl", "", "holds no text"),
        ("x.jsonl", '{"text": "a"}\n{"text": "b"\n', r"line 2 is not JSON: "),
        ("x.jsonl", '{"text": "a"}\n\n["b"]\n', r"line 3: want an object with the key 'text'"),
        ("x.jsonl", '{"text": "a"}\n{"texts": "b"}\n', "line 2: unknown column 'texts'; did you mean 'text'"),
        ("x.jsonl", '{"text": "a"}\n{"id": 1}\n', "line 2: column 'text' is missing; there are id"),
        ("x.jsonl", '{"text": "a", "id": 1}\n{"id": 1}\n', "line 2: text is missing"),
        ("x.jsonl", '{"text": ""}\n', "line 1: text is empty"),
        ("x.jsonl", '{"text": ["a"]}\n', "line 1: text is no text"),
        ("x.jsonl", '{"text": "a", "text_pair": 4}\n', "line 1: text_pair is no text"),
        ("x.jsonl", '{"text": "a", "text_pair": "b"}\n{"text": "a"}\n', "line 2: text_pair is missing, and other"),
        ("x.jsonl", '{"text": "a", "label": true}\n', "line 1: label is neither text nor a number"),
        ("x.jsonl", '{"text": "a", "label": 0.5}\n', "line 1: label 0.5 is neither the name nor the index of a class"),
        ("x.jsonl", b'{"text": "\xff"}\n', "line 1: byte 11 is not UTF-8"),
        ("x.jsonl", "[" * 100_000 + "\n", "line 1 is not JSON"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_it(tmp_path / name, content)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"preprocessing": None},
            "came without a tokenizer; give its inputs as .npz, an array for each: ids, mask, types, and labels",
        ),
        (
            {
                "preprocessing": ImagePreprocessing(
                    "i", 2, 2, None, "nearest", (0, 0, 0), (1, 1, 1), "RGB", "probabilities"
                )
            },
            "this model takes images; give its inputs as .npz",
        ),
        ({"beside": {}}, "the model's tokenizer.json is not there"),
        ({"beside": None}, "the model's tokenizer.json is not there"),
        ({"inputs": INPUTS[:2]}, "gives ids, mask, types, but the model takes ids, mask; give its inputs as .npz"),
        (
            {"inputs": (*INPUTS[:2], Tensor("types", "FP32", (-1,)))},
            r"whole numbers \[length\], but types is FP32 \[-1\]",
        ),
        ({"inputs": (*INPUTS[:2], Tensor("types", "INT64", (-1, 3)))}, r"but types is INT64 \[-1, 3\]"),
        ({"beside": {"tokenizer.json": b"{}"}}, "tokenizer file cannot be used: "),
        ({"beside": {"tokenizer.json": b"\xff"}}, "tokenizer file cannot be used: "),
        ({"preprocessing": replace(HOW, max_length=1)}, "the model's tokenizer "),
        (
            {
                "preprocessing": replace(HOW, inputs={**HOW.inputs, "input_id": "more"}),
                "inputs": (*INPUTS, Tensor("more", "INT64", (-1,))),
            },
            "the tokenizer makes no 'input_id'; did you mean 'input_ids'",
        ),
    ],
)
def test_a_model_that_texts_are_not_for_says_so(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_it(tmp_path / "x.csv", CSV, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", ["nan", "inf", "1e300", "9" * 400, "high"])
def test_labels_of_a_model_without_classes_are_numbers_that_can_be_kept(tmp_path: Path, label: str) -> None:
    with pytest.raises(UserError, match=r"line 3: label "):
        read_it(tmp_path / "x.csv", f"text,label\na,1\nb,{label}\n", labels=None, num_labels=None)


@pytest.mark.parametrize("label", ["NaN", "1e300", "9" * 400])
def test_numbers_of_json_are_checked_alike(tmp_path: Path, label: str) -> None:
    with pytest.raises(UserError, match=r"1.*number"):
        read_it(tmp_path / "x.jsonl", f'{{"text": "a", "label": {label}}}\n', labels=None, num_labels=None)


def test_more_tokens_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"5.*3.*tokens"):
        texts.encode(TOKENIZER, HOW, ["a"] * 5)


def test_a_row_means_the_same_alone_and_among_longer_ones() -> None:
    def row(together: Sequence[str]) -> list[int]:
        encoded = texts.encode(TOKENIZER, HOW, together)
        return [int(i) for i, mask in zip(encoded["ids"][0], encoded["mask"][0], strict=True) if mask]

    assert row(["a b"]) == row(["a b", "a b c a b c"])
