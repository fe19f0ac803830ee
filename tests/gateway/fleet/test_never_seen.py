"""A GPU pool that is cold since before the gateway: what others answer for it is demand for it, or nobody would ever wake it."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.gateway.request import route
from serving.scheduling.bridge import Demand
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.odd_triton import OddTriton, ask, gateway_of, until


def demand(gateway: Gateway, pool: str) -> tuple[float, float]:
    """All of it, and what counts as for that pool alone."""
    now = perf_counter()
    return gateway.candidates.demands[pool].replicas(now), gateway.candidates.only_demands[pool].replicas(now)


def unseen(gateway: Gateway) -> float:
    """Of the GPU pool's demand, what is an upper bound."""
    return gateway.candidates.unseen_demands["gpu"].replicas(perf_counter())


def test_what_a_pool_that_was_never_seen_might_answer_is_demand_for_it() -> None:
    async def run() -> None:
        gpu = OddTriton(kind="KIND_GPU", models=[])
        async with gateway_of({"cpu": [OddTriton()], "gpu": [gpu]}) as gateway:
            assert (await ask(gateway)).headers["tandem-reason"] == "bridged"
            for _ in range(10):
                assert (await ask(gateway)).status == 200
            (cpu_all, cpu_only), (gpu_all, _) = demand(gateway, "cpu"), demand(gateway, "gpu")
            assert cpu_only == 0.0
            assert 0.0 < gpu_all <= cpu_all * 1.01
            assert unseen(gateway) == pytest.approx(gpu_all, rel=0.01)
            await ask(gateway, tandem_pool="cpu")
            assert demand(gateway, "cpu")[1] > 0.0

    asyncio.run(run())


def test_demand_that_some_of_several_pools_may_answer_is_told_apart() -> None:
    async def run() -> None:
        pools = {"cpu": [OddTriton()], "gpu": [OddTriton(kind="KIND_GPU")], "other": [OddTriton(models=["n-fp32"])]}
        async with gateway_of(pools) as gateway:
            for _ in range(5):
                assert (await ask(gateway)).status == 200
            shared = {
                pool.name: {names: number > 0.0 for names, number in pool.demand_shared_replicas.items()}
                for pool in gateway._pool_gauges()
            }
            assert shared == {"cpu": {"cpu,gpu": True}, "gpu": {"cpu,gpu": True}, "other": {}}
            assert demand(gateway, "cpu")[1] == 0.0
            for pool in ("cpu", "gpu"):
                both = gateway.candidates.shared_demands["cpu,gpu"][pool].replicas(perf_counter())
                assert both == pytest.approx(demand(gateway, pool)[0], rel=0.01)

    asyncio.run(run())


class Leaving(OddTriton):
    """Ends its connections once it has gone."""

    has_gone = False

    async def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.has_gone:
            raise ConnectionError
        return await super()._answer(path, body)


def test_a_request_for_what_only_a_cold_pool_serves_is_demand_once(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Demand.note
    noted: list[Demand] = []

    def noting(demand: Demand, now: float, cost_s: float) -> None:
        noted.append(demand)
        note(demand, now, cost_s)

    async def run() -> None:
        gpu = Leaving(kind="KIND_GPU", models=["n-fp32"])
        async with gateway_of({"cpu": [OddTriton()], "gpu": [gpu]}) as gateway:
            gpu.has_gone = True
            gpu.close()
            await until(lambda: gateway.catalogue.sleeping("n"), "it is known to be away")
            monkeypatch.setattr(Demand, "note", noting)
            for number in (1, 2):
                assert (await ask(gateway, model="n")).status == 503
                assert [demand is gateway.candidates.demands["gpu"] for demand in noted].count(True) == number

    asyncio.run(run())


def test_who_is_refused_by_the_head_wakes_it_too_and_is_let_in_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route, "CONGESTED_S", 3600.0)

    async def run() -> None:
        gpu = OddTriton(kind="KIND_GPU", models=[])
        async with gateway_of({"cpu": [OddTriton()], "gpu": [gpu]}) as gateway:
            gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 60.0),))))
            wanted = []
            for _ in range(3):
                before = unseen(gateway)
                told = await ask(gateway, tandem_deadline_ms=5000)
                assert (told.status, told.error) == (503, "overloaded")
                wanted.append(unseen(gateway) - before)
            assert wanted[0] > 0.0
            assert wanted == pytest.approx(wanted[:1] * 3, rel=0.05)
            gpu.models = ["m-fp32"]
            await until(lambda: gateway.candidates.share("gpu") > 0.0, "it is there")
            told = await ask(gateway, tandem_deadline_ms=5000)
            assert (told.status, told.headers["tandem-pool"]) == (200, "gpu")

    asyncio.run(run())
