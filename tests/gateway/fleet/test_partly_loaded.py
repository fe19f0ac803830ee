"""A server of a pool that is up and does not serve a model gets none of its requests, and those that do are not overrun for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until


class OneAtATime:
    """Takes `seconds` for each, one after the other; `most`: that were there at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.inside = self.most = 0
        self.lock = asyncio.Lock()

    async def infer(self, _: bytes) -> tuple[int, dict[str, Any]]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        async with self.lock:
            await asyncio.sleep(self.seconds)
        self.inside -= 1
        return 200, GOOD


@pytest.mark.parametrize("others", [[], ["other-fp32"]])
def test_where_one_of_two_servers_lacks_the_model_the_other_gets_no_more_than_its_bound(others: list[str]) -> None:
    async def run() -> None:
        model = OneAtATime(0.05)
        lacking, serving = OddTriton(models=others), OddTriton(model.infer)
        async with gateway_of({"cpu": [lacking, serving]}) as gateway:
            before, model.most = lacking.asked, 0
            asked = []
            for _ in range(60):  # 3 s of work, 0.3 s to do it in
                asked.append(asyncio.create_task(ask(gateway, tandem_deadline_ms=300)))
                await asyncio.sleep(0.005)
            statuses = Counter([(await one).status for one in asked])
            assert model.most <= 2
            assert statuses[200] > 0
            assert statuses[503] > 0
            assert set(statuses) <= {200, 503, 504}
            assert lacking.asked == before
            servers = gateway.catalogue.pools["cpu"]
            await until(lambda: not any(server.replica.num_in_flight for server in servers), "all of it is over")

    asyncio.run(run())


def test_what_waits_for_a_model_that_no_server_has_any_more_is_told_so() -> None:
    async def run() -> None:
        model = OneAtATime(0.2)
        one, other = OddTriton(models=["other-fp32"]), OddTriton(model.infer)
        async with gateway_of({"cpu": [one, other]}) as gateway:
            asked = [asyncio.create_task(ask(gateway)) for _ in range(6)]
            await asyncio.sleep(0)
            other.models = []
            replies = [await one for one in asked]
            assert {reply.status for reply in replies} == {200, 503}
            assert {reply.error for reply in replies if reply.status == 503} == {"not_ready"}

    asyncio.run(run())
