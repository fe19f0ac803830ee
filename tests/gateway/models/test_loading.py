"""A Triton that nobody of ours looks after, behind a gateway: loading and unloading, statistics, and models that are not served."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as sync
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from serving.gateway.models.statistics import added
from serving.local import launch as launching
from serving.local.environments import Environment
from serving.local.launch import BACKENDS, Launch, Ports, backend_directory
from serving.ports import free_ports
from tests.gateway.conftest import Reply, Running, gateway_before
from tests.local import models
from tests.local.harness import Program, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.slow]

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
ENSEMBLE: dict[str, Any] = {
    "name": "chain",
    "platform": "ensemble",
    "max_batch_size": 16,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
    "ensemble_scheduling": {
        "step": [{"model_name": "plain", "model_version": -1, "input_map": {"x": "x"}, "output_map": {"y": "y"}}]
    },
}


@dataclass
class Plain:
    """Two Tritons on one repository, and the gateway before them."""

    gateway: Running
    urls: list[str]


def write_repository(folder: Path) -> None:
    configs = [models.double(folder, name) for name in ("two-fp32", "two-int8", "later", "plain", "broken")]
    for config, variant in zip(configs[:2], ("fp32", "int8"), strict=True):
        gate = {"model": "two", "variant": variant, "engine": "cpu", "digest": "00" * 32, "gate": "passed"}
        config["parameters"] |= {f"tandem_{key}": {"string_value": value} for key, value in gate.items()}
    configs[2]["parameters"] |= {
        f"tandem_{key}": {"string_value": value}
        for key, value in {"model": "late", "variant": "fp32", "digest": "0" * 64, "gate": "passed"}.items()
    }
    configs[4]["parameters"]["execution_mode"] = {"string_value": "nonsense"}
    steps = models.double(folder, "steps", sequence_batching={"max_sequence_idle_microseconds": 1_000_000})
    del steps["dynamic_batching"]
    many = models.double(folder, "many", model_transaction_policy={"decoupled": True})
    (folder / "chain" / "1").mkdir(parents=True)
    for config in (*configs, steps, many, ENSEMBLE):
        message = json_format.ParseDict(config, model_config_pb2.ModelConfig())
        (folder / config["name"] / "config.pbtxt").write_text(text_format.MessageToString(message))


@pytest.fixture(scope="module")
def plain(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    folder = tmp_path_factory.mktemp("plain")
    repository = folder / "repository"
    repository.mkdir()
    write_repository(repository)
    backends = backend_directory(environment, BACKENDS)
    programs, urls, prefixes = [], [], []
    try:
        for number in range(2):
            ports = free_ports(3)
            launch = Launch(environment, backends, repository, "cpu", "127.0.0.1", Ports(*ports), 1)
            prefixes.append(launch.region_prefix)
            command, variables = launching.command(launch), launching.variables(launch, os.environ)
            programs.append(Program(command, folder / f"triton{number}.log", variables))
            urls.append(f"http://127.0.0.1:{ports[0]}")
        with gateway_before(folder, {"cpu": urls}, ready=False) as running:

            def all_answer() -> bool:
                servers = running.ask("/admin/status").json()["pools"]["cpu"]["servers"]
                return len(servers) == 2 and all(server["alive"] for server in servers)

            wait_until(all_answer, "both Tritons answer")
            yield Plain(running, urls)
    finally:
        for program in programs:
            program.send(signal.SIGTERM)
        for program in programs:
            program.process.wait(60)
        for prefix in prefixes:
            launching.remove_shared_memory(prefix)  # which a tritonserver leaves


def change(gateway: Running, model: str, action: str, body: bytes = b"{}") -> Reply:
    return gateway.ask(f"/v2/repository/models/{model}/{action}", body)


def states(gateway: Running) -> dict[str, tuple[str, str | None]]:
    rows = gateway.ask("/v2/repository/index", b"").json()
    return {row["name"]: (row["state"], row.get("reason")) for row in rows}


@pytest.fixture
def two(plain: Plain) -> Running:
    """Both variants of `two` are loaded on both servers."""
    for variant in ("two-fp32", "two-int8"):
        assert change(plain.gateway, variant, "load").status == 200
    return plain.gateway


@pytest.mark.protocol("v2 HTTP", "load and unload of a model (admin paths)", "supported", item=35)
def test_a_model_is_unloaded_everywhere_and_loaded_again(two: Running) -> None:
    assert two.infer(BODY, "two").status == 200
    with sync.InferenceServerClient(two.url) as client:
        client.unload_model("two")
    assert {name: states(two)[name] for name in ("two", "two-fp32", "two-int8")} == dict.fromkeys(
        ("two", "two-fp32", "two-int8"), ("UNAVAILABLE", "unloaded")
    )
    away = two.infer(BODY, "two")
    assert (away.status, away.headers["Tandem-Error"]) == (503, "not_ready")
    assert two.ask("/v2/models/two/ready").status == 503
    with sync.InferenceServerClient(two.url) as client:
        client.load_model("two")
        assert client.is_model_ready("two")
    assert {states(two)[name] for name in ("two", "two-fp32", "two-int8")} == {("READY", None)}
    assert two.infer(BODY, "two").json()["outputs"][0]["data"] == [2, 4, 6, 8]


def test_a_pinned_name_is_that_variant_alone_and_what_was_unloaded_is_no_sign_of_sickness(two: Running) -> None:
    assert change(two, "two-int8", "unload").status == 200
    assert states(two)["two-int8"] == ("UNAVAILABLE", "unloaded")
    assert states(two)["two"] == ("READY", None)
    assert two.infer(BODY, "two").headers["Tandem-Variant"] == "fp32"
    assert two.infer(BODY, "two-int8").status == 503
    assert two.ask("/v2/health/ready").status == 200
    assert change(two, "two-int8", "load").status == 200


def test_a_model_that_was_never_loaded_is_found_in_the_repository(plain: Plain) -> None:
    assert plain.gateway.infer(BODY, "late").status in (404, 503)
    assert change(plain.gateway, "later", "load").status == 200
    assert plain.gateway.infer(BODY, "late").status == 200


@pytest.mark.protocol(
    "v2 HTTP",
    "a configuration or files in a load request",
    "refused: whoever may send them runs code on the server",
    item=35,
)
@pytest.mark.parametrize(
    ("model", "action", "body", "status", "said"),
    [
        ("nobody", "load", b"{}", 404, "has a model 'nobody' in its repository"),
        ("nobody", "unload", b"", 404, "nobody"),
        ("two", "load", b'{"parameters":{"config":"{}"}}', 403, "model repository"),
        ("two", "load", b'{"parameters":{"file:1/model.onnx":"QUJD"}}', 403, "run code"),
        ("two", "load", b'{"parameters":{"mine":1}}', 400, "parameters.mine"),
        ("two", "unload", b'{"parameters":{"unload_dependents":true}}', 501, "ensembles"),
        ("two", "unload", b"[]", 400, "JSON object"),
        ("two", "unload", b"{", 400, "not valid JSON"),
        ("two", "load", b'{"parameters":{},"parameters":{}}', 400, "'parameters' twice"),
        ("two", "load", b" " * 70_000, 413, "bytes"),
        ("broken", "load", b"{}", 500, "could not load 'broken'"),
        ("two%2Fint8", "load", b"{}", 400, "%2F"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_says_why(
    two: Running, model: str, action: str, body: bytes, status: int, said: str
) -> None:
    reply = change(two, model, action, body)
    assert reply.status == status, reply.body
    assert said in reply.json()["error"]
    assert "/tmp" not in reply.json()["error"]
    assert two.infer(BODY, "two").status == 200


@pytest.mark.protocol(
    "v2 HTTP", "models that keep a sequence's state", "refused: a request may go to any server, and a second time"
)
@pytest.mark.protocol("v2 HTTP", "decoupled models", "refused: HTTP has one answer for a request", item=32)
@pytest.mark.protocol("v2 HTTP", "ensembles", "refused: their parts have no gate together")
@pytest.mark.parametrize(
    ("model", "status", "said"),
    [
        ("steps", 501, "sequence"),
        ("many", 501, "decoupled"),
        ("chain", 501, "ensemble"),
        ("plain", 404, "gets no requests from here: it has no gate record"),
    ],
)
def test_a_model_that_is_loaded_and_not_served_says_why(plain: Plain, model: str, status: int, said: str) -> None:
    if model == "chain":
        assert change(plain.gateway, "plain", "load").status == 200
    assert change(plain.gateway, model, "load").status == 200
    for path in (f"/v2/models/{model}", f"/v2/models/{model}/config", f"/v2/models/{model}/stats"):
        assert plain.gateway.ask(path).status == status, path
    reply = plain.gateway.infer(BODY, model)
    assert reply.status == status
    assert said in reply.json()["error"]


@pytest.mark.protocol(
    "v2 HTTP", "statistics: of a name, summed over variants and servers; of all public names", "supported", item=36
)
def test_statistics_are_sums_over_variants_and_servers(two: Running) -> None:
    def counts(path: str) -> tuple[int, int, int]:
        [row] = [row for row in two.ask(path).json()["model_stats"] if row["name"] in path or row["name"] == "two"]
        batches = sum(batch["compute_infer"]["count"] for batch in row["batch_stats"])
        return row["inference_count"], row["inference_stats"]["success"]["count"], batches

    def growth() -> list[list[int]]:
        before = counts("/v2/models/two/stats"), counts("/v2/models/stats"), counts("/v2/models/two-int8/stats")
        for model in ("two-int8", "two-fp32", "two-int8", "two-fp32", "two-int8"):
            assert two.infer(BODY, model).status == 200
        after = (
            counts("/v2/models/two/versions/1/stats"),
            counts("/v2/models/stats"),
            counts("/v2/models/two-int8/stats"),
        )
        return [[now - was for now, was in zip(a, b, strict=True)][:2] for a, b in zip(after, before, strict=True)]

    # The gateway measures what was just loaded, and Triton counts that too, until all is measured.
    wait_until(lambda: growth() == [[5, 5], [5, 5], [3, 3]], "what is asked is counted", seen=lambda: str(growth()))
    assert two.ask("/v2/models/two/versions/2/stats").status == 404
    assert two.ask("/v2/models/nobody/stats").status == 404
    names = [row["name"] for row in two.ask("/v2/models/stats").json()["model_stats"]]
    assert "two-int8" not in names
    assert names.count("two") == 1


def test_two_statistics_are_added_at_every_depth() -> None:
    one = {
        "name": "a",
        "last_inference": 5,
        "n": 1,
        "s": {"queue": {"count": 1, "ns": 10}},
        "batch_stats": [{"batch_size": 1, "c": {"ns": 3}}],
    }
    other = {"name": "a", "last_inference": 9, "n": 2, "s": {"queue": {"count": 2, "ns": 5}, "hit": {"count": 1}}, "batch_stats": [{"batch_size": 4, "c": {"ns": 1}}, {"batch_size": 1, "c": {"ns": 4}}], "memory_usage": [{"id": 0}]}  # fmt: skip
    assert added(one, other) == {
        "name": "a",
        "last_inference": 9,
        "n": 3,
        "s": {"queue": {"count": 3, "ns": 15}, "hit": {"count": 1}},
        "batch_stats": [{"batch_size": 1, "c": {"ns": 7}}, {"batch_size": 4, "c": {"ns": 1}}],
        "memory_usage": [{"id": 0}],
    }
