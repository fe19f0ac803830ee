"""Requests for `digits`, the same through all four clients of tritonclient: `kind` is its module `http` or `grpc`, sync or aio."""

from __future__ import annotations

from typing import Any

import numpy as np
from conftest import LABEL, SAMPLE

IMAGE = np.array(SAMPLE["data"], np.float32).reshape(SAMPLE["shape"])


def inputs(kind: Any, image: np.ndarray = IMAGE, **how: Any) -> list[Any]:
    """`how`: binary_data, which only HTTP has."""
    made = kind.InferInput("image", list(image.shape), "FP32")
    made.set_data_from_numpy(image, **how)
    return [made]


def outputs(kind: Any, **how: Any) -> list[Any]:
    return [kind.InferRequestedOutput("probabilities", **how)]


def check(result: Any, num_rows: int = 1) -> None:
    scores = result.as_numpy("probabilities")
    assert scores.shape == (num_rows, 10)
    assert (scores.argmax(axis=1) == LABEL).all()


def check_classes(result: Any) -> None:
    """The three best of the classification extension: value:index:label."""
    (row,) = result.as_numpy("probabilities")
    best = [entry.decode().split(":") for entry in row]
    assert [len(parts) for parts in best] == [3, 3, 3]
    assert best[0][1:] == [str(LABEL), str(LABEL)]
    assert sorted((float(value) for value, *_ in best), reverse=True) == [float(value) for value, *_ in best]
