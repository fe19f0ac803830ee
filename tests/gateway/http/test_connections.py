"""Connections are bounded for each listener and each address, and one too many is told why before it says anything."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from serving.gateway.http.connections import Connections
from serving.settings import GatewaySettings
from tests.gateway.odd_triton import until
from tests.gateway.wire import wire

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("limits", "status", "word", "limit"),
    [
        ({"max_connections": 2}, 503, "overloaded", "listener"),
        ({"max_connections_per_client": 2}, 429, "rate_limited", "client"),
    ],
)
@pytest.mark.protocol(
    "hostile input",
    "more connections than `limits.max_connections`, or from one address than `limits.max_connections_per_client`, over HTTP",
    "refused: 503, 429 with Retry-After, counted in `tandem_connection_refusals_total`",
)
def test_one_connection_too_many_is_told_so(limits: dict[str, int], status: int, word: str, limit: str) -> None:
    async def run() -> None:
        async with wire(**limits) as here:
            open_ones = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(2)]
            reader, last = await asyncio.open_connection("127.0.0.1", here.port)
            said = (await reader.read()).decode().lower()
            assert said.startswith(f"http/1.1 {status} ")
            assert f"tandem-error: {word}\r\n" in said
            assert "retry-after: 1\r\n" in said
            connections = here.server.intake.connections
            assert connections.num_refused[limit] == 1
            for writer in (last, open_ones[0][1]):
                writer.close()
                await writer.wait_closed()
            await until(lambda: connections.number == 1, "the others have gone")
            reader, again = await asyncio.open_connection("127.0.0.1", here.port)
            again.write(LIVE)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            for writer in (again, open_ones[1][1]):
                writer.close()
                await writer.wait_closed()

    uvloop.run(run())


def test_who_is_refused_takes_no_place_of_others() -> None:
    pools = {"cpu": {"urls": ["http://x:1"], "device": "cpu"}}
    limits = {"max_connections": 4, "max_connections_per_client": 2}
    settings = GatewaySettings.model_validate({"version": 1, "pools": pools, "limits": limits})
    connections = Connections("clients", settings.limits)
    assert [connections.begin("a") is None for _ in range(6)] == [True, True, False, False, False, False]
    assert [connections.begin("b") is None for _ in range(3)] == [True, True, False]
    assert connections.begin("c") is not None
    assert (connections.number, connections.num_refused) == (4, {"listener": 2, "client": 4})
    connections.end("a")
    assert connections.begin("a") is None
