"""Which sizes of batches get buffers of their own: the fewest whose padding costs no more than a stated share of a batch's time.

A batch is padded to the next size that has buffers and takes that size's time. Each size holds memory and perhaps a CUDA graph, and takes
runs at the load, so that fewer are better. A curve that falls somewhere is noise: more rows are taken to need no less time.
"""

from __future__ import annotations

from itertools import accumulate

from serving.scheduling.curve import Curve

# Of a batch's own time, at most, by padding (guess, not measured).
MOST_PADDING_RATIO = 0.25


def batch_buckets(curve: Curve, max_batch_size: int, most_padding_ratio: float = MOST_PADDING_RATIO) -> tuple[int, ...]:
    """Rows, ascending, the largest batch among them. Raises ValueError where there are no batches or the share is negative.

    No fewer sizes would do: each is the largest that the one above leaves over, so that it reaches as far down as any can.
    """
    if max_batch_size < 1 or most_padding_ratio < 0:
        raise ValueError(
            f"buckets need a batch and a share of 0 or more, not {max_batch_size} and {most_padding_ratio}"
        )
    seconds = _times(curve, max_batch_size)
    found = [max_batch_size]
    for rows in range(max_batch_size - 1, 0, -1):
        if seconds[found[-1] - 1] > seconds[rows - 1] * (1 + most_padding_ratio):
            found.append(rows)
    return tuple(reversed(found))


def padding_ratio(curve: Curve, buckets: tuple[int, ...]) -> float:
    """The most that padding costs a batch that these sizes hold, as a share of its own time. `buckets` ascend."""
    seconds, worst, below = _times(curve, buckets[-1]), 0.0, 0
    for size in buckets:
        worst = max(worst, seconds[size - 1] / seconds[below] - 1)  # the smallest batch that is padded to it loses most
        below = size
    return worst


def _times(curve: Curve, max_batch_size: int) -> list[float]:
    """Seconds for 1, 2, … rows, never falling."""
    return list(accumulate((curve.seconds(rows) for rows in range(1, max_batch_size + 1)), max))
