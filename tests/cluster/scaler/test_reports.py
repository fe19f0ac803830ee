"""What is read of a gateway's metrics; and that numbers which cannot be right are no answer."""

from __future__ import annotations

import asyncio

import pytest

from serving.cluster.scaler.reports import UnusableReport, parse_report
from serving.decisions.demand import Demand
from serving.gateway.metrics import Metrics, PoolGauge

POOLS = ("cpu", "gpu")
NAMES = ("tandem_demand_replicas", "tandem_demand_only_replicas", "tandem_ready_servers")


def pages() -> tuple[str, str]:
    """All metrics and the small page, by a gateway's own hand."""
    gauges = [
        PoolGauge("cpu", "ready", 3, demand_replicas=1.5, demand_only_replicas=0.5, num_ready=2),
        PoolGauge("gpu", "waking", 0, demand_replicas=0.15, demand_unseen_replicas=0.1),
        PoolGauge("other", "ready", 0, num_ready=7),
    ]
    metrics = Metrics(lambda: gauges)
    for model, pool, num_good in (("digits", "cpu", 2), ("texts", "cpu", 3), ("digits", "other", 9)):
        series = metrics.series(model, "fp32", pool)
        series.outcomes["ok"] += num_good
        series.outcomes["shed"] += 100
    return asyncio.run(metrics.text()).decode(), metrics.demand().decode()


def published() -> str:
    return pages()[1]


@pytest.mark.parametrize("page", [0, 1], ids=["all metrics", "the small page"])
def test_what_a_gateway_publishes_is_understood(page: int) -> None:
    found = parse_report(pages()[page], POOLS)
    assert found.demands == {"cpu": Demand(1.5, 0.5, 2), "gpu": Demand(0.15, 0.0, 0, 0.1)}
    assert found.states == {"cpu": "ready", "gpu": "waking"}
    assert found.good == {"cpu": 5, "gpu": 0}


def replaced(name: str, value: str, pool: str = "gpu") -> str:
    """Another value of a pool's number; the line is gone for the value "gone"."""
    start = f'{name}{{pool="{pool}"}}'
    lines = published().splitlines()
    assert any(line.startswith(start) for line in lines)
    return "\n".join(
        f"{start} {value}" if line.startswith(start) else line
        for line in lines
        if value != "gone" or not line.startswith(start)
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-0.5", "1e308", "100001"])
@pytest.mark.parametrize("name", [*NAMES, "tandem_demand_unseen_replicas"])
def test_a_number_that_cannot_be_right_is_no_answer(name: str, value: str) -> None:
    with pytest.raises(UnusableReport, match=f"{name} of pool 'gpu' is"):
        parse_report(replaced(name, value), POOLS)


def test_an_older_gateway_that_does_not_tell_what_it_never_saw_is_heard() -> None:
    found = parse_report(replaced("tandem_demand_unseen_replicas", "gone"), POOLS)
    assert found.demands["gpu"] == Demand(0.15, 0.0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_gateway_that_does_not_know_a_pool_is_asked_for_its_configuration(name: str) -> None:
    with pytest.raises(UnusableReport, match=rf"no {name} of pool 'gpu'.*same tandem.yaml"):
        parse_report(replaced(name, "gone"), POOLS)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html>welcome</html>", id="another server"),
        pytest.param('tandem_demand_replicas{pool="gpu', id="cut off"),
        pytest.param("tandem_demand_replicas{pool=gpu} 1", id="no quotes"),
        pytest.param('tandem_demand_replicas{pool="gpu"} many', id="a word for a number"),
        pytest.param('tandem_demand_replicas{pool="gpu"}', id="no number"),
    ],
)
def test_what_is_no_text_of_metrics_is_no_answer(text: str) -> None:
    with pytest.raises(UnusableReport):
        parse_report(text, POOLS)


def test_lines_that_nobody_needs_may_be_anything() -> None:
    assert parse_report(published() + "\nsomething{else= broken\n", POOLS).demands["cpu"].replicas == 1.5
