"""Texts become the ids that the model's own tokenizer gives, cut and padded as its preprocessing says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from serving.errors import UserError
from serving.preprocessing.texts import MAX_CHARACTERS_PER_TOKEN, TextTokenizer, TooLong, open_tokenizer, padded
from serving.repository.preprocessing import TextPreprocessing

VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"])}
PREPROCESSING = TextPreprocessing(
    tokenizer="tokenizer.json",
    inputs={"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"},
    max_length=6,
    pad_token_id=0,
    pooling="mean",
    is_normalised=True,
)


def tokenizer(template: str = "[CLS] $A [SEP]", *, limit: int | None = None) -> bytes:
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    if limit is not None:
        made.enable_truncation(limit)
        made.enable_padding(length=limit)
    return str(made.to_str()).encode()


def opened(template: str = "[CLS] $A [SEP]") -> TextTokenizer:
    return TextTokenizer(tokenizer(template), PREPROCESSING)


def test_texts_become_ids_with_the_models_marks() -> None:
    assert opened().ids(["a b", "", "zebra"], cut=False) == [[2, 4, 5, 3], [2, 3], [2, 1, 3]]


def test_what_the_file_says_of_cutting_and_padding_does_not_count() -> None:
    text = "a b c d a b c d"
    assert len(open_tokenizer(tokenizer(limit=3)).encode(text).ids) == 10


def test_a_text_that_is_too_long_is_refused_with_its_tokens() -> None:
    with pytest.raises(TooLong, match=r"1.*7.*tokens.*6") as caught:
        opened().ids(["a", "a b c d a"], cut=False)
    assert caught.value.index == 1


def test_a_text_that_is_cut_keeps_its_last_mark_as_the_tokenizer_cuts() -> None:
    assert opened().ids(["a b c d a", "b"], cut=True) == [[2, 4, 5, 6, 7, 3], [2, 5, 3]]


def test_a_text_of_too_many_characters_is_not_read_to_its_end() -> None:
    most = PREPROCESSING.max_length * MAX_CHARACTERS_PER_TOKEN
    assert opened().ids(["a" + " " * (most - 1)], cut=False) == [[2, 4, 3]]
    with pytest.raises(TooLong, match=rf"0.*{most + 1}.*characters.*6"):
        opened().ids(["a" + " " * most], cut=False)
    assert opened().ids(["a" + " " * most + "b"], cut=True) == [[2, 4, 3]]


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ([4, 5], [2, 4, 5, 3]),
        ([2, 4, 5, 3], [2, 4, 5, 3]),
        ([2, 4], [2, 4, 3]),
        ([4, 3], [2, 4, 3]),
        ([4, 5, 6, 7], [2, 4, 5, 6, 7, 3]),
    ],
)
def test_ids_get_the_marks_that_they_lack(given: list[int], whole: list[int]) -> None:
    assert opened().marked([given], cut=False) == [whole]


@pytest.mark.parametrize(
    ("template", "whole"), [("$A [SEP]", [4, 5, 3]), ("[CLS] $A", [2, 4, 5]), ("$A", [4, 5]), ("[CLS] [CLS] $A", [2, 2, 4, 5])]
)  # fmt: skip
def test_marks_are_those_of_the_tokenizer(template: str, whole: list[int]) -> None:
    assert opened(template).marked([[4, 5]], cut=False) == [whole]


def test_ids_that_are_too_long_are_refused_or_cut_between_their_marks() -> None:
    with pytest.raises(TooLong, match="text 0 has 7 tokens"):
        opened().marked([[4, 5, 6, 7, 4]], cut=False)
    assert opened().marked([[4, 5, 6, 7, 4]], cut=True) == [[2, 4, 5, 6, 7, 3]]


def test_the_number_of_ids_is_one_more_than_the_highest() -> None:
    assert opened().num_ids == len(VOCABULARY)


@pytest.mark.parametrize(
    ("template", "types"), [("[CLS] $A [SEP]", None), ("[CLS]:0 $A:1 [SEP]:2", [[0, 1, 1, 2]]), ("$A:1", [[1, 1, 1, 1]])]
)  # fmt: skip
def test_types_of_tokens_are_the_templates(template: str, types: list[list[int]] | None) -> None:
    assert opened(template).types([[2, 4, 5, 3]]) == types


def test_rows_are_padded_on_the_right_and_the_mask_says_where() -> None:
    rows: Sequence[Sequence[int]] = [[2, 4, 3], [2, 4, 5, 6, 3]]
    arrays = padded(PREPROCESSING, rows, [[0, 1, 1], [0, 1, 1, 1, 1]], 6)
    np.testing.assert_array_equal(arrays["ids"], [[2, 4, 3, 0, 0, 0], [2, 4, 5, 6, 3, 0]])
    np.testing.assert_array_equal(arrays["mask"], [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(arrays["types"], [[0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]])
    assert all(values.dtype == np.int64 for values in arrays.values())


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1]"])
def test_a_broken_tokenizer_file_is_said_to_be_one(data: bytes) -> None:
    with pytest.raises(UserError, match=r"tokenizer.*file"):
        TextTokenizer(data, PREPROCESSING)
