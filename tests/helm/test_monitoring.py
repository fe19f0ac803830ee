"""Monitors, rules and dashboard as objects: they find what they read, say what the values say, and their expressions are PromQL.

Whether what they ask for exists is in test_monitoring_names.py, what alerts do in test_monitoring_alerts.py.
"""

from __future__ import annotations

import json
import re

import pytest

from .conftest import ROOT, Object, Render
from .promql import dashboard_expressions, panels, rules, selectors

KEYS: Object = {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own", "key": "k"}}
PEERS = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
MONITORED: Object = {
    "networkPolicy": {"metricsFrom": PEERS},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}
BOTH: Object = {"cpu": {"pricePerHour": 0.2}, "gpu": {"enabled": True, "pricePerHour": 1.2}}
SHAPES: dict[str, Object] = {
    "a CPU pool": MONITORED,
    "with keys": {**MONITORED, "auth": KEYS},
    "a GPU pool and prices": {**MONITORED, "pools": BOTH},
    "a GPU pool that sleeps": {
        **MONITORED,
        "pools": {
            "gpu": {
                "enabled": True,
                "autoscaling": {"enabled": True, "minReplicas": 0, "metrics": [{"type": "External"}]},
            }
        },
    },
    "a GPU pool that follows the scaler": {
        **MONITORED,
        "scaler": {"enabled": True},
        "pools": {"gpu": {"enabled": True, "autoscaling": {"enabled": True, "by": "wanted", "minReplicas": 0}}},
    },
    "a GPU pool that the scaler scales": {
        **MONITORED,
        "scaler": {"enabled": True},
        "pools": {"gpu": {"enabled": True, "autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 0}}},
    },
    "only GPUs": {**MONITORED, "pools": {"cpu": {"enabled": False}, "gpu": {"enabled": True}}},
    "a small price": {**MONITORED, "pools": {"cpu": {"pricePerHour": 0.00002}}},
}


def monitored(**more: Object) -> Object:
    parts = {name: {**MONITORED["monitoring"][name], **more.get(name, {})} for name in MONITORED["monitoring"]}
    return {**MONITORED, "monitoring": parts}


# -- the monitors ------------------------------------------------------------------------------------------------------------


def test_nothing_is_made_unless_it_is_asked_for(render: Render) -> None:
    kinds = {it["kind"] for it in render().objects}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert [it["metadata"]["name"] for it in render().all("ConfigMap")] == ["tandem-gateway"]


def test_the_gateways_monitor_finds_the_admin_service_and_its_port(render: Render) -> None:
    it = render(MONITORED)
    (monitor,) = it.all("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    found = [
        service["metadata"]["name"]
        for service in it.all("Service")
        if selector <= service["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    ]
    assert found == ["tandem-gateway-admin"]
    assert endpoint["path"] == "/metrics"


def test_the_pools_monitor_finds_every_triton_and_no_gateway(render: Render) -> None:
    it = render({**MONITORED, "pools": BOTH})
    (monitor,) = it.all("PodMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    found = []
    for deployment in it.all("Deployment"):
        template = deployment["spec"]["template"]
        if selector <= template["metadata"]["labels"].items():
            found.append(deployment["metadata"]["name"])
            names = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
            assert endpoint["port"] in names
    assert sorted(found) == ["tandem-cpu", "tandem-gpu"]


def test_a_targets_pool_is_the_label_of_its_pod(render: Render) -> None:
    it = render(MONITORED)
    (monitor,) = it.all("PodMonitor")
    relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    (of_pool,) = (one for one in relabelings if one["targetLabel"] == "pool")
    label = of_pool["sourceLabels"][0].removeprefix("__meta_kubernetes_pod_label_")
    labels = it.one("Deployment", "tandem-cpu")["spec"]["template"]["metadata"]["labels"]
    assert {re.sub("[^a-zA-Z0-9_]", "_", name): value for name, value in labels.items()}[label] == "cpu"


def test_prometheus_sends_the_clients_key_by_reference_where_keys_are_asked_for(render: Render) -> None:
    (monitor,) = render(SHAPES["with keys"]).all("ServiceMonitor")
    credentials = {"name": "own", "key": "k"}
    assert monitor["spec"]["endpoints"][0]["authorization"] == {"type": "Bearer", "credentials": credentials}
    (monitor,) = render(MONITORED).all("ServiceMonitor")
    assert "authorization" not in monitor["spec"]["endpoints"][0]


def test_interval_and_labels_are_values(render: Render) -> None:
    own = {"release": "prometheus", "app.kubernetes.io/part-of": "mine"}
    it = render(monitored(serviceMonitor={"interval": "2m", "labels": own}))
    for monitor, endpoints in (*it.all("ServiceMonitor"), "endpoints"), (*it.all("PodMonitor"), "podMetricsEndpoints"):
        assert own.items() <= monitor["metadata"]["labels"].items()
        assert monitor["spec"][endpoints][0]["interval"] == "2m"


def test_installations_are_told_apart(render: Render) -> None:
    for release in ("one", "other"):
        it = render(MONITORED, release=release)
        (monitor,) = it.all("PodMonitor")
        relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        given = {one["targetLabel"]: one.get("replacement") for one in relabelings}
        assert given["tandem"] == f"{release}-tandem"
        for rule in rules(it):
            for selector in selectors(rule["expr"]):
                assert ("tandem", "Equal", f"{release}-tandem") in selector.matchers, rule
                assert ("namespace", "Equal", "serving") in selector.matchers, rule


# -- the rules ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_expression_is_promql_and_every_alert_says_what_to_look_at(shape: str, render: Render) -> None:
    made = rules(render(SHAPES[shape]))
    assert len(made) > 15
    for rule in made:
        selectors(rule["expr"])
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
            assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]
            assert re.fullmatch("[0-9]+[smhd]", rule["for"]), rule["alert"]


def test_the_parser_does_notice_a_mistake() -> None:
    for wrong in ("sum(rate(x[5m])", "sum by (a) rate(x)", "rate(x)", "x{a=b}", "nosuch(x)"):
        with pytest.raises(ValueError):  # noqa: PT011  its message is the parser's own
            selectors(wrong)


def expressions(render: Render, shape: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule in rules(render(SHAPES[shape])):
        found.setdefault(rule.get("alert", rule.get("record", "")), []).append(rule["expr"])
    return found


def test_alerts_are_about_what_there_is(render: Render) -> None:
    cpu, both, gpu = (expressions(render, shape) for shape in ("a CPU pool", "a GPU pool and prices", "only GPUs"))
    assert not {"TandemGpuCold", "TandemBridgeSaturated", "tandem_pool:price_per_hour"} & cpu.keys()
    assert {"TandemGpuCold", "TandemBridgeSaturated", "tandem_pool:price_per_hour"} <= both.keys()
    assert "TandemGpuCold" in gpu
    assert "TandemBridgeSaturated" not in gpu
    assert "TandemKeysUnreadable" in expressions(render, "with keys")
    assert "TandemKeysUnreadable" not in cpu


def test_a_pool_that_may_sleep_is_wanted_by_demand_and_another_always(render: Render) -> None:
    (sleeps,) = expressions(render, "a GPU pool that sleeps")["TandemGpuCold"]
    (stays,) = expressions(render, "only GPUs")["TandemGpuCold"]
    assert "tandem_demand_replicas" in sleeps
    assert "tandem_demand_replicas" not in stays


def test_prices_become_series_and_a_small_one_stays_a_number(render: Render) -> None:
    assert expressions(render, "a GPU pool and prices")["tandem_pool:price_per_hour"] == ["vector(0.2)", "vector(1.2)"]
    (small,) = expressions(render, "a small price")["tandem_pool:price_per_hour"]
    assert float(small.removeprefix("vector(").removesuffix(")")) == 0.00002


@pytest.mark.parametrize(
    ("ratio", "allowed", "told"), [(0.995, 0.005, "0.5 %"), (0.9999, 0.0001, "0.01 %"), (0.9, 0.1, "10 %")]
)
def test_the_objective_is_a_value(ratio: float, allowed: float, told: str, render: Render) -> None:
    made = rules(render(monitored(prometheusRule={"objectiveRatio": ratio})))
    burns = [rule for rule in made if rule.get("alert") == "TandemObjectiveBurns"]
    factors = []
    for rule in burns:
        thresholds = re.findall(r"> ([0-9.]+) \* ([0-9.]+)", rule["expr"])
        assert len(set(thresholds)) == 1
        assert float(thresholds[0][1]) == pytest.approx(allowed)
        assert f"allows {told}." in rule["annotations"]["description"]
        factors.append(float(thresholds[0][0]))
    assert factors == [14.4, 6, 1]


def test_how_long_a_gpu_may_be_cold_and_the_rules_labels_are_values(render: Render) -> None:
    values = {**monitored(prometheusRule={"coldFor": "7m", "labels": {"role": "alerts"}}), "pools": BOTH}
    it = render(values)
    (cold,) = (rule for rule in rules(it) if rule.get("alert") == "TandemGpuCold")
    assert cold["for"] == "7m"
    assert "for 7m" in cold["annotations"]["description"]
    assert it.all("PrometheusRule")[0]["metadata"]["labels"]["role"] == "alerts"


def test_every_alert_has_a_row_in_the_documentation_and_no_other(render: Render) -> None:
    named = {name for shape in SHAPES for name in expressions(render, shape) if name.startswith("Tandem")}
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"^\| `(Tandem\w+)`", page, re.MULTILINE)) == named


# -- the dashboard -----------------------------------------------------------------------------------------------------------


def test_the_dashboard_is_a_configmap_that_the_sidecar_finds(render: Render) -> None:
    own = {"grafana_dashboard": "yes", "team": "a"}
    (it,) = (
        one
        for one in render(monitored(dashboard={"labels": own})).all("ConfigMap")
        if "dashboard" in one["metadata"]["name"]
    )
    assert own.items() <= it["metadata"]["labels"].items()
    (text,) = it["data"].values()
    assert json.loads(text)["title"] == "Tandem"
    assert len(text) < 2**20  # of a ConfigMap


def test_every_panel_has_a_title_an_own_place_and_promql() -> None:
    places = set()
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        places |= {
            (x, y)
            for x in range(where["x"], where["x"] + where["w"])
            for y in range(where["y"], where["y"] + where["h"])
        }
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels()), "panels overlap"
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for expression in dashboard_expressions():
        assert "$" not in expression, "a variable that Grafana does not know"
        for selector in selectors(expression):
            assert {("namespace", "Equal", "serving"), ("tandem", "Equal", "tandem")} <= {*selector.matchers}, (
                expression
            )


def test_what_the_dashboard_reads_of_rules_is_recorded(render: Render) -> None:
    recorded = expressions(render, "a GPU pool and prices").keys()
    read = {selector.name for expression in dashboard_expressions() for selector in selectors(expression)}
    assert {name for name in read if ":" in name} <= recorded


def test_legends_name_labels_that_their_expression_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"\b{label}\b", target["expr"]), panel["title"]
