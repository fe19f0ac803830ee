"""Several inferences for one client: a few at a time, all or none. What each would do at a server is a line of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from serving import errors
from serving.gateway.metrics import Series
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.exchange import MAX_IN_FLIGHT, Exchange, Part, receipt_of


class Queue(Exchange):
    """Stands for admission: each part waits until the test lets it go on, or its client leaves."""

    __slots__ = ("begun", "cancelled", "is_sent_at_once", "left", "waiting")

    def __init__(self) -> None:
        stub = SimpleNamespace(closing=False, unresolved=Series(("", "", "")), usage=None, traces=None)
        super().__init__(stub)  # type: ignore[arg-type]
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.begun: list[int] = []
        self.left: list[int] = []
        self.cancelled: list[int] = []
        self.is_sent_at_once = False  # nobody waits, so that nobody leaves

    async def infer(self, *given: Any, **_: object) -> Any:
        part = int(given[1])  # the JSON part
        self.begun.append(part)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting[part] = waiting

        def gone() -> None:
            if not waiting.done():
                waiting.set_exception(ClientLeft())

        if not self.is_sent_at_once:
            self.listen(gone)
        try:
            return await waiting
        except ClientLeft:
            self.left.append(part)
            raise
        except asyncio.CancelledError:
            self.cancelled.append(part)
            raise
        finally:
            self.ignore(gone)
            del self.waiting[part]

    def answer(self, *parts: int) -> None:
        for part in parts:
            self.waiting[part].set_result(f"reply {part}")

    def fail(self, part: int, error: Exception) -> None:
        self._has_failed = True
        self.waiting[part].set_exception(error)


async def each(num: int) -> AsyncIterator[Part]:
    for part in range(num):
        yield str(part).encode(), []


async def started(queue: Queue, num: int) -> asyncio.Task[Any]:
    task = asyncio.create_task(queue.infer_all(None, each(num), is_one=num == 1))  # type: ignore[arg-type]
    await settled()
    return task


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_replies_come_in_the_order_of_the_asks_and_few_are_asked_at_a_time() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, MAX_IN_FLIGHT + 2)
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
        task = await started(queue, MAX_IN_FLIGHT + 2)
        queue.answer(0)
        queue.fail(1, errors.Overloaded("full"))
        with pytest.raises(errors.Overloaded, match="full"):
            await task
        await settled()
        assert set(queue.left) >= {2, 3}
        assert MAX_IN_FLIGHT + 1 not in queue.begun

    asyncio.run(scene())


def test_a_bug_in_one_of_them_is_no_client_that_left() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, 3)
        queue.fail(1, KeyError("bug"))
        with pytest.raises(KeyError):
            await task

    asyncio.run(scene())


def test_a_part_that_cannot_be_prepared_counts_once_and_spoils_no_answer() -> None:
    async def parts() -> AsyncIterator[Part]:
        yield b"0", []
        await settled()
        raise errors.Overloaded("no thread")

    async def scene() -> None:
        queue = Queue()
        counted: list[str] = []

        series = SimpleNamespace(answered=lambda *_: counted.append("ok"))
        reply: Any = SimpleNamespace(destination=SimpleNamespace(series=series), began=0.0, answered=0.0, receipt=[])

        async def inferred() -> None:
            with queue:
                await queue.infer_all(None, parts(), is_one=False)  # type: ignore[arg-type]

        task = asyncio.create_task(inferred())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        queue._has_begun = True  # as the real `infer` says
        queue.replies.append(reply)
        queue.answer(0)
        with pytest.raises(errors.Overloaded):
            await task
        assert counted == ["ok"]
        assert {k: v for k, v in queue.inference.unresolved.outcomes.items() if v} == {"shed": 1}

    asyncio.run(scene())


def test_what_is_being_worked_on_is_not_waited_for() -> None:
    async def scene() -> None:
        queue = Queue()
        queue.is_sent_at_once = True
        task = await started(queue, 2)
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
        queue = Queue()
        task = await started(queue, num)
        queue.leave()
        with pytest.raises(ClientLeft):
            await task
        await settled()
        assert queue.left == queue.begun == list(range(min(num, MAX_IN_FLIGHT)))

    asyncio.run(scene())


def test_a_server_that_stops_cancels_all() -> None:
    async def scene() -> None:
        queue = Queue()
        task = await started(queue, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.cancelled == [0, 1, 2]

    asyncio.run(scene())


def test_where_inferences_differ_the_receipt_says_each_value_once_in_their_order() -> None:
    def reply(pool: bytes, reason: bytes) -> Any:
        return SimpleNamespace(
            receipt=[(b"tandem-pool", pool), (b"tandem-variant", b"fp32"), (b"tandem-reason", reason)]
        )

    replies = [reply(b"gpu", b"cheapest_in_time"), reply(b"cpu", b"spill"), reply(b"gpu", b"cheapest_in_time")]
    receipt = dict(receipt_of(replies))
    assert receipt[b"tandem-pool"] == b"gpu, cpu"
    assert receipt[b"tandem-variant"] == b"fp32"
    assert receipt[b"tandem-reason"] == b"cheapest_in_time, spill"
