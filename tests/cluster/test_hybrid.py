"""The whole story with real processes behind simulated pods: demand rises and falls, a GPU comes and goes, and no request fails, while nodes, a
release, gateways and the scaler come and go too. A program of its own, in namespaces of its own (tests/cluster/hybrid); here is what it must find.

Not shown: NVIDIA's server, a card, kube-proxy. Order is judged, and times by bounds that are far off; the report has the seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cluster.hybrid.chart import CPU, GPU
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.excused import GATEWAY_KILLED, NO_ANSWER, excused, unexcused
from tests.cluster.hybrid.moments import CONSOLIDATION, ENDED, LET_GO, MAINTENANCE, NOTICE_S, SPOT, TOLD, wrong
from tests.cluster.hybrid.page import page
from tests.cluster.hybrid.picture import draw
from tests.cluster.hybrid.simulated import is_in_order, measured, simulated
from tests.cluster.hybrid.story import (
    CONSOLIDATED,
    DELETED,
    MAINTAINED,
    RISES,
    SCALER_KILLED,
    SPOT_NOTICE,
)
from tests.cluster.hybrid.three_pools import ALONE, FALLS, LARGE, LARGE_LOAD, SMALL_LOAD, errors, late

RUN_S = 570  # it takes half of it on two busy cores
MARK = "HYBRID_RUN"  # in the environment of all that this run starts, and of nothing that another does
HAND_OVER_S = 5.0  # from the death of the scaler that sets replicas to the next: 3 of the Lease, and a round
TOTALS_RATIO = 0.15  # that the simulator may be off
pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(RUN_S + 30)]
Report = dict[str, Any]


def played(folder: Path, *options: str) -> Report:
    path = folder / "report.json"
    command = [sys.executable, "-m", "tests.cluster.hybrid", f"--report={path}", f"--logs={folder / 'logs'}", *options]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, MARK: str(path)}, capture_output=True, text=True, timeout=RUN_S
    )
    print(done.stdout, done.stderr)
    assert path.exists(), f"it ended with {done.returncode}: {done.stderr[-2000:]}"
    found: Report = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return played(tmp_path_factory.mktemp("hybrid"))


def test_the_story_comes_to_its_end(report: Report) -> None:
    assert not report["failed"]


def test_no_request_fails_on_the_way(report: Report) -> None:
    allowed = excused(report)
    assert not {name: it["said"] for name, it in report["phases"].items() if it["errors"] > allowed.get(name, 0)}
    assert unexcused(report) == 0
    assert report["all"]["requests"] > 1500


def test_clients_with_long_lived_grpc_channels_are_served_as_well(report: Report) -> None:
    print(report["all"]["grpc"])
    assert report["all"]["grpc"]["requests"] > 400
    assert report["phases"]["warm on the CPU"]["grpc_endpoints"] == 2


@pytest.mark.parametrize("kind", [MAINTENANCE, CONSOLIDATION, SPOT])
def test_the_gateways_let_go_of_a_triton_that_has_to_leave_inside_the_notice(report: Report, kind: str) -> None:
    at = {it["what"]: it["at_s"] for it in report["moments"]}
    told_s, let_go_s, ended_s = (at[f"{kind}: {it}"] for it in (TOLD, LET_GO, ENDED))
    print(f"{kind}: let go after {let_go_s - told_s:.1f} s, ended after {ended_s - told_s:.1f} s")
    assert let_go_s < ended_s <= told_s + NOTICE_S


def test_a_gpu_comes_with_demand_and_goes_with_it_step_by_step(report: Report) -> None:
    for it in report["moments"]:
        print(it["at_s"], it["what"])
    assert not wrong(report["moments"])
    assert report["looks"][-1]["cards"] == 0


def test_no_node_is_bought_before_demand_rises(report: Report) -> None:
    before = [it for it in report["looks"] if it["at_s"] < report["marks"][RISES]]
    assert (before[-1]["ready_cpu"], before[-1]["replicas_gpu"], before[-1]["pods_gpu"]) == (2, 0, 0)
    assert {(it["claims"], it["cards"]) for it in before} == {(0, 0)}


def test_the_simulator_tells_the_same_story(report: Report) -> None:
    run, simulation = measured(report), simulated(report)
    print(run, simulation)
    assert is_in_order(run)
    assert is_in_order(simulation)
    assert simulation.bridged_s == pytest.approx(run.bridged_s, rel=TOTALS_RATIO)
    assert simulation.node_s == pytest.approx(run.node_s, rel=TOTALS_RATIO)


def test_a_page_and_a_picture_can_be_made_of_it(report: Report) -> None:
    text = page(report, [])
    for name in report["phases"]:
        assert f"| {name} |" in text
    assert ElementTree.fromstring(draw(report)).tag.endswith("svg")


def test_each_of_two_scalers_may_die_and_the_other_follows_with_no_number_lost(report: Report) -> None:
    print(report["hand_overs_s"])
    assert len(report["hand_overs_s"]) == 2
    assert max(report["hand_overs_s"]) < HAND_OVER_S
    phase = report["phases"][SCALER_KILLED]
    looks = [
        it for it in report["looks"] if it["at_s"] < phase["at_s"] + phase["seconds"]
    ]  # those where something changed
    of_it = looks[-1 - sum(it["at_s"] >= phase["at_s"] for it in looks) :]  # with what was so when it began
    assert {(it["wanted_gpu"], it["replicas_gpu"]) for it in of_it} == {(1, 1)}


def test_the_scaler_reads_its_own_cluster_with_its_own_token(report: Report) -> None:
    assert report["is_api_readable"] is True


def test_a_killed_gateway_costs_at_most_what_was_sent_to_it(report: Report) -> None:
    assert set(report["phases"][GATEWAY_KILLED]["said"]) <= {"200", "OK", *NO_ANSWER}


def test_the_cpu_answers_before_the_gpu_pool_is_there_and_after_it_is_gone(report: Report) -> None:
    assert set(report["phases"]["warm on the CPU"]["pools"]) == {CPU}
    assert set(report["phases"]["on the CPU again"]["pools"]) == {CPU}


def test_the_gpu_pool_answers_what_it_can_and_the_cpu_bridges_the_loss_of_its_node(report: Report) -> None:
    assert set(report["phases"][RISES]["pools"]) == {GPU, CPU}
    for name in (MAINTAINED, DELETED, CONSOLIDATED):
        assert set(report["phases"][name]["pools"]) == {GPU, CPU}, name
    assert report["phases"][SPOT_NOTICE]["pools"][CPU] > 0


def test_requests_to_a_triton_that_falls_silent_are_answered_by_the_cpu(report: Report) -> None:
    assert report["phases"]["a Triton falls silent"]["pools"][CPU] > 0


def test_both_gateways_are_asked(report: Report) -> None:
    assert report["phases"]["warm on the CPU"]["endpoints"] == 2


# -- three pools of different size and price, and a model that only cards serve at first: in this file, so that one story plays at a time ---


@pytest.fixture(scope="module")
def three_pools(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return played(tmp_path_factory.mktemp("three-pools"), "--three-pools")


def test_each_load_has_its_cheapest_mix_in_time_and_nothing_is_left(three_pools: Report) -> None:
    print(three_pools["marks"])
    assert not three_pools["failed"]
    assert late(three_pools) == []
    assert three_pools["looks"][-1]["claims"] == 0


def test_a_model_that_only_cards_serve_wakes_one_and_is_told_not_to_be_ready_until_then(three_pools: Report) -> None:
    assert errors(three_pools) == []
    assert three_pools["phases"][ALONE]["errors"] > 0, "those that came before a card were told so"
    assert set(three_pools["phases"][ALONE]["pools"]) <= {GPU, LARGE}


def test_the_cards_answer_what_they_were_bought_for(three_pools: Report) -> None:
    answers = {name: three_pools["phases"][name]["pools"] for name in (SMALL_LOAD, LARGE_LOAD, FALLS)}
    assert answers[SMALL_LOAD].keys() == {CPU, GPU}
    assert answers[LARGE_LOAD][LARGE] > 0
    assert answers[FALLS][CPU] > 0


def test_nothing_it_started_is_left(report: Report, tmp_path_factory: pytest.TempPathFactory) -> None:
    left, mark = [], f"{MARK}={tmp_path_factory.getbasetemp()}".encode()
    for one in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in one.read_bytes():
                left.append((one.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has just ended
    assert not left
