"""Runs a coroutine at once, in its starter's turn, and goes on with it the moment that what it waits for is there.

A task of the event loop takes a turn to begin and another for each thing that it waits for, and each turn asks the system for news: that is
more than a small request costs by itself. So a request runs as an `EagerTask`. As long as it waits for a `Pending` alone, it needs no task;
it becomes one where it waits for anything else (a thread, a sleep, a connection). Rule: what needs a task, such as `asyncio.timeout`, asks
for `own_task` before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Pending(asyncio.Future[T]):
    """A future. An `EagerTask` that waits for it goes on by `then`: whoever sets the result calls it, or lets the event loop do so."""

    then: Callable[[], object] | None = None

    def set_soon(self, result: T) -> None:
        """Whoever waits goes on in a turn of its own."""
        self.set_result(result)
        self._go_on()

    def fail_soon(self, error: BaseException) -> None:
        self.set_exception(error)
        self._go_on()

    def cancel_soon(self) -> None:
        self.cancel()
        self._go_on()

    def _go_on(self) -> None:
        if self.then is not None:
            asyncio.get_running_loop().call_soon(self.then)


async def in_time(pending: Pending[Any], limit_s: float) -> bool:
    """Whether it is done within `limit_s`; returns as soon as it is."""
    if pending.done():
        return True
    ended: Pending[bool] = Pending()

    def end(is_done: bool, _: object = None) -> None:
        if not ended.done():
            ended.set_result(is_done)
            if ended.then is not None:
                ended.then()

    timer = asyncio.get_running_loop().call_later(limit_s, end, False)
    pending.then = partial(end, True)
    try:
        return await ended
    finally:
        pending.then = None
        timer.cancel()


class EagerTask:
    """Runs until its first wait when it is made, by a callback and not in a task. From then until its end it is in `running`.

    What it raises is only logged, and `on_failure` is called then, or where it ends by being cancelled.
    """

    __slots__ = ("_is_cancelled", "_on_failure", "_resume", "_running", "_task", "_waits_for", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        running: set[EagerTask],
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self._work = work
        self._running = running
        self._on_failure = on_failure
        self._is_cancelled = False  # and has not heard of it yet
        self._task: asyncio.Task[None] | None = None
        self._waits_for: Pending[Any] | None = None
        self._resume = partial(next, self._steps(), None)
        self._resume()

    def cancel(self) -> None:
        """As `asyncio.Task.cancel`."""
        if self._task is not None:
            self._task.cancel()
        elif self._waits_for is not None and not self._waits_for.done():
            self._waits_for.cancel_soon()
        else:
            self._is_cancelled = True

    def _steps(self) -> Generator[None, None, None]:
        """One from wait to wait."""
        send, running = self._work.send, self._running
        try:
            waits_for = send(None)
            running.add(self)
            while type(waits_for) is Pending:
                self._waits_for = waits_for
                waits_for.then = self._resume
                yield
                waits_for.then = None
                if self._is_cancelled:  # after that had come, and before this turn
                    self._is_cancelled = False
                    waits_for = self._work.throw(asyncio.CancelledError())
                else:
                    waits_for = send(None)
        except StopIteration:
            running.discard(self)
        except BaseException as error:
            self._fail(error)
        else:
            self._waits_for = None
            asyncio.get_running_loop().create_task(self._rest(waits_for)).add_done_callback(self._ended)

    async def _rest(self, waits_for: Any) -> None:
        """What is left of a coroutine that has begun to wait."""
        task = self._task = asyncio.current_task()
        if self._is_cancelled and task is not None:  # before it began: it would end without a word to the work
            task.cancel()
        await _relay(self._work, waits_for)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._running.discard(self)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._running.discard(self)
        if not isinstance(error, asyncio.CancelledError):
            log.error("a request failed", exc_info=error)
        if self._on_failure is not None:
            self._on_failure()


@coroutine
def _relay(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:
            step: Callable[[Any], Any] = work.throw
            sent = error
        else:
            step = work.send
        # An error knows this frame. If the frame knew the error, both would stay, with all they hold, until garbage is looked for.
        waits_for = None
        try:
            waits_for = step(sent)
        except StopIteration:
            return
        finally:
            sent = None


async def own_task() -> None:
    """From here on whoever awaits it runs in a task of the event loop."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)
