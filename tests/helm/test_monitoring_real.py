"""A real Prometheus reads a real gateway with keys and a real Triton, as the chart's monitors and rules say: do rules and dashboard show something?

What stands for the cluster: two addresses, and the labels that the operator's discovery would give. Rules are asked every second, not every minute.
"""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.keys import changes
from serving.ports import free_ports
from tests.gateway.conftest import SAMPLE, digits_triton, gateway_before
from tests.local.harness import wait_until

from .conftest import Object, Render, Rendering
from .prometheus import NotThere, program
from .promql import VARIABLES, dashboard_expressions
from .test_monitoring import BOTH, KEYS, MONITORED

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NOT_HERE = ("nv_gpu_", "tandem_wanted_replicas")  # no card, no scaler
DISCOVERED = {"namespace": "serving", "pod": "p", "__meta_kubernetes_pod_label_tandem_pool": "cpu"}


@dataclass(frozen=True)
class Prometheus:
    port: int

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str) -> list[Object]:
        found = self.get("query", query=expression)["result"]
        assert isinstance(found, list)
        return found


def target(endpoint: Object, address: str, key: str) -> Object:
    """A monitor's endpoint as a job of Prometheus' own configuration."""
    names = {"targetLabel": "target_label", "sourceLabels": "source_labels", "replacement": "replacement"}
    relabelings = [{names[name]: value for name, value in it.items()} for it in endpoint["relabelings"]]
    wants_key = endpoint.get("authorization")
    return {
        "job_name": address,
        "scrape_interval": "1s",
        "metrics_path": endpoint["path"],
        "static_configs": [{"targets": [address], "labels": DISCOVERED}],
        "relabel_configs": relabelings,
        **({"authorization": {"type": wants_key["type"], "credentials": key}} if wants_key else {}),
    }


def write(folder: Path, it: Rendering, gateway: str, triton: str, key: str) -> Path:
    (rules,), (of_gateway,), (of_pools,) = (it.all(kind) for kind in ("PrometheusRule", "ServiceMonitor", "PodMonitor"))
    groups = [{**group, "interval": "1s"} for group in rules["spec"]["groups"]]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    targets = [
        target(of_gateway["spec"]["endpoints"][0], gateway, key),
        target(of_pools["spec"]["podMetricsEndpoints"][0], triton, key),
    ]
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "scrape_configs": targets}))
    return file


@pytest.fixture(scope="module")
def prometheus(render: Render, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        binary = program("prometheus")
    except NotThere as error:
        pytest.fail(str(error), pytrace=False)
    folder = tmp_path_factory.mktemp("prometheus")
    keys, now = folder / "keys.json", datetime.now(UTC)
    key = changes.add(keys, "chart", frozenset({"infer", "metrics"}), now).text
    control = folder / "control.yaml"
    control.write_text("version: 1\ntenants: {chart: {quotas: {dollars: {per: month, limit: 5}}}}\n")
    (port,) = free_ports(1)
    it = render({**MONITORED, "auth": KEYS, "pools": BOTH})
    with (
        digits_triton(folder) as (server, triton),
        gateway_before(folder, {"cpu": [triton]}, "--keys", str(keys), "--control", str(control)) as gateway,
    ):
        words = list(server.process.args)  # type: ignore[arg-type]
        metrics = words[words.index("--metrics-port") + 1]
        file = write(folder, it, gateway.url, f"127.0.0.1:{metrics}", key)
        words = [
            binary,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "prometheus.log").open("w") as log, subprocess.Popen(words, stderr=log) as process:
            try:
                running = Prometheus(port)
                send = {"Authorization": f"Bearer {key}"}

                def has_rates() -> bool:
                    assert gateway.infer(SAMPLE, headers=send).status == 200
                    try:
                        return bool(running.ask('tandem:requests:rate5m{outcome="ok"} > 0'))
                    except OSError:  # not listening yet
                        return False

                wait_until(has_rates, "the rules have rates")
                yield running
            finally:
                process.terminate()


def test_both_targets_are_read_with_the_key_and_named_as_rules_want_them(prometheus: Prometheus) -> None:
    found = [it["metric"] for it in prometheus.ask("up == 1")]
    assert {(it["job"], it.get("pool")) for it in found} == {("tandem-gateway", None), ("tandem-triton", "cpu")}
    assert {(it["namespace"], it["tandem"]) for it in found} == {("serving", "tandem")}


def test_every_rule_is_computed_and_no_alert_fires(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_every_panel_shows_something_but_those_of_cards_and_scaler(
    prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIABLES, "$__rate_interval", "1m")

    def empty() -> list[str]:
        return [it for it in dashboard_expressions() if not prometheus.ask(it)]

    # A rate needs two looks at a Triton, which begin at a moment of their own.
    wait_until(lambda: all(any(name in it for name in NOT_HERE) for it in empty()), "all others show something")
    assert len(empty()) == 4


def test_cost_is_price_times_tritons(prometheus: Prometheus) -> None:
    (cost,) = (
        it for it in dashboard_expressions() if it.startswith("sum(tandem_pool:price_per_hour") and "3600" not in it
    )
    assert [it["value"][1] for it in prometheus.ask(cost)] == ["0.2"]
