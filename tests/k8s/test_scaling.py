"""What scales a GPU pool asks for a metric that gateways have, of a pool and a namespace that are told apart, and has no misspelt option."""

from __future__ import annotations

import re

import pytest
import yaml

from serving.gateway.metrics import Metrics, PoolGauge

from .conftest import K8S, Object, Render, one
from .keda_triggers import mistakes

KEDA = "scaling/keda.yaml"
GOOD = {"serverAddress": "http://prometheus:9090", "query": "up", "threshold": "1"}


@pytest.fixture
def scaled_object() -> Object:
    return one(KEDA, "ScaledObject")


@pytest.fixture
def trigger(scaled_object: Object) -> Object:
    (found,) = scaled_object["spec"]["triggers"]
    return dict(found)


@pytest.fixture
def adapter_rule() -> Object:
    values = yaml.safe_load((K8S / "scaling" / "prometheus-adapter-values.yaml").read_text())
    (rule,) = values["rules"]["external"]
    return dict(rule)


def gateways_series(pool: str) -> str:
    """The line that a gateway with such a pool shows to Prometheus."""
    text = Metrics(lambda: [PoolGauge(pool, "cold", 0, demand_replicas=0.4)]).text().decode()
    (line,) = [it for it in text.splitlines() if it.startswith("tandem_demand_replicas{")]
    return line


# -- KEDA ---------------------------------------------------------------------------------------------------------------------


def test_kedas_trigger_has_no_mistake(trigger: Object) -> None:
    assert list(mistakes(trigger)) == []


@pytest.mark.parametrize(
    ("changed", "mistake"),
    [
        ({"treshold": "1"}, "treshold is unknown; did you mean threshold?"),
        ({"ignoreNullValue": "false"}, "ignoreNullValue is unknown; did you mean ignoreNullValues?"),
        ({"metricName": "demand"}, "metricName is unknown"),  # taken out of KEDA in 2.12, still in many examples
        ({"query": None}, "query is missing"),
        ({"threshold": None}, "threshold is missing"),
        ({"threshold": 0.8}, "threshold is no text"),
        ({"threshold": "a few"}, "threshold is no number"),
        ({"ignoreNullValues": "no"}, "ignoreNullValues is neither true nor false"),
    ],
)
def test_a_mistake_in_a_trigger_is_found(changed: Object, mistake: str) -> None:
    metadata = {key: value for key, value in (GOOD | changed).items() if value is not None}
    assert list(mistakes({"type": "prometheus", "metadata": metadata})) == [mistake]


def test_a_scaler_that_we_do_not_know_is_a_mistake() -> None:
    assert list(mistakes({"type": "promethius", "metadata": GOOD})) == ["promethius is no scaler of prometheus"]


def test_keda_asks_for_what_a_gateway_says_of_the_charts_gpu_pool(trigger: Object, render: Render) -> None:
    (pool,) = re.findall(r'pool="([a-z0-9-]+)"', trigger["metadata"]["query"])
    assert f'tandem_demand_replicas{{pool="{pool}"}}' in gateways_series(pool)
    config = render({"pools": {"gpu": {"enabled": True}}}).one("ConfigMap", "tandem-gateway")
    assert pool in yaml.safe_load(config["data"]["tandem.yaml"])["pools"]
    assert re.fullmatch(r"sum\(tandem_demand_replicas\{.*\}\)", trigger["metadata"]["query"]), "gateways add up"


def test_keda_scales_the_deployment_of_that_pool(scaled_object: Object, render: Render) -> None:
    target = scaled_object["spec"]["scaleTargetRef"]
    assert render({"pools": {"gpu": {"enabled": True}}}).one("Deployment", target["name"])


def test_no_gateway_to_ask_is_an_error_and_keeps_the_pool_as_it_is(scaled_object: Object, trigger: Object) -> None:
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    fallback = scaled_object["spec"]["fallback"]
    assert fallback["behavior"] == "currentReplicas"
    assert fallback["replicas"] != 0, "with 0 KEDA's executor scales to zero as soon as the metric fails"


def test_a_pool_is_woken_by_less_than_it_is_kept_for_and_by_more_than_nothing(trigger: Object) -> None:
    metadata = trigger["metadata"]
    assert 0 < float(metadata["activationThreshold"]) < float(metadata["threshold"]) <= 1


def test_keda_buys_no_more_than_the_node_pool(scaled_object: Object) -> None:
    limits = one("gpu-nodes/karpenter-aws.yaml", "NodePool")["spec"]["limits"]
    assert scaled_object["spec"]["maxReplicaCount"] <= limits["nvidia.com/gpu"]


def test_tritons_go_one_a_minute_after_five_minutes_as_the_charts_own_autoscaler_lets_them(
    scaled_object: Object,
) -> None:
    down = scaled_object["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down == {"stabilizationWindowSeconds": 300, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}


def test_every_name_to_replace_is_explained() -> None:
    readme, text = ((K8S / "scaling" / name).read_text() for name in ("README.md", "keda.yaml"))
    for name in ("NAMESPACE", "PROMETHEUS_URL"):
        assert name in text
        assert re.search(rf"s[/|]{name}[/|]", readme)


# -- prometheus-adapter -------------------------------------------------------------------------------------------------------


def test_the_adapters_rule_has_only_fields_that_it_knows(adapter_rule: Object) -> None:
    assert adapter_rule.keys() == {"seriesQuery", "resources", "metricsQuery"}
    assert adapter_rule["resources"] == {"overrides": {"namespace": {"resource": "namespace"}}}


def test_the_adapter_finds_the_gateways_series_and_adds_gateways_up(adapter_rule: Object) -> None:
    (name,) = re.findall(r'__name__="(\w+)"', adapter_rule["seriesQuery"])
    assert gateways_series("gpu").startswith(f"{name}{{")
    assert adapter_rule["metricsQuery"] == "sum(<<.Series>>{<<.LabelMatchers>>}) by (pool)"
