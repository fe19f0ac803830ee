"""The wheel works as the checkout does, and the gateway needs no heavy package."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import serving
from serving.installation import how_to_add
from serving.ports import free_ports
from tests.local.harness import Program

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `pip wheel` asks for it, without the seconds in which pip starts three processes."""
    folder = tmp_path_factory.mktemp("wheel")
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["build-backend"]
    code = f"import sys; from {backend} import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, timeout=100)
    [made] = folder.glob("tandem_serving-*.whl")
    return made


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its packages, as any installer puts them in place."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what pip records of where it came from."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder), str(wheel)], check=True, timeout=100)
    return folder


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_wheel_carries_the_backend_and_the_small_model_and_nothing_of_this_clone(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = {"serving/documents/templates/base.html", "serving/documents/templates/figures.css"}
    templates |= {f"loadtest/{page}.html" for page in ("report/campaign", "verdict/verdict", "claims/claims")}
    assert templates <= names
    assert "serving/local/backends/onnxruntime/model.py" in names
    for variant in ("fp32", "fp16", "int8"):
        assert f"serving/model_repo/digits-{variant}/1/model.onnx" in names
    assert {"serving/py.typed", "loadtest/py.typed"} <= names
    parts = ("loadtest/bench", "loadtest/gpu", "serving/local/emulated.py", "serving/local/backends/emulated")
    checkouts = {ROOT / part for part in parts}
    sources = [path for package in ("serving", "loadtest") for path in (ROOT / package).rglob("*.py")]
    assert {it.relative_to(ROOT).as_posix() for it in sources if not checkouts & {it, *it.parents}} <= names
    assert {f"serving/ui/{path.name}" for path in (ROOT / "serving" / "ui").iterdir()} <= names
    assert "serving/decisions/shipped/prices/aws-us-east-1-2026-07-20.yaml" in names
    assert "serving/decisions/shipped/published.yaml" in names
    assert "loadtest/locustfile.py" in names
    assert "loadtest/payloads/digits.npz" in names
    assert not [n for n in names if n.startswith("tests/") or "__pycache__" in n or n.endswith(".tandem-lock")]
    assert wheel.stat().st_size < 2_000_000


@pytest.mark.thorough
def test_the_installed_package_has_all_that_its_measuring_verbs_import(installed: Path, tmp_path: Path) -> None:
    rooms = ["profile", "verdict", "claims"]
    commands = ", ".join(f"loadtest.{room}.command" for room in rooms)
    code = f"import {commands}; print(*(it.__file__ for it in [{commands}]))"
    done = run(installed, tmp_path, "-c", code)
    assert len(done.stdout.split()) == 3, done.stderr
    assert all(file.startswith(str(installed)) for file in done.stdout.split())


@pytest.mark.thorough
def test_the_installed_package_judges(installed: Path, tmp_path: Path) -> None:
    words = ["verdict", "nobodys", "--rate", "200", "--p99", "20ms", "--no-measure"]
    done = run(installed, tmp_path, "-m", "serving", *words)
    assert (done.returncode, "to judge by" in done.stderr) == (2, True), done.stderr


@pytest.mark.thorough
def test_the_wheel_has_no_emulated_device_and_says_so_when_it_is_asked_for_one(installed: Path, tmp_path: Path) -> None:
    assert not list(installed.rglob("*emulated*"))
    (tmp_path / "t4.yaml").write_text("version: 1\nname: t4\nvariants: {'*': [[1, 0.01]]}\n")
    for words in (["triton", "--pool", "emulated", "--emulate", "t4.yaml"], ["up", "--emulate", "emulated=t4.yaml"]):
        port = ["--http-port" if words[0] == "triton" else "--port", str(free_ports(1)[0])]
        done = run(installed, tmp_path, "-m", "serving", *words, *port)
        assert (done.returncode, "in no package" in done.stderr) == (2, True), done.stderr


def test_the_installed_package_finds_its_own_model_repository(unpacked: Path, tmp_path: Path) -> None:
    code = "import serving; from serving.repository import default_repository as d; print(serving.__file__, d())"
    where = run(unpacked, tmp_path, "-c", code).stdout
    assert where.count(str(unpacked)) == 2
    done = run(unpacked, tmp_path, "-m", "serving", "verify")
    assert (done.returncode, done.stdout.count("whole")) == (0, 3), done.stderr


@contextlib.contextmanager
def up(installed: Path, cwd: Path) -> Iterator[int]:
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "serving", "up", "--no-measure", "--port", str(port)]
    program = Program(command, cwd / "up.log", {"PYTHONPATH": str(installed), "TANDEM_STATE": str(cwd / "state")}, cwd)
    try:
        program.wait_for("Ctrl-C")
        yield port
    finally:
        assert program.end() == 0


@pytest.mark.triton
def test_the_installed_package_serves(unpacked: Path, tmp_path: Path) -> None:
    body = (unpacked / "serving" / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
    with up(unpacked, tmp_path) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/digits/infer", body, timeout=60) as answer:
            assert answer.status == 200


def test_the_gateway_needs_no_torch_onnxruntime_locust_or_kubernetes(tmp_path: Path) -> None:
    absent = [
        "torch",
        "onnx",
        "onnxruntime",
        "locust",
        "gevent",
        "kubernetes",
        "tritonclient",
        "grpc",
        "psutil",
        "filelock",
        "sklearn",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import serving.gateway.serve, serving.export.inventory"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


UP_WITHOUT_FILELOCK = (
    "import sys; sys.modules['filelock'] = None; sys.argv = ['tandem', 'up']; from serving.cli import main; main()"
)


@pytest.mark.thorough
def test_in_a_checkout_the_message_for_a_missing_package_installs_the_checkout_with_its_extra() -> None:
    done = run(ROOT, ROOT, "-c", UP_WITHOUT_FILELOCK)
    assert done.returncode == 2
    said, _, command = done.stderr.strip().partition("not installed: ")
    assert "'filelock'" in said
    python, *words = shlex.split(command)
    assert (ROOT / python).samefile(sys.executable)
    assert words == ["-m", "pip", "install", "-e", ".[local]"]


@pytest.mark.thorough
def test_of_a_wheel_the_message_for_a_missing_package_installs_that_wheel_with_its_extra(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    """What is advised is what pip does: it would install this very file."""
    done = run(installed, tmp_path, "-c", UP_WITHOUT_FILELOCK)
    command = shlex.split(done.stderr.strip().rpartition("not installed: ")[2])
    assert command[-1] == f"tandem-serving[local] @ {wheel.as_uri()}"
    tried = [*command, "--dry-run", "--no-deps", "--no-index", "--ignore-installed"]
    pip = subprocess.run(tried, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert f"Would install tandem-serving-{serving.__version__}" in pip.stdout


@pytest.mark.parametrize(
    ("direct", "said"),
    [
        ({"url": "file:///some/where", "dir_info": {}}, "pip install '/some/where[onnx]'"),
        ({"url": "file:///some/where", "dir_info": {"editable": True}}, "pip install -e '/some/where[onnx]'"),
        ({"url": "https://h/a.whl", "archive_info": {}}, "pip install 'tandem-serving[onnx] @ https://h/a.whl'"),
        (
            {"url": "https://h/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0"}, "subdirectory": "b"},
            "pip install 'tandem-serving[onnx] @ git+https://h/a.git@c0#subdirectory=b'",
        ),
        ({}, "install Tandem again from where this one came from, with the extra [onnx]"),
    ],
)
def test_the_way_to_add_an_extra_is_that_of_this_installation(
    direct: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No name that an index would look up."""
    folder = tmp_path / "tandem_serving-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tandem-serving\nVersion: 0\n")
    if direct:
        (folder / "direct_url.json").write_text(json.dumps(direct))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("serving.installation.ROOT", tmp_path)
    assert how_to_add("onnx").endswith(said)
