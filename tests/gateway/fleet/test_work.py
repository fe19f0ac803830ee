"""What a Triton's statistics say of its work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.gateway.fleet.work import Work, pace_of, read_work
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until


def row(name: str, requests: int, *sizes: tuple[int, int, int], waited_ms: int = 0) -> dict[str, Any]:
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
    return {
        "name": name,
        "inference_stats": {
            "success": {"count": requests, "ns": 1},
            "queue": {"count": requests, "ns": waited_ms * 1_000_000},
        },
        "batch_stats": batches,
    }


def test_pace_is_what_executions_took_since_then_over_what_was_expected_of_known_models() -> None:
    before = read_work({"model_stats": [row("m", 8, (8, 1, 999))]})
    after = read_work({"model_stats": [row("m", 25, (8, 3, 999 + 40), (1, 1, 10)), row("other", 5, (1, 5, 5000))]})
    assert (before.num_requests, after.num_requests) == (8, 30)
    expected = {("m", 8): 0.010, ("m", 1): 0.005}
    assert after.pace(before, lambda name, rows: expected.get((name, rows))) == 50 / 25
    assert after.pace(after, lambda name, rows: 1.0) == 1.0


def test_executions_since_then_are_told_by_model_and_rows() -> None:
    before = read_work({"model_stats": [row("m", 8, (8, 1, 9))]})
    after = read_work({"model_stats": [row("m", 25, (8, 3, 40), (1, 1, 10)), row("new", 5, (4, 5, 50))]})
    since = after.since(before)
    assert since == {"m": {8: (2, 0.031), 1: (1, 0.010)}, "new": {4: (5, 0.050)}}
    assert pace_of(since["m"], lambda rows: 0.001 * rows) == pytest.approx(41 / 17)
    assert pace_of({}, lambda rows: 0.0) == 1.0


def test_of_a_triton_that_began_anew_nothing_is_told_that_took_less_than_no_time() -> None:
    """Its first execution took 3 s before, as the first one may, and it has had two of these rows by now."""
    before = read_work({"model_stats": [row("m", 73, (1, 1, 3000), (8, 9, 90))]})
    after = read_work({"model_stats": [row("m", 18, (1, 2, 20), (8, 2, 20))]})
    assert after.since(before) == {"m": {}}
    assert after.beside(before, ("m", None), ("m", None)) == (0, 0, 0)
    assert after.pace(before, lambda name, rows: 0.01) == 1.0


def test_rows_that_wait_there_are_told_by_model_on_average() -> None:
    before = read_work({"model_stats": [row("m", 8, (8, 1, 9), waited_ms=700)]}, told_s=1.0)
    after = read_work(
        {"model_stats": [row("m", 18, (8, 3, 40), (4, 1, 10), waited_ms=1700), row("idle", 0)]}, told_s=1.5
    )
    # 10 requests of 20 rows waited for a second together, in half a second.
    assert after.rows_waiting(before) == {"m": pytest.approx(4.0)}


def test_two_versions_are_compared_by_the_executions_that_both_had() -> None:
    def told(*of: tuple[str, tuple[tuple[int, int, int], ...]]) -> Work:
        return read_work({"model_stats": [row("m", 9, *sizes) | {"version": version} for version, sizes in of]})

    before = told(("1", ((1, 10, 1000),)), ("2", ()))
    after = told(("1", ((1, 14, 1040), (8, 2, 90))), ("2", ((1, 2, 60), (4, 9, 900))))
    # Of one row both had some: 4 in 40 ms, 2 in 60 ms. Two of each count.
    assert after.beside(before, ("m", "2"), ("m", "1")) == pytest.approx((2, 0.06, 0.02))
    assert after.beside(before, ("m", "2"), ("other", None)) == (0, 0, 0)
    assert after.beside(after, ("m", "2"), ("m", "1")) == (0, 0, 0)
    # Both count for the model.
    assert after.since(before) == {"m": {1: (6, pytest.approx(0.1)), 8: (2, pytest.approx(0.09)), 4: (9, 0.9)}}


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
