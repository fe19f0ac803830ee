"""The load test's image, started as the Job of `tandem cluster campaign` starts it, against a gateway out of its image; results out of its log.

What this cannot show: cgroup limits, seccomp, and the way of a log through a container runtime and a kubelet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.records import read_manifest
from loadtest.report import build as report
from serving.cluster.campaign.ending import bring_home
from serving.cluster.campaign.framing import Frames
from serving.cluster.campaign.manifests import GRACE_S, USER, CampaignFile
from serving.cluster.campaign.target import KeyReference, Target

from .conftest import TIMEOUT_S
from .installs import Install, install
from .jobs import campaign
from .pods import Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(TIMEOUT_S)]

END_S = 120.0  # it takes some 10 s here
ARMS = [{"variant": "fp32", "pool": "cpu"}, {"variant": "int8", "pool": "cpu"}]
LOAD = {"warmup_s": 0.5, "duration_s": 2.0, "repeats": 1}
# Two processes that share a trace: what several need of a read-only root, and a file in a folder of the ConfigMap.
OPEN = {**LOAD, "kind": "open", "trace": "traces/some.csv", "objective_s": 1.0, "processes": 2}


@pytest.fixture(scope="module")
def running(gateway: Image, triton: Image, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    with install(gateway, triton, models, tmp_path_factory.mktemp("install")) as it:
        yield it


def given(load: dict[str, Any], *fail_if: str) -> CampaignFile:
    text = json.dumps({"version": 1, "name": "short", "model": "digits", "arms": ARMS, "load": load})
    trace = "".join(f"{at / 50}\n" for at in range(125))
    files = {"short.yaml": text.encode(), "traces/some.csv": trace.encode()}
    return CampaignFile("short", "short.yaml", files, int(load.get("processes", 1)), 5.0, 2, fail_if)


def target(image: Image, key: KeyReference | None) -> Target:
    return Target("tandem", "tandem", "http://127.0.0.1:8080", image.name, "IfNotPresent", (), key, False)


def frames(log: Path) -> Frames:
    found = Frames()
    for line in log.read_text().splitlines():
        found.take(line)
    return found


@pytest.mark.parametrize(
    ("load", "fail_if", "code"),
    [({**LOAD, "users": 2}, ("throughput_rps < 1",), 0), (OPEN, ("fp32-cpu.throughput_rps < 1e9",), 1)],
    ids=["closed", "open, two processes"],
)
def test_a_campaign_runs_as_its_job_says_and_its_results_come_out_of_the_log(
    running: Install, loadtest: Image, load: dict[str, Any], fail_if: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    secrets, of = {"client": {"api-key": running.key}}, target(loadtest, KeyReference("client", "api-key"))
    with campaign(running.pod, loadtest, of, given(load, *fail_if), secrets, tmp_path) as started:
        assert started.container.process.wait(timeout=END_S) == code, (tmp_path / "log").read_text()
    home = tmp_path / "home"
    assert bring_home(frames(tmp_path / "log"), home) == code
    assert (home / "report.html").is_file()
    assert json.loads((home / "report.json").read_text())["sentence"]
    assert [run.state for run in read_manifest(home).runs] == ["done", "done"]
    assert all(arm.num_ok > 20 for arm in report.build(home).arms)  # from the rows that came


def test_it_runs_as_the_jobs_user_without_rights_and_sigterm_brings_what_ran(
    running: Install, loadtest: Image, tmp_path: Path
) -> None:
    secrets, of = {"client": {"api-key": running.key}}, target(loadtest, KeyReference("client", "api-key"))
    long = given({**LOAD, "users": 2, "duration_s": 60.0})
    with campaign(running.pod, loadtest, of, long, secrets, tmp_path) as started:
        it = started.container
        it.wait_for("test", "-e", "/results/manifest.json")
        its = started.job["spec"]["template"]["spec"]["securityContext"]
        assert it.status("Uid").split() == [str(its["runAsUser"])] * 4 == [str(USER)] * 4
        assert it.status("Gid").split() == [str(its["runAsGroup"])] * 4
        assert it.status("CapEff") == it.status("CapBnd") == "0" * 16
        assert it.execute("touch", "/opt/venv/x").stderr.endswith("Read-only file system\n")
        code, took_s = it.terminate(within_s=GRACE_S)
    print(f"{loadtest.name} sent what ran {took_s:.1f} s after SIGTERM, exit code {code}")
    assert bring_home(frames(tmp_path / "log"), tmp_path / "home") == code == 130
    assert read_manifest(tmp_path / "home").is_interrupted


def test_without_a_key_its_log_says_so_and_ends_with_the_exit_code(
    running: Install, loadtest: Image, tmp_path: Path
) -> None:
    with campaign(running.pod, loadtest, target(loadtest, None), given({**LOAD, "users": 2}), {}, tmp_path) as started:
        code = started.container.process.wait(timeout=END_S)
    assert "TANDEM_API_KEY" in (tmp_path / "log").read_text()
    assert bring_home(frames(tmp_path / "log"), tmp_path / "home") == code == 2
