"""The slim install from its images, as a pod has them: not root, files read-only, no network but its own; a digit through both.

What this cannot show: a container runtime's own doing (cgroups, seccomp, pulls) and Kubernetes' (tests/cluster).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from .conftest import TIMEOUT_S, Digit
from .installs import CONFIG, Install, install, writable
from .pods import Container, Image, pod

pytestmark = [pytest.mark.images, pytest.mark.timeout(TIMEOUT_S)]

DRAIN_S = 30.0  # the default of --exit-timeout-s, and the chart's for the gateway
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


@pytest.fixture(scope="module")
def running(gateway: Image, triton: Image, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    with install(gateway, triton, models, tmp_path_factory.mktemp("install")) as it:
        yield it


def test_an_image_of_a_digit_becomes_its_label_through_both(running: Install, digit: Digit) -> None:
    pixels, label = digit
    buffer = io.BytesIO()
    Picture.fromarray(np.round(pixels[0, 0] * 255).astype(np.uint8)).save(buffer, "PNG")
    body = {"images": [base64.b64encode(buffer.getvalue()).decode()], "top_k": 1}
    status, headers, answer = running.ask("/v1/classify/digits", body)
    assert status == 200, answer
    assert answer["results"][0]["labels"][0]["label"] == str(label)
    assert headers["tandem-pool"] == "cpu"
    assert headers["tandem-device"].startswith("cpu")


def test_a_tensor_becomes_its_label_over_http_and_over_grpc(running: Install, digit: Digit) -> None:
    pixels, label = digit
    entry = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": pixels.ravel().tolist()}
    status, _, answer = running.ask("/v2/models/digits/infer", {"inputs": [entry]})
    assert status == 200, answer
    assert int(np.argmax(answer["outputs"][0]["data"])) == label
    np.save(running.folder / "digit.npy", pixels)
    assert int(running.pod.python(ASK_GRPC, running.key, str(running.folder / "digit.npy"))) == label


def test_the_gateway_refuses_who_has_no_key(running: Install) -> None:
    status, headers, _ = running.ask("/v2/models/digits/infer", {"inputs": []}, key="")
    assert status == 401
    assert headers["tandem-error"] == "unauthenticated"


@pytest.mark.parametrize("which", ["triton", "gateway"])
def test_process_1_is_tandem_without_rights_on_files_that_it_cannot_change(running: Install, which: str) -> None:
    container: Container = getattr(running, which)
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
                first = Path(f"/proc/{container.first}")
            assert not first.exists()  # nothing of a container outlives its test


def test_the_gateway_without_its_file_of_keys_says_so_and_ends(gateway: Image, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "tandem.yaml").write_text(json.dumps(CONFIG))
    mounts = {"/etc/tandem": f"{tmp_path / 'etc'}:ro", "/tmp": writable(tmp_path / "tmp")}
    with pod() as alone, alone.container(gateway, gateway.command, mounts, tmp_path / "log") as container:
        assert container.process.wait(timeout=60) == 2, (tmp_path / "log").read_text()
    assert "/etc/tandem/keys.json" in (tmp_path / "log").read_text()


# The last test: it ends what the others ask.
def test_sigterm_ends_both_within_the_drain_and_nothing_is_left_behind(running: Install) -> None:
    for container in (running.gateway, running.triton):  # the order of a pod that goes: whoever sends stops first
        code, took_s = container.terminate(within_s=DRAIN_S + 10)
        assert code == 0, container.log.read_text()
        assert took_s < DRAIN_S
        print(f"{container.image.name} ended {took_s:.1f} s after SIGTERM")
    assert list((running.folder / "triton-shm").iterdir()) == []
    assert list((running.folder / "gateway-tmp").iterdir()) == []
    left = sorted(path.name for path in (running.folder / "triton-tmp").iterdir())
    assert all(name.startswith("python_env_") for name in left), left  # an empty folder of Triton's own
