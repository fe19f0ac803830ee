"""What `tandem up` says of its pools while it runs: changes, once each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from serving.local.console import PoolChanges
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


def told(gpu: str = "ready", demand: float = 0.0, models: dict[str, Any] | None = None) -> dict[str, Any]:
    """As a gateway's status has it. A GPU does the work of ten CPU servers."""
    return {"pools": pools(gpu, demand), "models": models or {}}


def pools(gpu: str = "ready", demand: float = 0.0) -> dict[str, Any]:
    servers = {state: [{"alive": state == "ready", "variants": ["digits-fp32"]}] for state in ("ready", "waking")}
    return {
        "gpu": {
            "state": gpu,
            "servers": servers[gpu],
            "demand_replicas": demand,
            "demand_only_replicas": 0.0,
            "demand_unseen_replicas": 0.0,
            "demand_shared_replicas": {},
        },
        "cpu": {
            "state": "ready",
            "servers": servers["ready"],
            "demand_replicas": 10 * demand,
            "demand_only_replicas": 0.0,
            "demand_unseen_replicas": 0.0,
            "demand_shared_replicas": {},
        },
    }


def test_nothing_is_said_at_first_and_a_change_once() -> None:
    news = PoolChanges(SETTINGS)
    said = [news.lines(told(state), float(now)) for now, state in enumerate(["ready", "ready", "waking", "waking"])]
    assert said == [[], [], ["gpu: waking"], []]
    assert news.lines(told("ready"), 9.0) == ["gpu: ready"]


def test_more_or_fewer_servers_that_would_pay_are_said_with_the_reason() -> None:
    news = PoolChanges(SETTINGS)
    lines = [line for now in range(400) for line in news.lines(told("waking", 0.8), float(now))]
    [line] = [line for line in lines if "would pay" in line]
    assert re.findall(r"gpu|\d[.\d]*", line) == ["gpu", "1", "0.8", "0.35"]


def test_gateways_that_share_the_clients_add_up() -> None:
    def lines(*others: float) -> list[str]:
        news, more = PoolChanges(SETTINGS), [told("waking", demand) for demand in others]
        return [line for now in range(400) for line in news.lines(told("waking", 0.3), float(now), more)]

    assert [line for line in lines() if "would pay" in line] == []
    [line] = [line for line in lines(0.3, 0.2) if "would pay" in line]
    assert "0.8" in re.findall(r"\d[.\d]*", line)


def test_pools_of_one_kind_have_nothing_to_weigh() -> None:
    alone = GatewaySettings.model_validate({"version": 1, "pools": {"cpu": {"urls": ["http://h:2"], "device": "cpu"}}})
    news, cpu = PoolChanges(alone), {"pools": {"cpu": pools(demand=9.0)["cpu"]}, "models": {}}
    assert [news.lines(cpu, float(now)) for now in range(100)] == [[]] * 100
    assert news.lines({"pools": {"cpu": {**cpu["pools"]["cpu"], "state": "down"}}, "models": {}}, 101.0) == [
        "cpu: down"
    ]


def model(digest: str | None, reason: str | None = None, state: str = "not_loaded") -> dict[str, Any]:
    variants = [] if digest is None else [{"name": "m-fp32", "digest": f"sha256:{digest}"}]
    failed = [] if reason is None else [{"name": "m-fp32", "state": state, "reason": reason}]
    return {"m": {"variants": variants, "public": variants or None, "account": failed}}


def test_a_place_that_is_not_reached_is_said_at_first_too_and_once() -> None:
    news, away = PoolChanges(SETTINGS), "usage in Redis x:6379/0 does not answer"
    looks = [(away, None), (away, None), (None, None), (None, away), (None, None)]
    gateways = [[{**told(), "usage": {"problem": problem}} for problem in each] for each in looks]
    said = [news.lines(one, float(now), [other]) for now, (one, other) in enumerate(gateways)]
    assert said == [
        [f"usage: {away}"],
        [],
        ["usage: it is well again"],
        [f"usage: {away}"],
        ["usage: it is well again"],
    ]


def test_a_model_that_comes_changes_fails_or_goes_is_said_once() -> None:
    news = PoolChanges(SETTINGS)
    looks = [{}, model("aa"), model("aa"), model("bb"), model("bb", "no room"), model(None, "no room"), {}]
    looks += [model("bb"), model(None, "unloaded", "unloaded")]
    said = [news.lines(told(models=models), float(now)) for now, models in enumerate(looks)]
    assert said == [
        [],
        ["served: m-fp32 (sha256:aa)"],
        [],
        ["served: m-fp32 (sha256:bb)"],
        ["not served: m-fp32: no room (m is served)"],
        ["not served: m-fp32: no room"],
        ["no longer served: m-fp32: in no repository any more, and not expected"],
        ["served: m-fp32 (sha256:bb)"],
        ["no longer served: m-fp32: unloaded"],
    ]


def test_what_nobody_reads_any_more_is_lost_and_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = "from serving.local.console import Terminal; t = Terminal(); t.print('one'); t.print('two'); print('three')"
    done = subprocess.run([sys.executable, "-c", words], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
