"""The scaler's container as the chart writes it, run here before the gateway of the same rendering: it hears it with the key of a mounted secret.

Only what no two processes of a machine can share is another: ports, paths and the gateways' name. A first number takes gateways that were
heard for 10 s, which tests/cluster/scaler waits for.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from tests.helm.conftest import Object, Render
from tests.helm.gateway.test_runs import Secret, listens, running, status
from tests.local.harness import TANDEM, Program, wait_until

pytestmark = pytest.mark.slow  # starts processes: not in `make check`
KEYS: Object = {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own"}}


@contextlib.contextmanager
def scaler(container: Object, replaced: dict[str, str], log: Path) -> Iterator[int]:
    """Gives the port of its pages."""
    http, grpc = free_ports(2)
    replaced = {**replaced, "--host": "127.0.0.1", "--port": str(http), "--grpc-port": str(grpc)}
    words = [word.partition("=") for word in container["command"][1:]]
    arguments = [f"{name}={replaced.get(name, value)}" if eq else name for name, eq, value in words]
    program = Program([*TANDEM, *arguments], log)
    try:
        listens(grpc, program)
        yield http
    finally:
        program.end()


def page(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_it_hears_a_gateway_with_its_key_and_is_alive_before_it_is_ready(render: Render, tmp_path: Path) -> None:
    values = {"scaler": {"enabled": True}, "gateway": {"preprocessing": {"enabled": False}}, "auth": KEYS}
    made = render(values)
    config = tmp_path / "tandem.yaml"
    text = made.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]
    config.write_text(text.replace("http://tandem-cpu:8000", "http://127.0.0.1:9"))  # nothing listens there
    secret = Secret(tmp_path / "keys")
    key = tmp_path / "api-key"
    key.write_text(secret.new_key("metrics"))
    gateway = {"--config": str(config), "--host": "127.0.0.1", "--admin-host": "127.0.0.1", "--keys": str(secret.file)}
    with running(made.container("tandem-gateway"), gateway, tmp_path / "gateway.log") as ports:
        gateways = f"http://127.0.0.1:{ports['--admin-port']}"
        container = made.container("tandem-scaler")
        options = {"--config": str(config), "--gateways": gateways, "--key-file": str(key)}
        with scaler(container, options, tmp_path / "scaler.log") as port:
            (heard,) = wait_until(lambda: page(port)["gateways"].values(), "the gateway is asked")
            assert heard["problem"] == ""
            assert heard["heard_s_ago"] is not None
            probes = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
            assert status(port, probes["livenessProbe"]) == 200
            assert status(port, probes["readinessProbe"]) == 503, "no number yet"
