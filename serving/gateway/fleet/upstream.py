"""How the gateway talks to one Triton server: pooled keep-alive HTTP/1.1 connections, one request at a time on each.

It is hand-made on httptools because a client library costs more per request than all else the gateway does (13 µs by hand,
79 to 1,628 µs by library). Framing is always rebuilt here; nothing of the client's request head is forwarded but a trace's id. Rule: every
way a connection can end resolves the future that waits on it, so no request can hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import httptools

from serving.gateway.eager import Pending, own_task

JOIN_BELOW_BYTES = 64 * 1024  # up to here one copied write is cheaper than a gathered one; a guess, not measured
# An answer is one piece up to here; a longer one stays in the pieces that it came in, since nobody is answered while it is copied.
WHOLE_BYTES = 128 * 1024


class Lost(Exception):
    """No answer came: `refused` before anything was sent, `timed_out` though the connection stands, `silent`: nothing comes from there."""

    def __init__(self, message: str, *, refused: bool = False, timed_out: bool = False, silent: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.timed_out = timed_out
        self.silent = silent


class Answer(NamedTuple):
    """Triton's response. `header_length` is its Inference-Header-Content-Length, None where the body is JSON alone.

    The body is `start`, and of a long one `rest` behind it, in the pieces that it came in.
    """

    status: int
    header_length: int | None
    start: bytes
    rest: Sequence[bytes] = ()

    @property
    def body(self) -> bytes:
        return b"".join((self.start, *self.rest)) if self.rest else self.start


class Lent(Protocol):
    """What Triton reads while it works on a request, and is held until it has answered."""

    is_given_up: bool  # nobody waits for its answer, and it may read on


class Connection(asyncio.Protocol):
    """One socket. `ask` may be called again once its answer is there."""

    __slots__ = (
        "answer",
        "closed",
        "give_up_at",
        "header_length",
        "is_own",
        "lent",
        "parser",
        "parts",
        "result",
        "stays",
        "target",
        "transport",
    )

    def __init__(self, target: Target) -> None:
        self.target = target
        self.parts: list[bytes] = []
        self.header_length: int | None = None
        self.answer: Pending[Answer] | None = None
        self.lent: Lent | None = None
        self.result: Answer | None = None  # of which all has come, in this read
        self.stays = True  # open behind `result`
        self.give_up_at = 0.0
        self.is_own = False  # what is asked is the gateway's own question
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def ask(
        self,
        head: bytes,
        chunks: Sequence[bytes | memoryview],
        give_up_at: float,
        lent: Lent | None = None,
        *,
        is_own: bool = False,
    ) -> Pending[Answer]:
        """Sends a request; the head goes out in one write, because Triton mistakes one that is split inside the path."""
        target = self.target
        # With the loop named: a future that has to look for it asks the system which process this is.
        answer: Pending[Answer] = Pending(loop=target.loop)
        self.answer = answer
        target.busy.add(self)
        self.lent = lent
        self.give_up_at = give_up_at
        self.is_own = is_own
        if len(chunks) == 1 and len(chunks[0]) < JOIN_BELOW_BYTES:
            self.transport.write(head + chunks[0])
        else:
            self.transport.writelines((head, *chunks))
        return answer

    # -- httptools calls these ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 31 and name.lower() == b"inference-header-content-length":
            self.header_length = int(value)

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        parts = self.parts
        if len(parts) != 1 and sum(map(len, parts)) <= WHOLE_BYTES:
            parts = [b"".join(parts)]
        if self.answer is None or self.result is not None:
            self.close()  # bytes nobody asked for: this connection is out of step
        else:
            self.result = Answer(self.parser.get_status_code(), self.header_length, parts[0], tuple(parts[1:]))
            self.stays = self.parser.should_keep_alive()
        self.parts, self.header_length = [], None

    # -- asyncio calls these --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        target, wrong = self.target, ""
        target.num_heard += 1
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            wrong = f"Triton's answer is not HTTP: {error}"
        result, answer = self.result, self.answer
        if result is not None and answer is not None:  # whoever waits for it goes on here, and may use this connection
            self.result = self.answer = self.lent = None
            target.release(self, self.stays and not wrong)
            if not answer.done():
                answer.set_result(result)
                if answer.then is not None:
                    answer.then()
        elif wrong:
            self.fail(wrong)

    def eof_received(self) -> None:
        self.fail("Triton closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"the connection to Triton was lost: {exc or 'closed'}")
        self.parts = []
        del self.parser  # it knows this connection: neither would be gone before garbage is looked for

    def fail(self, reason: str, *, timed_out: bool = False, silent: bool = False) -> None:
        answer, self.answer = self.answer, None
        lent, self.lent = self.lent, None
        if lent is not None:
            lent.is_given_up = True
        if timed_out:
            self.transport.abort()  # what was not sent yet is not wanted any more
        self.close()
        if answer is not None and not answer.done():
            answer.fail_soon(Lost(reason, timed_out=timed_out, silent=silent))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.target.forget(self)
            self.transport.close()


class Target:
    """One Triton server's HTTP address and the connections to it."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop, *, connect_timeout_s: float = 2.0) -> None:
        self.url = url
        authority = url.removeprefix("http://")
        host, _, port = authority.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)
        self.host_header = b"Host: %b\r\n" % authority.encode()
        self.loop = loop
        self.connect_timeout_s = connect_timeout_s  # loopback and cluster networks answer or refuse within it
        self.idle: list[Connection] = []
        self.busy: set[Connection] = set()
        self.num_heard = 0  # grows whenever anything comes from there

    async def ask(
        self, head: bytes, chunks: Sequence[bytes | memoryview], give_up_at: float, *, fresh: bool = False
    ) -> Answer:
        """Sends a question of the gateway's own and waits for the answer, at most until `give_up_at` (perf_counter); `fresh` on a new
        connection.

        Raises Lost.
        """
        connection = self.idle.pop() if self.idle and not fresh else await self.connect()
        return await connection.ask(head, chunks, give_up_at, is_own=True)

    @property
    def num_in_flight(self) -> int:
        """Clients' requests that were sent there and are not answered, whether or not their clients still wait."""
        return sum(not connection.is_own for connection in self.busy)

    async def connect(self) -> Connection:
        """A new connection. Raises Lost."""
        await own_task()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await self.loop.create_connection(lambda: Connection(self), self.host, self.port)
        except (OSError, TimeoutError) as error:
            raise Lost(f"cannot connect to Triton: {error or 'timed out'}", refused=True) from None
        return connection

    def release(self, connection: Connection, keep: bool) -> None:
        """Called by a connection whose answer is complete."""
        self.busy.discard(connection)
        if keep and not connection.closed:
            self.idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: Connection) -> None:
        self.busy.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Fails requests that have waited past their end. Called a few times a second, which costs a request nothing."""
        for connection in [c for c in self.busy if c.give_up_at <= now]:
            connection.fail("Triton did not answer in time", timed_out=True)

    def give_up(self) -> None:
        """Fails all that waits: a machine that is gone without a word resets no connection. What idles leads there no more either."""
        self.close_idle()
        for connection in list(self.busy):
            connection.fail("Triton answers nothing any more", silent=True)

    def close_idle(self) -> None:
        """Idle connections would make Triton's own shutdown wait out its whole exit timeout."""
        for connection in self.idle[:]:
            connection.close()

    def close(self) -> None:
        """All connections, whatever they wait for."""
        for connection in [*self.idle, *self.busy]:
            connection.transport.abort()  # what was not sent yet is not wanted any more
            connection.fail("the gateway stops")
