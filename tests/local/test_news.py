"""What `tandem up` says of its pools while it runs: changes, once each."""

from __future__ import annotations

from typing import Any

from serving.local.news import News
from serving.settings import GatewaySettings

SETTINGS = GatewaySettings.model_validate(
    {
        "version": 1,
        "pools": {
            "gpu": {"urls": ["http://h:1"], "device": "gpu", "price_per_hour": 1.0, "cold_start_s": 60.0},
            "cpu": {"urls": ["http://h:2"], "device": "cpu", "price_per_hour": 0.25, "max_replicas": 8},
        },
    }
)


def pools(gpu: str = "ready", demand: float = 0.0, **more: str) -> dict[str, Any]:
    """As a gateway's status has them. A GPU does the work of ten CPU servers."""
    servers = {state: [{"alive": state == "ready", "variants": ["digits-fp32"]}] for state in ("ready", "waking")}
    return {
        "gpu": {
            "state": gpu,
            "servers": servers[gpu],
            "demand_replicas": demand,
            "demand_only_replicas": 0.0,
            "demand_unseen_replicas": 0.0,
        },
        "cpu": {
            "state": "ready",
            "servers": servers["ready"],
            "demand_replicas": 10 * demand,
            "demand_only_replicas": 0.0,
            "demand_unseen_replicas": 0.0,
        },
        **more,
    }


def test_nothing_is_said_at_first_and_a_change_once() -> None:
    news = News(SETTINGS)
    said = [news.lines(pools(state), float(now)) for now, state in enumerate(["ready", "ready", "waking", "waking"])]
    assert said == [[], [], ["gpu: waking"], []]
    assert news.lines(pools("ready"), 9.0) == ["gpu: ready"]


def test_more_or_fewer_servers_that_would_pay_are_said_with_the_reason() -> None:
    news = News(SETTINGS)
    lines = [line for now in range(400) for line in news.lines(pools("waking", 0.8), float(now))]
    assert "gpu: 1 server would pay (demand 0.8 servers, break-even 0.35)" in lines
    assert sum("would pay" in line for line in lines) == 1


def test_pools_of_one_kind_have_nothing_to_weigh() -> None:
    alone = GatewaySettings.model_validate({"version": 1, "pools": {"cpu": {"urls": ["http://h:2"], "device": "cpu"}}})
    news, cpu = News(alone), {"cpu": pools(demand=9.0)["cpu"]}
    assert [news.lines(cpu, float(now)) for now in range(100)] == [[]] * 100
    assert news.lines({"cpu": {**cpu["cpu"], "state": "down"}}, 101.0) == ["cpu: down"]
