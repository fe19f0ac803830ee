"""Texts are read in pieces, so that nobody's texts hold a thread for long, and reading ends when nobody wants it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadtest.bench.made_models import BESIDE, PREPROCESSING, SENTENCES, SIZE, TOKENIZER
from serving import errors
from serving.gateway.openai.embedders import Embedder
from serving.gateway.openai.tokenizing import CHARACTERS_PER_TOKEN, PIECE_CHARACTERS, Tokenizing, pieces
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.threads import Threads
from serving.preprocessing.texts import TextTokenizer
from serving.protocol.openai import EmbeddingsRequest
from serving.settings import LimitSettings

EMBEDDER = Embedder(
    TextTokenizer(BESIDE["tokenizer.json"], PREPROCESSING), PREPROCESSING, np.int64, None, "sentence_vector", SIZE
)
MANY = ["the harbour was quiet"] * (4 * PIECE_CHARACTERS // 21)


def exchange(waits_s: float = inf, *, has_left: bool = False) -> Any:
    """Of a client that waits so long, and may have left by the first look."""
    return SimpleNamespace(arrived=perf_counter(), wait_s=waits_s, has_left=has_left, watched=nullcontext)


class Counting(Threads):
    """Real threads, and how often they were asked for."""

    num_jobs = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.num_jobs += 1
        return await super().run(work)


def read(texts: list[str], asker: Any = None, **limits: int) -> tuple[list[list[int]], int]:
    """The rows, and in how many jobs."""

    async def scene() -> tuple[list[list[int]], int]:
        request = EmbeddingsRequest("words", texts, None, False, None, True)
        preparing = Counting(1)
        try:
            reading = Tokenizing(request, EMBEDDER, LimitSettings.model_validate(limits))
            assert not reading.is_short
            return await reading.in_parts(preparing, asker or exchange()), preparing.num_jobs
        finally:
            preparing.stop()
            jobs.append(preparing.num_jobs)

    jobs.clear()
    return asyncio.run(scene())


jobs: list[int] = []  # of the last reading, also where it failed


def test_tokens_are_those_of_each_text_in_order() -> None:
    texts = SENTENCES * 3
    rows, num_jobs = read(texts)
    assert num_jobs == len(pieces(texts)) > 3
    assert [row for row in rows if len(row) < PREPROCESSING.max_length] == [
        row for row in (TOKENIZER.encode(text).ids for text in texts) if len(row) < PREPROCESSING.max_length
    ]


def test_a_client_that_has_left_is_not_read_to_the_end() -> None:
    with pytest.raises(ClientLeft):
        read(MANY, exchange(has_left=True))
    assert jobs == [1]


def test_a_deadline_ends_the_reading() -> None:
    with pytest.raises(errors.DeadlineExpired):
        read(MANY, exchange(0.0))
    assert jobs == [1]


def test_too_many_tokens_end_the_reading() -> None:
    with pytest.raises(errors.BadRequest, match="4500") as caught:
        read(MANY, max_tokens=4500)
    assert caught.value.param == "input"
    assert jobs[0] < len(pieces(MANY))


def test_more_characters_than_any_request_may_have_are_not_read_at_all() -> None:
    with pytest.raises(errors.BadRequest, match=rf"characters.*{100 * CHARACTERS_PER_TOKEN}"):
        read(MANY, max_tokens=100)
    assert jobs == [0]


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([], [(0, 0)]),
        ([1], [(0, 1)]),
        ([PIECE_CHARACTERS, 1], [(0, 1), (1, 2)]),
        ([1, PIECE_CHARACTERS], [(0, 1), (1, 2)]),
        ([2 * PIECE_CHARACTERS, 3, 4], [(0, 1), (1, 3)]),
        ([PIECE_CHARACTERS // 2] * 4, [(0, 2), (2, 4)]),
    ],
)
def test_a_piece_has_so_many_characters_at_most_or_one_text(lengths: list[int], found: list[tuple[int, int]]) -> None:
    assert pieces(["x" * length for length in lengths]) == found
