"""What `tandem up` says while it runs: a GPU that would pay, and one that is away."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from serving.local.environments import Environment
from serving.local.processes import children_of
from tests.gateway.conftest import TANDEM
from tests.gateway.fleet.test_faults import load_on
from tests.gateway.test_emulated import up
from tests.local.harness import Program

GPU, CPU = "emulated-gpu", "emulated-cpu"


def triton_of(up: Program, pool: str) -> int:
    """The server that `tandem triton` runs for this pool."""
    for child in children_of(up.pid):
        words = Path(f"/proc/{child.pid}/cmdline").read_text().split("\0")
        if "triton" in words and pool in words:
            return next(server.pid for server in children_of(child.pid) if server.is_alive)
    raise AssertionError(f"there is no {pool}")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.campaigns
def test_up_says_when_a_gpu_would_pay_and_what_becomes_of_its_pools(environment: Environment, tmp_path: Path) -> None:
    config = tmp_path / "told.yaml"
    pools = {GPU: {"price_per_hour": 3.0, "cold_start_s": 1.0}, CPU: {"price_per_hour": 1.0, "max_replicas": 9}}
    config.write_text(json.dumps({"version": 1, "pools": pools}))
    with up(tmp_path, "--config", str(config)) as running:
        says = running.program.wait_for
        status = running.ask("/admin/status").json()["pools"]
        assert {name: pool["price_per_hour"] for name, pool in status.items()} == {GPU: 3.0, CPU: 1.0}
        says(f"{GPU}: no server would pay")
        with load_on(running.port, "digits", clients=40):
            line = says(f"{GPU}: 1 server would pay (demand ")
            assert "break-even" in line
        os.kill(triton_of(running.program, GPU), signal.SIGKILL)
        says(f"{GPU}: waking")
        says(f"{GPU}: ready")


@pytest.mark.slow
def test_a_price_that_was_forgotten_is_one_line_at_up_too(tmp_path: Path) -> None:
    config = tmp_path / "told.yaml"
    config.write_text(json.dumps({"version": 1, "pools": {"cpu": {"price_per_hour": 1.0}, "gpu": {}}}))
    program = Program([*TANDEM, "up", "--config", str(config)], tmp_path / "log")
    assert program.process.wait(60) == 2
    (line,) = program.lines()
    assert line.startswith(f"tandem: {config}, line 1: pools.gpu: ")
    assert "price_per_hour" in line
