"""A client that sent several requests at once, or a large one, and left while the first waited for its turn."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvloop

from serving.gateway.listeners import listen
from serving.gateway.serve import server_of
from serving.settings import GatewaySettings
from tests.gateway.odd_triton import BODY, GOOD, OddTriton, ask, gateway_of, until
from tests.gateway.wire import Answer, wire


def request(body: bytes) -> bytes:
    first = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\n"
    return first + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("sent", [2 * request(BODY), request(BODY[:-1] + b" " * 200_000 + b"}")])
def test_it_is_forgotten_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    gate = asyncio.Event()
    gate.set()

    async def infer(_: bytes) -> tuple[int, dict[str, Any]]:
        await gate.wait()
        return 200, GOOD

    pools = {"cpu": {"urls": ["http://x:1"], "device": "cpu"}}
    settings = GatewaySettings.model_validate({"version": 1, "pools": pools})

    async def run() -> None:
        listener = listen("127.0.0.1", 0)
        async with gateway_of({"cpu": [OddTriton(infer)]}) as gateway:
            server = server_of(gateway, settings)
            serving = asyncio.create_task(server.serve([listener]))
            gate.clear()
            before = [asyncio.create_task(ask(gateway)) for _ in range(3)]
            await until(lambda: gateway.dispatcher.num_waiting("cpu") == 1, "the server is busy")
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(sent)
            await until(lambda: gateway.dispatcher.num_waiting("cpu") == 2, "the first of them waits")
            writer.transport.abort()
            await until(lambda: gateway.dispatcher.num_waiting("cpu") == 1, "it is forgotten")
            gate.set()
            assert {(await one).status for one in before} == {200}
            server.stop()
            await serving

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert not [record.message for record in caplog.records]


def test_an_upgrade_that_is_ignored_is_answered_after_those_before_it() -> None:
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: "
    upgrade = live + b"Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"

    async def run() -> tuple[list[Answer], list[bytes]]:
        gate = asyncio.Event()
        gate.set()
        async with wire(gate, 0.1) as here:
            return await here.say(request(BODY) + upgrade + live + b"close\r\n\r\n"), here.reached

    (inference, *others), reached = uvloop.run(run())
    assert len(reached) == 1
    assert b"model_name" in inference.body
    assert [b"model_name" in other.body for other in others] == [False, False]
