"""Texts -> token ids, with the model's own tokenizer file, cut and padded as its preprocessing says.

Rows of a dataset have one length, the longest text's, because they are one array; a client pads to the longest of a batch,
and the mask makes both the same to the model. Tables of texts are elsewhere. Rule: what the tokenizer's file says of
cutting and padding is overruled by the preprocessing, which is what clients are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from serving.errors import UserError
from serving.export.data.dataset import MAX_BYTES
from serving.export.progress import Progress, silent
from serving.repository.preprocessing import TextPreprocessing
from serving.repository.record import nearest

# the tokenizer's word -> the attribute of an encoding, and what a padded place holds (None: `pad_token_id`)
WORDS: Mapping[str, tuple[str, int | None]] = {
    "input_ids": ("ids", None),
    "attention_mask": ("attention_mask", 0),
    "token_type_ids": ("type_ids", 0),
}
_CHUNK = 256  # texts between two steps of the progress


def encode(
    tokenizer: bytes,
    preprocessing: TextPreprocessing,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    length: int | None = None,
    progress: Progress = silent,
) -> dict[str, NDArray[np.int64]]:
    """Model input -> int64 [n, length]. `pairs`: the second text of each row. `length` None: the longest text's."""
    for word in preprocessing.inputs:
        if word not in WORDS:
            raise UserError(f"preprocessing: the tokenizer makes no {word!r}{nearest(word, WORDS)}")
    limit = preprocessing.max_length if length is None else min(length, preprocessing.max_length)
    encoded = _encoded(_opened(tokenizer, limit), texts, pairs, progress)
    longest = max(len(one.ids) for one in encoded)
    if longest > limit:
        raise UserError(f"the model's tokenizer does not cut texts to {limit} tokens: its own marks need more")
    longest = length or longest
    if len(texts) * longest * 8 * len(preprocessing.inputs) > MAX_BYTES:
        raise UserError(f"{len(texts)} texts of up to {longest} tokens are more than {MAX_BYTES >> 30} GiB; give fewer")
    arrays = {}
    for word, name in preprocessing.inputs.items():
        attribute, padding = WORDS[word]
        rows = np.full((len(texts), longest), preprocessing.pad_token_id if padding is None else padding, np.int64)
        for row, one in zip(rows, encoded, strict=True):
            values = getattr(one, attribute)
            row[: len(values)] = values
        arrays[name] = rows
    return arrays


def _opened(tokenizer: bytes, limit: int) -> Tokenizer:
    try:
        opened = Tokenizer.from_str(tokenizer.decode("utf-8"))
        opened.no_padding()
        opened.enable_truncation(max_length=limit)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the model's tokenizer file cannot be used: {_first_line(error)}") from None
    return opened


def _encoded(tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, progress: Progress) -> list[Any]:
    rows: list[Any] = list(texts if pairs is None else zip(texts, pairs, strict=True))
    encoded: list[Any] = []
    for start in range(0, len(rows), _CHUNK):
        progress("reading texts", start, len(rows))
        try:
            encoded += tokenizer.encode_batch(rows[start : start + _CHUNK])
        except Exception as error:
            raise UserError(f"the model's tokenizer does not take these texts: {_first_line(error)}") from None
    progress("reading texts", len(rows), len(rows))
    return encoded


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
