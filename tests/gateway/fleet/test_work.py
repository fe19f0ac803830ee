"""What a Triton's statistics say of its work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.gateway.fleet.work import read_work
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until


def row(name: str, requests: int, *sizes: tuple[int, int, int]) -> dict[str, Any]:
    """`sizes`: rows of an execution, how many there were, their milliseconds together."""
    batches = [
        {
            "batch_size": rows,
            "compute_input": {"count": num, "ns": 0},
            "compute_infer": {"count": num, "ns": ms * 1_000_000},
            "compute_output": {"count": num, "ns": 0},
        }
        for rows, num, ms in sizes
    ]
    return {"name": name, "inference_stats": {"success": {"count": requests, "ns": 1}}, "batch_stats": batches}


def test_pace_is_what_executions_took_since_then_over_what_was_expected_of_known_models() -> None:
    before = read_work({"model_stats": [row("m", 8, (8, 1, 999))]})
    after = read_work({"model_stats": [row("m", 25, (8, 3, 999 + 40), (1, 1, 10)), row("other", 5, (1, 5, 5000))]})
    assert (before.num_requests, after.num_requests) == (8, 30)
    expected = {("m", 8): 0.010, ("m", 1): 0.005}
    assert after.pace(before, lambda name, rows: expected.get((name, rows))) == 50 / 25
    assert after.pace(after, lambda name, rows: 1.0) == 1.0


@pytest.mark.parametrize(
    "statistics",
    [(400, {"error": "statistics are off"}), (403, {}), (200, {}), (200, {"model_stats": [{"name": "m-fp32"}]})],
)
def test_a_triton_that_tells_no_statistics_is_as_alive_as_another(statistics: tuple[int, Any]) -> None:
    async def run() -> None:
        go_on = asyncio.Event()

        async def infer(body: bytes) -> tuple[int, Any]:
            if triton.is_slow:
                await go_on.wait()
            return 200, GOOD

        triton = SlowTriton(infer, statistics=statistics)
        async with gateway_of({"cpu": [triton]}) as gateway:
            triton.is_slow = True
            [server] = gateway.catalogue.pools["cpu"]
            asking = asyncio.create_task(ask(gateway))
            looks = [server.polls]
            await until(lambda: triton.asked_for_statistics and server.polls > looks[0] + 1, "it was polled meanwhile")
            assert server.alive
            go_on.set()
            assert (await asking).status == 200

    asyncio.run(run())


class SlowTriton(OddTriton):
    is_slow = False
