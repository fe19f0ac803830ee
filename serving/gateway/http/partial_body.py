"""Limits on time, size and memory for requests that arrive in several pieces.

uvicorn hands its body to the app; what is wrong with the rest of it is raised where the app waits for it, so that it is answered and
counted as every other refusal. Rule: nothing here is made for a request that comes in one read, as nearly all do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving import errors
from serving.gateway.http.connections import Connections
from serving.gateway.http.door import Door
from serving.gateway.http.origin import OriginPolicy
from serving.protocol.memory import Claim, Memory
from serving.settings import LimitSettings

# Bytes of framing (chunk sizes, extensions, trailers) beside the body: 16 KiB as Node.js allows, and 8 for each byte of the body, since
# a chunk of one byte has 5.
MAX_FRAMING_BYTES = 16 * 1024
MAX_FRAMING_RATIO = 8


@dataclass(slots=True)
class Intake:
    """What one listener takes in, and from whom. `memory`: of all listeners."""

    limits: LimitSettings
    memory: Memory
    connections: Connections
    origin: OriginPolicy | None = None  # None: whoever asks, by whatever name
    door: Door | None = None


class Connection(Protocol):
    flow: FlowControl

    def fail(self, error: errors.RequestError, *, app_knows: bool) -> None: ...

    def on_response_complete(self) -> None: ...


class Incoming:
    """A head (`cycle` is None), or a body until its request is answered. Times are the loop's.

    The connection's `fail` is told what is wrong, once, and nothing more is taken after that.
    """

    def __init__(self, intake: Intake, connection: Connection, cycle: RequestResponseCycle | None = None) -> None:
        self.connection = connection
        self.cycle = cycle
        self.error: errors.RequestError | None = None
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._began = self._last = self._loop.time()
        self._timer = self._loop.call_at(self._due(), self._check_time)
        self._size = 0  # bytes, with the framing of a body
        self._taken = 0  # bytes of the body that the app has
        self._claim = intake.memory.claim()
        self.keep_alive = cycle is not None and cycle.keep_alive  # what the client wants, once all is here
        if cycle is not None:
            cycle.receive = self.receive  # type: ignore[method-assign]
            cycle.on_response = self._answered
            self.add(len(cycle.body))

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    @property
    def is_held(self) -> bool:
        """Whether it still counts against the memory of all."""
        return self._claim.held > 0

    def add(self, size: int) -> None:
        """`size` more bytes have come off the wire."""
        self._last = self._loop.time()
        self._size += size
        if self.cycle is not None:
            self._check_body(self._taken + len(self.cycle.body), size)

    def complete(self) -> None:
        """Nothing is waited for any more; what is held stays so until the answer."""
        self._timer.cancel()

    def hand_over(self, claim: Claim) -> None:
        """Of a body that is complete: from now on whoever works on it holds it, whether its client stays or leaves."""
        claim.take_over(self._claim)

    def release(self) -> None:
        self._timer.cancel()
        self._claim.release()

    def stop(self, error: errors.RequestError) -> None:
        """The rest will not be read; the first that is wrong counts."""
        if self.error is None:
            self._timer.cancel()
            self.error = error
            self.connection.fail(error, app_knows=self.cycle is not None)
            if self.cycle is not None:
                self.cycle.message_event.set()

    async def receive(self) -> Any:
        """ASGI's. Raises RequestError."""
        assert self.cycle is not None
        message: Any = await RequestResponseCycle.receive(self.cycle)
        if self.error is not None and message["type"] == "http.request":
            raise self.error
        self._taken += len(message.get("body", b""))
        return message

    def _answered(self) -> None:
        self.release()
        self.connection.on_response_complete()

    def _check_body(self, body: int, more: int) -> None:
        limits = self._intake.limits
        if body > limits.max_body_bytes:
            self.stop(
                errors.TooLarge(f"the body has more than {limits.max_body_bytes} bytes, the most that is taken here")
            )
        elif self._size > MAX_FRAMING_BYTES + (1 + MAX_FRAMING_RATIO) * body:
            self.stop(errors.BadRequest("the body has more framing of chunks than bytes"))
        elif self.error is None:
            try:
                self._claim.take(more)
            except errors.RequestError as error:
                self.stop(error)

    def _due(self) -> float:
        limits = self._intake.limits
        if self.cycle is None:
            return self._began + limits.head_timeout_s
        return min(self._last + limits.body_pause_s, self._began + limits.body_timeout_s)

    def _check_time(self) -> None:
        """One timer for each request, however many reads it has: it looks when the time would be over, had nothing come since."""
        now = self._loop.time()
        if self.connection.flow.read_paused:  # the client waits for us: none of this is its time
            self._began += now - self._last
            self._last = now
        due = self._due()
        if now < due:
            self._timer = self._loop.call_at(due, self._check_time)
        else:
            self.stop(errors.TooSlow(self._timeout_text(now)))

    def _timeout_text(self, now: float) -> str:
        limits = self._intake.limits
        if self.cycle is None:
            return f"the head of the request took more than {limits.head_timeout_s:g} seconds"
        if now >= self._began + limits.body_timeout_s:
            return f"the body took more than {limits.body_timeout_s:g} seconds"
        return f"nothing of the body came for {limits.body_pause_s:g} seconds"
