"""What a pool's pods run, run here: copying from every source with the real programs, the proof after it, and what pulls images ahead.

Nothing is simulated but the addresses; a bucket is a WebDAV server of rclone's on this machine. Triton itself is in test_serves.py.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from serving.cli import cli
from serving.ports import free_ports
from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render
from tests.helm.listening import wait_for
from tests.local.harness import LIMIT_S, TANDEM, Program
from tests.local.repository import publish_digits

from .here import run, run_init_containers
from .test_pools_objects import SHAPES, SLIM_GPU

pytestmark = pytest.mark.slow  # starts processes
needs_rclone = pytest.mark.skipif(shutil.which("rclone") is None, reason="copying needs rclone: apt-get install rclone")


def pod(render: Render, values: Object) -> Object:
    spec: Object = render(values).one("Deployment", "tandem-cpu")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("shape", SHAPES)
def test_every_command_of_ours_is_one_that_tandem_knows(shape: str, render: Render, tmp_path: Path) -> None:
    seen = set()
    for name, spec in render(SHAPES[shape]).pods():
        for container in checks.containers(spec):
            command = container.get("command", [])
            if command[:1] == ["tandem"] and container["name"] in ("triton", "verify-models"):
                here = [word.replace("/models", str(tmp_path)) for word in command]
                verb = cli.commands[here[1]]
                assert isinstance(verb, click.Command)
                verb.make_context(here[1], here[2:])  # parses, does not run
                seen.add(name)
    assert "tandem-cpu" in seen


# -- an image of one's own ---------------------------------------------------------------------------------------------------------


def test_an_image_of_ones_own_is_copied_whole(render: Render, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo", tmp_path / "repo")
    volume = tmp_path / "volume"
    volume.mkdir()
    image = {"repository": "r/models", "tag": "3", "path": f"{tmp_path}/repo/"}
    assert run_init_containers(pod(render, {"modelRepository": {"image": image}}), volume) == 0
    assert (volume / "digits-int8" / "1" / "model.onnx").is_file()


def test_an_image_without_the_path_stops_the_pod(render: Render, tmp_path: Path) -> None:
    image = {"repository": "r/models", "tag": "3", "path": f"{tmp_path}/nowhere"}
    assert run_init_containers(pod(render, {"modelRepository": {"image": image}}), tmp_path) != 0


@pytest.mark.parametrize("server", ["nvidia", "tandem"])
def test_an_empty_volume_stops_the_pod(server: str, render: Render, tmp_path: Path) -> None:
    values = {"modelRepository": {"source": "claim", "claimName": "models"}, "pools": {"cpu": {"server": server}}}
    assert run_init_containers(pod(render, values), tmp_path) != 0


# -- a bucket ----------------------------------------------------------------------------------------------------------------------

REMOTE = "RCLONE_CONFIG_MODELS"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """A folder behind rclone's own WebDAV server with a password; gives the variables by which a client finds it."""
    (port,) = free_ports(1)
    command = ["rclone", "serve", "webdav", str(folder), "--config=", f"--addr=127.0.0.1:{port}", "--read-only"]
    process = subprocess.Popen([*command, "--user=ada", "--pass=lovelace"], stderr=subprocess.PIPE, text=True)
    hidden = subprocess.run(
        ["rclone", "obscure", "lovelace"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        wait_for(port, process)
        url = f"http://127.0.0.1:{port}"
        yield {f"{REMOTE}_TYPE": "webdav", f"{REMOTE}_URL": url, f"{REMOTE}_USER": "ada", f"{REMOTE}_PASS": hidden}
    finally:
        process.terminate()
        process.communicate(timeout=60)


def from_bucket(render: Render, path: str = "digits", **said: object) -> Object:
    store = {"from": f"models:{path}", "existingSecret": "bucket", **said}
    return pod(render, {"modelRepository": {"source": "objectStore", "objectStore": store}})


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A folder that stands for a bucket, with the digits variants under `digits`."""
    shutil.copytree(ROOT / "model_repo", tmp_path / "bucket" / "digits")
    return tmp_path / "bucket"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


@needs_rclone
def test_a_bucket_is_copied_with_nothing_but_the_variables_over_what_was_cut_off_and_proven(
    render: Render, bucket: Path, volume: Path
) -> None:
    shutil.copytree(bucket / "digits" / "digits-fp32", volume / "digits-fp32")
    (volume / "digits-fp32" / "1" / "model.onnx").write_bytes(b"half")
    with served(bucket) as secret:
        plain = {name: secret.pop(name) for name in (f"{REMOTE}_TYPE", f"{REMOTE}_URL", f"{REMOTE}_USER")}
        assert run_init_containers(from_bucket(render, env=plain), volume, secret) == 0
    assert (volume / "digits-fp32" / "1" / "model.onnx").read_bytes() == (
        ROOT / "model_repo" / "digits-fp32" / "1" / "model.onnx"
    ).read_bytes()


@needs_rclone
def test_what_lies_in_a_nodes_cache_is_not_copied_again_and_what_changed_is(
    render: Render, bucket: Path, volume: Path
) -> None:
    """That a file is replaced whole, under a Triton that reads it, is rclone's own way since 1.63; here may be an older one."""
    it = pod(render, {"modelRepository": {"source": "objectStore", "objectStore": {"from": "models:digits", "existingSecret": "bucket"}, "nodeCache": {"path": "/var/lib/tandem"}}})  # fmt: skip
    model, changing = (Path("digits-fp32/1/model.onnx"), Path("digits-int8/1/model.onnx"))
    with served(bucket) as secret:
        assert run_init_containers(it, volume, secret) == 0
    first = (volume / model).stat()
    with (bucket / "digits" / changing).open("ab") as there:
        there.write(b"more")
    with served(bucket) as secret:  # a new one, because a server of rclone's own remembers what lies in folders
        assert run(it["initContainers"][0], volume, secret).returncode == 0
    assert (volume / changing).read_bytes().endswith(b"more")
    again = (volume / model).stat()
    assert (again.st_ino, again.st_ctime_ns) == (first.st_ino, first.st_ctime_ns)


@needs_rclone
def test_a_file_that_changed_in_the_bucket_stops_the_pod(render: Render, bucket: Path, volume: Path) -> None:
    model = bucket / "digits" / "digits-fp32" / "1" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    with served(bucket) as secret:
        copy, verify = from_bucket(render)["initContainers"]
        assert run(copy, volume, secret).returncode == 0
        proof = run(verify, volume, secret)
    assert proof.returncode == 1
    assert "digits-fp32" in proof.stderr + proof.stdout


@needs_rclone
def test_a_path_without_the_models_stops_the_pod(render: Render, bucket: Path, volume: Path) -> None:
    with served(bucket) as secret:
        assert run_init_containers(from_bucket(render, "digits/digits-fp32/1"), volume, secret) != 0


@needs_rclone
def test_a_wrong_password_and_a_server_that_is_down_stop_the_copy_and_say_so(
    render: Render, bucket: Path, volume: Path
) -> None:
    copy = from_bucket(render)["initContainers"][0]
    with served(bucket) as secret:
        wrong = run(copy, volume, {**secret, f"{REMOTE}_PASS": ""})
    down = run(copy, volume, secret)
    assert (wrong.returncode != 0, down.returncode != 0) == (True, True)
    assert "401" in wrong.stderr
    assert "connection refused" in down.stderr


@needs_rclone
def test_a_remote_without_its_variables_stops_the_copy(render: Render, volume: Path) -> None:
    done = run(from_bucket(render)["initContainers"][0], volume, {})
    assert done.returncode != 0
    assert "models" in done.stderr


@needs_rclone
def test_what_follows_a_bucket_takes_what_is_new_and_leaves_what_is_broken(
    render: Render, bucket: Path, volume: Path
) -> None:
    store = {"from": "models:digits", "existingSecret": "bucket", "follow": True}
    values = {
        "modelRepository": {"source": "objectStore", "objectStore": store},
        "pools": {"cpu": {"server": "tandem"}},
    }
    spec = pod(render, values)
    (mirror,) = [it for it in spec["containers"] if it["name"] == "mirror-models"]
    program = f"{sys.executable} -m serving"
    script = mirror["command"][2].replace("exec tandem", f"exec {program}").replace(" /models", f" {volume} --once")
    once = {**mirror, "command": [*mirror["command"][:2], script, *mirror["command"][3:]]}
    copy, _, verify = spec["initContainers"]
    with served(bucket) as secret:
        assert [run(it, volume, secret).returncode for it in (copy, verify, once)] == [0, 0, 0]
    publish_digits(bucket / "digits", "late", precisions=["fp32"])
    publish_digits(bucket / "digits", precisions=["int8"], version=2)
    (bucket / "digits" / "digits-int8" / "2" / "model.onnx").write_bytes(b"half")
    with served(bucket) as secret:
        assert run(once, volume, secret).returncode == 1
        assert run(verify, volume, secret).returncode == 0
    assert (volume / "late-fp32" / "1" / "model.onnx").is_file()


# -- the rest ----------------------------------------------------------------------------------------------------------------------


def test_what_pulls_an_image_ahead_ends_well(render: Render, tmp_path: Path) -> None:
    for daemons in render(SHAPES["images ahead, with a bucket"]).all("DaemonSet"):
        for container in daemons["spec"]["template"]["spec"]["initContainers"]:
            assert run(container, tmp_path, {}).returncode == 0


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a card here")
def test_without_a_card_the_slim_gpu_triton_ends_and_says_so(render: Render, tmp_path: Path) -> None:
    command = render(SLIM_GPU).container("tandem-gpu")["command"]
    words = [word.replace("=/models", f"={ROOT / 'model_repo'}").replace("/tmp/", f"{tmp_path}/") for word in command]
    http, grpc, metrics = (str(port) for port in free_ports(3))
    here = {"--host": "127.0.0.1", "--http-port": http, "--grpc-port": grpc, "--metrics-port": metrics}
    words = [f"{name}={here.get(name, value)}" for name, _, value in (word.partition("=") for word in words[2:])]
    program = Program([*TANDEM, "triton", *words], tmp_path / "log")
    try:
        assert program.process.wait(LIMIT_S) == 2
    finally:
        program.process.kill()
    assert program.says("no NVIDIA card")
