"""What a connection holds of RPCs that end in unusual ways, without a network: it gives all of it back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from serving import errors
from serving.gateway.grpc import connection as connection_module
from serving.gateway.grpc.connection import Connection, Listener
from serving.gateway.grpc.rpc import Method, Rpc
from serving.gateway.http.connections import Connections
from serving.gateway.threads import Threads
from serving.protocol import http2
from serving.protocol.http2 import Piece
from serving.protocol.memory import Memory
from serving.settings import LimitSettings
from tests.gateway.odd_triton import until
from tests.protocol.test_http2 import HEAD, HELLO, block, frame

MESSAGE_BYTES = 60_000


class Wire(asyncio.Transport):
    """Takes all that is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.said = b""

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def writelines(self, data: Any) -> None:
        self.said += b"".join(data)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def listener(unary: Any, stream: Any = None) -> Listener:
    limits = LimitSettings()
    methods = {"/unary": Method(unary=unary), "/stream": Method(stream=stream)}
    memory = Memory(limits.max_buffered_bytes)
    nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
    return Listener(
        methods, lambda *_: None, nothing, lambda it: it, limits, memory, Connections("grpc", limits), Threads(1),
        lambda: float("inf"), {}, set(),
    )  # fmt: skip


def begun(path: str, stream: int, *more: tuple[str, str]) -> bytes:
    head = [*HEAD[:2], (":path", path), *HEAD[3:], *more]
    return frame(http2.HEADERS, http2.END_HEADERS, stream, block(head=head))


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4) + bytes(size)


def sent(stream: int, content: bytes, *, is_last: bool = True) -> bytes:
    pieces = [content[at : at + 16_000] for at in range(0, len(content), 16_000)]
    return b"".join(
        frame(http2.DATA, is_last and number == len(pieces) - 1, stream, piece) for number, piece in enumerate(pieces)
    )


async def answered(content: bytes, _: Rpc) -> Sequence[Piece]:
    return (b"answer",)


def connected(to: Listener) -> Connection:
    connection = Connection(to)
    connection.connection_made(Wire())
    connection.data_received(HELLO)
    return connection


@pytest.mark.parametrize("timeout", [[], [("grpc-timeout", "1n")]])
def test_an_rpc_that_ends_before_its_task_began_gives_its_memory_back(timeout: list[tuple[str, str]]) -> None:
    async def run() -> int:
        here = listener(answered)
        connection = connected(here)
        for stream in range(1, 20, 2):
            content = message(MESSAGE_BYTES)
            connection.data_received(begun("/unary", stream, *timeout) + sent(stream, content[:50_000], is_last=False))
            await asyncio.sleep(0)
            ending = sent(stream, content[50_000:])
            connection.data_received(ending + (b"" if timeout else frame(http2.RST_STREAM, 0, stream, bytes(4))))
        await until(lambda: not here.memory.held, "all is given back")
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return here.memory.held

    assert asyncio.run(run()) == 0


def test_a_large_message_is_put_together_as_it_came_and_counts_by_the_pages_that_it_takes() -> None:
    content = random.Random(0).randbytes(3 * 2**20)
    got: list[bytes] = []

    async def kept(message: bytes, _: Rpc) -> Sequence[Piece]:
        got.append(bytes(message))
        return (b"answer",)

    async def run() -> dict[int, int]:
        here = listener(kept)
        connection = connected(here)
        connection.data_received(begun("/unary", 1))
        whole, held = b"\0" + len(content).to_bytes(4) + content, {}
        for at in range(0, len(whole), 16_000):
            connection.data_received(frame(http2.DATA, at + 16_000 >= len(whole), 1, whole[at : at + 16_000]))
            held[at + 16_000 - 5] = here.memory.held  # by how much of it has come
        await until(lambda: got and not here.memory.held, "it was read, and its memory is free")
        return held

    held = asyncio.run(run())
    assert got == [content]
    assert {came: it for came, it in held.items() if came <= 2**20} == {c: c for c in held if c <= 2**20}
    assert {it for came, it in held.items() if 2**20 < came <= 2 * 2**20} == {2 * 2**20}
    assert {it for came, it in held.items() if 2 * 2**20 < came < len(content)} == {len(content)}


def test_messages_that_wait_for_a_client_to_take_its_answers_are_counted_and_go_with_their_rpcs() -> None:
    async def large(content: bytes, _: Rpc) -> Sequence[Piece]:
        return (bytes(5 * 2**20),)

    async def run() -> tuple[int, int]:
        here = listener(large)
        connection = connected(here)
        connection.data_received(begun("/unary", 1) + sent(1, message(1)))
        wire = connection._transport
        assert isinstance(wire, Wire)
        await until(lambda: len(wire.said) > http2.WINDOW_BYTES // 2, "its client has to take what was sent")
        for stream in range(3, 23, 2):
            connection.data_received(begun("/unary", stream) + sent(stream, message(MESSAGE_BYTES)))
            await asyncio.sleep(0)
        held = here.memory.held
        for stream in range(3, 23, 2):
            connection.data_received(frame(http2.RST_STREAM, 0, stream, bytes(4)))
        await until(lambda: not here.memory.held, "they go with their RPCs")
        return held, here.memory.held

    held, after = asyncio.run(run())
    assert held >= 10 * MESSAGE_BYTES
    assert after == 0


@pytest.mark.parametrize(("taken_bytes", "is_kept"), [(0, False), (1, False), (5_000, True)])
def test_who_hardly_takes_an_answer_is_cut_off(
    taken_bytes: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOK_S", 0.05), ("UNTAKEN_S", 0.3), ("LEAST_TAKEN_BYTES", 4000)):
        monkeypatch.setattr(connection_module, name, value)

    async def long(content: bytes, _: Rpc) -> Sequence[Piece]:
        return (bytes(2**20),)

    async def run() -> bool:
        now_s, loop = 0.0, asyncio.get_running_loop()
        loop.time = lambda: now_s  # type: ignore[method-assign]  # a busy machine's would pass by itself
        here = listener(long)
        connection = connected(here)
        aborted = asyncio.Event()
        assert isinstance(connection._transport, Wire)
        connection._transport.abort = aborted.set  # type: ignore[method-assign]

        async def wait_a_look() -> None:
            nonlocal now_s
            now_s += 0.05
            for _ in range(10):
                await asyncio.sleep(0)

        for _ in range(10):  # nothing is there to be taken, however long
            await wait_a_look()
        assert not aborted.is_set()
        connection.data_received(begun("/unary", 1) + sent(1, message(10)))
        for _ in range(20):  # a second
            await wait_a_look()
            if taken_bytes:
                grants = (frame(http2.WINDOW_UPDATE, 0, on, taken_bytes.to_bytes(4)) for on in (0, 1))
                connection.data_received(b"".join(grants))
        return not aborted.is_set()

    assert asyncio.run(run()) == is_kept


def test_a_stream_whose_client_leaves_while_it_is_answered_ends() -> None:
    async def run() -> tuple[int, bool]:
        began, go_on = asyncio.Event(), asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []
        num = 0

        async def one_by_one(rpc: Rpc) -> AsyncIterator[Sequence[Piece]]:
            nonlocal num
            tasks.append(asyncio.current_task())  # type: ignore[arg-type]
            async for _ in rpc.messages():
                num += 1
                rpc.on_left = lambda: None  # as inference has it, which is not cut short
                began.set()
                await go_on.wait()
                rpc.on_left = None
                yield (b"x",)

        here = listener(answered, one_by_one)
        connection = connected(here)
        connection.data_received(begun("/stream", 1) + sent(1, message(3) * 5, is_last=False))
        await began.wait()
        connection.data_received(frame(http2.RST_STREAM, 0, 1, bytes(4)))
        go_on.set()
        await asyncio.wait(tasks, timeout=5)
        return num, tasks[0].done()

    assert asyncio.run(run()) == (1, True)


def test_a_stream_that_we_let_wait_is_not_too_slow() -> None:
    async def run() -> errors.RequestError | None:
        rpcs: list[Rpc] = []
        never = asyncio.Event()

        async def slow(rpc: Rpc) -> AsyncIterator[Sequence[Piece]]:
            rpcs.append(rpc)
            async for _ in rpc.messages():
                await never.wait()
                yield (b"x",)

        here = listener(answered, slow)
        connection = connected(here)
        connection.data_received(begun("/stream", 1))
        await asyncio.sleep(0)
        connection.data_received(sent(1, message(9) * 3 + message(9)[:7], is_last=False))
        await asyncio.sleep(0)
        connection.check_time(rpcs[0], asyncio.get_running_loop().time() + 10_000)
        return rpcs[0].error

    assert asyncio.run(run()) is None
