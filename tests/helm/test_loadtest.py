"""The load test's Jobs: what they look like, and their very commands run here before a real gateway; only addresses are others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.keys import changes
from serving.ports import free_ports
from tests import api_server
from tests.gateway.conftest import digits_triton, gateway_before
from tests.helm.conftest import Object, Render, Rendering

KEYS: Object = {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own", "key": "k"}}


def asked(**more: object) -> Object:
    return {"loadTest": {"enabled": True, **more}}


def job(it: Rendering, role: str) -> Object:
    (found,) = [job for job in it.all("Job") if f"-load-{role}-" in job["metadata"]["name"]]
    return found


def pod(it: Rendering, role: str) -> Object:
    spec = job(it, role)["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def command(it: Rendering, role: str) -> list[str]:
    (container,) = pod(it, role)["containers"]
    words = container["command"]
    assert isinstance(words, list)
    return words


# -- the objects -------------------------------------------------------------------------------------------------------------


def test_nothing_of_it_is_there_unless_it_is_asked_for(render: Render) -> None:
    assert render().all("Job") == []
    assert not [it for it in render().objects if "loadtest" in it["metadata"]["name"]]


def test_workers_find_their_master_by_a_name_that_means_this_run_alone(render: Render) -> None:
    it = render(asked())
    service = it.one("Service", "tandem-loadtest")["spec"]
    labels = {role: job(it, role)["spec"]["template"]["metadata"]["labels"] for role in ("master", "worker")}
    assert service["selector"].items() <= labels["master"].items()
    assert not service["selector"].items() <= labels["worker"].items()
    assert f"--then-reach=tandem-loadtest:{service['ports'][0]['port']}" in command(it, "worker")
    assert "--master-host=tandem-loadtest" in command(it, "worker")
    other = render(asked(rate=51)).one("Service", "tandem-loadtest")["spec"]["selector"]
    assert not other.items() <= labels["master"].items()


def test_the_load_is_as_the_values_say(render: Render) -> None:
    it = render(asked(workers=3, model="m", data="random", rate=0.5, seconds=7, warmupSeconds=0))
    words = {"--expect-workers=3", "--users=3", "--model=m", "--data=random", "--rate=0.5", "--measure=7", "--warmup=0"}
    assert words <= {*command(it, "master")}
    spec = job(it, "worker")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)


def test_other_values_are_another_run_and_the_same_are_not(render: Render) -> None:
    def names(values: Object) -> set[str]:
        return {it["metadata"]["name"] for it in render(values).all("Job")}

    assert names(asked()) == names(asked(workers=2))  # the default
    assert not names(asked()) & names(asked(rate=51))
    assert not names(asked()) & names({**asked(), "gateway": {"replicas": 3}})


def test_a_run_ends_and_is_not_repeated(render: Render) -> None:
    it = render(asked(seconds=1000, warmupSeconds=10))
    for role in ("master", "worker"):
        spec = job(it, role)["spec"]
        assert spec["backoffLimit"] == 0
        assert pod(it, role)["restartPolicy"] == "Never"
        assert spec["activeDeadlineSeconds"] == 2 * 600 + 1010 + 120
        assert spec["ttlSecondsAfterFinished"] == 86400


def test_the_key_is_a_reference_and_stands_in_no_command(render: Render) -> None:
    it = render({**asked(), "auth": KEYS})
    for role in ("master", "worker"):
        (container,) = pod(it, role)["containers"]
        reference = {"secretKeyRef": {"name": "own", "key": "k"}}
        assert container["env"] == [{"name": "TANDEM_API_KEY", "valueFrom": reference}]
    assert "env" not in pod(render(asked()), "master")["containers"][0]


def test_rows_go_to_the_claim_in_a_folder_of_the_run_or_away_with_the_pod(render: Render) -> None:
    kept, other = render(asked(claimName="results")), render(asked(claimName="results", rate=51))
    volume = {"name": "results", "persistentVolumeClaim": {"claimName": "results"}}
    assert volume in pod(kept, "master")["volumes"]
    assert volume in pod(kept, "worker")["volumes"]
    folders = {command(it, role)[4] for it in (kept, other) for role in ("master", "worker")}
    assert len(folders) == 2
    assert "persistentVolumeClaim" not in str(pod(render(asked()), "master")["volumes"])


def test_placement_resources_image_and_limits_are_values(render: Render) -> None:
    resources = {"requests": {"cpu": "3"}, "limits": {"cpu": "3", "memory": "1Gi"}}
    chosen = {"nodeSelector": {"pool": "load"}, "tolerations": [{"key": "load", "operator": "Exists"}]}
    it = render({**asked(resources=resources, **chosen), "imageRegistry": "registry.example.com/team"})
    for role in ("master", "worker"):
        assert {key: pod(it, role)[key] for key in chosen} == chosen
        (container,) = pod(it, role)["containers"]
        assert container["resources"]["limits"] == resources["limits"]
        assert container["image"] == "registry.example.com/team/tandem-loadtest:0.1.0"


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_jobs_are_valid_for_the_api_server_and_restricted(version: str, render: Render) -> None:
    it = render({**asked(claimName="results", nodeSelector={"pool": "load"}), "auth": KEYS})
    for one in [*it.all("Job"), it.one("Service", "tandem-loadtest")]:
        api_server.validate(one, version)
    for role in ("master", "worker"):
        security = pod(it, role)["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        (container,) = pod(it, role)["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod(it, role)["automountServiceAccountToken"] is False


def test_names_are_short_enough_for_the_longest_release_and_a_hundred_workers(render: Render) -> None:
    for one in render(asked(), release="r" * 53).all("Job"):
        assert len(f"{one['metadata']['name']}-99") <= 63  # an indexed Job's pods are named so, and their host names


def test_the_network_lets_them_reach_each_other_and_the_gateway(render: Render) -> None:
    it = render(asked())
    labels = job(it, "worker")["spec"]["template"]["metadata"]["labels"]
    policy = it.one("NetworkPolicy", "tandem-loadtest")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    allowed = it.one("NetworkPolicy", "tandem-gateway")["spec"]["ingress"][0]["from"]
    assert any(peer["podSelector"].get("matchLabels", {"": ""}).items() <= labels.items() for peer in allowed)


# -- the commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    url: str
    key: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys.json"
    key = changes.add(keys, "load", frozenset({"infer"}), datetime.now(UTC)).text
    with (
        digits_triton(folder) as (_, triton),
        gateway_before(folder, {"cpu": [triton]}, "--keys", str(keys)) as running,
    ):
        yield Here(f"http://{running.url}", key)


def started(words: list[str], here: Here, folder: Path, port: int) -> subprocess.Popen[str]:
    """A Job's container as a process of this machine."""
    places = {"http://tandem-gateway:80": here.url, "tandem-loadtest:5557": f"127.0.0.1:{port}"}
    places |= {"tandem-loadtest": "127.0.0.1", "/results": str(folder)}
    words = [
        re.sub("|".join(places), lambda it: places[it[0]], word) if n != 2 else word for n, word in enumerate(words)
    ]
    words.append(f"--master-bind-port={port}" if "--master" in words else f"--master-port={port}")
    environment = {**os.environ, "TANDEM_API_KEY": here.key}
    return subprocess.Popen(
        [sys.executable, *words[1:]], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.campaigns
def test_the_jobs_commands_send_the_load_and_say_what_came_of_it(render: Render, served: Here, tmp_path: Path) -> None:
    """All on one volume, as with a claim: where rows go is the master's word."""
    it = render({**asked(rate=40, seconds=3, warmupSeconds=1, claimName="results"), "auth": KEYS})
    (port,) = free_ports(1)
    workers = [started(command(it, "worker"), served, tmp_path, port) for _ in range(2)]  # before their master
    master = started(command(it, "master"), served, tmp_path, port)
    said = [process.communicate(timeout=60) for process in (master, *workers)]
    assert [master.returncode, *(worker.returncode for worker in workers)] == [0, 0, 0], said
    (answers,) = re.findall(r"(\d+) requests: \1 ok cpu", said[0][0])
    (good,) = re.findall(r"(\d+) good answers: p50", said[0][0])
    assert good == answers != "0"
    assert len([*tmp_path.glob("*/rows.*.csv")]) == 2


@pytest.mark.campaigns
def test_a_key_that_is_refused_and_rows_of_a_run_before_end_it_with_a_sentence(
    render: Render, served: Here, tmp_path: Path
) -> None:
    words = command(render({**asked(), "auth": KEYS}), "master")
    _, said = started(words, Here(served.url, "tdm_no"), tmp_path, 1).communicate(timeout=120)
    assert said.startswith(f"{served.url}: 401")
    (tmp_path / "rows.0.csv").touch()
    process = started(words, served, tmp_path, 1)
    _, said = process.communicate(timeout=120)
    assert said.startswith(f"{tmp_path} ")
    assert said.count("\n") == 1
    assert process.returncode == 1


@pytest.mark.campaigns
def test_a_model_that_never_comes_ends_it_with_the_reason(render: Render, served: Here, tmp_path: Path) -> None:
    words = command(render({**asked(model="other"), "auth": KEYS}), "worker")
    words[3] = "0"  # instead of ten minutes
    process = started(words, served, tmp_path, 1)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said.startswith(f"model other at {served.url} is not there: 404")


@pytest.mark.thorough
@pytest.mark.campaigns
def test_a_signal_reaches_locust(render: Render, served: Here, tmp_path: Path) -> None:
    """As the first process of its container it would otherwise be killed after the whole grace period."""
    (port,) = free_ports(1)
    process = started(command(render({**asked(), "auth": KEYS}), "master"), served, tmp_path, port)
    assert process.stderr is not None
    for line in process.stderr:
        if "Waiting for workers" in line:
            break
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode is not None
