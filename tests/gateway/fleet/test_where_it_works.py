"""Requests go where they can be worked on: not to a server that answers errors at once, nor to a pool that takes fewer rows at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of


def rows(number: int) -> bytes:
    tensor = {"name": "x", "shape": [number, 4], "datatype": "FP32", "data": [0] * 4 * number}
    return json.dumps({"inputs": [tensor]}).encode()


def test_a_server_that_answers_errors_at_once_does_not_draw_the_requests_of_all() -> None:
    is_ill = False

    async def failing(body: bytes) -> tuple[int, dict[str, Any]]:
        return (500, {"error": "out of memory"}) if is_ill else (200, GOOD)

    async def slower(body: bytes) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(0.005)
        return 200, GOOD

    async def run() -> None:
        nonlocal is_ill
        async with gateway_of({"cpu": [OddTriton(failing), OddTriton(slower), OddTriton(slower)]}) as gateway:
            for _ in range(20):
                assert (await ask(gateway)).status == 200
            is_ill = True
            statuses = [(await ask(gateway)).status for _ in range(60)]
            assert statuses.count(500) <= 8
            assert statuses.count(200) + statuses.count(500) == 60

    asyncio.run(run())


def test_a_mistake_of_the_clients_is_not_counted_against_the_server() -> None:
    """Triton says 500 for some of them."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0] * 3}
    wrong = json.dumps({"inputs": [tensor]}).encode()

    async def failing(body: bytes) -> tuple[int, dict[str, Any]]:
        return (500, {"error": "unexpected size"}) if body == wrong else (200, GOOD)

    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton(failing), OddTriton(failing)]}) as gateway:
            for _ in range(20):
                assert (await ask(gateway, wrong)).status == 400
            for replica in gateway.candidates.queues["cpu"].replicas:
                assert (replica.health.num_failures, replica.health.num_ejections) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize(("number", "pool"), [(8, "cheap"), (9, "dear"), (64, "dear")])
def test_rows_go_to_a_pool_that_takes_so_many_at_once(number: int, pool: str) -> None:
    async def run() -> None:
        pools = {"cheap": [OddTriton(max_batch=8)], "dear": [OddTriton(max_batch=64)]}
        async with gateway_of(pools, prices={"cheap": 0.0001, "dear": 9.0}) as gateway:
            reply = await ask(gateway, rows(number))
            assert (reply.status, reply.headers["tandem-pool"]) == (200, pool)

    asyncio.run(run())
