"""The slim install from its images, as a pod has them: not root, files read-only, no network but its own; a digit through both.

What this cannot show: a container runtime's own doing (cgroups, seccomp, pulls) and Kubernetes' (tests/cluster).
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from .conftest import ROOT
from .pods import Container, Image, Pod, pod

pytestmark = [pytest.mark.images, pytest.mark.timeout(540)]

DRAIN_S = 30.0  # the default of --exit-timeout-s, and the chart's for the gateway
ASK = """
import json, sys, urllib.error, urllib.request
url, key, body = sys.argv[1:]
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
try:
    with urllib.request.urlopen(urllib.request.Request(url, open(body, "rb").read(), headers), timeout=30) as answer:
        print(json.dumps([answer.status, dict(answer.headers), json.load(answer)]))
except urllib.error.HTTPError as refused:
    print(json.dumps([refused.code, dict(refused.headers), json.load(refused)]))
"""
ASK_GRPC = """
import json, sys
import numpy as np
import tritonclient.grpc as triton
client = triton.InferenceServerClient("127.0.0.1:8081")
tensor = triton.InferInput("image", [1, 1, 8, 8], "FP32")
tensor.set_data_from_numpy(np.load(sys.argv[2]))
answer = client.infer("digits", [tensor], headers={"authorization": f"Bearer {sys.argv[1]}"})
print(int(answer.as_numpy(answer.get_response().outputs[0].name).argmax()))
"""

READY = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/ready', timeout=3)"


@dataclass(frozen=True, slots=True)
class Install:
    """Triton and a gateway in front of it, running; folders of theirs outside."""

    pod: Pod
    triton: Container
    gateway: Container
    key: str
    folder: Path

    def ask(
        self, path: str, body: object, key: str | None = None, port: int = 8080
    ) -> tuple[int, dict[str, str], dict]:  # type: ignore[type-arg]
        sent = self.folder / "body.json"
        sent.write_text(json.dumps(body))
        given = self.key if key is None else key
        status, headers, answer = json.loads(self.pod.python(ASK, f"http://127.0.0.1:{port}{path}", given, str(sent)))
        return status, {name.lower(): value for name, value in headers.items()}, answer


def writable(folder: Path) -> str:
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    return str(folder)


@pytest.fixture(scope="module")
def digit() -> tuple[np.ndarray, int]:  # type: ignore[type-arg]
    """A held-out digit that no variant is in doubt about: float32 [1, 1, 8, 8] in 0..1, and its label."""
    held_out = np.load(ROOT / "loadtest" / "payloads" / "digits.npz")
    return held_out["image"][:1].astype(np.float32), int(held_out["labels"][0])


@pytest.fixture(scope="module")
def models(gateway: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as the chart's init containers leave it: copied and verified by the gateway's image."""
    folder = tmp_path_factory.mktemp("models")
    volume = folder / "models"
    mounts = {"/models": writable(volume), "/tmp": writable(folder / "tmp")}
    verify = ["tandem", "verify", "--model-repository=/models", "--digests-only"]
    with pod() as alone:
        for number, command in enumerate((["cp", "-R", "/opt/tandem/model_repo/.", "/models"], verify)):
            log = folder / f"{number}.log"
            with alone.container(gateway, command, mounts, log) as container:
                assert container.process.wait(timeout=60) == 0, log.read_text()
    assert (volume / "digits-fp32" / "1" / "model.onnx").stat().st_uid == 1000
    return volume


@pytest.fixture(scope="module")
def install(gateway: Image, triton: Image, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    folder = tmp_path_factory.mktemp("install")
    (folder / "etc").mkdir()
    config = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:8000"], "device": "cpu"}}}
    (folder / "etc" / "tandem.yaml").write_text(json.dumps(config))
    keys = ["keys", "add", "--keys", str(folder / "etc" / "keys.json"), "--name", "test", "--scope", "infer"]
    made = subprocess.run(
        [sys.executable, "-m", "serving", *keys], capture_output=True, text=True, check=True, cwd=ROOT
    )
    key = next(word for word in made.stdout.split() if word.startswith("tdm_"))
    (folder / "etc" / "keys.json").chmod(0o644)  # a Secret is mounted readable by the pod's group
    of_triton = {
        "/models": f"{models}:ro",
        "/tmp": writable(folder / "triton-tmp"),
        "/dev/shm": writable(folder / "triton-shm"),
        "/opt/tandem/speeds": writable(folder / "speeds"),
    }
    of_gateway = {"/etc/tandem": f"{folder / 'etc'}:ro", "/tmp": writable(folder / "gateway-tmp")}
    with (
        pod() as shared,
        shared.container(triton, triton.command, of_triton, folder / "triton.log") as first,
        shared.container(gateway, [*gateway.command, "--grpc-port=8081"], of_gateway, folder / "gateway.log") as second,
    ):
        first.wait_healthy()
        second.wait_healthy()
        second.wait_for("python", "-c", READY)
        yield Install(shared, first, second, key, folder)


def test_an_image_of_a_digit_becomes_its_label_through_both(install: Install, digit: tuple[np.ndarray, int]) -> None:  # type: ignore[type-arg]
    pixels, label = digit
    buffer = io.BytesIO()
    Picture.fromarray(np.round(pixels[0, 0] * 255).astype(np.uint8)).save(buffer, "PNG")
    body = {"images": [base64.b64encode(buffer.getvalue()).decode()], "top_k": 1}
    status, headers, answer = install.ask("/v1/classify/digits", body)
    assert status == 200, answer
    assert answer["results"][0]["labels"][0]["label"] == str(label)
    assert headers["tandem-pool"] == "cpu"
    assert headers["tandem-device"].startswith("cpu")


def test_a_tensor_becomes_its_label_over_http_and_over_grpc(install: Install, digit: tuple[np.ndarray, int]) -> None:  # type: ignore[type-arg]
    pixels, label = digit
    entry = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": pixels.ravel().tolist()}
    status, _, answer = install.ask("/v2/models/digits/infer", {"inputs": [entry]})
    assert status == 200, answer
    assert int(np.argmax(answer["outputs"][0]["data"])) == label
    np.save(install.folder / "digit.npy", pixels)
    assert int(install.pod.python(ASK_GRPC, install.key, str(install.folder / "digit.npy"))) == label


def test_the_gateway_refuses_who_has_no_key(install: Install) -> None:
    status, headers, _ = install.ask("/v2/models/digits/infer", {"inputs": []}, key="")
    assert status == 401
    assert headers["tandem-error"] == "unauthenticated"


@pytest.mark.parametrize("which", ["triton", "gateway"])
def test_process_1_is_tandem_without_rights_on_files_that_it_cannot_change(install: Install, which: str) -> None:
    container: Container = getattr(install, which)
    assert container.status("NSpid").split()[-1] == "1"
    assert container.status("Uid").split() == ["1000"] * 4
    assert container.status("Gid").split() == ["1000"] * 4
    assert container.status("CapEff") == container.status("CapBnd") == "0" * 16
    assert container.status("NoNewPrivs") == "1"
    words = Path(f"/proc/{container.first}/cmdline").read_text().split("\0")
    assert words[1] == "/opt/venv/bin/tandem"
    denied = container.execute("sh", "-c", "touch /opt/venv/x; touch /usr/x; touch /etc/x")
    assert denied.stderr.count("Read-only file system") == 3


def test_the_health_checks_fail_where_nothing_serves(gateway: Image, triton: Image, tmp_path: Path) -> None:
    with pod() as alone:
        for image in (gateway, triton):
            folder = tmp_path / image.name.replace("/", "-")
            mounts = {"/tmp": writable(folder)}
            with alone.container(image, ["sleep", "60"], mounts, tmp_path / "log") as container:
                container.wait_for("true")
                assert not container.check_health()


def test_the_gateway_without_its_file_of_keys_says_so_and_ends(gateway: Image, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    config = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:8000"], "device": "cpu"}}}
    (tmp_path / "etc" / "tandem.yaml").write_text(json.dumps(config))
    mounts = {"/etc/tandem": f"{tmp_path / 'etc'}:ro", "/tmp": writable(tmp_path / "tmp")}
    with pod() as alone, alone.container(gateway, gateway.command, mounts, tmp_path / "log") as container:
        assert container.process.wait(timeout=60) == 2, (tmp_path / "log").read_text()
    assert "/etc/tandem/keys.json" in (tmp_path / "log").read_text()


# The last test: it ends what the others ask.
def test_sigterm_ends_both_within_the_drain_and_nothing_is_left_behind(install: Install) -> None:
    for container in (install.gateway, install.triton):  # the order of a pod that goes: whoever sends stops first
        code, took_s = container.terminate(within_s=DRAIN_S + 10)
        assert code == 0, container.log.read_text()
        assert took_s < DRAIN_S
        print(f"{container.image.name} ended {took_s:.1f} s after SIGTERM")
    assert list((install.folder / "triton-shm").iterdir()) == []
    assert list((install.folder / "gateway-tmp").iterdir()) == []
    left = sorted(path.name for path in (install.folder / "triton-tmp").iterdir())
    assert all(name.startswith("python_env_") for name in left), left  # an empty folder of Triton's own
