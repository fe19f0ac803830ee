"""What the example programs of Triton's Python client do, each against models of the same names, and what of it is refused.

The programs are those of `src/python/examples` in Triton's repository of clients; their calls are made here in words of our own. The
gateway has `--triton-words`, because two kinds of them look at texts. docs/clients.md has the table.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from conftest import ROOT, Gateway, run, up
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

FIRST, SECOND = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
UNKNOWN = "Request for unknown model"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    repository = tmp_path_factory.mktemp("examples")
    run("tests/clients/repository.py", str(repository), "examples")
    with up(tmp_path_factory.mktemp("like-triton"), repository, "--triton-words") as running:
        yield running


def clients(gateway: Gateway) -> list[tuple[Any, Any]]:
    """Module and client, of both protocols."""
    return [
        (triton_http, triton_http.InferenceServerClient(gateway.http, concurrency=4)),
        (triton_grpc, triton_grpc.InferenceServerClient(gateway.grpc)),
    ]


def pair(kind: Any, first: Any = FIRST, second: Any = SECOND, datatype: str = "INT32", **how: Any) -> list[Any]:
    made = [kind.InferInput(f"INPUT{i}", list(FIRST.shape), datatype) for i in (0, 1)]
    for one, values in zip(made, (first, second), strict=True):
        one.set_data_from_numpy(values, **how)
    return made


def outputs(kind: Any) -> list[Any]:
    return [kind.InferRequestedOutput(f"OUTPUT{i}") for i in (0, 1)]


def check(result: Any) -> None:
    for name, right in (("OUTPUT0", FIRST + SECOND), ("OUTPUT1", FIRST - SECOND)):
        np.testing.assert_array_equal(result.as_numpy(name).astype(np.int32), right)


def texts(values: np.ndarray) -> np.ndarray:
    return np.array([[str(value).encode() for value in values[0]]], np.object_)


def refused(call: Callable[..., Any], *given: Any, **how: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as raised:
        call(*given, **how)
    return raised.value


# -- what they do -----------------------------------------------------------------------------------------------------


def infer(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        check(client.infer("simple", pair(kind), outputs=outputs(kind)))
        check(client.infer("simple", pair(kind)))
        assert refused(client.infer, "wrong_model_name", pair(kind)).message().startswith(UNKNOWN)
        client.close()


def infer_compressed(gateway: Gateway) -> None:
    (http, by_http), (rpc, by_grpc) = clients(gateway)
    for coding in ("gzip", "deflate"):
        how = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        check(by_http.infer("simple", pair(http), **how))
        check(by_grpc.infer("simple", pair(rpc), compression_algorithm=coding))


def infer_aio(gateway: Gateway) -> None:
    async def ask() -> None:
        for kind, client in (
            (triton_http, triton_http_aio.InferenceServerClient(gateway.http)),
            (triton_grpc, triton_grpc_aio.InferenceServerClient(gateway.grpc)),
        ):
            async with client:
                check(await client.infer("simple", pair(kind), outputs=outputs(kind)))
                with pytest.raises(InferenceServerException, match=UNKNOWN):
                    await client.infer("wrong_model_name", pair(kind))

    asyncio.run(ask())


def infer_async(gateway: Gateway) -> None:
    (http, by_http), (rpc, by_grpc) = clients(gateway)
    for waiting in [by_http.async_infer("simple", pair(http)) for _ in range(8)]:
        check(waiting.get_result())
    came: queue.Queue[Any] = queue.Queue()
    for _ in range(8):
        by_grpc.async_infer("simple", pair(rpc), lambda result, error: came.put(error or result))
    for _ in range(8):
        check(came.get(timeout=30))


def strings(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        given = pair(kind, texts(FIRST), texts(SECOND), "BYTES")
        check(client.infer("simple_string", given, outputs=outputs(kind)))
        whole = kind.InferInput("INPUT0", [1, 3], "BYTES")
        words = np.array([["é".encode(), b"a\x00b", b""]], np.object_)
        whole.set_data_from_numpy(words)
        given_back = client.infer("simple_identity", [whole]).as_numpy("OUTPUT0")
        assert given_back.tolist() == words.tolist()


def health_and_metadata(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        metadata, of_model = client.get_server_metadata(), client.get_model_metadata("simple")
        names = (metadata["name"], of_model["name"]) if kind is triton_http else (metadata.name, of_model.name)
        assert names == ("triton", "simple")
        assert UNKNOWN in refused(client.get_model_metadata, "wrong_model_name").message()
        assert client.get_model_config("simple")


def reuse(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        given, wanted = pair(kind), outputs(kind)
        check(client.infer("simple", given, outputs=wanted))
        for one, values in zip(given, (SECOND, FIRST), strict=True):
            one.set_data_from_numpy(values)
        result = client.infer("simple", given, outputs=wanted)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), SECOND - FIRST)


def many_times(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        values = np.arange(1000, dtype=np.int32)[None]
        given = kind.InferInput("INPUT0", [1, 1000], "INT32")
        given.set_data_from_numpy(values)
        for _ in range(50):
            result = client.infer("custom_identity_int32", [given])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


def channel_options(gateway: Gateway) -> None:
    kept = triton_grpc.KeepAliveOptions(keepalive_time_ms=10_000, keepalive_timeout_ms=20_000)
    for how in ({"keepalive_options": kept}, {"channel_args": [("grpc.keepalive_time_ms", 10_000)]}):
        with triton_grpc.InferenceServerClient(gateway.grpc, **how) as client:
            check(client.infer("simple", pair(triton_grpc)))


def bare_stub(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        assert stub.ModelConfig(service_pb2.ModelConfigRequest(name="simple")).config.name == "simple"
        request = service_pb2.ModelInferRequest(
            model_name="simple", raw_input_contents=[FIRST.tobytes(), SECOND.tobytes()]
        )
        for i in (0, 1):
            request.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
        summed = np.frombuffer(stub.ModelInfer(request).raw_output_contents[0], np.int32)
        np.testing.assert_array_equal(summed, (FIRST + SECOND)[0])


def explicit_contents(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for model, datatype, field in (
            ("simple", "INT32", "int_contents"),
            ("simple_int8", "INT8", "int_contents"),
            ("simple_string", "BYTES", "bytes_contents"),
        ):
            request = service_pb2.ModelInferRequest(model_name=model)
            for i, values in enumerate((FIRST, SECOND)):
                tensor = request.inputs.add(name=f"INPUT{i}", datatype=datatype, shape=[1, 16])
                given = values[0].tolist() if datatype != "BYTES" else texts(values)[0].tolist()
                getattr(tensor.contents, field).extend(given)
            check(triton_grpc.InferResult(stub.ModelInfer(request)))


def images(gateway: Gateway) -> None:
    """What image clients ask besides preparing pixels: metadata, configuration, and the best classes of an answer."""
    for kind, client in clients(gateway):
        assert client.get_model_metadata("digits")
        assert client.get_model_config("digits")
        pixels = kind.InferInput("image", [1, 1, 8, 8], "FP32")
        pixels.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
        wanted = kind.InferRequestedOutput("probabilities", class_count=2)
        rows = client.infer("digits", [pixels], outputs=[wanted]).as_numpy("probabilities")
        assert [len(entry.decode().split(":")) for entry in rows[0]] == [3, 3]


def model_control(gateway: Gateway) -> None:
    for _, client in clients(gateway):
        client.load_model("simple")
        assert client.is_model_ready("simple")
        for config in ("no config", '{"max_batch_size":"16"}'):
            assert "failed to load" in refused(client.load_model, "simple", config=config).message()
        client.unload_model("simple")
        assert not client.is_model_ready("simple")
        wrong = refused(client.load_model, "wrong_model_name").message()
        assert "failed to load" in wrong
        assert "failed to poll" in wrong
        assert "repository" in wrong
        client.load_model("simple")
        assert client.is_model_ready("simple")


def sequences(gateway: Gateway) -> None:
    for kind, client in clients(gateway):
        error = refused(client.infer, "simple", pair(kind), sequence_id=1000, sequence_start=True)
        assert error.status() in ("501", "StatusCode.UNIMPLEMENTED")


def shared_memory(gateway: Gateway) -> None:
    for _, client in clients(gateway):
        for call, given in (
            (client.unregister_system_shared_memory, ()),
            (client.register_system_shared_memory, ("region", "/region", 64)),
            (client.register_cuda_shared_memory, ("region", b"AAAA", 0, 64)),
        ):
            assert refused(call, *given).status() in ("501", "StatusCode.UNIMPLEMENTED")


def models_that_are_not_made(gateway: Gateway) -> None:
    """A decoupled model and an ensemble cannot be exported; of a Triton that has them, both are 501 with the reason."""
    for kind, client in clients(gateway):
        for name in ("repeat_int32", "preprocess_resnet50_ensemble"):
            assert refused(client.infer, name, pair(kind)).message().startswith(UNKNOWN)


# -- which program does what ------------------------------------------------------------------------------------------

NO_SEQUENCES = "refused: no state is kept between requests"
NO_MEMORY = "refused: a client's memory is not the server's"
# Program -> what it asks, and how that ends.
PROGRAMS: dict[str, tuple[list[Callable[[Gateway], None]], str]] = {
    "simple_http_infer_client": ([infer, infer_compressed], "works"),
    "simple_grpc_infer_client": ([infer, infer_compressed], "works"),
    "simple_http_aio_infer_client": ([infer_aio], "works"),
    "simple_grpc_aio_infer_client": ([infer_aio], "works"),
    "simple_http_async_infer_client": ([infer_async], "works"),
    "simple_grpc_async_infer_client": ([infer_async], "works"),
    "simple_http_string_infer_client": ([strings], "works"),
    "simple_grpc_string_infer_client": ([strings], "works"),
    "simple_http_health_metadata": ([health_and_metadata], "works"),
    "simple_grpc_health_metadata": ([health_and_metadata], "works"),
    "reuse_infer_objects_client": ([reuse, shared_memory], "partly: not its part with shared memory"),
    "memory_growth_test": ([many_times], "works"),
    "simple_grpc_keepalive_client": ([channel_options], "works"),
    "simple_grpc_custom_args_client": ([channel_options], "works"),
    "grpc_client": ([bare_stub], "works"),
    "grpc_explicit_int_content_client": ([explicit_contents], "works"),
    "grpc_explicit_int8_content_client": ([explicit_contents], "works"),
    "grpc_explicit_byte_content_client": ([explicit_contents], "works"),
    "image_client": ([images], "works"),
    "grpc_image_client": ([images], "works"),
    "simple_http_model_control": ([model_control], "partly: configurations are not taken over the network"),
    "simple_grpc_model_control": ([model_control], "partly: configurations and files are not taken over the network"),
    "ensemble_image_client": ([models_that_are_not_made], "refused: the parts of an ensemble have no gate together"),
    "simple_grpc_custom_repeat": ([models_that_are_not_made], "refused: a request has one answer"),
    "simple_http_sequence_sync_infer_client": ([sequences], NO_SEQUENCES),
    "simple_grpc_sequence_sync_infer_client": ([sequences], NO_SEQUENCES),
    "simple_grpc_sequence_stream_infer_client": ([sequences], NO_SEQUENCES),
    "simple_grpc_aio_sequence_stream_infer_client": ([sequences], NO_SEQUENCES),
    **{
        f"simple_{protocol}_{kind}_client": ([shared_memory], NO_MEMORY)
        for protocol in ("http", "grpc")
        for kind in ("shm", "shm_string", "cudashm")
    },
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_the_program_asks_ends_as_the_table_says(gateway: Gateway, program: str) -> None:
    for ask in PROGRAMS[program][0]:
        ask(gateway)


def test_the_page_has_every_program_with_its_outcome() -> None:
    page = (ROOT / "docs" / "clients.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for program, (_, outcome) in PROGRAMS.items():
        assert any(f"`{program}`" in row and outcome in row for row in rows), (program, outcome)
