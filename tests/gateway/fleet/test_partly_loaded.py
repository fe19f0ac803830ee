"""A server of a pool that is up and does not serve a model gets none of its requests, and those that do are not overrun for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until

BELIEVED_S = 5.0  # that one takes, so that a busy machine changes nothing of who is let in


class Held:
    """Answers while `goes_on` is set; `most`: that were there at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def infer(self, _: bytes) -> tuple[int, dict[str, Any]]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.goes_on.wait()
        self.inside -= 1
        return 200, GOOD


def believe(gateway: Gateway) -> None:
    candidate = gateway.candidates.of("cpu", "m-fp32")
    candidate.use(Service(Curve(((1, BELIEVED_S),)), without=candidate.service.without))


@pytest.mark.parametrize("others", [[], ["other-fp32"]])
def test_where_one_of_two_servers_lacks_the_model_the_other_gets_no_more_than_its_bound(others: list[str]) -> None:
    async def run() -> None:
        model = Held()
        lacking, serving = OddTriton(models=others), OddTriton(model.infer)
        async with gateway_of({"cpu": [lacking, serving]}) as gateway:
            before, model.most = lacking.asked, 0
            believe(gateway)
            model.goes_on.clear()
            # 300 s of work, 25 s to do it in
            asked = [asyncio.create_task(ask(gateway, tandem_deadline_ms=25_000)) for _ in range(60)]
            await until(lambda: model.inside == 2 and any(one.done() for one in asked), "some are refused")
            model.goes_on.set()
            statuses = Counter([(await one).status for one in asked])
            assert model.most == 2
            assert statuses == {200: statuses[200], 503: statuses[503]}
            assert statuses[200] >= 2
            assert statuses[503] > 0
            assert lacking.asked == before
            servers = gateway.catalogue.pools["cpu"]
            await until(lambda: not any(server.replica.num_in_flight for server in servers), "all of it is over")

    asyncio.run(run())


def test_what_waits_for_a_model_that_no_server_has_any_more_is_told_so() -> None:
    async def run() -> None:
        model = Held()
        one, other = OddTriton(models=["other-fp32"]), OddTriton(model.infer)
        async with gateway_of({"cpu": [one, other]}) as gateway:
            believe(gateway)
            model.goes_on.clear()
            asked = [asyncio.create_task(ask(gateway)) for _ in range(6)]
            await until(lambda: model.inside and gateway.dispatcher.num_waiting("cpu"), "some wait")
            other.models = []
            await until(lambda: any(one.done() for one in asked), "it is seen")
            model.goes_on.set()
            replies = [await one for one in asked]
            assert {reply.status for reply in replies} == {200, 503}
            assert {reply.error for reply in replies if reply.status == 503} == {"not_ready"}

    asyncio.run(run())
