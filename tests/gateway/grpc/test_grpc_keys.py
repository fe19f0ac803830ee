"""Who gets in over gRPC: every method with no key, with each kind of bad key and with a good one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.keys import changes
from serving.keys.key import ADMIN, INFER, SCOPES
from tests.gateway.conftest import gateway_before
from tests.gateway.test_keys import write_keys
from tests.local.harness import free_ports

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
OPEN = {"ServerLive", "ServerReady"}
FOR_ADMINS = {"RepositoryModelLoad", "RepositoryModelUnload"}
CLOSED = sorted({method.name for method in SERVICE.methods} - OPEN)
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def keyed(digits: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[grpc.Channel, dict[str, str]]]:
    folder: Path = tmp_path_factory.mktemp("grpc")
    keys = write_keys(folder / "keys.json")
    digits_alone = changes.add(
        folder / "keys.json", "x", frozenset(SCOPES), datetime.now(UTC), models=frozenset({"digits"})
    )
    keys["digits alone"] = digits_alone.text
    port = free_ports(1)[0]
    options = ["--keys", str(folder / "keys.json"), "--grpc-port", str(port)]
    with gateway_before(folder, {"cpu": [digits]}, *options), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel, keys


def ask(channel: grpc.Channel, name: str, *metadata: tuple[str, str], model: str = "digits") -> grpc.StatusCode | str:
    """The status; for a stream that carries a message, the message."""
    method = SERVICE.methods_by_name[name]
    request = getattr(pb, method.input_type.name)()
    for field in ("name", "model_name"):
        if field in method.input_type.fields_by_name:
            setattr(request, field, model)
    path, reply = f"/{SERVICE.full_name}/{name}", getattr(pb, method.output_type.name)
    try:
        if name == "ModelStreamInfer":
            call = channel.stream_stream(path, type(request).SerializeToString, reply.FromString)
            return str(next(call(iter([request]), metadata=metadata, timeout=20)).error_message)
        channel.unary_unary(path, type(request).SerializeToString, reply.FromString)(
            request, metadata=metadata, timeout=20
        )
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return]
    return grpc.StatusCode.OK


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


@pytest.mark.parametrize("name", CLOSED)
def test_a_method_is_refused_without_a_good_key_and_answered_with_one(
    keyed: tuple[grpc.Channel, dict[str, str]], name: str
) -> None:
    channel, keys = keyed

    def refused(status: grpc.StatusCode, answer: grpc.StatusCode | str) -> bool:
        words = ("API key", "'Bearer tdm_") if status is UNAUTHENTICATED else ("this key",)
        return answer is status or (isinstance(answer, str) and any(word in answer for word in words))

    assert refused(UNAUTHENTICATED, ask(channel, name)), "no key"
    for bad in ("unknown", "wrong secret", "expired", "revoked"):
        assert refused(UNAUTHENTICATED, ask(channel, name, bearer(keys[bad]))), bad
    assert refused(UNAUTHENTICATED, ask(channel, name, ("authorization", f"Basic {keys['all']}")))
    needed = ADMIN if name in FOR_ADMINS else INFER
    if not name.endswith(("MemoryStatus", "MemoryRegister", "MemoryUnregister", "TraceSetting", "LogSettings")):
        assert refused(DENIED, ask(channel, name, bearer(keys[f"all but {needed}"])))
    if "Infer" in name or (name.startswith("Model") and name != "ModelStreamInfer") or name in FOR_ADMINS:
        for model in ("digits", "nobody-has-this"):
            assert refused(DENIED, ask(channel, name, bearer(keys["another model"]), model=model)), model
    model = "nobody-has-this" if name in FOR_ADMINS else "digits"  # others ask the same Triton for digits
    for good in ("all", "digits alone"):
        for metadata in (bearer(keys[good]), ("x-api-key", keys[good])):
            assert ask(channel, name, metadata, model=model) is not UNAUTHENTICATED
            assert name in FOR_ADMINS or not refused(DENIED, ask(channel, name, metadata))


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer", "RepositoryIndex"])
def test_a_strangers_message_is_not_waited_for(keyed: tuple[grpc.Channel, dict[str, str]], name: str) -> None:
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        over.wait(120)  # longer than the call has
        yield b""

    try:
        for metadata in ((), (bearer(keyed[1]["expired"]),)):
            call = keyed[0].stream_stream(f"/{SERVICE.full_name}/{name}")
            with pytest.raises(grpc.RpcError) as refused:  # at once: not even an empty answer comes before it
                next(call(messages(), metadata=metadata, timeout=60))
            assert refused.value.code() is UNAUTHENTICATED
    finally:
        over.set()


@pytest.mark.parametrize("name", sorted(OPEN))
def test_health_needs_no_key(keyed: tuple[grpc.Channel, dict[str, str]], name: str) -> None:
    assert ask(keyed[0], name) is grpc.StatusCode.OK


def test_two_keys_are_a_mistake(keyed: tuple[grpc.Channel, dict[str, str]]) -> None:
    channel, keys = keyed
    for second in (("x-api-key", keys["only infer"]), bearer(keys["all"])):
        assert ask(channel, "ServerMetadata", bearer(keys["all"]), second) is grpc.StatusCode.INVALID_ARGUMENT
