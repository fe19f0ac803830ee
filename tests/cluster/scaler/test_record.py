"""What a real scaler paid for, beside a real gateway's counts: the bill is the scaler's money."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from tests.cluster.objects import deployment
from tests.cluster.scaler.test_cluster_state import listing
from tests.cluster.servers import answering
from tests.cluster.test_connection import kubeconfig
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, TANDEM, digits_triton, gateway_before
from tests.local.harness import Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]


def test_the_bill_is_what_the_scaler_spent_with_its_cold_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers are wanted and one of them never comes: half of the money is a cold start's."""
    monkeypatch.setenv("NO_PROXY", "*")
    (port,) = free_ports(1)
    usage = tmp_path / "usage.db"
    with (
        answering(200, listing(deployment("cpu", replicas=2))) as api,
        digits_triton(tmp_path) as (_, url),
        gateway_before(
            tmp_path,
            {"cpu": [url]},
            prices={"cpu": 360.0},
            of_pools={"cpu": {"min_replicas": 2, "max_replicas": 2}},
            usage={"place": str(usage)},
        ) as gateway,
    ):
        config = str(tmp_path / "tandem.yaml")
        options = ["--config", config, "--gateways", f"http://{gateway.url}", "--port", str(port)]
        words = {"KUBECONFIG": str(kubeconfig(tmp_path, f"http://{api}"))}
        scaler = Program([*TANDEM, "cluster", "scaler", *options], tmp_path / "scaler.log", words)

        def spent() -> float:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/fleet", timeout=5) as answer:
                    return float(json.load(answer)["pools"]["cpu"]["spent"])
            except OSError:
                return 0.0

        wait_until(lambda: spent() > 1.0, "two servers for five seconds at 0.1 a second each", 60, every_s=0.2)
        for _ in range(5):
            assert gateway.infer(SAMPLE).status == 200
        last = wait_until(spent, "it tells its books")
        scaler.end()
    with closing(sqlite3.connect(usage)) as database, database:  # minutes of the gateway alone, before the scaler began
        database.execute("DELETE FROM servers WHERE (slot, pool) NOT IN (SELECT slot, pool FROM nodes)")

    told: dict[str, Any] = json.loads(tandem("cost", "--config", config, "--since", "2h", "--json").stdout)
    assert 0.999 * last <= told["paid_dollars"] < 3 * last, "it went on until it heard that it is to stop"
    assert told["scaler_hours"] == told["paid_hours"]
    lines = sum(line["dollars"] for line in told["lines"])
    unused = told["unused_idle_dollars"] + told["unused_cold_dollars"]
    assert lines + unused == pytest.approx(told["paid_dollars"], rel=0.01)
    cold = sum(line["cold_dollars"] for line in told["lines"]) + told["unused_cold_dollars"]
    assert cold == pytest.approx(told["paid_dollars"] / 2, rel=0.05)
