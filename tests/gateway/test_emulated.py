"""`tandem up` with two emulated pools: what receipts, status and settings say of them, and what a gateway never accepts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.ports import free_ports
from tests.gateway.conftest import SAMPLE, TANDEM, Running, gateway_before
from tests.local.harness import Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

SECONDS = {"fast": 0.004, "slow": 0.030}


@contextlib.contextmanager
def up(folder: Path, *more: str) -> Iterator[Running]:
    options = [*more]
    for pool, name in (("emulated-gpu", "fast"), ("emulated-cpu", "slow")):
        file = folder / f"{name}.json"
        points = [[1, SECONDS[name]], [32, SECONDS[name] * 8]]  # of which real computing must take a fifth at most
        file.write_text(json.dumps({"version": 1, "name": name, "variants": {"*": points}}))
        options += ["--emulate", f"{pool}={file}"]
    port = free_ports(1)[0]
    program = Program(
        [*TANDEM, "up", "--port", str(port), *options], folder / "log", {"TANDEM_STATE": str(folder / "state")}
    )
    try:
        program.wait_for("Ctrl-C stops it")
        running = Running(program, port)
        until = time.monotonic() + 60
        while {pool["state"] for pool in running.ask("/admin/status").json()["pools"].values()} != {"ready"}:
            assert time.monotonic() < until
            time.sleep(0.05)
        yield running
    finally:
        program.end()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with up(tmp_path_factory.mktemp("two")) as running:
        yield running


@pytest.mark.parametrize(("pool", "name"), [("emulated-gpu", "fast"), ("emulated-cpu", "slow")])
def test_receipts_name_the_emulated_device_and_times_are_its_own(two: Running, pool: str, name: str) -> None:
    reply = two.infer(SAMPLE, headers={"Tandem-Pool": pool})
    assert reply.status == 200
    assert reply.headers["Tandem-Pool"] == pool
    assert reply.headers["Tandem-Device"].startswith(f'emulated-{name}; name="')
    assert reply.headers["Tandem-Engine"] == f"emulated-{name}"
    timing = dict(part.split(";dur=") for part in reply.headers["Server-Timing"].split(", "))
    assert float(timing["backend"]) / 1000 >= SECONDS[name]


def test_status_and_welcome_say_what_it_is(two: Running) -> None:
    pools = two.ask("/admin/status").json()["pools"]
    assert {name: pool["device"] for name, pool in pools.items()} == {
        "emulated-gpu": "emulated",
        "emulated-cpu": "emulated",
    }
    assert any("emulated-gpu pool" in line for line in two.program.lines())


def test_a_pool_that_is_not_emulated_routes_nothing_to_an_emulated_triton(two: Running, tmp_path: Path) -> None:
    url = two.ask("/admin/status").json()["pools"]["emulated-gpu"]["servers"][0]["url"]
    with gateway_before(tmp_path, {"cpu": [url]}, ready=False) as gateway:
        refused = wait_until(
            lambda: gateway.ask("/admin/status").json()["pools"]["cpu"]["servers"][0]["refused"], "it is refused"
        )
        assert "device 'emulated'" in refused["digits-fp32"]
        assert gateway.infer(SAMPLE).status == 503
