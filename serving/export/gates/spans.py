"""Spans of tokens: which named parts a tagger marks, and which part of a text answers a question.

Tags are read as CoNLL-2000's evaluation reads them: a span begins at B-, S- or U-, or where the type changes, and ends before O, before
the next beginning, or behind E-, L-. Where class names have no such prefixes, a span is a run of one class, and what FP32 gives most
often is the background. Answers as in SQuAD: the best start and end with start ≤ end. Rule: what the attention mask hides never counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Span = tuple[int, int, int, str]  # row, first token, one behind the last, type

MAX_ANSWER_TOKENS = 30  # of an answer to a question, the limit of SQuAD's own scripts
_BEGINS, _ENDS = "BSU", "ESLU"


def tagged(tags: Array, names: Sequence[str] | None, background: int, keep: Array) -> set[Span]:
    """The spans of all rows. `tags` int [n, length]; `keep` bool, of the same shape: what is False is passed over."""
    kinds = [_parts(name) for name in names] if names and _has_prefixes(names) else None
    found: set[Span] = set()
    for row, (ids, kept) in enumerate(zip(tags, keep, strict=True)):
        found |= {(row, *span) for span in _of_row([_tag(int(tag), kinds, background) for tag in ids[kept]])}
    return found


def _has_prefixes(names: Sequence[str]) -> bool:
    return all(name == "O" or (name[:1] in "BIESLUM" and name[1:2] in "-_") for name in names)


def _parts(name: str) -> tuple[str, str]:
    return ("O", "") if name == "O" else (name[0], name[2:])


def _tag(tag: int, kinds: list[tuple[str, str]] | None, background: int) -> tuple[str, str]:
    if kinds is None:
        return ("O", "") if tag == background else ("I", str(tag))
    return kinds[tag] if 0 <= tag < len(kinds) else ("O", "")


def _of_row(tags: Sequence[tuple[str, str]]) -> set[tuple[int, int, str]]:
    found, start, open_kind = set(), 0, ""
    for place, (prefix, kind) in enumerate([*tags, ("O", "")]):
        is_inside = prefix != "O" and kind == open_kind and prefix not in _BEGINS
        if open_kind and not is_inside:
            found.add((start, place, open_kind))
            open_kind = ""
        if prefix != "O" and not open_kind:
            start, open_kind = place, kind or prefix
        if open_kind and prefix in _ENDS:
            found.add((start, place + 1, open_kind))
            open_kind = ""
    return found


def f1(found: set[Any], true: set[Any]) -> float:
    """Harmonic mean of precision and recall, 0..1; 1 where there is nothing to find and nothing was found."""
    return 2 * len(found & true) / (len(found) + len(true)) if found or true else 1.0


def best_answers(start: Array, end: Array, may_answer: Array) -> Array:
    """int [n, 2]: first and last token of the span with the largest sum of scores. All three are [n, length]; bool the last."""
    lowest = np.finfo(np.float64).min / 4
    first, last = (np.where(may_answer, scores.astype(np.float64), lowest) for scores in (start, end))
    length = first.shape[1]
    best, spans = np.full(len(first), -np.inf), np.zeros((len(first), 2), np.int64)
    for offset in range(min(MAX_ANSWER_TOKENS, length)):
        sums = first[:, : length - offset] + last[:, offset:]
        at = sums.argmax(axis=1)
        value = sums[np.arange(len(sums)), at]
        is_better = value > best
        best[is_better] = value[is_better]
        spans[is_better] = np.stack([at, at + offset], axis=1)[is_better]
    return spans
