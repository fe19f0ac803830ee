"""A scrape never keeps the loop: it is made in slices, shared by those who ask at once, and read by Prometheus' own parsers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from serving.gateway import background, metrics
from serving.gateway.metrics import Metrics, PoolGauge, Rendering, Series

POOLS = ("cpu", "gpu")
NUM_SERIES = 201  # 50 models with two variants on two pools, and what was refused before a model was found


def many(num_models: int = 50) -> Metrics:
    made = Metrics(lambda: [PoolGauge(name, "ready", 0, demand_replicas=0.5, num_ready=1) for name in POOLS])
    for number in range(num_models):
        for variant in ("fp32", "int8"):
            for pool in POOLS:
                series = made.series(f"model-{number}", variant, pool)
                series.answered(0.0001, 0.003, 0.02)
                series.answered(0.0001, 20.0, 20.5)
                series.outcomes["shed"] = number
    return made


async def turns(made: Callable[[], asyncio.Future[bytes]]) -> tuple[bytes, int]:
    """What is made, and how often the loop had its turn meanwhile."""
    making, count = made(), 0
    while not making.done():
        await asyncio.sleep(0)
        count += 1
    return making.result(), count


def test_however_many_models_there_are_the_loop_has_its_turn_after_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "SLICE_S", 0.0)
    _, count = asyncio.run(turns(lambda: asyncio.ensure_future(many().text())))
    assert count > NUM_SERIES


def test_scrapes_at_once_share_the_counting_and_a_later_one_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[Series] = []
    settle = Series.settle
    monkeypatch.setattr(background, "SLICE_S", 0.0)
    monkeypatch.setattr(Series, "settle", lambda self: (settled.append(self), settle(self)))

    async def run() -> None:
        made = many()
        first, *_, leaving = [asyncio.ensure_future(made.text()) for _ in range(5)]
        await asyncio.sleep(0)
        leaving.cancel()
        assert b"tandem_build_info" in await first
        assert len(settled) == NUM_SERIES
        made.series("model-0", "fp32", "cpu").answered(0.1, 0.1, 0.1)
        again = (await made.text()).decode()
        assert len(settled) == 2 * NUM_SERIES
        line = 'tandem_requests_total{model="model-0",outcome="ok",pool="cpu",variant="fp32"} 3.0'
        assert line in again.splitlines()

    asyncio.run(run())


@pytest.mark.parametrize("rendering", Rendering)
def test_what_is_written_is_what_was_counted(rendering: Rendering) -> None:
    parser: ModuleType = openmetrics_parser if rendering.is_openmetrics else text_parser
    made = many(8)
    odd = made.series('a "b"\\c\nd', "fp32", "cpu")
    odd.answered(0.25, 0.3, 1e-7)
    text = asyncio.run(made.text(rendering)).decode()
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }

    def of(name: str, model: str, **more: str) -> float:
        return found[name, frozenset({"model": model, "variant": "fp32", "pool": "cpu", **more}.items())]

    assert of("tandem_requests_total", "model-7", outcome="ok") == 2
    assert of("tandem_requests_total", "model-7", outcome="shed") == 7
    up_to = [of("tandem_backend_seconds_bucket", "model-7", le=bound) for bound in metrics.BOUNDS]
    assert up_to == [0] * 4 + [1] * 11 + [2]
    assert of("tandem_backend_seconds_count", "model-7") == 2
    assert of("tandem_backend_seconds_sum", "model-7") == pytest.approx(20.003)
    assert of("tandem_request_seconds_sum", odd.labels[0]) == 1e-7
    assert found["tandem_ready_servers", frozenset({("pool", "cpu")})] == 1


def test_the_page_for_the_scaler_stays_small_and_sums_what_was_answered_well() -> None:
    page = many().demand().decode()
    assert len(page) < 4096
    assert 'tandem_requests_total{outcome="ok",pool="cpu"} 200.0' in page.splitlines()
    assert 'tandem_demand_replicas{pool="gpu"} 0.5' in page.splitlines()


@pytest.mark.parametrize("rendering", list(Rendering))
def test_conflicts_are_told_to_prometheus_of_each_model_and_not_to_the_scaler(rendering: Rendering) -> None:
    conflicts = {('a"b', "fp32"): True, ("c", "int8"): False}
    made = Metrics(lambda: [PoolGauge("cpu", "ready", 0, digest_conflicts=conflicts)])
    parser = openmetrics_parser if rendering.is_openmetrics else text_parser
    families = {it.name: it for it in parser.text_string_to_metric_families(asyncio.run(made.text(rendering)).decode())}
    found = {(it.labels["model"], it.labels["variant"]): it.value for it in families["tandem_digest_conflict"].samples}
    assert found == {key: float(value) for key, value in conflicts.items()}
    assert {it.labels["pool"] for it in families["tandem_digest_conflict"].samples} == {"cpu"}
    assert b"conflict" not in made.demand()
