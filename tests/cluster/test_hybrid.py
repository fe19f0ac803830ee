"""The whole story with real processes behind simulated pods: no request fails from the CPU alone to a GPU pool and back, while a GPU node is
deleted, a release rolls and a gateway leaves. A program of its own, in namespaces of its own (tests/cluster/hybrid); here is what it must find.

Not shown: NVIDIA's server, a card, kube-proxy. No time is judged, only that things come to their end; the report has the seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.story import GATEWAY_KILLED, GPU, NO_ANSWER, unexcused

RUN_S = 420  # it takes half of it on two busy cores
MARK = "HYBRID_RUN"  # in the environment of all that this run starts, and of nothing that another does
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(RUN_S + 30)]
Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("hybrid")
    path = folder / "report.json"
    command = [sys.executable, "-m", "tests.cluster.hybrid", f"--report={path}", f"--logs={folder / 'logs'}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, MARK: str(path)}, capture_output=True, text=True, timeout=RUN_S
    )
    print(done.stdout, done.stderr)
    assert path.exists(), f"it ended with {done.returncode}: {done.stderr[-2000:]}"
    found: Report = json.loads(path.read_text())
    return found


def test_the_story_comes_to_its_end(report: Report) -> None:
    assert not report["failed"]


def test_no_request_fails_on_the_way(report: Report) -> None:
    wrong = {name: it["said"] for name, it in report["phases"].items() if it["errors"] and name != GATEWAY_KILLED}
    assert not wrong
    assert report["all"]["requests"] > 500


def test_a_killed_gateway_costs_at_most_what_was_sent_to_it(report: Report) -> None:
    assert set(report["phases"][GATEWAY_KILLED]["said"]) <= {"200", *NO_ANSWER}
    assert unexcused(report) == 0


def test_the_cpu_answers_before_the_gpu_pool_is_there_and_after_it_is_gone(report: Report) -> None:
    assert set(report["phases"]["warm on the CPU"]["pools"]) == {"cpu"}
    assert set(report["phases"]["on the CPU again"]["pools"]) == {"cpu"}


def test_the_gpu_pool_answers_what_it_can_and_the_cpu_bridges_the_loss_of_its_node(report: Report) -> None:
    assert report["phases"]["a GPU node comes"]["pools"][GPU] > 0
    assert set(report["phases"]["a GPU node is deleted"]["pools"]) == {GPU, "cpu"}


def test_requests_to_a_triton_that_falls_silent_are_answered_by_the_cpu(report: Report) -> None:
    assert report["phases"]["a Triton falls silent"]["pools"]["cpu"] > 0


def test_both_gateways_are_asked(report: Report) -> None:
    assert report["phases"]["warm on the CPU"]["endpoints"] == 2


def test_nothing_it_started_is_left(report: Report, tmp_path_factory: pytest.TempPathFactory) -> None:
    left, mark = [], f"{MARK}={tmp_path_factory.getbasetemp()}".encode()
    for one in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in one.read_bytes():
                left.append((one.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has just ended
    assert not left
