"""A gateway that starts anew at its address counts as another: neither its traffic nor a server is forgotten meanwhile."""

from __future__ import annotations

import asyncio
import math

import pytest

from serving.cluster.scaler import reconcile
from serving.cluster.scaler.cluster_state import ClusterState
from serving.cluster.scaler.gateways import GatewayNames, GatewayReport
from serving.cluster.scaler.reconcile import Reconciler, RestartDetector, Round
from serving.cluster.scaler.state import ScalerState
from serving.decisions.demand import Demand
from serving.decisions.sizes import sizes_of
from serving.settings import GatewaySettings, PoolSettings

A, B = "10.0.0.1:9090", "10.0.0.2:9090"


def test_a_count_that_goes_back_is_another_start_and_two_names_take_turns() -> None:
    starts = RestartDetector()
    assert starts.observe([A, B], {A: {"cpu": 5.0, "gpu": 9.0}, B: {"cpu": 1.0}}) == ()
    assert starts.observe([A, B], {B: {"cpu": 1.0}}) == ()  # it is silent while it starts
    assert starts.observe([A, B], {A: {"cpu": 6.0, "gpu": 0.0}, B: {"cpu": 7.0}}) == (A,)
    assert (starts.name(A), starts.name(B)) == (f"{A} (again)", B)
    assert starts.observe([A, B], {A: {"cpu": 7.0, "gpu": 0.0}}) == ()
    assert starts.observe([A, B], {A: {"cpu": 0.0, "gpu": 0.0}}) == (A,)
    assert starts.name(A) == A


def test_of_an_address_that_is_no_longer_named_nothing_is_remembered() -> None:
    starts = RestartDetector()
    starts.observe([A], {A: {"cpu": 5.0}})
    starts.observe([A], {A: {"cpu": 1.0}})
    starts.observe([B], {})
    assert starts.observe([A], {A: {"cpu": 0.0}}) == ()
    assert starts.name(A) == A


@pytest.mark.parametrize("cold_start_s", [3.0, 8.0])
@pytest.mark.parametrize("silent_s", [0, 3])
def test_a_gateway_that_starts_anew_lets_no_server_go_however_quickly_it_would_be_back(
    monkeypatch: pytest.MonkeyPatch, cold_start_s: float, silent_s: int
) -> None:
    """Its demand begins at nothing, and is what it was after 30 s; the GPU stays throughout."""
    clock, restarts_at = 0.0, 200
    monkeypatch.setattr(reconcile.time, "monotonic", lambda: clock)

    async def read_all(*_: object) -> Round:
        since = clock - restarts_at - silent_s
        if -silent_s <= since < 0:
            return Round({}, {A: "connection refused"})
        share, good = (1.0, 100 * clock) if since < 0 else (1 - math.exp(-since / 10), 100 * since)
        demands = {"cpu": Demand(5 * share, 0.0, 1), "gpu": Demand(0.6 * share, 0.0, 1)}
        return Round({A: GatewayReport(demands, {}, {"cpu": 0.0, "gpu": good})}, {})

    monkeypatch.setattr(reconcile, "read_all", read_all)
    pools = {
        "cpu": PoolSettings(urls=["http://cpu:8000"], device="cpu", price_per_hour=0.2, max_replicas=12),
        "gpu": PoolSettings(urls=["http://gpu:8000"], device="gpu", price_per_hour=1.2, cold_start_s=cold_start_s),
    }
    said: list[str] = []

    async def main() -> set[int]:
        nonlocal clock
        told = ScalerState(tuple(pools))
        cluster = ClusterState(pools, said.append)
        cluster._is_over = True  # there is none
        looks = Reconciler(
            GatewayNames([f"http://{A}"]),
            cluster,
            sizes_of(GatewaySettings(version=1, pools=pools)),
            told,
            lambda: None,
            said.append,
        )
        found = set()
        for second in range(300):
            clock = float(second)
            await looks.look()
            if second > 100:
                found.add(told.replicas("gpu"))
        return found

    assert asyncio.run(main()) == {1}
    assert [A in line for line in said if "has restarted" in line] == [True]
