"""What only a pool without a server serves is not ready, and demand for that pool: also for a gateway that has never seen it.

The GPU pool is an emulated one, whose real Triton starts when somebody has asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from serving.local.environments import Environment
from serving.ports import free_ports
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.request.test_admission import metric
from tests.local.harness import wait_until
from tests.local.repository import publish_digits

pytestmark = [pytest.mark.slow, pytest.mark.triton]

GPU = "emulated-gpu"
COLD_START_S = 120.0
WHY = f"its pool {GPU} has no server yet"


@dataclass
class Waiting:
    """A gateway before a CPU pool with digits, and a GPU pool without a server, for which `llm` is meant."""

    gateway: Running
    grpc_port: int

    def demand(self, pool: str = GPU) -> float:
        return metric(self.gateway, "tandem_demand_only_replicas", pool=pool)


@dataclass
class Bed:
    """Gateways that know what the pool is for by their settings, and by the model repository; and the pool's server."""

    waiting: list[Waiting]
    starts: Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def bed(digits: str, environment: Environment, tmp_path: Path) -> Iterator[Bed]:
    port = free_ports(1)[0]
    repository, curves = tmp_path / "repository", tmp_path / "curves.json"
    publish_digits(repository, "llm", precisions=["fp32"])
    curves.write_text(json.dumps({"version": 1, "name": "made-up", "variants": {"*": [[1, 0.001], [32, 0.02]]}}))
    words = ["--model-repository", str(repository), "--pool", GPU, "--emulate", str(curves)]
    pools = {GPU: [f"http://127.0.0.1:{port}"], "cpu": [digits]}
    meant = {"cold_start_s": COLD_START_S}
    with ExitStack() as stack:
        waiting = []
        for name, options, of_gpu in (
            ("settings", (), meant | {"models": ["llm-fp32"]}),
            ("repository", ("--model-repository", str(repository)), meant),
        ):
            (tmp_path / name).mkdir(exist_ok=True)
            grpc_port = free_ports(1)[0]
            ports = ("--grpc-port", str(grpc_port))
            before = gateway_before(tmp_path / name, pools, *ports, *options, of_pools={GPU: of_gpu})
            waiting.append(Waiting(stack.enter_context(before), grpc_port))
        yield Bed(waiting, lambda: triton_of_its_own(tmp_path, *words, port=port))


def test_a_model_of_a_pool_without_a_server_is_not_ready_everywhere_wakes_it_and_is_answered_then(bed: Bed) -> None:
    for one in bed.waiting:
        assert_wakes_its_pool(one)
    with bed.starts():
        for one in bed.waiting:
            wait_until(partial(is_answered, one.gateway, 200), "its server answers")
            assert one.gateway.infer(SAMPLE, "llm").headers["Tandem-Pool"] == GPU
    for one in bed.waiting:
        wait_until(partial(is_answered, one.gateway, 503), "it is gone again")
        before = one.demand()
        for _ in range(10):  # more than what fades meanwhile of what came before
            one.gateway.infer(SAMPLE, "llm")
        assert one.demand() > before, "what it is known to take"
        assert one.gateway.ask("/v2/models/nobody/ready").status == 404


def is_answered(gateway: Running, status: int) -> bool:
    return gateway.infer(SAMPLE, "llm").status == status


def assert_wakes_its_pool(bed: Waiting) -> None:
    gateway = bed.gateway
    assert gateway.ask("/v2/health/ready").status == 200
    for name in ("nobody", "llm-int4"):
        assert gateway.infer(SAMPLE, name).status == 404
    assert gateway.ask("/v2/models/llm/ready").status == 503
    assert gateway.infer(SAMPLE).status == 200
    assert bed.demand() == 0, "neither is what nobody has, nor what is asked about, nor what the CPU serves"
    image = json.dumps({"images": []}).encode()
    asked = {
        "/v2/models/llm/infer": SAMPLE,
        "/v2/models/llm-fp32/infer": SAMPLE,
        "/v1/embeddings": json.dumps({"model": "llm", "input": "a"}).encode(),
        "/v1/classify/llm": image,
    }
    before = 0.0
    for path, body in asked.items():
        reply = gateway.ask(path, body, {"Content-Type": "application/json"})
        assert (reply.status, reply.headers["Tandem-Error"]) == (503, "not_ready"), path
        assert COLD_START_S - 60 < float(reply.headers["Retry-After"]) <= COLD_START_S
        assert WHY in reply.body.decode()
        assert before < bed.demand() < 0.01, "enough to wake one server"
        before = bed.demand()
    with grpc.InferenceServerClient(f"127.0.0.1:{bed.grpc_port}") as client:
        tensor = grpc.InferInput("image", [1, 1, 28, 28], "FP32")
        tensor._raw_content = bytes(4 * 28 * 28)
        with pytest.raises(InferenceServerException, match=WHY) as refused:
            client.infer("llm", [tensor])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
        assert not client.is_model_ready("llm")
    index = {row["name"]: row for row in gateway.ask("/v2/repository/index", b"").json()}
    assert (index["llm"]["state"], index["llm"]["reason"]) == ("UNAVAILABLE", WHY)
    assert index["digits"]["state"] == "READY"
    assert "llm" in {row["id"] for row in gateway.ask("/v1/models").json()["data"]}
    assert gateway.ask("/v1/models/llm").json()["id"] == "llm"
