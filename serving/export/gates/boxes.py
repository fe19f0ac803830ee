"""Boxes that a detector gives after its own post-processing, and their mean average precision beside other boxes.

Average precision as in PASCAL VOC since 2010 (Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", 2015):
detections by falling score, each true box found once at an overlap (IoU) of half, the area under the curve of precision over recall made
falling, and the mean over the classes that there are to find. Rule: which output is what is read from FP32's answers alone, so that
both are read alike; heads without post-processing are no boxes, and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import as_long

Array = NDArray[Any]
MIN_OVERLAP = 0.5  # of a box that counts as found, VOC's
ROUNDING = 1e-3  # of a score that FP32 or FP16 computed as 1
SURE_SCORE = 0.25  # from here on FP32's boxes are what others have to find: what Ultralytics' predict shows if nobody asks otherwise
WANTED = (
    "want boxes [n, k, 4], scores [n, k] and classes [n, k], or one output [n, k, 6] of corners, score (0..1) and class, or of class, "
    "score and corners: export the model with its post-processing (NMS) inside, or judge it as --task other or by --metric"
)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Of one image: corners float64 [k, 4], scores [k], classes int [k]."""

    corners: Array
    scores: Array
    classes: Array


@dataclass(frozen=True, slots=True)
class Columns:
    """Where one output [n, k, 6] has what."""

    corners: slice
    score: int
    kind: int

    def fit(self, rows: Array) -> bool:
        """Whether float [m, 6] can be that: whole classes, and scores of 0..1; -1 of either fills up."""
        scores, kinds = rows[:, self.score], rows[:, self.kind]
        is_score = ((scores >= 0) & (scores <= 1 + ROUNDING)) | (scores == -1)
        return bool((is_score & (kinds >= -1) & (kinds == np.round(kinds))).all())


# The first that fits: Ultralytics and those who followed it; PaddleDetection.
ORDERS = (Columns(slice(0, 4), 4, 5), Columns(slice(2, 6), 1, 0))


@dataclass(frozen=True, slots=True)
class Layout:
    """Which output holds what; one index where all is in one, whose columns are in this order."""

    corners: int
    scores: int | None = None
    classes: int | None = None
    count: int | None = None
    columns: Columns = ORDERS[0]

    @classmethod
    def of(cls, outputs: Sequence[Array]) -> Layout:
        """Raises UserError for outputs that are no boxes."""
        rows = [_row_wise(values) for values in outputs]
        for index, values in enumerate(rows):
            if values.ndim == 3 and values.shape[2] == 6 and values.dtype.kind == "f":
                found = values[(values != values[..., :1]).any(axis=2)]  # not what fills up, -1 or 0 alone
                columns = next((each for each in ORDERS if each.fit(found)), None)
                if columns is not None:
                    return cls(index, columns=columns)
        corners = next((i for i, v in enumerate(rows) if v.ndim == 3 and v.shape[2] == 4 and v.dtype.kind == "f"), None)
        if corners is not None:
            flat = [i for i, v in enumerate(rows) if v.shape == rows[corners].shape[:2]]
            whole = [i for i in flat if rows[i].dtype.kind in "iu" or bool((rows[i] == np.round(rows[i])).all())]
            whole.sort(key=lambda i: rows[i].dtype.kind == "f")  # where nothing was found, scores are whole numbers too
            scores = next((i for i in flat if rows[i].dtype.kind == "f" and i not in whole[:1]), None)
            count = next((i for i, v in enumerate(rows) if v.size == len(v) and i not in flat), None)
            if scores is not None:
                return cls(corners, scores, next((i for i in whole if i != scores), None), count)
        shapes = ", ".join(f"{values.dtype} {['n', *values.shape[1:]]}" for values in outputs)
        raise UserError(f"task detection: the model gives {shapes}; {WANTED}")

    def read(self, outputs: Sequence[Array]) -> list[Boxes]:
        """The boxes of each row. What fills up the array, boxes without a score or of class -1, is left out."""
        rows = [_row_wise(values) for values in outputs]
        if self.scores is None:
            all_of, at = rows[self.corners].astype(np.float64), self.columns
            parts = (all_of[..., at.corners], all_of[..., at.score], np.round(all_of[..., at.kind]).astype(np.int64))
        else:
            classes = np.zeros(rows[self.scores].shape) if self.classes is None else rows[self.classes]
            parts = (
                rows[self.corners].astype(np.float64),
                rows[self.scores].astype(np.float64),
                np.round(classes.astype(np.float64)).astype(np.int64),
            )
        found = []
        for row in range(len(parts[0])):
            most = parts[1].shape[1] if self.count is None else int(rows[self.count].reshape(len(parts[0]))[row])
            is_box = (parts[1][row] > 0) & (parts[2][row] >= 0) & (np.arange(parts[1].shape[1]) < most)
            found.append(Boxes(parts[0][row][is_box], parts[1][row][is_box], parts[2][row][is_box]))
        return found


def as_many(ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
    """Both with room for as many boxes a row, filled up with zeros; outputs that differ in anything else as they are."""
    if len(ours) != len(theirs) or not all(_differ_in_number(a, b) for a, b in zip(ours, theirs, strict=True)):
        return ours, theirs
    return as_long(ours, theirs)


def _differ_in_number(ours: Array, theirs: Array) -> bool:
    if ours.ndim != theirs.ndim or len(ours) != len(theirs):
        return False
    axes = [axis for axis in range(ours.ndim) if ours.shape[axis] != theirs.shape[axis]]
    return not axes or (len(axes) == 1 and (ours.ndim == 2 or axes[0] < ours.ndim - 1 or ours.shape[1] == 1))


def of_labels(labels: Array, where: str) -> list[Boxes]:
    """float [n, m, 5]: corners and class; a class below 0 fills up. Raises UserError."""
    if labels.ndim != 3 or labels.shape[2] != 5:
        raise UserError(
            f"{where}: task detection wants [n, m, 5], corners and class (-1: no box), got {list(labels.shape)}"
        )
    is_box = labels[..., 4] >= 0
    return [
        Boxes(row[kept, :4].astype(np.float64), np.ones(int(kept.sum())), row[kept, 4].astype(np.int64))
        for row, kept in zip(labels, is_box, strict=True)
    ]


def sure(found: Sequence[Boxes]) -> list[Boxes]:
    """Those that the reference itself is sure of."""
    kept = [one.scores >= SURE_SCORE for one in found]
    return [Boxes(one.corners[k], one.scores[k], one.classes[k]) for one, k in zip(found, kept, strict=True)]


def mean_average_precision(found: Sequence[Boxes], true: Sequence[Boxes]) -> float:
    """0..1. Where there is nothing to find: 1, or 0 if something sure was found all the same."""
    kinds = sorted({int(kind) for one in true for kind in one.classes})
    if not kinds:
        return float(not any(len(one.scores) for one in sure(found)))
    return float(np.mean([_average_precision(found, true, kind) for kind in kinds]))


def _average_precision(found: Sequence[Boxes], true: Sequence[Boxes], kind: int) -> float:
    wanted = [one.corners[one.classes == kind] for one in true]
    ours = [(one.corners[one.classes == kind], one.scores[one.classes == kind]) for one in found]
    scores = np.concatenate([values for _, values in ours])
    if not len(scores):
        return 0.0
    is_hit = np.concatenate([_hits(corners, values, wanted[row]) for row, (corners, values) in enumerate(ours)])
    hits = np.cumsum(is_hit[np.argsort(-scores, kind="stable")])
    precision = hits / np.arange(1, len(hits) + 1)
    recall = hits / sum(map(len, wanted))
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * falling).sum())


def _hits(corners: Array, scores: Array, wanted: Array) -> Array:
    """bool [k], in the order of `scores`: the surest takes its best true box first."""
    is_hit, is_free = np.zeros(len(scores), bool), np.ones(len(wanted), bool)
    overlaps = _overlaps(corners, wanted)
    for index in np.argsort(-scores, kind="stable"):
        near = np.where(is_free, overlaps[index], -1.0)
        if len(near) and near.max() >= MIN_OVERLAP:
            is_free[near.argmax()] = False
            is_hit[index] = True
    return is_hit


def _overlaps(ours: Array, theirs: Array) -> Array:
    """[k, m]: intersection over union."""
    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(some[:, 2:] - some[:, :2], 0, None).prod(axis=1) for some in (ours, theirs)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0.0)


def _row_wise(values: Array) -> Array:
    """[n, 1, k, …] of a graph that is served without batches becomes [n, k, …]."""
    return (
        values[:, 0]
        if values.ndim >= 3 and values.shape[1] == 1 and values.shape[2:] != (4,) and values.shape[2:] != (6,)
        else values
    )
