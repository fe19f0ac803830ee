"""Work beside requests goes on after a mistake of ours, and a pool is not called cold before anybody has asked it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from serving.gateway import background
from serving.gateway.background import forever
from serving.gateway.fleet.addresses import NoAddress, look_up
from tests.gateway.odd_triton import OddTriton, ask, gateway_of, until


def test_work_that_fails_is_told_and_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)
    begun = []

    async def work() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise ArithmeticError("too large")
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(forever("counting", work))
        await until(lambda: len(begun) == 3, "it is done again")
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert len(caplog.records) == 2
    assert "counting failed" in caplog.records[0].message
    assert "ArithmeticError: too large" in caplog.text


def test_work_whose_wait_is_cancelled_by_another_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ended so would end without a word."""
    monkeypatch.setattr(background, "AGAIN_S", 0.0)

    async def run() -> None:
        waits: list[asyncio.Future[None]] = []

        async def work() -> None:
            waits.append(asyncio.get_running_loop().create_future())
            await waits[-1]

        task = asyncio.create_task(forever("waiting", work))
        await until(lambda: len(waits) == 1, "it waits")
        waits[0].cancel()
        await until(lambda: len(waits) == 2, "it waits again")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_sweep_that_failed_once_still_wakes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)

    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            looks, look = [], gateway.candidates.look

            def fails_once(now: float) -> None:
                looks.append(now)
                if len(looks) == 1:
                    raise OverflowError
                look(now)

            monkeypatch.setattr(gateway.candidates, "look", fails_once)
            await until(lambda: len(looks) > 2, "it is looked at again")

    asyncio.run(run())


@pytest.mark.parametrize("name", ["triton..svc", "a" * 64 + ".svc"])
def test_a_name_that_no_host_can_have_has_no_address(name: str) -> None:
    with pytest.raises(NoAddress, match=r"host.*name"):
        asyncio.run(look_up(name, 8000))


def test_a_mistake_of_ours_is_not_taken_for_a_server_that_is_no_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)

    async def run() -> None:
        async with gateway_of({"cpu": [triton := OddTriton()]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            update, failed = gateway.candidates.update, []

            def fails_once() -> None:
                if not failed:
                    failed.append(True)
                    raise KeyError("ours")
                update()

            monkeypatch.setattr(gateway.candidates, "update", fails_once)
            triton.models = ["m-fp32", "other-fp32"]
            await until(lambda: failed, "it fails")
            assert server.alive
            assert (await ask(gateway)).status == 200
            await until(lambda: "other" in gateway.catalogue.fleet.known, "it is told again")
            await until(lambda: ("cpu", "other-fp32") in gateway.candidates._known, "what was left half done is done")
            assert (await ask(gateway, model="other")).status == 200

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "KeyError: 'ours'" in caplog.text


@pytest.mark.parametrize("config_s", [0.0, 0.6])
def test_a_gpu_pool_that_is_warm_is_taken_for_warm_however_slowly_it_tells(config_s: float) -> None:
    async def run() -> None:
        cpu, gpu = OddTriton(), OddTriton(kind="KIND_GPU", config_s=config_s)
        async with gateway_of({"cpu": [cpu], "gpu": [gpu]}, seen=False) as gateway:
            await until(lambda: gateway.catalogue.pools["gpu"][0].alive, "it is seen")
            assert (gateway.candidates.state("gpu"), gateway.candidates.share("gpu")) == ("ready", 1.0)

    asyncio.run(run())


def test_a_gpu_pool_that_answers_nothing_is_cold_from_its_first_poll_on() -> None:
    async def run() -> None:
        cpu, gpu = OddTriton(), OddTriton(kind="KIND_GPU", models=[])
        async with gateway_of({"cpu": [cpu], "gpu": [gpu]}) as gateway:
            await until(lambda: gateway.candidates.state("gpu") == "waking", "it is waited for")
            gpu.models = ["m-fp32"]
            await until(lambda: gateway.candidates.state("gpu") == "warming", "it warms up")

    asyncio.run(run())
