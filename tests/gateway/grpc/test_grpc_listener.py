"""The listener: its port, its keys, health checks, what is counted, and loading; nothing here needs more than a gateway and two Tritons."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.ports import free_ports
from tests.gateway.conftest import TANDEM, write_settings
from tests.gateway.grpc.conftest import Speaking, double, refused, speaking_before
from tests.gateway.http.test_control import refusal
from tests.gateway.request.test_admission import metric
from tests.gateway.test_keys import write_keys
from tests.local.harness import Program, Served, wait_until

CHECK = "/grpc.health.v1.Health/Check"


def checked(speaking: Speaking, service: bytes = b"") -> bytes:
    message = b"\x0a" + bytes([len(service)]) + service if service else b""
    with grpc.insecure_channel(speaking.url) as channel:
        answer: bytes = channel.unary_unary(CHECK)(message, timeout=60)
        return answer


@pytest.mark.triton
@pytest.mark.protocol("v2 gRPC", "gRPC's own health checks (`grpc.health.v1`): `Check` and `Watch`", "supported")
def test_health_checks_of_grpc_say_what_health_ready_says(speaking: Speaking) -> None:
    assert checked(speaking) == checked(speaking, b"inference.GRPCInferenceService") == b"\x08\x01"
    with grpc.insecure_channel(speaking.url) as channel:
        assert refused(channel.unary_unary(CHECK), b"\x0a\x05other")[0] is grpc.StatusCode.NOT_FOUND
        assert refused(channel.unary_unary(CHECK), b"\x0a\x05")[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_gateway_without_its_triton_is_live_but_not_ready_and_holds_no_more_than_it_may(tmp_path: Path) -> None:
    nowhere, limits = f"http://127.0.0.1:{free_ports(1)[0]}", {"max_buffered_bytes": 4096}
    with speaking_before(tmp_path, {"cpu": [nowhere]}, ready=False, limits=limits) as both, both.stub() as stub:
        assert stub.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=60).live
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        assert not stub.ModelReady(pb.ModelReadyRequest(name="double.any")).ready
        assert checked(both) == b"\x08\x02"
        code, _, metadata = refused(stub.ModelInfer, double())
        assert (code, metadata["tandem-error"], metadata["retry-after"]) == (
            grpc.StatusCode.UNAVAILABLE,
            "not_ready",
            "1",
        )
        code, text, metadata = refused(stub.ModelInfer, double(raw_input_contents=[bytes(100_000)]))
        assert (code, metadata["tandem-error"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
        assert "memory" in text


def test_what_a_browser_can_send_in_the_clear_is_not_answered_as_a_request(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    with speaking_before(tmp_path, {"cpu": [nowhere]}, ready=False) as both, both.stub() as stub:
        assert stub.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=60).live
        with socket.create_connection(("127.0.0.1", both.port), timeout=30) as client:
            path = b"/inference.GRPCInferenceService/RepositoryModelUnload"
            client.sendall(b"POST %b HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n" % path)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        assert b"HTTP/1.1 200" not in answer
        assert b"grpc-status" not in answer


@pytest.mark.triton
def test_an_idle_client_may_ask_whether_the_gateway_is_there_as_often_as_it_likes(speaking: Speaking) -> None:
    with socket.create_connection(("127.0.0.1", speaking.port), timeout=30) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        client.sendall(b"\0\0\x08\6\0\0\0\0\0whether?" * 1000)
        came = b""
        while came.count(b"whether?") < 1000:
            came += (piece := client.recv(65536))
            assert piece


@pytest.mark.triton
def test_a_taken_port_is_one_line_and_exit_code_2(speaking: Speaking, tmp_path: Path) -> None:
    config = write_settings(tmp_path / "tandem.yaml", {"cpu": ["http://127.0.0.1:1"]})
    ports = ["--port", str(free_ports(1)[0]), "--grpc-port", str(speaking.port)]
    said = refusal(["gateway", "--config", str(config), *ports])
    assert f"{speaking.port} on 127.0.0.1" in said
    assert "--grpc-port" in said


@pytest.mark.triton
def test_what_came_over_grpc_is_counted_with_the_rest(speaking: Speaking, stub: Any) -> None:
    def count(outcome: str) -> float:
        return metric(speaking.running, "tandem_requests_total", outcome=outcome)

    before = {outcome: count(outcome) for outcome in ("ok", "client_error")}
    stub.ModelInfer(double())
    refused(stub.ModelInfer, double("nobody"))
    refused(stub.ModelInfer, double(raw_input_contents=[b""]))
    list(stub.ModelStreamInfer(iter([double(), double(raw_input_contents=[b""]), double()])))
    assert {outcome: count(outcome) - was for outcome, was in before.items()} == {"ok": 3, "client_error": 3}


@pytest.mark.triton
@pytest.mark.protocol(
    "v2 gRPC", "the receipt, in trailing metadata; of a stream, in each response's parameters", "supported"
)
def test_the_receipt_is_that_of_http(speaking: Speaking, stub: Any) -> None:
    response, call = stub.ModelInfer.with_call(double(), metadata=[("tandem-pool", "kinds")])
    assert response.model_name == "double.any"
    told = {name: value for name, value in call.trailing_metadata() if name != "server-timing"}
    body = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
    reply = speaking.running.infer(body, "double.any", {"Tandem-Pool": "kinds"})
    said = {name.lower(): value for name, value in reply.headers.items() if name.lower().startswith("tandem-")}
    assert told.pop("tandem-request-id") != said.pop("tandem-request-id")
    assert told == said
    assert dict(call.trailing_metadata())["server-timing"].startswith("queue;dur=")


@pytest.mark.triton
def test_a_model_is_not_loaded_without_a_proof_of_its_files(stub: Any) -> None:
    """The same function as HTTP's: this gateway has no model repository."""
    request = pb.RepositoryModelLoadRequest(model_name="digits")
    code, text, _ = refused(stub.RepositoryModelLoad, request)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "--model-repository" in text
    request = pb.RepositoryModelLoadRequest(model_name="digits")
    request.parameters["file:1/model.onnx"].bytes_param = b"x"
    assert "network" in refused(stub.RepositoryModelLoad, request)[1]


# -- keys -------------------------------------------------------------------------------------------------------------


UNKNOWN = [None, "expired", "revoked", "wrong secret", "unknown"]
DEPENDENTS = pb.RepositoryModelUnloadRequest(
    model_name="double.any", parameters={"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)}
)
# RPC -> (its request about double.any, the scope it needs, whether it is about one model)
RPCS: dict[str, tuple[Any, str, bool]] = {
    "ModelInfer": (double(), "infer", True),
    "ModelReady": (pb.ModelReadyRequest(name="double.any"), "infer", True),
    "ModelMetadata": (pb.ModelMetadataRequest(name="double.any"), "infer", True),
    "ModelConfig": (pb.ModelConfigRequest(name="double.any"), "infer", True),
    "ModelStatistics": (pb.ModelStatisticsRequest(name="double.any"), "infer", True),
    "ServerMetadata": (pb.ServerMetadataRequest(), "infer", False),
    "RepositoryIndex": (pb.RepositoryIndexRequest(), "infer", False),
    "RepositoryModelLoad": (pb.RepositoryModelLoadRequest(model_name="double.any"), "admin", False),
    "RepositoryModelUnload": (DEPENDENTS, "admin", False),  # not offered: nothing is unloaded that other tests ask
    "TraceSetting": (pb.TraceSettingRequest(), "admin", False),
    "LogSettings": (pb.LogSettingsRequest(), "admin", False),
    "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest(), "admin", False),
    "SystemSharedMemoryRegister": (pb.SystemSharedMemoryRegisterRequest(), "admin", False),
    "SystemSharedMemoryUnregister": (pb.SystemSharedMemoryUnregisterRequest(), "admin", False),
    "CudaSharedMemoryStatus": (pb.CudaSharedMemoryStatusRequest(), "admin", False),
    "CudaSharedMemoryRegister": (pb.CudaSharedMemoryRegisterRequest(), "admin", False),
    "CudaSharedMemoryUnregister": (pb.CudaSharedMemoryUnregisterRequest(), "admin", False),
}


@pytest.fixture(scope="module")
def keyed(kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("keyed")
    keys = write_keys(folder / "keys.json")
    with (
        speaking_before(folder, {"cpu": [f"http://{kinds.url}"]}, "--keys", str(folder / "keys.json")) as both,
        both.stub() as stub,
    ):
        yield stub, keys


def code_with(stub: Any, rpc: str, key: str | None) -> grpc.StatusCode:
    metadata = [] if key is None else [("authorization", f"Bearer {key}")]
    try:
        getattr(stub, rpc)(RPCS[rpc][0], metadata=metadata, timeout=30)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@pytest.mark.triton
@pytest.mark.protocol("keys", "metadata `authorization` and `x-api-key` over gRPC", "supported")
@pytest.mark.parametrize("rpc", RPCS)
def test_every_rpc_wants_the_right_key(keyed: tuple[Any, dict[str, str]], rpc: str) -> None:
    stub, keys = keyed
    _, scope, is_of_a_model = RPCS[rpc]
    for kind in UNKNOWN:
        assert code_with(stub, rpc, kind and keys[kind]) is grpc.StatusCode.UNAUTHENTICATED, kind
    for kind in (f"all but {scope}", "only metrics", *(["another model"] if is_of_a_model else [])):
        assert code_with(stub, rpc, keys[kind]) is grpc.StatusCode.PERMISSION_DENIED, kind
    good = (
        {grpc.StatusCode.OK} if scope == "infer" else {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED}
    )
    assert code_with(stub, rpc, keys["all"]) in good


def test_no_rpc_is_left_out_of_the_table_of_keys() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    open_or_below = {"ServerLive", "ServerReady", "ModelStreamInfer"}
    assert {method.name for method in service.methods} == RPCS.keys() | open_or_below


@pytest.mark.triton
def test_health_needs_no_key_and_streams_do(keyed: tuple[Any, dict[str, str]]) -> None:
    stub, keys = keyed
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    with pytest.raises(grpc.RpcError, match="API key") as refused:
        next(stub.ModelStreamInfer(iter([double()])))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    [answer] = stub.ModelStreamInfer(iter([double()]), metadata=[("x-api-key", keys["all"])])
    assert not answer.error_message


@pytest.mark.triton
def test_a_key_for_some_models_sees_these_alone(keyed: tuple[Any, dict[str, str]]) -> None:
    stub, keys = keyed
    metadata = [("x-api-key", keys["another model"])]
    names = {row.name for row in stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=metadata).models}
    assert names == {"types.any", "types"}
    counted = stub.ModelStatistics(pb.ModelStatisticsRequest(), metadata=metadata).model_stats
    assert {row.name for row in counted} == {"types.any"}


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
def test_grpc_and_http_listen_on_the_same_addresses(tmp_path: Path, host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        if ":" in host:
            pytest.skip("this machine has no IPv6")
    http, grpc_port = free_ports(2)
    settings = write_settings(tmp_path / "tandem.yaml", {"cpu": ["http://127.0.0.1:9"]})
    options = ["--host", host, "--port", str(http), "--grpc-port", str(grpc_port), "--insecure-no-auth"]
    program = Program([*TANDEM, "gateway", "--config", str(settings), *options], tmp_path / "gateway.log")

    def open_at(port: int) -> list[str]:
        return [address for address in ("127.0.0.1", "::1") if is_open(address, port)]

    try:
        wait_until(lambda: open_at(http) != [] and open_at(grpc_port) != [], "the gateway listens")
        assert open_at(grpc_port) == open_at(http)
        expected = {"127.0.0.1": 1, "0.0.0.0": 1, "::1": 1, "::": 2}
        assert len(open_at(http)) == expected.get(host, len({it[4][0] for it in socket.getaddrinfo(host, http)}))
    finally:
        program.end()


def is_open(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False
