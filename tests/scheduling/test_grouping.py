"""Texts go together by length, at the least cost there is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from time import process_time

import pytest

from serving.scheduling.curve import Curve
from serving.scheduling.grouping import LEAST, MOST, grouped, padded_length, tokens_of_a_request


def cost(lengths: Sequence[int], groups: list[list[int]], request_tokens: float) -> float:
    return sum(request_tokens + len(group) * max(lengths[i] for i in group) for group in groups)


def least(lengths: Sequence[int], max_rows: int, request_tokens: float) -> float:
    """Of every division of the sorted lengths."""
    sizes = sorted(lengths)

    @cache
    def upto(end: int) -> float:
        if end == 0:
            return 0.0
        starts = range(max(0, end - max_rows), end)
        return min(upto(start) + request_tokens + (end - start) * sizes[end - 1] for start in starts)

    return upto(len(sizes))


@pytest.mark.parametrize("seed", range(60))
def test_no_other_division_costs_less(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.randint(1, chance.choice([3, 12, 100])) for _ in range(chance.randint(1, 40))]
    max_rows, request_tokens = chance.choice([1, 2, 3, 5, 8, 64]), chance.choice([0.0, 4.0, 16.0, 200.0])
    groups = grouped(lengths, max_rows, request_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert max(map(len, groups)) <= max_rows
    assert cost(lengths, groups, request_tokens) == least(lengths, max_rows, request_tokens)


def test_no_texts_are_no_requests() -> None:
    assert grouped([], 8, 16) == []


def test_one_long_text_does_not_make_the_short_ones_long() -> None:
    assert grouped([8, 8, 256, 8], 32, 16) == [[0, 1, 3], [2]]


def test_where_a_request_costs_much_beside_its_tokens_texts_stay_together() -> None:
    assert grouped([8, 8, 256, 8], 32, MOST) == [[0, 1, 3, 2]]


def test_2048_texts_are_divided_in_a_moment() -> None:
    chance = random.Random(7)
    lengths = [padded_length(chance.randint(1, 512), 512) for _ in range(2048)]
    began = process_time()
    for max_rows in (1, 32, 2048):
        grouped(lengths, max_rows, 16)
    assert process_time() - began < 1.0  # about 0.02 s on the machine of the measurements


@pytest.mark.parametrize(("length", "longest", "padded"), [(1, 256, 8), (8, 256, 8), (9, 256, 16), (250, 254, 254)])
def test_lengths_are_padded_to_few_different_ones(length: int, longest: int, padded: int) -> None:
    assert padded_length(length, longest) == padded


@pytest.mark.parametrize(
    ("points", "max_rows", "usual_length", "tokens"),
    [
        (((1, 0.006), (8, 0.027)), 8, 16, 16.0),  # 3 ms a row, 3 ms beside
        (((1, 0.003), (32, 0.003)), 32, 16, MOST),  # a card: rows cost nothing
        (((1, 0.002), (32, 0.064)), 32, 16, LEAST),  # nothing beside the rows
        (((1, 0.006), (8, 0.027)), 8, 0, MOST),  # a text costs the same at any length
        (((1, 0.006),), 1, 16, LEAST),  # no two rows go together anyway
    ],
)
def test_what_a_request_costs_beside_its_tokens_is_read_from_measured_times(
    points: tuple[tuple[int, float], ...], max_rows: int, usual_length: int, tokens: float
) -> None:
    assert tokens_of_a_request(Curve(points), max_rows, usual_length) == pytest.approx(tokens)
