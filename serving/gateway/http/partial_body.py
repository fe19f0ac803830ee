"""Limits on time and memory for requests that arrive in several pieces.

What is wrong with the rest of a body is raised where the app waits for it, so that it is answered and counted as every other refusal.
Rule: nothing here is made for a request that comes in one read, as nearly all do.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from serving import errors
from serving.protocol.memory import Claim, Memory
from serving.settings import LimitSettings


class Receiver(Protocol):
    """Whoever takes what comes: a connection."""

    is_reading_paused: bool

    def fail(self, error: errors.RequestError) -> None:
        """Nothing more is taken."""


class Incoming:
    """A head, or with `is_body` a body until its request is answered. Times are the loop's.

    The receiver's `fail` is told what is wrong, once.
    """

    def __init__(
        self, limits: LimitSettings, memory: Memory, receiver: Receiver, *, is_body: bool, tenant: str = ""
    ) -> None:
        self.is_body = is_body
        self._limits = limits
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._began = self._last = self._loop.time()
        self._timer = self._loop.call_at(self._due(), self._check_time)
        self._claim = memory.claim(tenant)

    def add(self, size: int) -> None:
        """`size` more bytes have come off the wire."""
        self._last = self._loop.time()
        if self.is_body:
            try:
                self._claim.take(size)
            except errors.RequestError as error:
                self._receiver.fail(error)

    def complete(self) -> None:
        """Nothing is waited for any more; what is held stays so until the answer."""
        self._timer.cancel()

    def hand_over(self, claim: Claim) -> None:
        """Of a body that is complete: from now on whoever works on it holds it, whether its client stays or leaves."""
        claim.take_over(self._claim)

    def release(self) -> None:
        self._timer.cancel()
        self._claim.release()

    def _due(self) -> float:
        limits = self._limits
        if not self.is_body:
            return self._began + limits.head_timeout_s
        return min(self._last + limits.body_pause_s, self._began + limits.body_timeout_s)

    def _check_time(self) -> None:
        """One timer for each request, however many reads it has: it looks when the time would be over, had nothing come since."""
        now = self._loop.time()
        if self._receiver.is_reading_paused:  # the client waits for us: none of this is its time
            self._began += now - self._last
            self._last = now
        due = self._due()
        if now < due:
            self._timer = self._loop.call_at(due, self._check_time)
        else:
            self._receiver.fail(errors.TooSlow(self._timeout_text(now)))

    def _timeout_text(self, now: float) -> str:
        limits = self._limits
        if not self.is_body:
            return f"the head of the request took more than {limits.head_timeout_s:g} seconds"
        if now >= self._began + limits.body_timeout_s:
            return f"the body took more than {limits.body_timeout_s:g} seconds"
        return f"nothing of the body came for {limits.body_pause_s:g} seconds"
