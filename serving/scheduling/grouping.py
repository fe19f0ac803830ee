"""Which texts go to a model together, so that short ones do not pay for long ones?

A request to a model is one array: each of its rows is as long as its longest. Texts are therefore put together by length, into as many
requests as cost the least in all: what every request costs beside its tokens speaks for few, what is padded for many. Who sends them,
and where to, is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from serving.scheduling.curve import Curve

# Two lengths that are padded to the same can be computed together by Triton, which puts only rows of one shape into an execution. On two
# busy cores, 8 and 32 clients with one text each, MiniLM took 15.4 ms of processor time a text at any length, 15.2 with 8, 16.4 with 16
# and 16.6 with 32: there 8 costs what it saves. A card gains more from executions of several rows; not measured.
MULTIPLE = 8
# What a request costs beside its tokens, as tokens: what measured times may say at least and at most. MiniLM on two cores gives 10 to
# 20 by either way of measuring; a card, to which 32 rows are hardly more than one, some thousand.
LEAST, MOST = 4.0, 1e6


def padded_length(length: int, longest: int) -> int:
    """`length` up to the next multiple, but no further than what the model takes."""
    return min(-(-length // MULTIPLE) * MULTIPLE, longest)


def tokens_of_a_request(curve: Curve, max_rows: int, usual_length: int) -> float:
    """What a request costs beside its tokens, as tokens, where `curve` was measured with rows of `usual_length` tokens.

    `usual_length` 0: a row costs the same whatever its length, so nothing is saved by more requests.
    """
    if not usual_length:
        return MOST
    if max_rows < 2:
        return LEAST
    alone_s = curve.seconds(1)
    row_s = (curve.seconds(max_rows) - alone_s) / (max_rows - 1)
    if row_s <= 0:
        return MOST
    return min(max((alone_s / row_s - 1) * usual_length, LEAST), MOST)


def grouped(lengths: Sequence[int], max_rows: int, request_tokens: float) -> list[list[int]]:
    """The positions in `lengths` of each request's rows, shortest request first; no other division costs less.

    The cost of one is `request_tokens` and its rows times its longest. Sorted by length, rows of a request stand together; and where rows
    of one length are parted, the first part is a full request, or one more row would have gone into it for nothing. So only full requests
    and those that end where a length ends are tried: for 2,048 texts of up to 512 tokens some milliseconds.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sizes = [lengths[position] for position in order]
    num = len(order)
    ends = [i for i in range(1, num) if sizes[i] != sizes[i - 1]] + ([num] if num else [])
    best, start_of = [inf] * (num + 1), [0] * (num + 1)
    best[0] = 0.0
    first = 0  # of `ends`, behind where we are
    for start in range(num):
        while ends[first] <= start:
            first += 1
        before = best[start]
        if before == inf:
            continue
        full = start + max_rows
        at = first
        while at < len(ends) and ends[at] < full:
            _take(best, start_of, start, ends[at], before + request_tokens + (ends[at] - start) * sizes[ends[at] - 1])
            at += 1
        if full <= num:
            _take(best, start_of, start, full, before + request_tokens + max_rows * sizes[full - 1])
    groups = []
    end = num
    while end:
        groups.append(order[start_of[end] : end])
        end = start_of[end]
    return groups[::-1]


def _take(best: list[float], start_of: list[int], start: int, end: int, cost: float) -> None:
    if cost < best[end]:
        best[end], start_of[end] = cost, start
