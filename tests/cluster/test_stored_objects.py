"""What the API server stored of the chart, run for real here: commands, probes, the body of `helm test`, and how long leaving takes.

Triton is 2.51 with our backend, so that NVIDIA's arguments are shown to be understood, not that NVIDIA's container runs.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from serving.local.environments import ENGINES
from serving.local.launch import Launch, Ports, assemble, variables
from serving.ports import free_ports
from tests.cluster.bed.api import until
from tests.cluster.bed.cluster import Bed
from tests.cluster.release import PROFILES, Release
from tests.cluster.stored import ROOT, Here, Stored
from tests.home import in_users_cache

pytestmark = pytest.mark.cluster

BODY = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
SHORT = {"preStopSeconds": 1, "exitTimeoutSeconds": 4, "marginSeconds": 4}  # so that a test can wait for all of it
SLOW_S = 1.5  # of one answer, emulated: long enough to be in flight when SIGTERM comes
CONTAINER_PORTS = (8000, 8001, 8002, 8080, 8081, 9090)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path, dict(zip(CONTAINER_PORTS, free_ports(len(CONTAINER_PORTS)), strict=True)))


def stored(release: Release, name: str, here: Here) -> Stored:
    return Stored(release.deployments()[name]["spec"]["template"]["spec"], here)


def write_config(release: Release, here: Here) -> None:
    """The gateway's, as stored, but for where the pool is."""
    (config,) = [it for it in release.objects("configmaps") if it["metadata"]["name"] == "tandem-gateway"]
    text = config["data"]["tandem.yaml"]
    assert "http://tandem-cpu:8000" in text
    (here.folder / "tandem.yaml").write_text(
        text.replace("http://tandem-cpu:8000", f"http://127.0.0.1:{here.ports[8000]}")
    )


@contextmanager
def started(it: Stored, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    words = it.here.command(it.container["command"])
    if more:  # an emulated pool does not go by the name of a real one
        words = ["--pool=emulated-cpu" if word == "--pool=cpu" else word for word in words]
    loopback = ["--admin-host=127.0.0.1"] if "gateway" in words and any("--admin" in word for word in words) else []
    with it.running([*words, *loopback, *more]) as process:
        it.wait_until_ready(process)
        yield process


@pytest.mark.thorough
def test_the_slim_profiles_commands_and_probes_work_and_its_helm_test_passes(
    bed: Bed, namespace: str, here: Here
) -> None:
    release = Release(bed, namespace, PROFILES["slim-images"], {"pools.gpu.enabled": False})
    release.install()
    release.test()
    write_config(release, here)
    with started(stored(release, "cpu", here)), started(stored(release, "gateway", here)):
        (pod,) = [it for it in release.objects("pods") if it["metadata"]["name"] == "tandem-test-infer"]
        service = f"http://tandem-gateway:{bed.api.get(f'/api/v1/namespaces/{namespace}/services/tandem-gateway')['spec']['ports'][0]['port']}"
        words = pod["spec"]["containers"][0]["command"]
        assert service in words
        command = [f"http://127.0.0.1:{here.ports[8080]}" if word == service else word for word in here.command(words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout
    assert "tandem-pool: cpu" in done.stdout.lower()


def test_a_gateway_without_a_triton_is_alive_and_not_ready(bed: Bed, namespace: str, here: Here) -> None:
    release = Release(bed, namespace)
    release.install()
    write_config(release, here)
    it = stored(release, "gateway", here)
    with it.running([*here.command(it.container["command"]), "--admin-host=127.0.0.1"]) as process:
        until(lambda: process.poll() is not None or it.answers("livenessProbe"), "alive")
        assert it.answers("startupProbe")
        assert not it.answers("readinessProbe")


@pytest.mark.thorough
def test_tritonserver_understands_the_stored_arguments_for_nvidias_container(
    bed: Bed, namespace: str, here: Here
) -> None:
    release = Release(bed, namespace, more={"pools.cpu.drain": SHORT})
    release.install()
    it = stored(release, "cpu", here)
    with embedded_triton(it) as process:
        it.wait_until_ready(process)
        with idle_connection(here.ports[8000]):
            assert it.leave(process) <= it.grace_s


@contextmanager
def embedded_triton(it: Stored) -> Iterator[subprocess.Popen[bytes]]:
    environment = in_users_cache(ENGINES["cpu"])
    backends = it.here.folder / "backends"
    backends.mkdir()
    assemble(environment.triton, backends)
    ports = Ports(*(it.here.ports[port] for port in (8000, 8001, 8002)))
    launch = Launch(environment, backends, ROOT / "model_repo", "cpu", "127.0.0.1", ports, 3)
    program, *arguments = it.container["args"]
    assert program == "tritonserver"
    of_here = [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
    of_here += [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    words = [str(environment.server), *map(it.here.word, arguments), *of_here, f"--backend-directory={backends}"]
    with it.running(words, variables(launch, it.environment)) as process:
        yield process


@contextmanager
def idle_connection(port: int) -> Iterator[None]:
    """For which Triton waits out its whole exit timeout."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v2/health/live")
    connection.getresponse().read()
    try:
        yield
    finally:
        connection.close()


# -- leaving while it serves --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_triton_answers_what_is_in_flight_at_sigterm_and_is_gone_within_its_grace_period(
    bed: Bed, namespace: str, here: Here
) -> None:
    release = leaving(bed, namespace)
    it = stored(release, "cpu", here)
    with (
        started(it, *emulated(here)) as process,
        idle_connection(here.ports[8000]),
        one_request(here.ports[8000]) as replies,
    ):
        assert it.leave(process) <= it.grace_s
    assert replies == [200]


@pytest.mark.thorough
def test_a_gateway_answers_what_is_in_flight_at_sigterm_and_is_gone_within_its_grace_period(
    bed: Bed, namespace: str, here: Here
) -> None:
    release = leaving(bed, namespace)
    write_config(release, here)
    config = here.folder / "tandem.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["pools"] = {"emulated-cpu": {**settings["pools"]["cpu"], "device": "emulated"}}
    config.write_text(yaml.safe_dump(settings))
    it = stored(release, "gateway", here)
    with (
        started(stored(release, "cpu", here), *emulated(here)),
        started(it) as process,
        one_request(here.ports[8080]) as replies,
    ):
        assert it.leave(process) <= it.grace_s
    assert replies == [200]


def leaving(bed: Bed, namespace: str) -> Release:
    release = Release(
        bed, namespace, more={"pools.cpu.server": "tandem", "pools.cpu.drain": SHORT, "gateway.drain": SHORT}
    )
    release.install()
    return release


def emulated(here: Here) -> list[str]:
    file = here.folder / "curves.json"
    file.write_text(json.dumps({"version": 1, "name": "slow", "variants": {"*": [[1, SLOW_S], [8, SLOW_S]]}}))
    return [f"--emulate={file}", "--no-measure"]


@contextmanager
def one_request(port: int) -> Iterator[list[int]]:
    """In flight when the block begins; its status is in the list once the block is left."""
    replies: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v2/models/digits-fp32/infer", BODY, {"Content-Type": "application/json"})
        replies.append(connection.getresponse().status)
        connection.close()

    client = threading.Thread(target=ask)
    client.start()
    client.join(SLOW_S / 3)
    assert client.is_alive(), f"answered {replies} before anything could happen to it"
    yield replies
    client.join(30)
