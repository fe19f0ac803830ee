"""The probes of a pool's container, asked of a real Triton: when they say started, and what unloading one model does to ready.

The Triton here is 2.51 with a Python-based ONNX Runtime backend; NVIDIA's container is not run.
"""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from serving.local.environments import ENGINES
from serving.local.launch import Launch, Ports, assemble, variables
from serving.ports import free_ports
from tests.helm.conftest import ROOT, Object, Render
from tests.helm.test_chart_serves import START_S, environment_of, path_of, replaced, running, wait_until_200
from tests.home import in_users_cache

pytestmark = pytest.mark.triton


def answer(url: str, *, posts: bool = False) -> int:
    """The status; 0 where nobody listens."""
    try:
        request = urllib.request.Request(url, data=b"{}" if posts else None)
        with urllib.request.urlopen(request, timeout=60) as answered:
            return int(answered.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def assert_one_model_that_is_unloaded_takes_no_traffic_from_others(base: str, container: Object) -> None:
    assert answer(f"{base}/v2/repository/models/digits-fp32/unload", posts=True) == 200
    give_up = time.monotonic() + START_S
    while answer(f"{base}/v2/models/digits-fp32/ready") == 200:
        assert time.monotonic() < give_up
    assert answer(f"{base}/v2/models/digits-int8/ready") == 200
    assert answer(f"{base}{path_of(container, 'readinessProbe')}") == 200


@pytest.mark.thorough
def test_nvidias_arguments_answer_only_once_all_that_is_named_is_loaded(render: Render, tmp_path: Path) -> None:
    container = render({"pools": {"cpu": {"drain": {"exitTimeoutSeconds": 3}}}}).container("tandem-cpu")
    environment = in_users_cache(ENGINES["cpu"])
    assemble(environment.triton, tmp_path)
    http, grpc, metrics = free_ports(3)
    launch = Launch(environment, tmp_path, ROOT / "model_repo", "cpu", "127.0.0.1", Ports(http, grpc, metrics), 3)
    arguments = [word.replace("=/models", f"={ROOT / 'model_repo'}") for word in container["args"][1:]]
    here = [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
    here += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    command = [str(environment.server), *arguments, *here, f"--backend-directory={tmp_path}"]
    base = f"http://127.0.0.1:{http}"
    with running(command, variables(launch, environment_of(container))) as process:
        give_up = time.monotonic() + START_S
        while (live := answer(f"{base}{path_of(container, 'livenessProbe')}")) == 0:
            assert process.poll() is None
            assert time.monotonic() < give_up
        assert live == 200
        # The very first answers: there was no moment in which a model was missing.
        assert [answer(f"{base}/v2/models/{name}/ready") for name in ("digits-int8", "digits-fp32")] == [200, 200]
        assert answer(f"{base}{path_of(container, 'startupProbe')}") == 200
        assert_one_model_that_is_unloaded_takes_no_traffic_from_others(base, container)


@pytest.mark.thorough
def test_the_slim_images_triton_has_started_when_all_is_loaded(render: Render, tmp_path: Path) -> None:
    values: Object = {"pools": {"cpu": {"server": "tandem", "drain": {"exitTimeoutSeconds": 3}}}}
    container = render(values).container("tandem-cpu")
    http, grpc, metrics = free_ports(3)
    ready = tmp_path / "ready"
    here = {"--model-repository": str(ROOT / "model_repo"), "--host": "127.0.0.1", "--ready-file": str(ready)}
    here |= {"--http-port": str(http), "--grpc-port": str(grpc), "--metrics-port": str(metrics)}
    base = f"http://127.0.0.1:{http}"
    startup = [word.replace("/tmp/ready", str(ready)) for word in container["startupProbe"]["exec"]["command"]]

    def started() -> bool:
        return subprocess.run(startup, stderr=subprocess.DEVNULL).returncode == 0

    ready.write_text("digits-fp32\n")  # as a container finds it that is started again
    with running(replaced(container["command"], here), environment_of(container)) as process:
        wait_until_200(f"{base}{path_of(container, 'livenessProbe')}", process)
        give_up = time.monotonic() + START_S
        while not started():
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert [answer(f"{base}/v2/models/{name}/ready") for name in ("digits-int8", "digits-fp32")] == [200, 200]
        assert subprocess.run([*startup[:-2], "digits", startup[-1]]).returncode == 1, "a part of a name is no model"
        assert_one_model_that_is_unloaded_takes_no_traffic_from_others(base, container)
