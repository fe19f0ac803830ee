"""`tritonclient.http`, sync and aio, against the gateway, unchanged."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as sync
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.gateway.conftest import Running
from tests.local.models import TYPES

pytestmark = pytest.mark.triton


def inputs(api: Any, feed: dict[str, np.ndarray[Any, Any]], *, binary: bool = True) -> list[Any]:
    made = []
    for name, value in feed.items():
        tensor = api.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(value, binary_data=binary)
        made.append(tensor)
    return made


def every_type() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    feed: dict[str, np.ndarray[Any, Any]] = {}
    for name, (_, _, dtype) in TYPES.items():
        if name == "bytes":
            feed[name] = np.array([["a", "", "naïve 日本"], ["x" * 5000, "a\0b", '"']], dtype=object)
        else:
            feed[name] = (random.standard_normal((2, 3)) * 50).astype(dtype)
    feed["int64"][0, 0], feed["uint64"][0, 0] = -(2**63), 2**64 - 1
    return feed


@pytest.fixture
def client(gateway: Running) -> Any:
    with sync.InferenceServerClient(gateway.url) as opened:
        yield opened


def test_the_calls_about_server_and_model_work(client: sync.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits-int8", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "tandem"
    metadata = client.get_model_metadata("digits")
    assert (metadata["name"], metadata["versions"]) == ("digits", ["1"])
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert client.get_model_config("digits")["name"] == "digits"
    names = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
    assert names["digits"] == names["digits-fp32"] == "READY"
    assert client.get_inference_statistics("digits")["model_stats"][0]["name"] == "digits"


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer_carries_every_option_of_the_client(
    client: sync.InferenceServerClient, binary_out: bool, compression: str | None
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    wanted = [sync.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer(
        "double.any",
        inputs(sync, {"x": x}),
        outputs=wanted,
        request_id="seven",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
        priority=1,
        timeout=60_000_000,
    )
    assert np.array_equal(result.as_numpy("y"), x * 2)
    assert result.get_response()["id"] == "seven"


@pytest.mark.protocol("v2 HTTP", "all datatypes in binary tensors, in and out, byte by byte", "supported", item=9)
def test_every_type_comes_back_in_binary(client: sync.InferenceServerClient) -> None:
    feed = every_type()
    result = client.infer("types.any", inputs(sync, feed))
    for name, value in feed.items():
        got = result.as_numpy(f"{name}_out")
        expected = np.array([[s.encode() for s in row] for row in value], dtype=object) if name == "bytes" else value
        assert np.array_equal(got, expected), name


def test_json_inputs_work_where_json_can_hold_them(client: sync.InferenceServerClient) -> None:
    feed = {k: v for k, v in every_type().items() if k != "fp16"}
    tensors = inputs(sync, feed, binary=False) + inputs(sync, {"fp16": every_type()["fp16"]})
    result = client.infer("types.any", tensors)
    assert np.array_equal(result.as_numpy("int64_out"), feed["int64"])
    assert np.array_equal(result.as_numpy("uint64_out"), feed["uint64"])


def test_a_model_without_batch_dimension_and_an_optional_input_work(client: sync.InferenceServerClient) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(client.infer("unbatched.any", inputs(sync, {"x": x})).as_numpy("y"), x.T)
    assert np.array_equal(client.infer("optional.any", inputs(sync, {"x": x})).as_numpy("y"), x * 3)


def test_a_request_that_fails_in_the_model_leaves_those_beside_it_alone(gateway: Running) -> None:
    lengths = [8, 5, 8, 12, 5, 8]

    def one(length: int) -> float | str:
        with sync.InferenceServerClient(gateway.url) as own:
            try:
                return float(
                    own.infer("ragged.any", inputs(sync, {"x": np.ones((1, length), np.float32)})).as_numpy("y")[0, 0]
                )
            except InferenceServerException as error:
                return str(error.status())

    with ThreadPoolExecutor(len(lengths)) as pool:
        results = list(pool.map(one, lengths))
    assert [r if isinstance(r, str) else r * 4 for r in results] == ["500" if n % 4 else n for n in lengths]


@pytest.mark.parametrize(
    ("model", "feed", "status"),
    [
        ("nobody", {"x": np.zeros((1, 4), np.float32)}, "404"),
        ("double.any", {"x": np.zeros((1, 5), np.float32)}, "400"),
        ("double.any", {"x": np.zeros((1, 4), np.float64)}, "400"),
        ("double.any", {"z": np.zeros((1, 4), np.float32)}, "400"),
        ("double.any", {"x": np.zeros((17, 4), np.float32)}, "400"),
    ],
)
def test_the_client_sees_errors_as_its_own(
    client: sync.InferenceServerClient, model: str, feed: dict[str, np.ndarray[Any, Any]], status: str
) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, inputs(sync, feed))
    assert error.value.status() == status
    assert error.value.message()


def test_what_tandem_keeps_is_not_loaded_by_a_gateway_that_cannot_prove_it(client: sync.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.load_model("digits-fp32")
    assert error.value.status() == "403"
    assert "without --model-repository" in error.value.message()
    assert client.is_model_ready("digits-fp32")


def test_shared_memory_is_refused_and_not_advertised(client: sync.InferenceServerClient) -> None:
    assert not any("shared" in name for name in client.get_server_metadata()["extensions"])
    with pytest.raises(InferenceServerException) as error:
        client.get_system_shared_memory_status()
    assert error.value.status() == "501"


def test_the_aio_client_works_with_many_requests_at_once(gateway: Running) -> None:
    random = np.random.default_rng(5)
    parts = [random.standard_normal((1 + i % 4, 4)).astype(np.float32) for i in range(100)]

    async def ask() -> list[np.ndarray[Any, Any]]:
        async with aio.InferenceServerClient(gateway.url, conn_limit=16) as own:
            assert await own.is_server_live()
            assert await own.is_model_ready("batching.any")
            assert (await own.get_model_metadata("batching.any"))["name"] == "batching.any"
            results = await asyncio.gather(*(own.infer("batching.any", inputs(aio, {"x": part})) for part in parts))
            with pytest.raises(InferenceServerException):
                await own.infer("nobody", inputs(aio, {"x": parts[0]}))
            return [result.as_numpy("y") for result in results]

    for part, answer in zip(parts, asyncio.run(ask()), strict=True):
        assert np.array_equal(answer, part * 2)
