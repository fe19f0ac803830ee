"""Everything that rules and dashboard ask for is there: names, labels and values as a real gateway and a real Triton tell them."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import pytest

from serving.cluster.scaler.leader import LeaderSnapshot
from serving.cluster.scaler.metrics import Metrics
from serving.cluster.scaler.state import ColdStartTotals, Result
from serving.decisions.demand import Gateway, Gateways
from serving.decisions.scaling import Scaling
from serving.keys import changes
from serving.repository.layout import SOURCE_FILE, SourceState
from tests.gateway.conftest import gateway_before
from tests.local import models
from tests.local.harness import served, wait_until

from .conftest import Render
from .promql import DASHBOARD, Scrape, Selector, dashboard_expressions, rules, selectors
from .test_monitoring import SHAPES

pytestmark = pytest.mark.triton
# What the monitors and Prometheus itself add to every series of a target; `pool` only to a Triton's.
TARGET = {"namespace", "tandem", "job", "pod", "instance"}
# Only where there is a card: names from Triton's documentation of its metrics, not scraped here.
OF_A_CARD = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"}
# Labels whose values are words of the programs and not of whoever runs them.
VOCABULARY = {"outcome", "state", "reason"}


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    """Of a gateway with keys, a control document and models out of a bucket, and of the Triton behind it, after a request that ended well or not."""
    folder = tmp_path_factory.mktemp("models")
    file = folder / "keys.json"
    key = changes.add(file, "prometheus", frozenset({"metrics", "infer"}), datetime.now(UTC)).text
    gate = {"model": "one.any", "variant": "fp32", "engine": "cpu", "digest": "00" * 32, "gate": "passed"}
    (folder / "control.yaml").write_text(
        "version: 1\ntenants: {prometheus: {quotas: {dollars: {per: month, limit: 5}}}}\n"
    )
    (folder / SOURCE_FILE).write_text(json.dumps(asdict(SourceState("s3://bucket/models"))))
    more = ("--keys", str(file), "--control", str(folder / "control.yaml"), "--model-repository", str(folder))
    config = models.double(folder, "one", parameters={f"tandem_{name}": value for name, value in gate.items()})
    with (
        served(folder, {"one": config}) as triton,
        gateway_before(
            folder, {"cpu": [f"http://{triton.url}"]}, *more, otel={"endpoint": "http://127.0.0.1:1"}
        ) as running,
    ):
        send = {"Authorization": f"Bearer {key}"}
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]})
        wait_until(lambda: running.infer(body.encode(), "one", send).status == 200, "the model answers")
        assert running.ask("/metrics").status == 401
        text = running.ask("/metrics", headers=send).body.decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{triton.ports[2]}/metrics") as answer:
            text += answer.read().decode()
        yield Scrape.of(text + Metrics(Newest(), lambda: 1.0).text()[1].decode())  # type: ignore[arg-type]


class Newest:
    """What a scaler holds for whoever asks (`serving.cluster.scaler.state.ScalerState`), without its event loop."""

    result = Result(Scaling(gateways=Gateways({"10.0.0.1:9090": Gateway({}, 0.0)}), replicas={"gpu": 1}))
    decisions: dict[tuple[str, str, str], int] = {}  # noqa: RUF012
    totals = ColdStartTotals()
    leader = LeaderSnapshot(True)


def lacking(selector: Selector, scrape: Scrape, recorded: dict[str, set[str]]) -> list[str]:
    """What of a selector nobody has."""
    name = selector.name
    is_tritons = name.startswith("nv_") or name == "up"
    given = TARGET | ({"pool"} if is_tritons else set())
    labels: dict[str, set[str]] = scrape.labels.get(name, {})
    if name in recorded:
        given |= recorded[name]
    elif name not in scrape.labels and name != "up" and name not in OF_A_CARD:
        return [name]
    wrong = [f"{name}{{{label}}}" for label, _, _ in selector.matchers if label not in given | labels.keys()]
    for label, kind, value in selector.matchers:
        if label in VOCABULARY and name not in recorded:
            known = labels.get(label, set())
            words = value.split("|") if kind in ("Re", "NotRe") else [value]
            wrong += [f"{name}{{{label}={word}}}" for word in words if word not in known]
    return wrong


def recorded_in(render: Render) -> dict[str, set[str]]:
    """Recorded name -> its labels."""
    found: dict[str, set[str]] = {}
    for shape in SHAPES.values():
        for rule in rules(render(shape)):
            if "record" in rule:
                kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
                labels = {label.strip() for part in kept for label in part.split(",")}
                found[rule["record"]] = labels | rule.get("labels", {}).keys()
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_a_rule_asks_for_is_there(shape: str, render: Render, scrape: Scrape) -> None:
    recorded = recorded_in(render)
    wrong = {}
    for rule in rules(render(SHAPES[shape])):
        for selector in selectors(rule["expr"]):
            if found := lacking(selector, scrape, recorded):
                wrong[rule.get("alert", rule.get("record"))] = found
    assert wrong == {}


def test_whatever_the_dashboard_asks_for_is_there(render: Render, scrape: Scrape) -> None:
    recorded = recorded_in(render)
    wrong = [
        found
        for expression in dashboard_expressions()
        for selector in selectors(expression)
        for found in lacking(selector, scrape, recorded)
    ]
    assert wrong == []


def test_what_the_dashboards_variables_are_filled_from_is_there(scrape: Scrape) -> None:
    queries = [it["definition"] for it in json.loads(DASHBOARD.read_text())["templating"]["list"] if "definition" in it]
    names = [re.match(r"label_values\((\w+)", query) for query in queries]
    assert names
    assert all(name is not None and name[1] in scrape.labels for name in names)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("tandem_request_total", ["tandem_request_total"]),
        ('tandem_queued{device="cpu"}', ["tandem_queued{device}"]),
        ('tandem_requests_total{outcome=~"shed|late"}', ["tandem_requests_total{outcome=late}"]),
        ('tandem_pool_state{state="up"}', ["tandem_pool_state{state=up}"]),
        ('nv_inference_request_failure{reason!="CANCELLED"}', ["nv_inference_request_failure{reason=CANCELLED}"]),
        ("nv_gpu_use", ["nv_gpu_use"]),
        ("tandem:unrecorded:rate5m", ["tandem:unrecorded:rate5m"]),
    ],
)
def test_a_name_that_nobody_has_is_noticed(expression: str, wrong: list[str], render: Render, scrape: Scrape) -> None:
    recorded = recorded_in(render)
    assert [it for selector in selectors(expression) for it in lacking(selector, scrape, recorded)] == wrong
