"""`tandem cluster campaign` against a real API server, scheduler and Job controller; the Job's stored command runs for real here, against a
real gateway, and its log comes home through the API server. Images are not pulled: what a kubelet says of that is written by the test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from loadtest.records import read_manifest
from loadtest.report import build as report
from loadtest.target import Gateway, own_gateway
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.campaign.kubelet import Kubelet
from tests.cluster.conftest import SignIn, drop_namespace, new_namespace
from tests.cluster.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
KEY = "tandem_not-a-real-key"
NODE = "real-0"
NUMBERS = itertools.count(1)
SILENCE_S = 75.0  # of a command that says nothing new; the longest run takes a tenth, the rest is for a busy machine
LOAD = {"users": 2, "warmup_s": 0.2, "duration_s": 0.6, "repeats": 1}
CAMPAIGN: Object = {
    "version": 1,
    "name": "short",
    "model": "digits",
    "arms": [{"variant": "fp32", "pool": "cpu"}, {"variant": "int8", "pool": "cpu"}],
    "load": LOAD,
}
OPEN = {
    "kind": "open",
    "trace": "traces/some.csv",
    "objective_s": 1.0,
    **{k: v for k, v in LOAD.items() if k != "users"},
}


@dataclass(frozen=True)
class Place:
    """A namespace with a release, and a node that really runs what is put there."""

    bed: Bed
    namespace: str
    kubelet: Kubelet
    commands: list[Running] = field(default_factory=list)

    def jobs(self) -> list[Object]:
        return [it for it in self._all("apis/batch/v1", "jobs") if "deletionTimestamp" not in it["metadata"]]

    def pods(self) -> list[Object]:
        found = self._all("api/v1", "pods")
        return [it for it in found if it["metadata"]["labels"]["app.kubernetes.io/component"] == "loadtest"]

    def is_measuring(self) -> str:
        """The pod that is in its first run, once there is one."""

        def found() -> str | None:
            for name, it in list(self.kubelet.running.items()):
                if not it.is_over and (self.kubelet.folder / name / "results" / "manifest.json").exists():
                    return name
            return None

        return str(until(found, "a pod in its first run"))

    def left(self) -> list[str]:
        """What campaigns made and nobody took away."""
        kinds = (("apis/batch/v1", "jobs"), ("api/v1", "configmaps"), ("apis/networking.k8s.io/v1", "networkpolicies"))
        names = [it["metadata"]["name"] for group, kind in kinds for it in self._all(group, kind)]
        return [it for it in names if "-campaign-" in it]

    def _all(self, group: str, kind: str) -> list[Object]:
        return self.bed.api.items(f"/{group}/namespaces/{self.namespace}/{kind}")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with own_gateway(tmp_path_factory.mktemp("up") / "gateway.log") as running:
        yield running


@pytest.fixture(scope="module")
def place(bed: Bed, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    namespace = new_namespace(bed)
    keys = {"auth": {"existingSecret": "keys", "client": {"existingSecret": "client"}}}
    for name, data in (("keys", {"keys.json": "{}"}), ("client", {"api-key": KEY})):
        secret = {"metadata": {"name": name}, "stringData": data}
        bed.api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    release = Release(bed, namespace, more=keys)
    release.install()
    release.settle()
    folder = tmp_path_factory.mktemp("kubelet")
    cordon(bed, is_cordoned=True)  # simulated nodes would only pretend
    with Kubelet(bed, NODE, folder, {"http://tandem-gateway:80": gateway.url}) as kubelet:
        yield Place(bed, namespace, kubelet)
    cordon(bed, is_cordoned=False)
    drop_namespace(bed, namespace)


@pytest.fixture(autouse=True)
def nothing_is_left(place: Place) -> Iterator[None]:
    """Neither by a test that failed, whose campaign the next one would take for its own."""
    yield
    while place.commands:
        place.commands.pop().stop()
    jobs = place.jobs()
    for job in jobs:
        place.bed.kubectl("delete", "job", job["metadata"]["name"], "-n", place.namespace)
    for it in list(place.kubelet.running.values()) if jobs else ():
        if not it.is_over:
            it.process.kill()
    until(lambda: not place.left() and not place.pods(), "what its Jobs owned is gone")


def cordon(bed: Bed, *, is_cordoned: bool) -> None:
    for number in range(3):
        patch = {"spec": {"unschedulable": is_cordoned}}
        bed.api.merge(f"/api/v1/nodes/cpu-{number}", patch)


class Running:
    """`tandem cluster campaign` as a process, because it is interrupted by signals. `attach`: to that Job, in place of a file."""

    def __init__(
        self,
        place: Place,
        folder: Path,
        *words: str,
        campaign: Object = CAMPAIGN,
        attach: str | None = None,
        kubeconfig: Path | None = None,
    ):
        self.folder = folder / ("results" if attach is None else f"attached-{next(NUMBERS)}")
        file = folder / "mine.yaml"
        file.write_text(yaml.safe_dump(campaign))
        what = [str(file)] if attach is None else ["--attach", attach]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or place.bed.layout.kubeconfig), "NO_PROXY": "*"}
        command = [sys.executable, "-m", "serving", "cluster", "campaign", *what, "--namespace", place.namespace]
        self.process = subprocess.Popen(
            [*command, "--output", str(self.folder), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.out, self.err = "", ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        place.commands.append(self)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as output:
            for line in output:
                self.err += line

    def job(self) -> str:
        """Its name, from what it said when it began."""
        found = re.search(r"^tandem: Job (\S+?):? ", self.err, re.MULTILINE)
        assert found, self.err
        return found[1]

    def says(self, words: str) -> None:
        until(lambda: words in self.err or self.process.poll() is not None, f"it says {words!r}")
        assert words in self.err, self.err

    def end(self) -> int:
        """Its exit code, once it is over; `out` and `err` are whole then."""
        heard, since = self.err, time.monotonic()
        while self.process.poll() is None:
            if self.err != heard:
                heard, since = self.err, time.monotonic()
            assert time.monotonic() < since + SILENCE_S, f"nothing new for {SILENCE_S:.0f} s: {self.err}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        return self._over()

    def stop(self) -> None:
        self.process.kill()
        self._over()

    def _over(self) -> int:
        code = self.process.wait()
        self._reading.join()
        if self.process.stdout is not None and not self.process.stdout.closed:
            with self.process.stdout as output:
                self.out = output.read()
        return code


def test_a_campaign_runs_beside_the_gateway_and_its_results_are_brought_home(place: Place, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "some.csv").write_text("".join(f"{at / 50}\n" for at in range(60)))
    running = Running(place, tmp_path, campaign={**CAMPAIGN, "load": OPEN})
    assert running.end() == 0, running.err
    assert running.out == f"report: {running.folder}/report.html\n"
    assert "run 2/2" in running.err
    assert "tandem-results" not in running.err
    manifest = read_manifest(running.folder)
    assert manifest.url == place.kubelet.places["http://tandem-gateway:80"]
    assert [run.state for run in manifest.runs] == ["done", "done"]
    built = report.build(running.folder)  # from the rows that came
    assert all(arm.num_ok > 20 for arm in built.arms)
    until(lambda: not place.left(), "Job, ConfigMap and NetworkPolicy gone")


@pytest.mark.thorough
def test_its_pod_is_let_through_by_the_releases_network_policies_and_has_the_key_of_its_clients(
    place: Place, tmp_path: Path
) -> None:
    running = Running(place, tmp_path, "--keep")
    assert running.end() == 0, running.err
    (job,) = place.jobs()
    (pod,) = place.pods()
    (variable,) = [it for it in pod["spec"]["containers"][0]["env"] if it["name"] == "TANDEM_API_KEY"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "client", "key": "api-key"}
    labels = pod["metadata"]["labels"]
    policies = place.bed.api.items(f"/apis/networking.k8s.io/v1/namespaces/{place.namespace}/networkpolicies")
    (ours,) = [it for it in policies if it["metadata"]["name"] == job["metadata"]["name"]]
    chosen = ours["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= labels.items()
    (gateways,) = [it for it in policies if it["metadata"]["name"] == "tandem-gateway"]
    callers = [it.get("podSelector", {}).get("matchLabels") for it in gateways["spec"]["ingress"][0]["from"]]
    assert any(it and it.items() <= labels.items() for it in callers)
    place.bed.kubectl("delete", "job", job["metadata"]["name"], "-n", place.namespace)
    until(lambda: not place.left() and not place.pods(), "what the Job owned goes with it")


@pytest.mark.thorough
def test_the_exit_code_is_the_campaigns(place: Place, tmp_path: Path) -> None:
    running = Running(place, tmp_path, "--fail-if", "fp32-cpu.throughput_rps < 1e9")
    assert running.end() == 1, running.err
    assert (running.folder / "report.html").exists()
    assert running.out == f"report: {running.folder}/report.html\n"


@pytest.mark.thorough
def test_it_goes_on_following_when_the_api_server_was_away_and_a_log_was_cut_off(place: Place, tmp_path: Path) -> None:
    running = Running(place, tmp_path, campaign={**CAMPAIGN, "load": {**LOAD, "repeats": 8}})
    running.says("run 2/16")
    place.bed.stop("kube-apiserver")
    running.says("is followed when it answers again")
    place.kubelet.cut_after = 3
    place.bed.start("kube-apiserver")
    assert running.end() == 0, running.err
    assert "answers again" in running.err
    told = [line for line in running.err.splitlines() if line.startswith("run ")]
    assert len(told) == 16, running.err  # each once
    assert report.build(running.folder).arms[0].num_ok > 20


@pytest.mark.thorough
def test_ctrl_c_ends_the_job_and_brings_home_what_ran(place: Place, tmp_path: Path) -> None:
    running = Running(place, tmp_path, campaign={**CAMPAIGN, "load": {**LOAD, "duration_s": 60.0}})
    place.is_measuring()
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.err
    assert "waiting for" in running.err
    assert read_manifest(running.folder).is_interrupted
    until(lambda: not place.left(), "its Job gone")


@pytest.mark.thorough
def test_a_second_ctrl_c_leaves_a_pod_that_does_not_end(place: Place, tmp_path: Path) -> None:
    running = Running(place, tmp_path, campaign={**CAMPAIGN, "load": {**LOAD, "duration_s": 60.0}})
    process = place.kubelet.running[place.is_measuring()].process
    process.send_signal(signal.SIGSTOP)
    running.process.send_signal(signal.SIGINT)
    until(lambda: not place.jobs(), "its Job deleted")
    time.sleep(0.5)  # and the command has heard so
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    assert f"Job {running.job()} is deleted" in running.err.splitlines()[-1]
    process.send_signal(signal.SIGCONT)
    until(lambda: not place.pods(), "its pod gone")


@pytest.mark.thorough
def test_a_campaign_that_is_not_over_in_time_is_ended_with_what_ran(place: Place, tmp_path: Path) -> None:
    # 19.4 s of load: what starts them takes the rest.
    running = Running(place, tmp_path, "--timeout=20", campaign={**CAMPAIGN, "load": {**LOAD, "duration_s": 9.5}})
    assert running.end() == 3, running.err
    assert "20 s (--timeout)" in running.err.splitlines()[-1]
    assert running.err.splitlines()[-1].endswith(str(running.folder))
    assert read_manifest(running.folder).is_interrupted


@pytest.mark.thorough
def test_an_evicted_pod_is_told_with_its_nodes_words(place: Place, tmp_path: Path) -> None:
    running = Running(place, tmp_path, campaign={**CAMPAIGN, "load": {**LOAD, "duration_s": 60.0}})
    name = place.is_measuring()
    place.kubelet.evict(name, place.namespace, "The node was low on resource: memory.")
    assert running.end() == 3, running.err
    assert "Evicted" in running.err
    assert "before the results" in running.err
    assert running.err.endswith(f"to delete it: kubectl delete job {running.job()} --namespace {place.namespace}\n")


@pytest.mark.thorough
def test_without_a_node_it_waits_and_says_why(place: Place, tmp_path: Path) -> None:
    patch = {"spec": {"unschedulable": True}}
    place.bed.api.merge(f"/api/v1/nodes/{NODE}", patch)
    running = Running(place, tmp_path)
    running.says("waits: no node takes it")
    place.bed.api.merge(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": False}})
    assert running.end() == 0, running.err


@pytest.mark.thorough
@pytest.mark.parametrize(("role", "words"), [("view", "create configmaps, create jobs"), (None, "403")])
def test_who_may_not_is_told_what_lacks_and_nothing_is_made(
    place: Place, role: str | None, words: str, tmp_path: Path
) -> None:
    path, before = SignIn(place.bed, place.namespace, tmp_path).role(role), place.left()
    running = Running(place, tmp_path, kubeconfig=path)
    assert running.end() == 3
    assert words in running.err
    assert place.left() == before


@pytest.mark.thorough
def test_a_quota_that_lets_no_pod_be_made_is_told(place: Place, tmp_path: Path) -> None:
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    place.bed.api.create(path, {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "1m"}}})
    running = Running(place, tmp_path)
    running.says("no pod can be made: exceeded quota: team")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    place.bed.api.delete(f"{path}/team")
    until(lambda: not place.left(), "its Job gone")


@pytest.mark.thorough
def test_no_release_is_told_and_nothing_is_made(place: Place, namespace: str, tmp_path: Path) -> None:
    elsewhere = Place(place.bed, namespace, place.kubelet, place.commands)
    running = Running(elsewhere, tmp_path)
    assert running.end() == 2
    assert f"namespace '{namespace}'" in running.err
    assert elsewhere.left() == []
    assert json.loads(json.dumps(elsewhere.jobs())) == []
