"""How many Tritons a pool has, who says so, and what may take one away: autoscalers, disruption budgets, spreading."""

from __future__ import annotations

import pytest

from tests.helm.conftest import Object, Render

from .test_pools_objects import EXTERNAL

pytestmark = pytest.mark.slow  # computes for seconds: not in `make check`

QUEUE: Object = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "2"}},
}


def scaler(render: Render, pool: Object, name: str = "cpu") -> Object:
    values = {"pools": {name: {"enabled": True, "autoscaling": {"enabled": True, **pool}}}}
    made: Object = render(values).one("HorizontalPodAutoscaler", f"tandem-{name}")["spec"]
    return made


def test_by_default_it_goes_up_at_once_and_down_slowly(render: Render) -> None:
    behavior = scaler(render, {})["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 300,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }


def test_behaviour_of_ones_own_stands_instead(render: Render) -> None:
    own = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert scaler(render, {"behavior": own})["behavior"] == own


def test_metrics_of_ones_own_stand_instead_of_cpu_use(render: Render) -> None:
    assert scaler(render, {"metrics": [QUEUE, EXTERNAL]})["metrics"] == [QUEUE, EXTERNAL]
    (metric,) = scaler(render, {"targetCpuPercent": 55})["metrics"]
    assert metric["containerResource"]["target"] == {"type": "Utilization", "averageUtilization": 55}


def test_a_gpu_pool_may_follow_a_metric_down_to_nothing(render: Render) -> None:
    spec = scaler(render, {"minReplicas": 0, "maxReplicas": 2, "metrics": [EXTERNAL]}, "gpu")
    assert (spec["minReplicas"], spec["maxReplicas"]) == (0, 2)


def test_a_null_of_replicas_leaves_them_to_a_scaler_of_ones_own(render: Render) -> None:
    it = render({"pools": {"cpu": {"replicas": None}}})
    assert "replicas" not in it.one("Deployment", "tandem-cpu")["spec"]
    assert it.all("HorizontalPodAutoscaler") == []


@pytest.mark.parametrize(
    ("scaling", "replicas"),
    [
        ({"minReplicas": 0}, None),
        ({"minReplicas": 0, "beginsAtMinReplicas": True}, 0),
        ({"minReplicas": 2, "beginsAtMinReplicas": True}, 2),
        ({"enabled": False, "minReplicas": 0, "beginsAtMinReplicas": True}, 1),
    ],
)
def test_a_pool_that_an_autoscaler_owns_begins_with_its_fewest_where_that_is_said(
    scaling: Object, replicas: int | None, render: Render
) -> None:
    """What an upgrade finds in the cluster and keeps: tests/cluster/test_chart_scales.py."""
    pool = {"enabled": True, "autoscaling": {"enabled": True, "metrics": [EXTERNAL], **scaling}}
    made = render({"pools": {"gpu": pool}}).one("Deployment", "tandem-gpu")
    assert made["spec"].get("replicas") == replicas
    is_kept = bool(scaling.get("beginsAtMinReplicas")) and scaling.get("enabled", True)
    assert ("annotations" in made["metadata"]) == is_kept


def test_a_null_in_the_defaults_counts_for_every_pool_without_a_number_of_its_own(render: Render) -> None:
    it = render({"poolDefaults": {"replicas": None}, "pools": {"gpu": {"enabled": True, "replicas": 2}}})
    assert "replicas" not in it.one("Deployment", "tandem-cpu")["spec"]
    assert it.one("Deployment", "tandem-gpu")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("pool", "made"),
    [
        ({}, False),
        ({"replicas": 0}, False),
        ({"replicas": 2}, True),
        ({"replicas": 2, "podDisruptionBudget": {"enabled": False}}, False),
        ({"replicas": 3, "autoscaling": {"enabled": True}}, False),
        ({"autoscaling": {"enabled": True, "minReplicas": 2}}, True),
        ({"replicas": None, "maxReplicas": 5}, False),
        ({"replicas": None, "minReplicas": 2, "maxReplicas": 5}, True),
    ],
)
def test_a_budget_is_made_only_where_there_are_always_two_so_that_it_keeps_no_node_from_being_drained(
    pool: Object, made: bool, render: Render
) -> None:
    budgets = {it["metadata"]["name"]: it["spec"] for it in render({"pools": {"cpu": pool}}).all("PodDisruptionBudget")}
    assert ("tandem-cpu" in budgets) == made


def test_a_budget_lets_one_go_and_does_not_count_who_is_not_ready(render: Render) -> None:
    it = render({"pools": {"cpu": {"replicas": 2}}})
    spec = it.one("PodDisruptionBudget", "tandem-cpu")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert spec["selector"] == it.one("Deployment", "tandem-cpu")["spec"]["selector"]


@pytest.mark.parametrize(("device", "spread"), [("cpu", True), ("gpu", False)])
def test_a_cpu_pool_is_spread_and_a_gpu_pool_stays_together_unless_told_otherwise(
    device: str, spread: bool, render: Render
) -> None:
    def constraints(told: Object) -> list[Object]:
        own = {"device": device, "models": ["digits-fp32"], **told}
        it = render({"pools": {"own": own}})
        found: list[Object] = it.one("Deployment", "tandem-own")["spec"]["template"]["spec"].get(
            "topologySpreadConstraints", []
        )
        return found

    assert bool(constraints({})) == spread
    assert constraints({"topologySpread": {"enabled": not spread}}) != constraints({})
    told = constraints({"topologySpread": {"enabled": True}})
    assert [it["topologyKey"] for it in told] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    for it in told:
        assert it["whenUnsatisfiable"] == "ScheduleAnyway"
        assert it["labelSelector"]["matchLabels"]["tandem-pool"] == "own"
