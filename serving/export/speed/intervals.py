"""How sure is a ratio of two times that were taken in turns? The median with a bootstrap interval.

Pure. Sessions are made afresh several times and the interval resamples these rounds too, because where their memory
happens to lie shifts a session's speed for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000  # of the bootstrap: 25 beyond each end of the interval
CONFIDENCE = 0.95
MAX_DRAWN = 500  # pairs of a round in a resample: their median is sure by far; more cost memory only


def ratio_interval(rounds: Sequence[NDArray[Any]], *, seed: int = 0) -> tuple[float, float, float]:
    """Median of all ratios with the ends of its interval. `rounds`: per round, its ratios, float64 [pairs].

    The bootstrap draws rounds, and then as many ratios from each of them, both with replacement.
    """
    rng = np.random.default_rng(seed)
    lengths = np.array([len(ratios) for ratios in rounds])
    num_drawn = min(int(lengths.max()), MAX_DRAWN)
    which = rng.integers(0, len(rounds), (NUM_RESAMPLES, len(rounds)))
    pairs = (rng.random((*which.shape, num_drawn)) * lengths[which][:, :, None]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    ratios = np.concatenate(list(rounds))
    medians = np.median(ratios[starts[which][:, :, None] + pairs].reshape(NUM_RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    middle = float(np.median(ratios))
    return middle, min(float(low), middle), max(float(high), middle)
