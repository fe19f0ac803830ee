"""When should a client come again whose pool has no server? By how long the last cold start took, once one was seen."""

from __future__ import annotations

import pytest

from serving.gateway.fleet.cold_pools import LATE_S, ColdPools
from serving.settings import GatewaySettings

GPU = {"urls": ["http://h:1"], "device": "gpu"}


def pools(**of_gpu: object) -> ColdPools:
    settings = {"version": 1, "pools": {"cpu": {**GPU, "device": "cpu"}, "gpu": {**GPU, **of_gpu}}}
    return ColdPools(GatewaySettings.model_validate(settings), {})


@pytest.mark.parametrize(("of_gpu", "before"), [({"cold_start_s": 300.0}, 290.0), ({}, LATE_S)])
def test_it_is_what_the_last_cold_start_took(of_gpu: dict[str, float], before: float) -> None:
    it = pools(**of_gpu)
    it.want("gpu", 1000.0)
    assert it.retry_after_s("gpu", 1010.0) == before
    for now in (1020.0, 1040.0, 1060.0):
        it.want("gpu", now)
    it.came("gpu", 1080.0)
    it.came("gpu", 1081.0)
    it.want("gpu", 5000.0)
    assert it.retry_after_s("gpu", 5020.0) == 60.0
    assert it.retry_after_s("gpu", 5200.0) == LATE_S, "it is late"


def test_a_server_that_came_long_after_anybody_asked_says_nothing() -> None:
    it = pools(cold_start_s=100.0)
    it.want("gpu", 1000.0)
    it.came("gpu", 9000.0)
    it.want("gpu", 10_000.0)
    assert it.retry_after_s("gpu", 10_000.0) == 100.0


def test_a_model_that_needs_more_memory_than_its_servers_have_is_not_expected_of_a_pool() -> None:
    settings = {
        "version": 1,
        "pools": {"cpu": {**GPU, "device": "cpu"}, "gpu": {**GPU, "memory_bytes": 10}},
        "models": {"large": {"memory_bytes": 11}, "small": {"memory_bytes": 10}},
    }
    it = ColdPools(GatewaySettings.model_validate(settings), {"gpu": ["large-fp16", "small-fp16", "other-fp16"]})
    assert sorted(failure.name for failure in it.of("gpu", [], {})) == ["other-fp16", "small-fp16"]
    assert [it.may_serve("gpu", name) for name in ("large", "large-fp16", "small", "other")] == [
        False,
        False,
        True,
        True,
    ]
