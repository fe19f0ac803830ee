"""A file that changes while its model is served is not loaded again, and one that is put back is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from serving.local.environments import Environment
from serving.local.processes import children_of, stubs_of
from serving.ports import free_ports
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits

pytestmark = pytest.mark.triton


def test_a_model_whose_file_changed_is_not_loaded_again_until_the_file_is_what_was_gated(
    environment: Environment, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    publish_digits(repository, precisions=["fp32"])
    model = repository / "digits-fp32" / "1" / "model.onnx"
    good = model.read_bytes()
    http, grpc, metrics = free_ports(3)
    options = [
        "--http-port",
        str(http),
        "--grpc-port",
        str(grpc),
        "--metrics-port",
        str(metrics),
        "--exit-timeout-s",
        "5",
    ]
    command = [
        sys.executable,
        "-m",
        "serving",
        "triton",
        "--no-measure",
        "--model-repository",
        str(repository),
        *options,
    ]
    program = Program(command, tmp_path / "log")
    try:
        assert "digits-fp32" in program.wait_for("ready:")
        server = wait_until(lambda: next((c.pid for c in children_of(program.pid) if c.is_alive), None), "a server")
        changed = bytearray(good)
        changed[1000] ^= 1
        model.write_bytes(changed)
        [stub] = [s for s in stubs_of(server) if s.model == "digits-fp32"]
        os.kill(stub.pid, signal.SIGKILL)
        assert "1/model.onnx changed" in program.wait_for("not loaded: digits-fp32")
        model.write_bytes(good)
        program.wait_for("digits-fp32 is up again")
    finally:
        assert program.end() == 0
