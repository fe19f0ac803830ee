"""What killed a server, or found it dead, says so after its client's deadline too: Triton needs a second to notice a dead process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.gateway.fleet import server as server_module
from serving.gateway.request.query_of_death import SAME_DEATH_S
from serving.local.environments import Environment
from serving.local.processes import stubs_of
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.conftest import SAMPLE, emulated_triton, gateway_before
from tests.gateway.fleet.test_faults import server_of
from tests.gateway.odd_triton import BODY, DIED, GOOD, OddTriton, ask, gateway_of, until
from tests.gateway.request.test_admission import FULL, MODEL, Asked, metric
from tests.local.harness import Program, wait_until

DEADLY = BODY[:-1] + b',"id":"deadly"}'
DEADLINE_MS = 1500  # over before anybody notices


class Mortal:
    """Dies of a deadly request, which its server notices when told to; then it is back."""

    def __init__(self) -> None:
        self.deaths = 0
        self.noticed = asyncio.Event()
        self.noticed.set()

    async def infer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        if b"deadly" in body:
            self.deaths += 1
            self.noticed.clear()
        if not self.noticed.is_set():
            await self.noticed.wait()
            return 500, DIED
        return 200, GOOD


def noticed(gateway: Gateway) -> list[dict[str, float]]:
    """Of each server, when deaths were noticed there."""
    return [dict(server.died) for server in gateway.catalogue.pools["cpu"]]


def test_a_request_under_which_processes_die_is_refused_however_short_its_deadline() -> None:
    async def run() -> None:
        mortals = [Mortal(), Mortal()]
        async with gateway_of({"cpu": [OddTriton(one.infer) for one in mortals]}) as gateway:
            believe(gateway, "cpu")
            replies = []
            for _ in range(4):
                before = noticed(gateway)
                replies.append(await ask(gateway, DEADLY, tandem_deadline_ms=DEADLINE_MS))
                for one in mortals:
                    one.noticed.set()
                if len(replies) <= 2:
                    await until(lambda: noticed(gateway) != before, "its death is noticed")  # noqa: B023
            assert [reply.status for reply in replies[:2]] == [504] * 2
            assert [reply.error for reply in replies[-2:]] == ["upstream_lost"] * 2
            assert sum(one.deaths for one in mortals) == 2
            assert float(replies[-1].headers["retry-after-ms"]) > 50_000
            assert (await ask(gateway)).status == 200

    asyncio.run(run())


def test_after_the_first_sign_of_a_dead_process_requests_go_elsewhere_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SUSPEND_S", 3600.0)

    async def run() -> None:
        mortal = Mortal()
        cheap, dear = OddTriton(mortal.infer), OddTriton()
        async with gateway_of({"cheap": [cheap], "dear": [dear]}, prices={"cheap": 1.0, "dear": 50.0}) as gateway:
            believe(gateway, "cheap", "dear")
            assert (await ask(gateway)).headers["tandem-pool"] == "cheap"
            assert (await ask(gateway, DEADLY, tandem_deadline_ms=DEADLINE_MS)).status == 504
            mortal.noticed.set()
            [server] = gateway.catalogue.pools["cheap"]
            await until(lambda: server.suspended, "its death is noticed")
            before = cheap.asked
            for _ in range(5):
                reply = await ask(gateway, tandem_deadline_ms=20_000)
                assert (reply.status, reply.headers["tandem-pool"]) == (200, "dear")
            assert cheap.asked == before
            assert server.replica.num_in_flight == 0

    asyncio.run(run())


def believe(gateway: Gateway, *pools: str) -> None:
    """That they are alike, whatever a busy machine measured."""
    for pool in pools:
        gateway.candidates.of(pool, "m-fp32").use(Service(Curve(((1, 0.01),))))


# -- real processes ---------------------------------------------------------------------------------------------------

CHEAP, DEAR = "emulated-cheap", "emulated-dear"


def kill_stub(triton: Program) -> None:
    [stub] = [stub for stub in stubs_of(server_of(triton)) if stub.model == MODEL]
    os.kill(stub.pid, signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.campaigns
def test_a_real_process_that_dies_under_short_deadlines_is_noticed(environment: Environment, tmp_path: Path) -> None:
    with (
        emulated_triton(tmp_path / "cheap", CHEAP, [(1, 0.02), (32, 0.55)]) as (triton, cheap_url),
        emulated_triton(tmp_path / "dear", DEAR, [(1, 0.005), (32, 0.05)]) as (_, dear_url),
        gateway_before(tmp_path, {CHEAP: [cheap_url], DEAR: [dear_url]}, prices={CHEAP: 1.0, DEAR: 10.0}) as gateway,
    ):

        def serves(pool: str) -> bool:
            return gateway.infer(SAMPLE, MODEL, {"Tandem-Pool": pool}).status == 200

        wait_until(lambda: serves(CHEAP) and serves(DEAR), "both serve")
        here = {"Tandem-Pool": CHEAP, "Tandem-Deadline-Ms": "850"}
        statuses: list[int] = []

        def is_refused() -> bool:
            """Else it has died of this, or on a busy machine answered before it was killed, and is back."""
            asked = Asked(gateway, FULL, here)
            wait_until(lambda: asked.reply or metric(gateway, "tandem_in_flight", pool=CHEAP), "it is sent or refused")
            if asked.reply is None:
                kill_stub(triton)
            reply = asked.done()
            if (reply.status, reply.headers["Tandem-Error"]) == (503, "upstream_lost") and statuses:
                return int(reply.headers["Retry-After"]) > 30  # not for this death, but for all
            statuses.append(reply.status)
            # after the sign, a second later, the dear pool answers at once; until then this one may be tried in vain
            wait_until(lambda: gateway.infer(SAMPLE, MODEL, {"Tandem-Deadline-Ms": "250"}).status == 200, "answers")
            wait_until(lambda: serves(CHEAP), "it is back")
            threading.Event().wait(SAME_DEATH_S)  # what comes sooner may belong to the same death
            return False

        wait_until(is_refused, "two deaths are noticed")
        assert statuses.count(504) >= 2
