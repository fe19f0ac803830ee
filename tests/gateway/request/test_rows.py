"""What a request costs by its tokens, where rows may have any length."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from serving.gateway.request.exchange import rows_of
from serving.gateway.request.route import Route

ALIKE = Route("m", "m", False, False, [], [], {}, max_rows=8, objective_s=inf, is_steady=True)
TEXTS = replace(ALIKE, usual_length=16)


def head(*shape: int) -> bytes:
    return b'{"inputs":[{"name":"ids","shape":%b,"datatype":"INT64"}]}' % str(list(shape)).encode()


@pytest.mark.parametrize(
    ("route", "shape", "rows"),
    [
        (ALIKE, (4, 512), 4),
        (ALIKE, (99, 512), 8),  # Triton refuses it anyway
        (replace(ALIKE, max_rows=1), (4, 512), 1),
        (TEXTS, (1, 16), 1.0),
        (TEXTS, (1, 512), 32.0),
        (TEXTS, (4, 64), 16.0),
        (TEXTS, (4, 8), 2.0),
        (TEXTS, (1, 3), 1.0),
        (TEXTS, (99, 16), 8.0),
        (TEXTS, (1, 1_000_000), 64.0),  # of which nothing is known: it must be let in to be learnt
        (TEXTS, (4, 1_000_000), 256.0),
    ],
)
def test_a_longer_text_is_more_work(route: Route, shape: tuple[int, ...], rows: float) -> None:
    assert rows_of(route, head(*shape)) == rows
