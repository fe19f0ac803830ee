"""Cold starts in `tandem cluster status`: what a scaler tells, what pods tell where none does, and what is never claimed."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.cold_starts import ColdLine, of_pool, parse_report
from serving.cluster.status.command import as_text
from serving.cluster.status.judge import judge
from serving.decisions.cold_start import ColdStart, Server
from tests.cluster.objects import NOW, Object, condition, container, deployment, node, node_claim, pod, snapshot

AT = NOW.timestamp()
SERVER = Server(
    "tandem-gpu-1",
    created_at=AT - 99,
    node_created_at=AT - 98,
    node_ready_at=AT - 60,
    scheduled_at=AT - 58,
    started_at=AT - 28,
    ready_at=AT - 16,
)
OVER = ColdStart("gpu", AT - 100, SERVER, warm_at=AT - 14, answered_at=AT - 10)
GOES_ON = ColdStart("gpu", AT - 40, Server("tandem-gpu-2", created_at=AT - 39))


def since(before_s: int) -> str:
    return datetime.fromtimestamp(AT - before_s, UTC).isoformat().replace("+00:00", "Z")


def gpu_pod(restarts: int = 0, *, is_coming: bool = False) -> Object:
    """Its objects tell what SERVER holds; `is_coming`: its image is on the way."""
    it = pod("gpu", node="n")
    it["metadata"]["creationTimestamp"] = since(99)
    scheduled, ready = condition("PodScheduled", "True"), condition("Ready", str(not is_coming))
    it["status"]["conditions"] = [
        {**scheduled, "lastTransitionTime": since(58)},
        {**ready, "lastTransitionTime": since(16)},
    ]
    state = {"waiting": {"reason": "ContainerCreating"}} if is_coming else {"running": {"startedAt": since(28)}}
    it["status"]["containerStatuses"] = [container(state, ready=not is_coming, restartCount=restarts)]
    return it


def bought_node() -> tuple[Object, Object]:
    machine, claim = node("n"), node_claim(node="n")
    machine["status"]["conditions"][0]["lastTransitionTime"] = since(60)
    claim["metadata"]["creationTimestamp"] = since(98)
    return machine, claim


def cluster(pods: list[Object] | None = None, *, sees_nodes: bool = True) -> ClusterSnapshot:
    deployments = [deployment(), deployment("cpu"), deployment("gpu", gpus=1)]
    machine, claim = bought_node()
    nodes = {"nodes": [machine], "node_claims": [claim]} if sees_nodes else {"nodes": None, "node_claims": None}
    return snapshot(deployments, [pod(), pod("cpu"), *(pods or [])], **nodes)  # type: ignore[arg-type]


def text(report: Any = None, pods: list[Object] | None = None) -> list[str]:
    status = judge(cluster(pods), NOW, reports={} if report is None else {"tandem": report})
    lines = as_text(status).splitlines()
    return [it.strip() for it in lines if "cold start" in it or "newest pod" in it]


def phases_s(line: str) -> dict[str, int]:
    """The phases of a line, each with its seconds."""
    found = re.findall(r"(decision|node|image|load|warm up|first answer) (\d+) s", line)
    return {phase: int(seconds) for phase, seconds in found}


def test_the_last_cold_start_is_told_by_phase() -> None:
    (line,) = text((OVER,))
    assert phases_s(line) == {"decision": 1, "node": 41, "image": 30, "load": 12, "warm up": 2, "first answer": 4}
    assert re.findall(r"(\d+) s ago in (\d+) s.* in (\d+) s\)", line) == [("100", "90", "38")]


def test_the_one_that_goes_on_is_told_beside_the_last_with_the_phase_it_is_in() -> None:
    first, second = text((dataclasses.replace(OVER, decided_at=AT - 9000), OVER, GOES_ON))
    assert "100 s ago" in first
    assert "40 s" in second
    assert phases_s(second) == {"decision": 1}
    assert second.endswith("now node")


def test_a_phase_that_nobody_saw_is_left_out_and_the_next_is_not_guessed() -> None:
    (line,) = text((dataclasses.replace(GOES_ON, server=None),))
    assert phases_s(line) == {}
    assert "40 s" in line
    without_pods = dataclasses.replace(OVER, server=None)
    (line,) = text((without_pods,))
    assert phases_s(line) == {"first answer": 4}


def test_one_that_was_given_up_says_so() -> None:
    (line,) = text((dataclasses.replace(GOES_ON, is_given_up=True),))
    assert "given up" in line
    assert phases_s(line) == {"decision": 1}


def test_a_node_that_was_there_before_was_not_bought_for_it() -> None:
    before = dataclasses.replace(SERVER, node_created_at=AT - 9000, node_ready_at=AT - 8000)
    (line,) = text((dataclasses.replace(OVER, server=before),))
    assert "bought" not in line


def test_of_other_pools_and_of_a_scaler_without_cold_starts_nothing_is_told() -> None:
    assert text((dataclasses.replace(OVER, pool="other"),)) == []
    assert text(()) == []


def test_of_what_began_before_the_scaler_did_the_newest_pod_tells() -> None:
    for report in ((), (dataclasses.replace(OVER, pool="other"),)):
        (line,) = text(report, [gpu_pod()])
        assert "99 s ago" in line
        assert phases_s(line)["node"] == 41


def test_without_a_scaler_the_newest_pod_tells_what_it_can() -> None:
    (line,) = text(pods=[gpu_pod()])
    assert phases_s(line) == {"node": 41, "image": 30, "load": 12}
    assert [it for it in ("99 s ago", "38 s", "scaler") if it not in line] == []


def test_a_scaler_that_may_not_be_asked_is_told_with_what_the_pod_knows() -> None:
    lines = text("this user lacks get services/proxy", [gpu_pod()])
    assert "services/proxy" in lines[0]
    assert phases_s(lines[1])["node"] == 41


def test_a_cpu_pool_has_no_cold_starts() -> None:
    reports = {"tandem": (dataclasses.replace(OVER, pool="cpu"),)}
    parts = judge(cluster(), NOW, reports=reports).releases[0].parts
    assert [it.cold_starts for it in parts] == [(), (), ()]


# -- off the objects ----------------------------------------------------------------------------------------------------------


def server_of(it: Object, *, sees_nodes: bool = True) -> Server:
    found = cluster([it], sees_nodes=sees_nodes)
    assert found.pods is not None
    return found.server(found.pods[-1])


def test_the_moments_of_pod_node_and_claim_are_put_together() -> None:
    assert server_of(gpu_pod()) == SERVER


def test_without_leave_to_see_nodes_the_pod_still_tells() -> None:
    assert server_of(gpu_pod(), sees_nodes=False) == dataclasses.replace(
        SERVER, node_created_at=None, node_ready_at=None
    )


def line_of(it: Object) -> tuple[ColdLine, ...]:
    found = cluster([it])
    return of_pool("gpu", None, (found.pods or ())[-1:], found, NOW)


def test_a_container_that_was_started_again_tells_nothing_of_the_first_start() -> None:
    (line,) = line_of(gpu_pod(restarts=1))
    assert (line.state, line.phases_s) == ("goes on", {"node": 41.0})


def test_a_pod_that_leaves_tells_nothing() -> None:
    leaving = {**gpu_pod(), "metadata": {**gpu_pod()["metadata"], "deletionTimestamp": "2026-11-20T11:59:59Z"}}
    assert line_of(leaving) == ()


def test_a_pod_on_its_way_says_in_which_phase_it_is() -> None:
    (found,) = line_of(gpu_pod(is_coming=True))
    assert (found.state, found.phases_s, found.now_in) == ("goes on", {"node": 41.0}, "image")


# -- what a scaler says -------------------------------------------------------------------------------------------------------


def test_what_the_scaler_publishes_is_read_back_whole() -> None:
    published = [{**dataclasses.asdict(it), "phases_s": it.phases} for it in (OVER, GOES_ON)]
    assert parse_report({"version": 1, "cold_starts": published}) == (OVER, GOES_ON)


def test_a_field_of_a_later_version_is_no_error() -> None:
    published = {**dataclasses.asdict(OVER), "more": 1, "server": {**dataclasses.asdict(SERVER), "more": 1}}
    assert parse_report({"cold_starts": [published]}) == (OVER,)


@pytest.mark.parametrize("answer", [{}, {"cold_starts": None}, {"cold_starts": [{}]}, {"cold_starts": ["x"]}])
def test_what_is_no_answer_of_a_scaler_is_an_error(answer: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        parse_report(answer)


def test_a_line_becomes_json() -> None:
    (line,) = of_pool("gpu", (OVER,), (), cluster(), NOW)
    assert isinstance(line, ColdLine)
    assert line.since == "2026-11-20T11:58:20+00:00"
    assert line.phases_s["total"] == 90.0
