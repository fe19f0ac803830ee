"""A coroutine that goes on in the turn of whoever brings what it waits for, and is a task only where it must be one."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from serving.gateway.eager import EagerTask, Pending, in_time, own_task


def run(work: Callable[[list[str], Pending[str]], Awaitable[None]], then: Callable[[Pending[str]], None]) -> list[str]:
    """What `work` noted: before anything else had a turn, and after `then`, which brings what it waits for."""
    noted: list[str] = []

    async def main() -> None:
        running: set[EagerTask] = set()
        pending: Pending[str] = Pending()

        async def noting() -> None:
            await work(noted, pending)
            noted.append("end")

        def callback() -> None:
            EagerTask(noting(), running)
            noted.append("|")
            then(pending)
            noted.append("|")

        asyncio.get_running_loop().call_soon(callback)
        await some_turns()
        assert not running

    asyncio.run(main())
    return noted


async def some_turns() -> None:
    """Of the loop, however late it is: what is due by then is done."""
    for _ in range(6):
        await asyncio.sleep(0)


def bring(pending: Pending[str]) -> None:
    pending.set_result("news")
    if pending.then is not None:
        pending.then()


async def waits(noted: list[str], pending: Pending[str]) -> None:
    noted.append("begin")
    noted.append(await pending)


async def waits_in_a_task(noted: list[str], pending: Pending[str]) -> None:
    await own_task()
    async with asyncio.timeout(5):
        await waits(noted, pending)


async def waits_for_so_long(noted: list[str], pending: Pending[str]) -> None:
    noted.append("in time" if await in_time(pending, 5) else "late")


def test_it_runs_and_goes_on_in_the_turn_of_others() -> None:
    assert run(waits, bring) == ["begin", "|", "news", "end", "|"]
    assert run(waits_for_so_long, bring) == ["|", "in time", "end", "|"]


def test_what_is_set_soon_is_told_in_a_turn_of_its_own() -> None:
    assert run(waits, lambda pending: pending.set_soon("news")) == ["begin", "|", "|", "news", "end"]


def test_it_becomes_a_task_where_it_asks_for_one() -> None:
    assert run(waits_in_a_task, bring) == ["|", "|", "begin", "news", "end"]


@pytest.mark.parametrize("work", [waits, waits_in_a_task])
def test_one_that_is_cancelled_hears_of_it(work: Callable[[list[str], Pending[str]], Awaitable[None]]) -> None:
    noted: list[str] = []

    async def main() -> None:
        running: set[EagerTask] = set()

        async def noting() -> None:
            try:
                await work(noted, Pending())
            except asyncio.CancelledError:
                noted.append("cancelled")

        asyncio.get_running_loop().call_soon(EagerTask, noting(), running)
        await some_turns()
        (task,) = running
        task.cancel()
        await some_turns()
        assert not running

    asyncio.run(main())
    assert noted == ["begin", "cancelled"]


async def waits_again(noted: list[str], pending: Pending[str]) -> None:
    await waits(noted, pending)
    await Pending()


async def waits_in_a_new_task(noted: list[str], pending: Pending[str]) -> None:
    noted.append("begin")
    pending.set_soon("news")
    await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("work", "hears"),
    [
        (waits, ["begin", "cancelled", "failed"]),
        (waits_again, ["begin", "cancelled", "failed"]),
        (waits_in_a_new_task, ["begin", "cancelled", "failed"]),
    ],
)
def test_one_that_is_cancelled_just_before_its_turn_hears_of_it(
    work: Callable[[list[str], Pending[str]], Awaitable[None]], hears: list[str]
) -> None:
    noted: list[str] = []

    async def main() -> None:
        running: set[EagerTask] = set()
        pending: Pending[str] = Pending()

        async def noting() -> None:
            try:
                await work(noted, pending)
            except asyncio.CancelledError:
                noted.append("cancelled")
                raise

        def callback() -> None:
            task = EagerTask(noting(), running, lambda: noted.append("failed"))
            if not pending.done():
                pending.set_soon("news")
            task.cancel()

        asyncio.get_running_loop().call_soon(callback)
        await some_turns()
        assert not running

    asyncio.run(main())
    assert noted == hears


def test_late_is_late() -> None:
    async def main() -> bool:
        return await in_time(Pending(), 0.01)

    assert asyncio.run(main()) is False


def test_a_failure_is_logged_and_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: list[str], pending: Pending[str]) -> None:
        raise ZeroDivisionError(await pending)

    with caplog.at_level(logging.ERROR):
        assert run(fails, bring) == ["|", "|"]
    assert "ZeroDivisionError" in caplog.text


class Body:
    """Stands for the megabytes of one."""


def test_what_a_failed_thread_held_is_gone_before_garbage_is_looked_for() -> None:
    bodies: list[weakref.ref[Body]] = []

    def read() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        raise ValueError("no image")

    async def work() -> None:
        with suppress(ValueError):
            await asyncio.get_running_loop().run_in_executor(None, read)

    async def main() -> None:
        running: set[EagerTask] = set()
        asyncio.get_running_loop().call_soon(lambda: EagerTask(work(), running))
        while not bodies or running:
            await asyncio.sleep(0.001)

    gc.disable()
    try:
        asyncio.run(main())
        assert [body() for body in bodies] == [None]
    finally:
        gc.enable()
