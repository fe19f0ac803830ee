"""What one server cannot answer for a reason of its own, another does: a model that was just unloaded, a machine that is gone without a word."""

from __future__ import annotations

import asyncio
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.gateway.fleet import catalogue, server
from tests.gateway.conftest import gateway_before
from tests.gateway.fleet.test_faults import Load, load_on, num_serving
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until
from tests.local.harness import Program, wait_until


class Reloading:
    """Once `status` is set, says it to every inference, although its index says READY."""

    def __init__(self) -> None:
        self.status = 0

    async def infer(self, _: bytes) -> tuple[int, dict[str, Any]]:
        return (self.status, {"error": "Request for unknown model"}) if self.status else (200, GOOD)


@pytest.mark.parametrize("status", [404, 503])
def test_a_model_that_one_server_has_just_unloaded_is_asked_of_another(status: int) -> None:
    async def run() -> None:
        model = Reloading()
        reloading, other = OddTriton(model.infer), OddTriton()
        async with gateway_of({"cpu": [reloading, other]}) as gateway:
            model.status = status
            asked = reloading.asked
            replies = [await ask(gateway, tandem_deadline_ms=20_000) for _ in range(10)]
            assert {reply.status for reply in replies} == {200}
            assert reloading.asked <= asked + 3  # the others go where it is served
            assert all(server.replica.num_in_flight == 0 for server in gateway.catalogue.pools["cpu"])

    asyncio.run(run())


def test_a_model_that_a_whole_pool_has_just_unloaded_is_asked_of_the_other_pool() -> None:
    async def run() -> None:
        model = Reloading()
        prices = {"cheap": 1.0, "dear": 50.0}
        async with gateway_of({"cheap": [OddTriton(model.infer)], "dear": [OddTriton()]}, prices=prices) as gateway:
            assert (await ask(gateway)).headers["tandem-pool"] == "cheap"
            model.status = 404
            assert (await ask(gateway)).headers["tandem-pool"] == "dear"
            refused = await ask(gateway, tandem_pool="cheap")
            assert (refused.status, refused.error) == (503, "not_ready")

    asyncio.run(run())


def test_a_version_that_is_not_there_is_the_clients_mistake_and_is_asked_once() -> None:
    async def run() -> None:
        model = Reloading()
        one, other = OddTriton(model.infer), OddTriton(model.infer)
        async with gateway_of({"cpu": [one, other]}) as gateway:
            model.status = 404
            asked = one.asked + other.asked
            reply = await ask(gateway, model="m/versions/7")
            assert (reply.status, reply.error) == (404, "not_found")
            assert one.asked + other.asked == asked + 1

    asyncio.run(run())


def test_what_a_machine_that_is_gone_without_a_word_worked_on_is_done_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "POLL_TIMEOUT_S", 2.0)  # longer than a busy machine stands still

    async def run() -> None:
        servers = [OddTriton(), OddTriton()]
        async with gateway_of({"cpu": servers}) as gateway:
            for server in servers:
                server.hangs = True
            asked = [asyncio.create_task(ask(gateway)) for _ in range(2)]
            both = gateway.catalogue.pools["cpu"]
            await until(lambda: all(server.replica.num_in_flight for server in both), "each works on one")
            servers[1].hangs = False
            assert [(await one).status for one in asked] == [200, 200]
            assert not any(server.replica.num_in_flight for server in both)

    asyncio.run(run())


@pytest.fixture
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is counted in ticks: 0.14 s of them are the 1.75 s; polls are no quicker, so whoever lives has to answer for it."""
    monkeypatch.setattr(catalogue, "TICK_S", 0.02)
    monkeypatch.setattr(server, "POLL_TIMEOUT_S", 600.0)  # nor do they tell who is silent


@pytest.mark.parametrize("pools", [[2], [1, 1]], ids=["in its pool", "in the other pool"])
def test_what_a_server_that_fell_silent_worked_on_is_done_where_somebody_answers(
    short_ticks: None, pools: list[int]
) -> None:
    async def run() -> None:
        tritons = {f"pool{n}": [OddTriton() for _ in range(number)] for n, number in enumerate(pools)}
        async with gateway_of(tritons, prices={"pool0": 1.0, "pool1": 9.0}) as gateway:
            servers = [server for pool in gateway.catalogue.pools.values() for server in pool]
            ill, well = [triton for pool in tritons.values() for triton in pool]
            ill.hangs = True
            if pools == [2]:
                well.hangs = True  # until each works on one
            replies = [asyncio.create_task(ask(gateway)) for _ in range(sum(pools[:1]))]
            await until(lambda: ill.asked and servers[0].replica.num_in_flight, "it works on one")
            if pools == [2]:
                await until(lambda: servers[1].replica.num_in_flight, "and the other")
                well.hangs = False
            assert [(await reply).status for reply in replies] == [200] * len(replies)
            assert [server.alive for server in servers] == [False, True]
            asked = ill.asked
            assert (await ask(gateway)).status == 200
            assert ill.asked == asked
            ill.hangs = False
            await until(lambda: servers[0].alive, "it is seen again")
            assert servers[0].replica.is_on_trial

    asyncio.run(run())


def test_a_server_that_works_long_and_one_that_nobody_stands_in_for_are_not_given_up(short_ticks: None) -> None:
    async def slowly(_: bytes) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(0.5)
        return 200, GOOD

    async def run() -> None:
        busy, only = OddTriton(slowly), OddTriton(models=["n-fp32"])
        async with gateway_of({"pool0": [busy], "pool1": [OddTriton()], "pool2": [only]}) as gateway:
            reply = asyncio.create_task(ask(gateway, tandem_pool="pool0"))
            only.hangs = True
            waiting = asyncio.create_task(ask(gateway, model="n"))
            assert (await reply).headers["tandem-pool"] == "pool0"
            only.hangs = False
            assert (await waiting).status == 200
            assert all(server.alive for servers in gateway.catalogue.pools.values() for server in servers)

    asyncio.run(run())


# -- bookings ---------------------------------------------------------------------------------------------------------


def no_booking(gateway: Gateway) -> bool:
    return not any(server.replica.num_in_flight for server in gateway.catalogue.pools["cpu"])


@pytest.mark.parametrize("headers", [{}, {"tandem_deadline_ms": 20_000}])
def test_a_request_that_is_cancelled_leaves_no_booking(headers: dict[str, Any]) -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [triton := OddTriton()]}) as gateway:
            triton.hangs = True
            asked = asyncio.create_task(ask(gateway, **headers))
            await until(lambda: not no_booking(gateway), "it is sent")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert no_booking(gateway)

    asyncio.run(run())


def test_a_server_that_left_is_looked_after_until_what_was_booked_there_is_over() -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            seen = gateway.catalogue
            [server] = seen.pools["cpu"]
            service = gateway.candidates.of("cpu", "m-fp32").service
            execution, _ = server.replica.sent(0.0, service, 1, 0.01)  # it is connecting
            seen.pools["cpu"] = []
            seen._drain("cpu", server)
            await asyncio.sleep(0.6)  # two sweeps
            assert seen.drained["cpu"] == [server]
            server.replica.ended(0.0, service, 1, 0.01, execution)
            await until(lambda: not seen.drained["cpu"], "it is forgotten")

    asyncio.run(run())


def more_than(load: Load, answers: int) -> bool:
    return load.count(200) > answers


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.triton
def test_a_model_that_is_unloaded_and_loaded_under_load_costs_no_answer(
    mortal: tuple[Program, str], digits: str, tmp_path: Path
) -> None:
    one = mortal[1]

    def change(what: str) -> None:
        path = f"{one}/v2/repository/models/digits-fp32/{what}"
        urllib.request.urlopen(urllib.request.Request(path, b"{}", method="POST"), timeout=60).close()

    with gateway_before(tmp_path, {"cpu": [one, digits]}) as gateway:
        wait_until(lambda: num_serving(gateway) == 2, "both serve it")
        with load_on(gateway.port) as load:
            for _ in range(3):
                change("unload")
                good = load.count(200)
                wait_until(partial(more_than, load, good + 50), "answers go on")
                change("load")
                wait_until(lambda: num_serving(gateway) == 2, "both serve it again")
        assert load.statuses() == {200}
        assert not load.lost
