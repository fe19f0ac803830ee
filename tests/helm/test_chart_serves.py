"""The pods' commands with a real Triton: the arguments for NVIDIA's container, and all of the slim install with its `helm test`.

The Triton here is 2.51 with a Python-based ONNX Runtime backend, so this shows that the arguments are understood and the models
load by name, not that NVIDIA's container runs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.local.environments import ENGINES
from serving.local.launch import Launch, Ports, assemble, variables
from serving.ports import free_ports
from tests.home import in_users_cache

from .conftest import ROOT, Object, Render

pytestmark = pytest.mark.triton
START_S = 60.0  # a second is usual; the machine may be busy with other tests


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_200(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        assert process.poll() is None, f"ended with {process.returncode} before it answered"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} was not 200 in {START_S:.0f} s")


def environment_of(container: Object) -> dict[str, str]:
    return {**os.environ, **{it["name"]: it["value"] for it in container.get("env", [])}}


def path_of(container: Object, probe: str) -> str:
    path = container[probe]["httpGet"]["path"]
    assert isinstance(path, str)
    return path


@pytest.mark.thorough
def test_tritonserver_understands_the_arguments_for_nvidias_container(render: Render, tmp_path: Path) -> None:
    container = render({"pools": {"cpu": {"drain": {"exitTimeoutSeconds": 3}}}}).container("tandem-cpu")
    environment = in_users_cache(ENGINES["cpu"])
    assemble(environment.triton, tmp_path)
    http, grpc, metrics = free_ports(3)
    launch = Launch(environment, tmp_path, ROOT / "model_repo", "cpu", "127.0.0.1", Ports(http, grpc, metrics), 3)
    arguments = [word.replace("=/models", f"={ROOT / 'model_repo'}") for word in container["args"][1:]]
    here = [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
    here += [
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        f"--backend-directory={tmp_path}",
    ]
    with running([str(environment.server), *arguments, *here], variables(launch, environment_of(container))) as process:
        wait_until_200(f"http://127.0.0.1:{http}{path_of(container, 'readinessProbe')}", process)
        wait_until_200(f"http://127.0.0.1:{http}{path_of(container, 'livenessProbe')}", process)
        with pytest.raises(urllib.error.HTTPError):  # present in the repository, but not loaded by name
            urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/models/digits-fp16/ready", timeout=5)


@pytest.mark.thorough
def test_the_slim_install_answers_its_own_helm_test(render: Render, tmp_path: Path) -> None:
    it = render({"pools": {"cpu": {"server": "tandem", "drain": {"exitTimeoutSeconds": 3}}}})
    triton, gateway = it.container("tandem-cpu"), it.container("tandem-gateway")
    http, grpc, metrics, port, of_grpc, of_admin = free_ports(6)
    here = {"--model-repository": str(ROOT / "model_repo"), "--host": "127.0.0.1"}
    of_triton = {
        "--ready-file": str(tmp_path / "ready"),
        "--http-port": str(http),
        "--grpc-port": str(grpc),
        "--metrics-port": str(metrics),
    }
    config = tmp_path / "tandem.yaml"
    of_gateway = {"--config": str(config), "--port": str(port), "--grpc-port": str(of_grpc)}
    of_gateway |= {"--admin-host": "127.0.0.1", "--admin-port": str(of_admin)}
    written = it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]
    config.write_text(written.replace("http://tandem-cpu:8000", f"http://127.0.0.1:{http}"))
    pod = it.one("Pod", "tandem-test-infer")["spec"]["containers"][0]
    _, flag, script, _, timeout_s, samples, *wanted = pod["command"]
    with (
        running(replaced(triton["command"], here | of_triton), environment_of(triton)) as first,
        running(replaced(gateway["command"], here | of_gateway)) as second,
    ):
        wait_until_200(f"http://127.0.0.1:{http}{path_of(triton, 'readinessProbe')}", first)
        wait_until_200(f"http://127.0.0.1:{port}{path_of(gateway, 'readinessProbe')}", second)
        here_samples = samples.replace("/opt/tandem/model_repo", str(ROOT / "model_repo"))
        test = [sys.executable, flag, script, f"http://127.0.0.1:{port}", timeout_s, here_samples, *wanted]
        done = subprocess.run(test, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["digits", "digits-fp32", "digits-int8"]
    assert done.stdout.lower().count("probabilities [1, 10]  tandem-pool: cpu") == 3


def replaced(command: list[str], values: dict[str, str]) -> list[str]:
    """A container's command as one of this machine: our interpreter, and other values for some options."""
    words = [word.partition("=") for word in command[1:]]
    return [
        sys.executable,
        "-m",
        "serving",
        *(f"{name}={values.get(name, value)}" if eq else name for name, eq, value in words),
    ]
