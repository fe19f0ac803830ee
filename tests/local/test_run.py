"""`tandem run`: from a file to a request that is answered, by a `tandem up` that it starts or that runs already."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serving.ports import free_ports
from tests.command import tandem
from tests.local.harness import ROOT

TANDEM = [sys.executable, "-m", "serving"]
SOURCE = str(ROOT / "model_repo/digits-fp32/1/model.onnx")
QUICK = ["--data", "digits", "--precision", "fp32", "--engine", "cpu", "--seconds", "0.01"]


def answered(said: str) -> tuple[str, int]:
    """The model of the curl that was printed, and the place of the largest number in its answer."""
    curl = next(line for line in said.splitlines() if line.strip().startswith("curl "))
    [answer] = subprocess.run(shlex.split(curl), capture_output=True, check=True).stdout.splitlines()
    told = json.loads(answer)
    scores = told["outputs"][0]["data"]
    return told["model_name"], scores.index(max(scores))


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "models", [("zwei",), pytest.param(("zwei", "again"), marks=pytest.mark.thorough)], ids=["first", "taken in too"]
)
def test_a_file_is_exported_served_and_answers_by_the_curl_that_is_printed(
    models: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is taken in by the `tandem up` that the first one started, whatever its port."""
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    place = ["--model-repository", str(tmp_path / "repository")]
    port = str(free_ports(1)[0])
    try:
        for model in models:
            ports = ["--port", port] if model == models[0] else []
            command = [*TANDEM, "run", SOURCE, "--model", model, *ports, *QUICK, *place]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            variant, largest = answered(done.stdout)
            assert (variant.removesuffix("-fp32"), largest) == (model, 2)
        [up] = json.loads(tandem("status", "--json").stdout)["runs"]
        assert up["url"] == f"http://127.0.0.1:{port}"
        assert up["models"].keys() == set(models)
    finally:
        assert tandem("stop").returncode == 0


def test_what_cannot_be_served_is_told_before_anything_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    place = ["--model-repository", str(tmp_path / "repository")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = tandem("run", SOURCE, *QUICK, "--port", port, *place)
        assert (refused.returncode, f"port {port}" in refused.stderr) == (2, True)
    unknown = tandem("run", SOURCE, "--dat", "digits", *place)
    assert (unknown.returncode, "'--data'" in unknown.stderr) == (2, True)
    assert not (tmp_path / "repository").exists()
