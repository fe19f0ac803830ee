"""Numbers that say how far one set of answers is from another. Which of them count for which task is in `tasks`, limits in `limits`.

Answers and reference are arrays [n, …] of the same shape. Everything is computed in float64. Rule: where a NaN went in, the
result is NaN or the worst that the metric knows, never a number that could pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NUM_NEIGHBOURS = 10  # what a page of search results shows
_TIE = 1e-6  # cosines in FP32 are this far from the real number, so neighbours closer than that are equally near
_CHUNK_ROWS = 1024  # of a similarity matrix at a time: 80 MB beside 10,000 others
_CHUNK_NUMBERS = 2**22  # 32 MB as float64


def count_non_finite(values: Array) -> int:
    if values.dtype.kind not in "fc":
        return 0
    return int(values.size - np.isfinite(values).sum())


# -- decisions --------------------------------------------------------------------------------------------------------


def decisions(values: Array, like: Array, undecided: int = -1) -> Array:
    """[n, …]: the class of each row. `like` (the reference) says how to read them, so that both are read alike.

    Several columns: the largest. One column: probability above 0.5, or score above 0. No float: decided already.
    A row with NaN is `undecided`, which is no class.
    """
    if like.dtype.kind != "f":
        return values.reshape(len(values), -1)
    columns = like.shape[-1] if like.ndim > 1 else 1
    scores = values.reshape(len(values), -1, columns)
    decided = scores.argmax(axis=2) if columns > 1 else (scores[..., 0] > (0.5 if is_share(like) else 0)).astype(int)
    decided[~np.isfinite(scores).all(axis=2)] = undecided
    return decided


def top1(decided: Array, labels: Array) -> float:
    """Share of rows whose class is the right one, 0..1. `decided` is [n] or [n, 1]."""
    return float((decided.reshape(len(labels)) == labels).mean())


def agreement(answers: Array, reference: Array) -> float:
    """Share of rows that decide alike throughout, 0..1. Two rows of NaN agree about nothing."""
    alike = decisions(answers, reference) == decisions(reference, reference, undecided=-2)
    return float(alike.reshape(len(alike), -1).all(axis=1).mean())


def positives(values: Array, like: Array) -> Array:
    """bool [n, …]: each number by itself, a probability above 0.5 or a score above 0. `like`, the reference, says which it is."""
    return np.asarray(values > (0.5 if is_share(like) else 0))


def micro_f1(ours: Array, true: Array) -> float:
    """Harmonic mean of precision and recall over all decisions at once, 0..1. Both are bool [n, …]; 1 where nothing is to be found."""
    together = int(ours.sum()) + int(true.sum())
    return 2 * int((ours & true).sum()) / together if together else 1.0


def mean_iou(ours: Array, true: Array, num_classes: int) -> float:
    """Mean over the classes that occur of intersection over union, 0..1. Both are int [n, …]; true ones outside 0..num_classes - 1 are
    passed over."""
    counted = (true >= 0) & (true < num_classes)
    pairs = np.where(counted, true, 0).astype(np.int64) * num_classes + np.clip(ours, 0, num_classes - 1).astype(
        np.int64
    )
    table = np.bincount(pairs[counted], minlength=num_classes**2).reshape(num_classes, num_classes)
    shared, either = np.diag(table), table.sum(axis=0) + table.sum(axis=1) - np.diag(table)
    return float((shared[either > 0] / either[either > 0]).mean()) if either.any() else 1.0


def is_share(values: Array) -> bool:
    """All between 0 and 1, so that they can be probabilities."""
    return bool(values.size and values.min() >= 0 and values.max() <= 1)


def probability_difference(answers: Array, reference: Array) -> float:
    """Largest, of scores too: they go through softmax, or sigmoid where there is one column."""
    is_single = reference.ndim < 2 or reference.shape[-1] == 1
    is_ready = is_share(reference) and (
        is_single or np.allclose(reference.sum(axis=-1, dtype=np.float64), 1, atol=1e-3)
    )
    of_scores = _sigmoid if is_single else _softmax
    worst = 0.0
    for a, b in _chunks(answers, reference):
        difference = np.abs(a - b) if is_ready else np.abs(of_scores(a) - of_scores(b))
        worst = _worse(worst, difference)
    return worst


def _softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def _sigmoid(scores: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(scores, -700, 700))))  # beyond, exp overflows


# -- vectors ----------------------------------------------------------------------------------------------------------


def cosines(answers: Array, reference: Array) -> Array:
    """float64 [n], of each row with its reference, flat. A vector of zeros is like another one, and unlike any else."""
    a, b = _flat(answers), _flat(reference)
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = ~a.any(axis=1) & ~b.any(axis=1)
    safe = np.where(sizes == 0, 1, sizes)
    return np.where(both_zero, 1.0, (a * b).sum(axis=1) / safe)


def neighbour_recall(answers: Array, reference: Array) -> float:
    """Mean share of each row's nearest others, by cosine, that are among its nearest in the reference too, 0..1.

    At most NUM_NEIGHBOURS, and n - 1; n is at least 2. Others that are as near as the last neighbour count as neighbours.
    """
    n = len(answers)
    k = min(NUM_NEIGHBOURS, n - 1)
    if k < 1:
        raise ValueError("a row alone has no neighbours")
    ours, theirs = _unit(_flat(answers)), _unit(_flat(reference))
    total = 0
    for start in range(0, n, _CHUNK_ROWS):
        near, wanted = (_similarities(vectors, start) for vectors in (ours, theirs))
        last = -np.partition(-wanted, k - 1, axis=1)[:, k - 1 : k]
        found = np.argpartition(-near, k - 1, axis=1)[:, :k]
        of_theirs = np.take_along_axis(wanted, found, axis=1)
        is_finite = np.isfinite(np.take_along_axis(near, found, axis=1)) & np.isfinite(of_theirs)
        total += int((is_finite & (of_theirs >= last - _TIE)).sum())
    return total / (n * k)


def _similarities(vectors: Array, start: int) -> Array:
    """Of some rows with all; -inf with itself and where there is NaN."""
    near = vectors[start : start + _CHUNK_ROWS] @ vectors.T
    near[np.arange(len(near)), np.arange(start, start + len(near))] = -np.inf
    near[np.isnan(near)] = -np.inf
    return near


def _unit(vectors: Array) -> Array:
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(sizes == 0, 1, sizes))


# -- numbers ----------------------------------------------------------------------------------------------------------


def absolute_error(answers: Array, reference: Array) -> float:
    worst = 0.0
    for a, b in _chunks(answers, reference):
        worst = _worse(worst, np.abs(a - b))
    return worst


def relative_error(answers: Array, reference: Array, *, is_one_quantity: bool = False) -> float:
    """Largest difference as a share of the number's size, or of what is usual where that is larger: in its column, or in all of them.

    A denominator of the number alone would call 1e-9 beside 1e-12 a thousandfold error, one of its column a channel that is nearly off.
    """
    usual, worst = scale(reference), 0.0
    if is_one_quantity:
        usual = np.full_like(usual, _root_mean_square(reference) or 1.0)
    for a, b in _chunks(answers, reference):
        worst = _worse(worst, np.abs(a - b) / np.maximum(np.abs(b), usual if b.ndim > 1 else usual[0]))
    return worst


def noise_ratio(answers: Array, reference: Array) -> float:
    """Root mean square of the differences, as a share of the reference's own; 0.1 is a signal 20 dB above its noise."""
    noise = sum(float(np.square(a - b).sum()) for a, b in _chunks(answers, reference))
    signal = _root_mean_square(reference)
    return float(np.sqrt(noise / max(1, reference.size))) / signal if signal else float(np.sqrt(noise))


def r2(answers: Array, true: Array) -> float:
    """1 - squared differences ÷ squared deviations from the mean, of the worst column; 1 is exact. Of a constant column: ÷ its squares."""
    a, b = (values.astype(np.float64).reshape(len(values), -1) for values in (answers, true))
    missed, spread = np.square(a - b).sum(axis=0), np.square(b - b.mean(axis=0)).sum(axis=0)
    size = np.where(spread > 0, spread, np.square(b).sum(axis=0))
    return float((1 - missed / np.where(size > 0, size, 1)).min())


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(sum(float(np.square(part).sum()) for (part,) in _chunks(values)) / max(1, values.size)))


def scale(reference: Array) -> Array:
    """What is large for this output, per column: its root mean square; of the whole where a column is all zeros."""
    columns = reference.shape[-1] if reference.ndim > 1 else 1
    squares = np.zeros(columns)
    for (values,) in _chunks(reference):
        squares += np.square(values).reshape(-1, columns).sum(axis=0)
    each = np.sqrt(squares / max(1, reference.size // columns))
    of_all = float(np.sqrt(squares.sum() / max(1, reference.size))) or 1.0
    return np.where(each == 0, of_all, each)


def row_difference(together: Array, alone: Array) -> float:
    """Largest difference, as a share of the output's scale where that is above 1. Of decisions and text: 1 or 0."""
    if alone.dtype.kind != "f":
        return float(not np.array_equal(together, alone))
    return absolute_error(together, alone) / max(1.0, _root_mean_square(alone))


def _chunks(*arrays: Array) -> Iterator[list[Array]]:
    """The same rows of each, as float64, so few at a time that no copy is large."""
    step = max(1, _CHUNK_NUMBERS * len(arrays[0]) // max(1, arrays[0].size))
    for start in range(0, len(arrays[0]), step):
        yield [_wide(values[start : start + step]) for values in arrays]


def _worse(worst: float, differences: Array) -> float:
    """The larger; NaN stays."""
    return float(np.maximum(worst, differences.max(initial=0.0)))


def _wide(values: Array) -> Array:
    return values.astype(np.float64)


def _flat(values: Array) -> Array:
    return _wide(values).reshape(len(values), -1)
