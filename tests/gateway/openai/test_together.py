"""Several inferences for one client: a few at a time, all or none. What each would do at a server is a line of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving import errors
from serving.gateway.request.client import Client, NobodyLeaves
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.inference import MAX_IN_FLIGHT, infer_all


class Visitor:
    """A client who leaves when the test says so."""

    def __init__(self) -> None:
        self.tell: Callable[[], None] | None = None

    def listen(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def ignore(self) -> None:
        self.tell = None

    def leave(self) -> None:
        assert self.tell is not None
        self.tell()


class Queue:
    """Stands for admission: each ask waits until the test lets it go on, or its client leaves."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[str]] = {}
        self.begun: list[int] = []
        self.left: list[int] = []
        self.cancelled: list[int] = []

    async def infer(self, asked: int, client: Client) -> str:
        self.begun.append(asked)
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting[asked] = waiting

        def gone() -> None:
            if not waiting.done():
                waiting.set_exception(ClientLeft())

        client.listen(gone)
        try:
            return await waiting
        except ClientLeft:
            self.left.append(asked)
            raise
        except asyncio.CancelledError:
            self.cancelled.append(asked)
            raise
        finally:
            client.ignore()
            del self.waiting[asked]

    def answer(self, *asks: int) -> None:
        for asked in asks:
            self.waiting[asked].set_result(f"reply {asked}")

    def fail(self, asked: int, error: Exception) -> None:
        self.waiting[asked].set_exception(error)


async def started(queue: Any, num: int, client: Client) -> asyncio.Task[Any]:
    task = asyncio.create_task(infer_all(queue, list(range(num)), client))  # type: ignore[arg-type]
    await settled()
    return task


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_replies_come_in_the_order_of_the_asks_and_few_are_asked_at_a_time() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, MAX_IN_FLIGHT + 2, NobodyLeaves())
        assert queue.begun == list(range(MAX_IN_FLIGHT))
        queue.answer(3, 1)
        await settled()
        assert queue.begun == list(range(MAX_IN_FLIGHT + 2))
        queue.answer(*list(queue.waiting))
        assert await task == [f"reply {i}" for i in range(MAX_IN_FLIGHT + 2)]

    asyncio.run(scene())


def test_where_one_fails_the_client_hears_why_at_once_and_the_others_leave_the_queue() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, MAX_IN_FLIGHT + 2, NobodyLeaves())
        queue.answer(0)
        queue.fail(1, errors.Overloaded("full"))
        with pytest.raises(errors.Overloaded, match="full"):
            await task
        await settled()
        assert set(queue.left) >= {2, 3}
        assert MAX_IN_FLIGHT + 1 not in queue.begun

    asyncio.run(scene())


def test_what_is_being_worked_on_is_not_waited_for() -> None:
    async def scene() -> None:
        class Sent(Queue):
            async def infer(self, asked: int, client: Client) -> str:
                del client
                return await super().infer(asked, NobodyLeaves())

        queue = Sent()
        task = await started(queue, 2, NobodyLeaves())
        queue.fail(0, errors.Internal("broken"))
        with pytest.raises(errors.Internal):
            await task
        assert list(queue.waiting) == [1]
        queue.answer(1)  # and nobody minds
        await settled()
        assert not queue.waiting

    asyncio.run(scene())


@pytest.mark.parametrize("num", [1, 3, MAX_IN_FLIGHT + 5])
@pytest.mark.protocol(
    "OpenAI", "a client that leaves, and a part that fails, take what waits out of the queue", "supported"
)
def test_a_client_that_leaves_takes_all_that_waits_out_of_the_queue(num: int) -> None:
    async def scene() -> None:
        queue, visitor = Queue(), Visitor()
        task = await started(queue, num, visitor)
        visitor.leave()
        with pytest.raises(ClientLeft):
            await task
        await settled()
        assert queue.left == queue.begun == list(range(min(num, MAX_IN_FLIGHT)))
        assert visitor.tell is None

    asyncio.run(scene())


def test_a_server_that_stops_cancels_all() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, 3, NobodyLeaves())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.cancelled == [0, 1, 2]

    asyncio.run(scene())
