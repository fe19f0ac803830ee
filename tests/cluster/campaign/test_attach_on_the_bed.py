"""`tandem cluster campaign --attach` against a real API server and Job controller: the first command is killed, or left, and nothing is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from loadtest.records import read_manifest
from loadtest.report import build as report
from serving.cluster.api import connect
from serving.cluster.campaign.ending import Delivery, JobCommands, to_the_end
from serving.cluster.campaign.follow import JobFollower
from serving.errors import EnvironmentFault
from tests.cluster.bed.api import until
from tests.cluster.campaign.test_campaign_on_the_bed import (
    CAMPAIGN,
    LOAD,
    Place,
    Running,
    gateway,
    nothing_is_left,
    place,
)
from tests.cluster.conftest import SignIn

__all__ = ["gateway", "nothing_is_left", "place"]
pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(240)]
SOME = {**CAMPAIGN, "load": {**LOAD, "repeats": 3}}  # 6 runs, some 9 s
LONG = {**CAMPAIGN, "load": {**LOAD, "duration_s": 60.0}}
TWO = {**CAMPAIGN, "load": {**LOAD, "duration_s": 4.0}}


def killed(running: Running) -> str:
    """Its Job, which goes on."""
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    return running.job()


def over(place: Place, job: str) -> str:
    """The pod of a Job, once it is complete."""

    def found() -> bool:
        (it,) = [it for it in place.jobs() if it["metadata"]["name"] == job]
        return any(each["type"] in ("Complete", "Failed") for each in it.get("status", {}).get("conditions", ()))

    until(found, f"{job} over")
    (pod,) = place.pods()
    return str(pod["metadata"]["name"])


def test_a_command_that_was_killed_in_the_middle_is_taken_up_again_by_two_at_once_and_loses_nothing(
    place: Place, tmp_path: Path
) -> None:
    first = Running(place, tmp_path, "--fail-if", "fp32-cpu.throughput_rps < 1e9", campaign=TWO)
    program = place.kubelet.running[place.is_measuring()].process
    program.send_signal(signal.SIGSTOP)  # it is not over before both are there, however long they take
    job = killed(first)
    assert f"campaign --attach {job} --namespace" in first.err
    both = [Running(place, tmp_path, attach=job) for _ in range(2)]
    for it in both:
        it.says("for at most")
    program.send_signal(signal.SIGCONT)
    for it in both:
        assert it.end() == 1, it.err  # the campaign's own, for the first one's --fail-if
        assert it.out == f"report: {it.folder}/report.html\n"
        told = [line for line in it.err.splitlines() if line.startswith("run ")]
        assert len(told) == 2, it.err
        assert [run.state for run in read_manifest(it.folder).runs] == ["done"] * 2
        assert report.build(it.folder).arms[0].num_ok > 20
    until(lambda: not place.left(), "Job, ConfigMap and NetworkPolicy gone")


def test_the_results_of_one_that_was_kept_come_as_often_as_they_are_asked_for_while_its_log_is_there(
    place: Place, tmp_path: Path
) -> None:
    first = Running(place, tmp_path, "--keep")
    assert first.end() == 0, first.err
    job, viewer = first.job(), SignIn(place.bed, place.namespace, tmp_path).role("view")
    assert f"campaign --attach {job}" in first.err
    refused = Running(place, tmp_path, attach=job, kubeconfig=viewer)
    assert refused.end() == 3
    assert "delete" in refused.err
    assert "jobs" in refused.err

    pod = over(place, job)
    container = place.kubelet.running[pod]
    whole = list(container.log)
    container.log[:] = whole[-2:]  # as a node that began it anew
    half = Running(place, tmp_path, attach=job)
    assert half.end() == 3
    assert "containerLogMaxSize" in half.err
    assert f"campaign --attach {job}" in half.err
    container.log[:] = whole

    again = Running(place, tmp_path, "--keep", attach=job, kubeconfig=viewer)
    assert again.end() == 0, again.err
    assert f"Job {job} is over" in again.err
    assert (again.folder / "report.json").read_bytes() == (first.folder / "report.json").read_bytes()

    place.bed.kubectl("delete", "pod", pod, "-n", place.namespace)
    last = Running(place, tmp_path, attach=job)
    assert last.end() == 3
    assert "no pod" in last.err
    assert last.err.endswith(f"to delete it: kubectl delete job {job} --namespace {place.namespace}\n")
    assert len(place.jobs()) == 1


def test_wrong_names_are_told_with_those_that_there_are_and_ctrl_c_of_one_ends_it_for_both(
    place: Place, tmp_path: Path
) -> None:
    alone = Running(place, tmp_path, attach="mine.yaml")
    assert alone.end() == 2
    assert "no campaign Job 'mine.yaml'" in alone.err
    assert "there is none" in alone.err
    container = {"name": "campaign", "image": "x:1", "resources": {}}
    others = {
        "metadata": {"name": "other"},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    place.bed.api.create(f"/apis/batch/v1/namespaces/{place.namespace}/jobs", others)
    first = Running(place, tmp_path, campaign=LONG)
    place.is_measuring()
    for name in ("other", "../pods"):
        wrong = Running(place, tmp_path, attach=name)
        assert wrong.end() == 2
        assert first.job() in wrong.err
    second = Running(place, tmp_path, attach="")  # ours is the only one
    second.says("goes on")
    time.sleep(1.0)  # and follows
    second.process.send_signal(signal.SIGINT)
    assert second.end() == 130, second.err
    assert first.end() in (3, 130), first.err  # by whether it still saw the pod
    assert all(read_manifest(it.folder).is_interrupted for it in (first, second))
    assert [it["metadata"]["name"] for it in place.jobs()] == ["other"]


def test_one_that_was_left_or_could_not_be_seen_for_too_long_goes_on(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Running(place, tmp_path, "--keep", campaign=SOME)
    first.says("run 1/6")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    job = first.job()
    assert "1089 s" in first.err
    assert f"campaign --attach {job} --namespace" in first.err

    monkeypatch.setenv("KUBECONFIG", str(place.bed.layout.kubeconfig))
    monkeypatch.setenv("NO_PROXY", "*")
    connection = connect(None, place.namespace)
    with connection.api:
        place.bed.stop("kube-apiserver")
        try:
            followed = JobFollower(connection, job, time.monotonic() + 3.0, lambda _: None)
            wanted = Delivery(tmp_path / "none", 900, keep=False, commands=JobCommands(job, place.namespace, None))
            with pytest.raises(EnvironmentFault) as error:
                to_the_end(followed, wanted)
        finally:
            place.bed.start("kube-apiserver")
    assert f"cluster campaign --attach {job} " in str(error.value)
    second = Running(place, tmp_path, attach=job)
    assert second.end() == 0, second.err
    assert (second.folder / "report.html").exists()


def test_results_that_the_disk_does_not_take_are_not_lost(place: Place, tmp_path: Path) -> None:
    first = Running(place, tmp_path, campaign=SOME)
    first.says("run 1/6")
    first.folder.rmdir()
    first.folder.touch()  # no folder any more
    assert first.end() == 3
    assert f"written to {first.folder}" in first.err
    assert f"tandem cluster campaign --attach {first.job()} --namespace {place.namespace} --output FOLDER" in first.err
    second = Running(place, tmp_path, attach=first.job())
    assert second.end() == 0, second.err
