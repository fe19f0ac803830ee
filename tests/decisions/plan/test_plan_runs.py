"""What a plan writes is what runs: `tandem up` with its file serves the planned variant, as it was planned."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from serving.ports import free_ports
from tests.decisions.plan.conftest import Files
from tests.local.harness import ROOT, Program

pytestmark = [pytest.mark.slow, pytest.mark.triton]
TANDEM = [sys.executable, "-m", "serving"]


@pytest.mark.thorough
def test_up_serves_a_plan_as_it_was_written(files: Files, tmp_path: Path) -> None:
    planned, port = tmp_path / "planned", free_ports(1)[0]
    words = ["plan", "--profile", str(files.cpu), "--rate", "200", "--p99", "2s", "--output", str(planned)]
    assert Program([*TANDEM, *words], tmp_path / "plan.log").process.wait(60) == 0
    words = ["up", "--config", str(planned / "tandem.yaml"), "--port", str(port), "--no-measure"]
    state = tmp_path / "state"
    program = Program([*TANDEM, *words], tmp_path / "up.log", {"TANDEM_STATE": str(state)})
    try:
        program.wait_for("Ctrl-C stops it")
        body = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/digits/infer", body, timeout=30) as answer:
            assert (answer.headers["Tandem-Variant"], answer.headers["Tandem-Pool"]) == ("int8", "cpu")
        (written,) = state.glob("runs/*/tandem.yaml")
        (url,) = yaml.safe_load(written.read_text())["pools"]["cpu"]["urls"]
        with urllib.request.urlopen(f"{url}/v2/models/digits-int8/config", timeout=60) as answer:
            config = json.load(answer)
    finally:
        program.end()
    assert config["instance_group"][0]["count"] == 2
    assert config["parameters"]["intra_op_thread_count"]["string_value"] == "1"
    assert (config["max_batch_size"], config["dynamic_batching"]["max_queue_delay_microseconds"]) == (16, 200)
