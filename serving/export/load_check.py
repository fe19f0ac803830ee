"""Does a real server load what is to be published, and does it answer the gate's rows as the gate saw? Asked before anything is written.

Which server that is, is the caller's to say, because nothing here may start one: `Load` comes from above. What differs is
refused with the server's reason. Rule: what could not be tried is said in the record, and never taken for a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.exported_model import Arrays
from serving.export.gates.rows import worst_difference

MAX_ROWS = 32  # of the gate's: one batch of them shows a wrong type, order, shape or engine (guess, not measured)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a server made of a repository. `answers`: variant -> every output of all rows; `failed`: variant -> its reason."""

    server: str
    answers: Mapping[str, Sequence[NDArray[Any]]]
    failed: Mapping[str, str]


# (a repository that is not published, rows of every input) -> what became of it. EnvironmentFault: no server can run here.
Load = Callable[[Path, Arrays], LoadResult]


def some_rows(inputs: Arrays, max_batch_size: int) -> Arrays:
    """Spread evenly, no more than a batch holds: data is often sorted by label."""
    num_rows = len(next(iter(inputs.values())))
    wanted = min(num_rows, MAX_ROWS, max_batch_size or MAX_ROWS)
    rows = np.linspace(0, num_rows - 1, wanted).round().astype(np.int64)
    return {name: np.asarray(values)[rows] for name, values in inputs.items()}


def why_refused(loaded: LoadResult, name: str, expected: Sequence[NDArray[Any]], limit: float) -> str | None:
    """In a sentence; None where it answered as the gate saw. `limit`: how far a row may differ, as a share of the output's scale."""
    if name in loaded.failed:
        return f"{loaded.server} does not serve it: {loaded.failed[name]}"
    difference = worst_difference(list(loaded.answers[name]), list(expected))
    if difference <= limit:
        return None
    return f"{loaded.server} gives other answers than the gate measured: a row differs by {difference:.2g} (at most {limit:g})"
