"""Texts -> token ids, and token ids -> what a model takes, with the model's own tokenizer file and as its preprocessing says.

Gates, load tests and the gateway all come here, so that a text is the same numbers to all of them. Rule: what the tokenizer's file says
of cutting and padding is overruled by the preprocessing, which is what clients are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.repository.preprocessing import TextPreprocessing

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
WORDS = (IDS, MASK, TYPES)  # that a tokenizer makes
# A text with more characters than this for each token that the model takes is not read to its end: it is too long, or mostly blanks and
# words that the tokenizer does not know, which take it longest. English has 4 to 5; a guess, not measured.
MAX_CHARACTERS_PER_TOKEN = 16

Arrays = dict[str, NDArray[np.int64]]


class TooLong(UserError):
    """Text number `index` has more tokens than the model takes. `size` says how many, or characters where nobody counted."""

    def __init__(self, index: int, size: str, limit: int) -> None:
        super().__init__(f"text {index} has {size}; the model takes {limit} tokens")
        self.index = index
        self.size = size
        self.limit = limit


def open_tokenizer(data: bytes, limit: int | None = None) -> Tokenizer:
    """Never pads; cuts to `limit` tokens, None: not at all. Raises UserError."""
    try:
        opened = Tokenizer.from_str(data.decode("utf-8"))
        opened.no_padding()
        if limit is None:
            opened.no_truncation()
        else:
            opened.enable_truncation(max_length=limit)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the model's tokenizer file cannot be used: {_first_line(error)}") from None
    return opened


def tokenized(tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Any]:
    """An encoding of each; `pairs` are the second texts. Raises UserError."""
    rows: list[Any] = list(texts if pairs is None else zip(texts, pairs, strict=True))
    try:
        return list(tokenizer.encode_batch_fast(rows))
    except Exception as error:
        raise UserError(f"the model's tokenizer does not take these texts: {_first_line(error)}") from None


def padded(
    preprocessing: TextPreprocessing,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None,
    length: int,
) -> Arrays:
    """Model input -> int64 [n, length], at least as long as the longest of `ids`. `types` None: every token is of type 0."""
    is_there = np.arange(length) < np.fromiter(map(len, ids), np.int64, len(ids))[:, None]
    arrays = {}
    for word, name in preprocessing.inputs.items():
        if word == MASK:
            arrays[name] = is_there.astype(np.int64)
        elif word == TYPES:
            arrays[name] = _filled(is_there, types, 0)
        elif word == IDS:
            arrays[name] = _filled(is_there, ids, preprocessing.pad_token_id)
        else:
            raise UserError(f"preprocessing: the tokenizer makes no {word!r}{nearest(word, WORDS)}")
    return arrays


def _filled(is_there: NDArray[np.bool_], rows: Sequence[Sequence[int]] | None, padding: int) -> NDArray[np.int64]:
    values = np.full(is_there.shape, padding, np.int64)
    if rows is not None:
        values[is_there] = np.fromiter(chain.from_iterable(rows), np.int64)
    return values


class TextTokenizer:
    """A model's tokenizer, opened once. Its methods may run on several threads at once."""

    def __init__(self, data: bytes, preprocessing: TextPreprocessing) -> None:
        """Raises UserError."""
        self.max_length = preprocessing.max_length
        self._tokenizer = open_tokenizer(data)
        self.num_ids = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        sample = tokenized(self._tokenizer, ["a"])[0]
        marks: list[int] = sample.special_tokens_mask
        first = next((i for i, is_mark in enumerate(marks) if not is_mark), len(marks))
        after = next((i for i, is_mark in enumerate(marks[first:], first) if is_mark), len(marks))
        self._before, self._behind = list(sample.ids[:first]), list(sample.ids[after:])
        if self.max_length <= len(self._before) + len(self._behind):
            raise UserError(f"the model takes {self.max_length} tokens, and its tokenizer's own marks are as many")
        types = sample.type_ids
        self._types = (types[:first], types[first:after][:1], types[after:]) if any(types) else None

    def ids(self, texts: Sequence[str], *, cut: bool) -> list[list[int]]:
        """Token ids of each, with the model's own marks. What is too long raises TooLong, or with `cut` is cut. Raises UserError."""
        most = self.max_length * MAX_CHARACTERS_PER_TOKEN
        for index, text in enumerate(texts):
            if len(text) > most and not cut:
                raise TooLong(index, f"{len(text)} characters", self.max_length)
        rows = [one.ids for one in tokenized(self._tokenizer, [text[:most] for text in texts])]
        return self._fitting(rows, cut=cut)

    def marked(self, rows: Sequence[list[int]], *, cut: bool) -> list[list[int]]:
        """Rows of this tokenizer's ids, each with the marks before and behind it that it lacks; for what is too long as `ids`."""
        before, behind = self._before, self._behind
        whole = []
        for given in rows:
            row = given if given[: len(before)] == before else before + given
            whole.append(row if not behind or row[-len(behind) :] == behind else row + behind)
        return self._fitting(whole, cut=cut)

    def _fitting(self, rows: list[list[int]], *, cut: bool) -> list[list[int]]:
        """As the tokenizer itself would cut: from the right, between its marks."""
        for index, row in enumerate(rows):
            if len(row) > self.max_length:
                if not cut:
                    raise TooLong(index, f"{len(row)} tokens", self.max_length)
                rows[index] = row[: self.max_length - len(self._behind)] + self._behind
        return rows

    def types(self, rows: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The type of each token; None where all are 0."""
        if self._types is None:
            return None
        before, inside, behind = self._types
        return [before + inside * (len(row) - len(before) - len(behind)) + behind for row in rows]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
