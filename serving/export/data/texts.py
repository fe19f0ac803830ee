"""Texts of a data set -> the arrays of token ids that a model takes, all of one length.

Rows have the longest text's length, because they are one array; a client pads to the longest of a batch, and the mask makes both the
same to the model. How a text becomes tokens is `preprocessing/`'s, tables of texts are elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.data.dataset import MAX_BYTES
from serving.export.progress import Progress, silent
from serving.preprocessing.texts import WORDS, open_tokenizer, padded, tokenized
from serving.repository.preprocessing import TextPreprocessing

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
    encoded = _encoded(tokenizer, limit, texts, pairs, progress)
    ids = [one.ids for one in encoded]
    longest = max(map(len, ids))
    if longest > limit:
        raise UserError(f"the model's tokenizer does not cut texts to {limit} tokens: its own marks need more")
    longest = length or longest
    if len(texts) * longest * 8 * len(preprocessing.inputs) > MAX_BYTES:
        raise UserError(f"{len(texts)} texts of up to {longest} tokens are more than {MAX_BYTES >> 30} GiB; give fewer")
    return padded(preprocessing, ids, [one.type_ids for one in encoded], longest)


def _encoded(
    tokenizer: bytes, limit: int, texts: Sequence[str], pairs: Sequence[str] | None, progress: Progress
) -> list[Any]:
    opened = open_tokenizer(tokenizer, limit)
    encoded: list[Any] = []
    for start in range(0, len(texts), _CHUNK):
        progress("reading texts", start, len(texts))
        part = slice(start, start + _CHUNK)
        encoded += tokenized(opened, texts[part], None if pairs is None else pairs[part])
    progress("reading texts", len(texts), len(texts))
    return encoded
