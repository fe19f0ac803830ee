"""`tritonclient.grpc`, sync and aio, against the gateway, unchanged; its answers beside those of the HTTP client."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as sync
import tritonclient.grpc.aio as aio
import tritonclient.http as over_http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.gateway.grpc.conftest import Speaking
from tests.gateway.http.test_clients import every_type
from tests.gateway.http.test_clients import inputs as http_inputs

pytestmark = pytest.mark.triton


def inputs(api: Any, feed: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    made = []
    for name, value in feed.items():
        tensor = api.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(value)
        made.append(tensor)
    return made


@pytest.fixture
def client(speaking: Speaking) -> Any:
    with sync.InferenceServerClient(speaking.url) as opened:
        yield opened


@pytest.mark.protocol("v2 gRPC", "health, metadata, configuration, statistics and the index", "supported", item=32)
def test_the_calls_about_server_and_model_answer_as_over_http(
    client: sync.InferenceServerClient, speaking: Speaking
) -> None:
    with over_http.InferenceServerClient(speaking.running.url) as http:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("digits")
        assert client.is_model_ready("digits-int8", "1")
        assert client.get_server_metadata(as_json=True) == http.get_server_metadata()
        metadata = client.get_model_metadata("digits", as_json=True)
        assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}]
        assert (metadata["name"], metadata["versions"]) == ("digits", ["1"])
        config = client.get_model_config("digits").config
        told = http.get_model_config("digits")
        assert (config.name, config.max_batch_size) == ("digits", told["max_batch_size"])
        assert config.parameters["tandem_model"].string_value == "digits"
        assert [group.name for group in config.instance_group] == [group["name"] for group in told["instance_group"]]
        [counted] = client.get_inference_statistics("digits").model_stats
        assert (counted.name, counted.version) == ("digits", "1")
        assert client.get_model_repository_index(as_json=True)["models"] == http.get_model_repository_index()


@pytest.mark.parametrize("name", ["nobody", "digits/versions/1", "ungated"])
def test_a_model_that_nobody_serves_is_not_ready_and_has_no_metadata(
    client: sync.InferenceServerClient, name: str
) -> None:
    assert not client.is_model_ready(name)
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException) as error:
            call(name)
        assert error.value.status() == "StatusCode.NOT_FOUND"


def test_statistics_without_a_name_are_those_of_all_models(
    client: sync.InferenceServerClient, speaking: Speaking
) -> None:
    with over_http.InferenceServerClient(speaking.running.url) as http:
        told = {row["name"] for row in http.get_inference_statistics()["model_stats"]}
    assert {row.name for row in client.get_inference_statistics().model_stats} == told
    assert {"digits", "types.any"} <= told


@pytest.mark.protocol("v2 gRPC", "all datatypes as raw tensors, in and out, byte by byte", "supported", item=10)
def test_every_type_comes_back_as_over_http(client: sync.InferenceServerClient, speaking: Speaking) -> None:
    feed = every_type()
    result = client.infer("types.any", inputs(sync, feed))
    with over_http.InferenceServerClient(speaking.running.url) as http:
        other = http.infer("types.any", http_inputs(over_http, feed))
        for name in feed:
            assert np.array_equal(result.as_numpy(f"{name}_out"), other.as_numpy(f"{name}_out")), name
    assert result.as_numpy("fp16_out").tobytes() == feed["fp16"].tobytes()


@pytest.mark.protocol("v2 gRPC", "tensors element by element (`contents`), but FP16 and BF16", "supported", item=10)
def test_every_type_but_fp16_may_come_element_by_element(client: sync.InferenceServerClient, stub: Any) -> None:
    from tritonclient.grpc import service_pb2 as pb

    fields = {"bool": "bool_contents", "bytes": "bytes_contents", "fp32": "fp32_contents", "fp64": "fp64_contents"}
    feed = every_type()
    request = pb.ModelInferRequest(model_name="types.any")
    for name, value in feed.items():
        kind = "int" if name.startswith("int") else "uint"
        field = fields.get(name, f"{kind}64_contents" if name.endswith("64") else f"{kind}_contents")
        data = [text.encode() for text in value.ravel()] if name == "bytes" else value.ravel().tolist()
        tensor = request.inputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        if name == "fp16":
            tensor.shape[:] = [2, 0]
        else:
            getattr(tensor.contents, field).extend(data)
    del request.inputs[[tensor.name for tensor in request.inputs].index("fp16")]
    fp16 = request.inputs.add(name="fp16", datatype="FP16", shape=[2, 3])
    with pytest.raises(Exception, match="raw_input_contents"):
        stub.ModelInfer(request)
    request.inputs.remove(fp16)
    with pytest.raises(Exception, match="fp16"):  # Triton misses it, so all others were understood
        stub.ModelInfer(request)
    raw = client.infer("types.any", inputs(sync, feed)).get_response()
    for tensor, sent in zip(request.inputs, _as_raw(request), strict=True):
        at = [output.name for output in raw.outputs].index(f"{tensor.name}_out")
        assert sent == raw.raw_output_contents[at], tensor.name


def _as_raw(request: Any) -> list[bytes]:
    """What goes to Triton of these."""
    from serving.protocol import grpc_v2

    _, blobs = grpc_v2.translated(grpc_v2.opened(request.SerializeToString()))
    return [bytes(blob) for blob in blobs]


@pytest.mark.protocol("v2 gRPC", "requested outputs, classification, request ids, parameters, priority", "supported")
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer_carries_every_option_of_the_client(client: sync.InferenceServerClient, compression: str | None) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = client.infer(
        "double.any",
        inputs(sync, {"x": x}),
        model_version="1",
        outputs=[sync.InferRequestedOutput("y")],
        request_id="seven",
        priority=1,
        timeout=60_000_000,
        client_timeout=60,
        headers={"tandem-priority": "1", "tandem-variant": "fp32", "mine": "kept"},
        compression_algorithm=compression,
    )
    assert np.array_equal(result.as_numpy("y"), x * 2)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("seven", "double.any", "1")


def test_classification_is_as_over_http(client: sync.InferenceServerClient, speaking: Speaking) -> None:
    x = np.array([[1, 4, 3, 2]], np.float32)
    got = client.infer("double.any", inputs(sync, {"x": x}), outputs=[sync.InferRequestedOutput("y", class_count=2)])
    assert got.as_numpy("y").tolist() == [[b"8.000000:1", b"6.000000:2"]]
    with over_http.InferenceServerClient(speaking.running.url) as http:
        wanted = [over_http.InferRequestedOutput("y", class_count=2)]
        other = http.infer("double.any", http_inputs(over_http, {"x": x}), outputs=wanted)
        assert got.as_numpy("y").tolist() == other.as_numpy("y").tolist()


def test_an_empty_tensor_comes_back_empty(client: sync.InferenceServerClient) -> None:
    feed = {name: value[:, :0] for name, value in every_type().items()}
    result = client.infer("types.any", inputs(sync, feed))
    assert {result.as_numpy(f"{name}_out").shape for name in feed} == {(2, 0)}


def test_async_infer_calls_back_with_answers_and_with_errors(client: sync.InferenceServerClient) -> None:
    told: queue.Queue[tuple[Any, Any]] = queue.Queue()
    x = np.ones((1, 4), np.float32)
    for model in ("double.any", "nobody"):
        client.async_infer(model, inputs(sync, {"x": x}), callback=lambda result, error: told.put((result, error)))
    pairs = [told.get(timeout=30) for _ in range(2)]
    [good] = [result for result, error in pairs if error is None]
    [bad] = [error for _, error in pairs if error is not None]
    assert np.array_equal(good.as_numpy("y"), x * 2)
    assert bad.status() == "StatusCode.NOT_FOUND"


@pytest.mark.protocol("v2 gRPC", "streams: in order, and a request that fails does not end them", "supported")
def test_a_stream_answers_in_order_and_goes_on_after_an_error(client: sync.InferenceServerClient) -> None:
    told: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: told.put((result, error)), headers={"tandem-priority": "2"})
    for number in range(6):
        model = "nobody" if number == 2 else "double.any"
        x = np.full((1, 4), number, np.float32)
        client.async_stream_infer(
            model, inputs(sync, {"x": x}), request_id=str(number), enable_empty_final_response=True
        )
    pairs = [told.get(timeout=30) for _ in range(6)]
    client.stop_stream()
    for number, (result, error) in enumerate(pairs):
        if number == 2:
            assert "nobody" in error.message()
            continue
        response = result.get_response()
        assert (response.id, response.model_name) == (str(number), "double.any")
        assert result.as_numpy("y")[0, 0] == number * 2
        assert response.parameters["triton_final_response"].bool_param
        assert response.parameters["tandem-pool"].string_param == "kinds"


@pytest.mark.parametrize(
    ("model", "feed", "status"),
    [
        ("nobody", {"x": np.zeros((1, 4), np.float32)}, "NOT_FOUND"),
        ("double.any", {"x": np.zeros((1, 5), np.float32)}, "INVALID_ARGUMENT"),
        ("double.any", {"x": np.zeros((1, 4), np.float64)}, "INVALID_ARGUMENT"),
        ("double.any", {"z": np.zeros((1, 4), np.float32)}, "INVALID_ARGUMENT"),
        ("double.any", {"x": np.zeros((17, 4), np.float32)}, "INVALID_ARGUMENT"),
        ("ragged.any", {"x": np.zeros((1, 5), np.float32)}, "INTERNAL"),
    ],
)
def test_the_client_sees_errors_as_its_own(
    client: sync.InferenceServerClient, model: str, feed: dict[str, np.ndarray[Any, Any]], status: str
) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, inputs(sync, feed))
    assert error.value.status() == f"StatusCode.{status}"
    assert error.value.message()


@pytest.mark.protocol("v2 gRPC", "sequences", "refused: models that keep a sequence's state are not served")
def test_sequences_are_refused(client: sync.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="sequence") as error:
        client.infer("double.any", inputs(sync, {"x": np.ones((1, 4), np.float32)}), sequence_id=5)
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"


@pytest.mark.protocol(
    "v2 gRPC", "shared memory, trace and log settings", "refused: set on Triton itself, or not offered"
)
@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("get_system_shared_memory_status", ()),
        ("register_system_shared_memory", ("a", "/a", 8)),
        ("unregister_system_shared_memory", ()),
        ("get_cuda_shared_memory_status", ()),
        ("unregister_cuda_shared_memory", ()),
        ("get_trace_settings", ()),
        ("update_log_settings", ({"log_verbose_level": 4},)),
    ],
)
def test_what_is_set_on_triton_itself_is_not_offered(
    client: sync.InferenceServerClient, call: str, given: tuple[Any, ...]
) -> None:
    with pytest.raises(InferenceServerException, match=r"Triton itself|not offered") as error:
        getattr(client, call)(*given)
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"


def test_the_aio_client_works_with_many_requests_at_once(speaking: Speaking) -> None:
    random = np.random.default_rng(5)
    parts = [random.standard_normal((1 + i % 4, 4)).astype(np.float32) for i in range(100)]

    async def ask() -> list[np.ndarray[Any, Any]]:
        async with aio.InferenceServerClient(speaking.url) as own:
            assert await own.is_server_live()
            assert await own.is_model_ready("batching.any")
            assert (await own.get_model_metadata("batching.any")).name == "batching.any"
            results = await asyncio.gather(*(own.infer("batching.any", inputs(aio, {"x": part})) for part in parts))
            with pytest.raises(InferenceServerException):
                await own.infer("nobody", inputs(aio, {"x": parts[0]}))
            return [result.as_numpy("y") for result in results]

    for part, answer in zip(parts, asyncio.run(ask()), strict=True):
        assert np.array_equal(answer, part * 2)


def test_the_aio_client_streams(speaking: Speaking) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(4):
            x = np.full((1, 4), number, np.float32)
            yield {"model_name": "double.any" if number != 1 else "nobody", "inputs": inputs(aio, {"x": x})}

    async def ask() -> list[tuple[Any, Any]]:
        async with aio.InferenceServerClient(speaking.url) as own:
            return [pair async for pair in own.stream_infer(requests())]

    pairs = asyncio.run(ask())
    assert ["error" if error else result.as_numpy("y")[0, 0] for result, error in pairs] == [0, "error", 4, 6]


def test_a_large_tensor_goes_there_and_back(client: sync.InferenceServerClient) -> None:
    x = np.random.default_rng(1).standard_normal((2000, 1500)).astype(np.float32)
    assert np.array_equal(client.infer("unbatched.any", inputs(sync, {"x": x})).as_numpy("y"), x.T)


def test_a_long_answer_is_what_the_model_said(speaking: Speaking) -> None:
    values = np.arange(400_000, dtype=np.float32)
    request = pb.ModelInferRequest(model_name="unbatched.any", raw_input_contents=[values.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[200_000, 2])
    with speaking.stub(max_receive_message_length=-1) as stub:
        plain = stub.ModelInfer(request, timeout=30)
        [streamed] = stub.ModelStreamInfer(iter([request]), timeout=30)
    expected = values.reshape(200_000, 2).T.tobytes()
    assert list(plain.raw_output_contents) == [expected]
    assert list(streamed.infer_response.raw_output_contents) == [expected]
    assert list(plain.outputs[0].shape) == [2, 200_000]
