"""What scales a GPU pool asks for a number that the scaler tells, of a pool and a release that are told apart, and has no misspelt option."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from serving.cluster.scaler.metrics import Metrics
from serving.cluster.scaler.state import ColdStartTotals, Result
from serving.decisions.scaling import Scaling

from .conftest import K8S, ROOT, Object, Render, one
from .keda_triggers import mistakes

GOOD = {"scalerAddress": "tandem-scaler.serving.svc:9092", "pool": "gpu"}


class Newest:
    """What the scaler holds for whoever asks (`serving.cluster.scaler.state.ScalerState`), without its event loop."""

    result = Result(Scaling(replicas={"gpu": 2}))
    decisions: dict[Any, int] = {}  # noqa: RUF012
    totals = ColdStartTotals()
    leader = None


def scalers_series() -> str:
    text = Metrics(Newest(), lambda: 0.0).text()[1].decode()  # type: ignore[arg-type]
    (line,) = [it for it in text.splitlines() if it.startswith("tandem_wanted_replicas{")]
    return line


def profile(name: str) -> Object:
    values: Object = yaml.safe_load((ROOT / "helm" / "tandem" / f"values-{name}.yaml").read_text())
    return values


@pytest.fixture
def scaled_object(render: Render) -> Object:
    return render(profile("keda")).one("ScaledObject", "tandem-gpu")


# -- KEDA ---------------------------------------------------------------------------------------------------------------------


def test_kedas_trigger_has_no_mistake(scaled_object: Object) -> None:
    (trigger,) = scaled_object["spec"]["triggers"]
    assert list(mistakes(trigger)) == []


@pytest.mark.parametrize(
    ("changed", "mistake"),
    [
        ({"scalerAdress": "a:1"}, "scalerAdress is unknown; did you mean scalerAddress?"),
        ({"pools": "gpu"}, "pools is unknown; did you mean pool?"),
        ({"scalerAddress": None}, "scalerAddress is missing"),
        ({"pool": None}, "pool is missing"),
        ({"pool": 1}, "pool is no text"),
        ({"unsafeSsl": "no"}, "unsafeSsl is neither true nor false"),
    ],
)
def test_a_mistake_in_a_trigger_is_found(changed: Object, mistake: str) -> None:
    metadata = {key: value for key, value in (GOOD | changed).items() if value is not None}
    assert list(mistakes({"type": "external-push", "metadata": metadata})) == [mistake]


def test_a_scaler_that_we_do_not_know_is_a_mistake() -> None:
    [mistake] = mistakes({"type": "external-pull", "metadata": GOOD})
    assert mistake.startswith("external-pull ")


@pytest.mark.parametrize("name", ["keda", "prometheus-adapter"])
def test_no_profile_starts_more_than_the_node_pool_may_buy(name: str, render: Render) -> None:
    limits = one("gpu-nodes/karpenter-aws.yaml", "NodePool")["spec"]["limits"]
    config = yaml.safe_load(render(profile(name)).one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert config["pools"]["gpu"]["max_replicas"] <= limits["nvidia.com/gpu"]


# -- prometheus-adapter -------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter_rule() -> Object:
    values = yaml.safe_load((K8S / "scaling" / "prometheus-adapter-values.yaml").read_text())
    (rule,) = values["rules"]["external"]
    return dict(rule)


def test_the_adapters_rule_has_only_fields_that_it_knows(adapter_rule: Object) -> None:
    assert adapter_rule.keys() == {"seriesQuery", "resources", "metricsQuery"}
    assert adapter_rule["resources"] == {"overrides": {"namespace": {"resource": "namespace"}}}


def test_the_adapter_finds_the_scalers_series_and_two_scalers_are_one(adapter_rule: Object) -> None:
    (name,) = re.findall(r'__name__="(\w+)"', adapter_rule["seriesQuery"])
    assert scalers_series() == f'{name}{{pool="gpu"}} 2.0'
    assert adapter_rule["metricsQuery"] == "max(<<.Series>>{<<.LabelMatchers>>}) by (pool)"
