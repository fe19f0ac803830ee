"""What tools ask before they know anything: reflection in both its versions, and health that is watched."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from serving.gateway.grpc.health import MAX_WATCHERS
from serving.protocol.grpc_descriptors import HEALTH, REFLECTION, message
from tests.gateway.grpc.conftest import Speaking, refused, speaking_before
from tests.gateway.test_keys import write_keys
from tests.local.harness import LIMIT_S, Served, wait_until

SERVICE = "inference.GRPCInferenceService"
RESPONSE = message(HEALTH, "HealthCheckResponse")


def reflected(
    speaking: Speaking, service: str, *asked: dict[str, Any], metadata: Sequence[tuple[str, str]] = ()
) -> list[Any]:
    """The answers to these requests, in one stream."""
    taken, given = message(service, "ServerReflectionRequest"), message(service, "ServerReflectionResponse")
    with grpc.insecure_channel(speaking.url) as channel:
        call = channel.stream_stream(f"/{service}/ServerReflectionInfo", taken.SerializeToString, given.FromString)
        return list(call(iter([taken(**one) for one in asked]), timeout=30, metadata=metadata))


def watched(channel: grpc.Channel, service: str = "") -> Iterator[Any]:
    request = message(HEALTH, "HealthCheckRequest")(service=service)
    call = channel.unary_stream(f"/{HEALTH}/Watch", type(request).SerializeToString, RESPONSE.FromString)
    answers: Iterator[Any] = call(request, timeout=60)
    return answers


@pytest.mark.triton
@pytest.mark.protocol("v2 gRPC", "server reflection, v1 and v1alpha, for who may see metadata", "supported")
@pytest.mark.parametrize("service", REFLECTION)
def test_reflection_tells_services_and_the_files_that_describe_them(speaking: Speaking, service: str) -> None:
    listed, *described, extensions = reflected(
        speaking,
        service,
        {"list_services": "", "host": "mine"},
        *({"file_containing_symbol": name} for name in (SERVICE, HEALTH, *REFLECTION, "inference.ModelInferRequest")),
        {"all_extension_numbers_of_type": "inference.ModelInferRequest"},
    )
    assert listed.valid_host == listed.original_request.host == "mine"
    names = [row.name for row in listed.list_services_response.service]
    assert names == sorted([SERVICE, HEALTH, *REFLECTION])
    files = [
        [FileDescriptorProto.FromString(one) for one in answer.file_descriptor_response.file_descriptor_proto]
        for answer in described
    ]
    for name, (first, *needed) in zip([SERVICE, HEALTH, *REFLECTION], files, strict=False):
        assert name in {f"{first.package}.{offered.name}" for offered in first.service}
        assert set(first.dependency) <= {file.name for file in needed}
    (by_name,) = reflected(speaking, service, {"file_by_filename": files[0][0].name})
    assert by_name.file_descriptor_response == described[0].file_descriptor_response
    assert extensions.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"


NESTED = {
    "method": (f"{SERVICE}.ModelInfer", SERVICE),
    "method of another service": (f"{HEALTH}.Check", HEALTH),
    "method of reflection": (f"{REFLECTION[1]}.ServerReflectionInfo", REFLECTION[1]),
    "field": ("inference.ModelInferRequest.model_name", SERVICE),
    "oneof": ("inference.InferParameter.parameter_choice", SERVICE),
    "message in a message": ("inference.ModelInferRequest.InferInputTensor", SERVICE),
    "field of that": ("inference.ModelInferRequest.InferInputTensor.shape", SERVICE),
    "enum in a message": ("grpc.health.v1.HealthCheckResponse.ServingStatus", HEALTH),
    "value beside its enum": ("grpc.health.v1.HealthCheckResponse.SERVING", HEALTH),
    "value under its enum": ("grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING", HEALTH),
}


@pytest.mark.triton
@pytest.mark.parametrize("name", NESTED)
def test_what_stands_in_a_service_message_or_enum_is_in_the_file_of_that(speaking: Speaking, name: str) -> None:
    symbol, of = NESTED[name]
    found, expected = reflected(
        speaking, REFLECTION[0], {"file_containing_symbol": symbol}, {"file_containing_symbol": of}
    )
    assert len(found.file_descriptor_response.file_descriptor_proto) > 0
    assert found.file_descriptor_response == expected.file_descriptor_response


@pytest.mark.triton
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"file_containing_symbol": "inference.Nothing"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": f"{SERVICE}.Nothing"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": f"{SERVICE}.ModelInfer.Nothing"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "inference.ModelInferRequest.nothing"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "inference.DataType.NOTHING"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "google.protobuf.FileDescriptorProto.name"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "."}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "google.protobuf.FileDescriptorProto"}, grpc.StatusCode.NOT_FOUND),
        ({"file_by_filename": "../secret"}, grpc.StatusCode.NOT_FOUND),
        ({"all_extension_numbers_of_type": "no.Such"}, grpc.StatusCode.NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "a", "extension_number": 1}}, grpc.StatusCode.NOT_FOUND),
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_not_there_is_an_answer_and_the_stream_goes_on(
    speaking: Speaking, asked: dict[str, Any], code: grpc.StatusCode
) -> None:
    wrong, listed = reflected(speaking, REFLECTION[0], asked, {"list_services": ""})
    assert wrong.error_response.error_code == code.value[0]
    assert len(listed.list_services_response.service) == 4


@pytest.mark.triton
def test_bytes_that_are_no_request_end_the_stream(speaking: Speaking) -> None:
    with grpc.insecure_channel(speaking.url) as channel:
        call = channel.stream_stream(f"/{REFLECTION[0]}/ServerReflectionInfo")(iter([b"\x3a\x05"]), timeout=30)
        assert refused(lambda **_: list(call))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.triton
def test_reflection_wants_the_key_of_metadata_and_a_watch_none(kinds: Served, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json")
    options = ("--keys", str(tmp_path / "keys.json"))
    with speaking_before(tmp_path, {"cpu": [f"http://{kinds.url}"]}, *options) as both:

        def code(metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
            try:
                reflected(both, REFLECTION[0], {"list_services": ""}, metadata=metadata)
            except grpc.RpcError as error:
                found: grpc.StatusCode = error.code()
                return found
            return grpc.StatusCode.OK

        assert code(()) is grpc.StatusCode.UNAUTHENTICATED
        assert code([("x-api-key", keys["revoked"])]) is grpc.StatusCode.UNAUTHENTICATED
        assert code([("x-api-key", keys["only metrics"])]) is grpc.StatusCode.PERMISSION_DENIED
        assert code([("authorization", f"Bearer {keys['all']}")]) is grpc.StatusCode.OK
        with grpc.insecure_channel(both.url) as channel:
            assert next(watched(channel)).status == 1


@pytest.mark.triton
def test_who_watches_hears_of_a_stop_and_is_not_waited_for(kinds: Served, tmp_path: Path) -> None:
    with speaking_before(tmp_path, {"cpu": [f"http://{kinds.url}"]}, limits={"drain_s": 600}) as both:
        with grpc.insecure_channel(both.url) as channel:
            whole, one, unknown = (watched(channel, name) for name in ("", SERVICE, "other"))
            assert [next(answers).status for answers in (whole, one, unknown)] == [1, 1, 3]
            both.running.program.send(signal.SIGTERM)
            assert next(whole).status == 2
            with pytest.raises(grpc.RpcError) as ended:
                next(whole)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.RpcError):
                list(unknown)
            with pytest.raises(grpc.RpcError):
                list(one)
        assert both.running.program.process.wait(LIMIT_S) == 0


@pytest.mark.triton
def test_only_so_many_may_watch(speaking: Speaking) -> None:
    with grpc.insecure_channel(speaking.url) as channel:
        watchers = [watched(channel) for _ in range(MAX_WATCHERS)]
        assert {next(answers).status for answers in watchers} == {1}
        assert refused(lambda **_: next(watched(channel)))[0] is grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(speaking.url) as channel:  # those who have left count no more

        def again() -> int:
            try:
                return int(next(watched(channel)).status)
            except grpc.RpcError:
                return 0

        wait_until(lambda: again() == 1, "there is room again")
