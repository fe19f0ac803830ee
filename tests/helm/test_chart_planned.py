"""The chart takes the values that `tandem plan` writes, whatever pools a plan has."""

from __future__ import annotations

import pytest
import yaml

from serving.decisions.plan.outputs import Origin, values_yaml
from serving.decisions.plan.search import make_plan
from serving.decisions.profile import Phase
from tests.decisions.plan.figures import PRICES, objective, profile, server

from .conftest import Object, Render

ORIGIN = Origin("tandem plan", ("cpu.json",), "a list", "2026-11-21")
COLD = (Phase("process", 1.5),)


def planned(*rates: float | tuple[float, float]) -> Object:
    profiles = [profile(server("cpu", 150, cold_start=COLD)), profile(server("gpu", 1500, cold_start=COLD))]
    values: Object = yaml.safe_load(values_yaml(make_plan("digits", objective(*rates), profiles, PRICES), ORIGIN))
    return values


@pytest.mark.parametrize(
    ("rates", "deployments"),
    [
        ((100.0,), {"tandem-cpu": 1}),
        ((290.0,), {"tandem-cpu": 2}),
        ((1000.0,), {"tandem-gpu": 1}),
        (((20.0, 100.0), (4.0, 1000.0)), {"tandem-cpu": 1, "tandem-gpu": 1}),
    ],
)
def test_a_plan_becomes_the_deployments_that_it_says(
    rates: tuple[float, ...], deployments: dict[str, int], render: Render
) -> None:
    objects = render(planned(*rates)).all("Deployment")
    found = {it["metadata"]["name"]: it["spec"].get("replicas") for it in objects}
    found.pop("tandem-gateway")
    assert found == deployments


def test_how_a_model_is_run_and_with_how_many_cores_is_as_it_was_measured(render: Render) -> None:
    container = render(planned(100.0)).container("tandem-cpu")
    assert {"--instances=1", "--threads=4", "--queue-delay-us=0", "--max-batch=32"} <= set(container["command"])
    assert container["resources"]["limits"]["cpu"] == "4"
    assert container["resources"]["limits"]["memory"], "the chart's own stays"


def test_a_day_of_different_rates_lets_the_cpu_pool_follow_them(render: Render) -> None:
    rendering = render(planned((12.0, 100.0), (12.0, 400.0)))
    (scaler,) = rendering.all("HorizontalPodAutoscaler")
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 3)


def test_the_gateway_is_told_prices_variants_and_the_objective(render: Render) -> None:
    rendering = render(planned((20.0, 100.0), (4.0, 1000.0)))
    told = yaml.safe_load(rendering.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert told["models"]["digits"]["variants"] == {"cpu": "int8", "gpu": "fp16"}
    assert told["models"]["digits"]["objective"]["latency_s"] == 0.02
    assert {name: pool["price_per_hour"] for name, pool in told["pools"].items()} == {"cpu": 0.2, "gpu": 0.526}
    assert (told["pools"]["gpu"]["min_replicas"], told["pools"]["gpu"]["max_replicas"]) == (0, 1)
