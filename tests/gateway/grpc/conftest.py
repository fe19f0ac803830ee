"""A gateway that speaks gRPC, before the same Tritons as the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from serving.ports import free_ports
from tests.gateway.conftest import Running, gateway_before, wait_for_model
from tests.local.harness import Served


@dataclass
class Speaking:
    """A gateway process and its two ports."""

    running: Running
    port: int

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def stub(self, **options: int) -> Iterator[Any]:
        """gRPC as it is, without a client library: what it sends is what a test says."""
        chosen = [(f"grpc.{name}", value) for name, value in options.items()]
        with grpc.insecure_channel(self.url, options=chosen) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@contextlib.contextmanager
def speaking_before(folder: Path, pools: Mapping[str, list[str]], *more: str, **settings: Any) -> Iterator[Speaking]:
    port = free_ports(1)[0]
    with gateway_before(folder, pools, "--grpc-port", str(port), *more, **settings) as running:
        yield Speaking(running, port)


@pytest.fixture(scope="session")
def lasting_speaking(digits: str, kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    pools = {"cpu": [digits], "kinds": [f"http://{kinds.url}"]}
    with speaking_before(tmp_path_factory.mktemp("speaking"), pools) as both:
        yield both


@pytest.fixture(scope="module")
def speaking(lasting_speaking: Speaking, kinds: Served) -> Speaking:
    """One gateway for all files. Waits until `kinds` serves again, because the file before may have made it restart."""
    wait_for_model(lasting_speaking.running, kinds)
    return lasting_speaking


@pytest.fixture
def stub(speaking: Speaking) -> Iterator[Any]:
    with speaking.stub() as opened:
        yield opened


def double(model: str = "double.any", **fields: Any) -> pb.ModelInferRequest:
    """A request in order: x, float32 [1, 4], raw."""
    fields = {"raw_input_contents": [bytes(16)], **fields}
    request = pb.ModelInferRequest(model_name=model, **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return request


def refused(call: Any, *given: Any, **named: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The status of an RPC that must fail, its text and its trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*given, **{"timeout": 30, **named})
    error = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata() or ())
