"""A gateway at its worst: every way of not answering ends soon, in a few words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.cluster.scaler.reports import MAX_BYTES, NoReport, read_demand, read_page
from tests.cluster.servers import nobody

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def answer_of(
    talk: Talk, limit_s: float = 30.0, key: str | None = None, ask: Callable[[int], Awaitable[str]] | None = None
) -> str:
    talks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.transport.abort()

    def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.ensure_future(one(reader, writer)))

    async def asked() -> str:
        server = await asyncio.start_server(came, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await (read_page("127.0.0.1", port, "/metrics", key, limit_s) if ask is None else ask(port))
        finally:
            server.close()
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted closes now

    return asyncio.run(asked())


def saying(*pieces: bytes, closes: bool = True, heads: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if closes:
            writer.close()
            await writer.wait_closed()
        else:
            await reader.read()  # until the other side has had enough

    return talk


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([GOOD], id="in one piece"),
        pytest.param([GOOD[:9], GOOD[9:40], GOOD[40:]], id="in pieces"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"], id="chunked"),
    ],
)
def test_an_answer_is_read_as_it_comes(pieces: list[bytes]) -> None:
    assert answer_of(saying(*pieces, closes=False)) == "hello"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_where_no_length_is_told_the_answer_ends_with_the_connection(version: str) -> None:
    head = f"HTTP/{version} 200 OK\r\nContent-Type: text/plain\r\n\r\n".encode()
    assert answer_of(saying(head, b"a 1\nb", b" 2\n")) == "a 1\nb 2\n"


@pytest.mark.parametrize("key", [None, "tdm_0123"])
def test_the_key_is_sent_where_there_is_one(key: str | None) -> None:
    heads: list[bytes] = []
    answer_of(saying(GOOD, heads=heads), key=key)
    assert (b"X-API-Key: tdm_0123\r\n" in heads[0]) == (key is not None)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        pytest.param([], "closes the connection before", id="hangs up"),
        pytest.param([GOOD[:-2]], "closes the connection before", id="half an answer"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2"], "closes the connection before", id="half a line, no length"),
        pytest.param([b"HTTP/1.0 200 OK\r\nServer: a\r\n"], "closes the connection before", id="half a head"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n"],
            "closes the connection before",
            id="without its last chunk",
        ),
        pytest.param([b"SSH-2.0-OpenSSH\r\n"], "not HTTP", id="another protocol"),
        pytest.param([b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"], "401; a key is wanted", id="no key"),
        pytest.param([b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"], "no scope 'metrics'", id="a wrong key"),
        pytest.param([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], "admin listener", id="another port"),
        pytest.param([b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"], "answers 500", id="broken"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * (MAX_BYTES + 1)],
            "more than",
            id="endless",
        ),
    ],
)
def test_what_is_no_answer_is_told_in_words(pieces: list[bytes], says: str) -> None:
    with pytest.raises(NoReport, match=says):
        answer_of(saying(*pieces))


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"]], ids=["mute", "stops"])
def test_one_that_does_not_end_is_not_waited_for(pieces: list[bytes]) -> None:
    with pytest.raises(NoReport, match=r"no answer within 0\.1 s"):
        answer_of(saying(*pieces, closes=False), limit_s=0.1)


def test_one_that_trickles_is_not_waited_for() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    with pytest.raises(NoReport, match="no answer within"):
        answer_of(trickle, limit_s=0.2)


@pytest.mark.parametrize(
    ("pages", "asked", "says"),
    [
        pytest.param({"/metrics/demand": "a 1\n", "/metrics": "b 2\n"}, 1, "a 1\n", id="a gateway of this version"),
        pytest.param({"/metrics": "b 2\n"}, 2, "b 2\n", id="an older one, which has all metrics alone"),
    ],
)
def test_the_small_page_is_read_where_there_is_one(pages: dict[str, str], asked: int, says: str) -> None:
    paths: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split(b" ")[1].decode())
        status, body = ("200 OK", pages[paths[-1]]) if paths[-1] in pages else ("404 Not Found", "")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await reader.read()

    assert answer_of(talk, ask=lambda port: read_demand("127.0.0.1", port)) == says
    assert paths == ["/metrics/demand", "/metrics"][:asked]


def test_nobody_there_is_told() -> None:
    with nobody() as address:
        host, port = address.split(":")
        with pytest.raises(NoReport, match="connection refused"):
            asyncio.run(read_page(host, int(port), "/metrics"))
