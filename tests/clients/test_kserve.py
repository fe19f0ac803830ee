"""The KServe SDK's two clients, InferenceRESTClient (v2) and InferenceGRPCClient, with their common calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import digits
import grpc
import httpx
import numpy as np
import pytest
from conftest import LABEL, SAMPLE, Gateway
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def rest(gateway: Gateway, act: Callable[[InferenceRESTClient], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
            return await act(client)

    return asyncio.run(go())


def over_grpc(gateway: Gateway, act: Callable[[InferenceGRPCClient], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with InferenceGRPCClient(gateway.grpc) as client:
            return await act(client)

    return asyncio.run(go())


def request(*, binary: bool, model: str = "digits", image: np.ndarray = digits.IMAGE, **more: Any) -> InferRequest:
    tensor = InferInput("image", list(image.shape), "FP32")
    tensor.set_data_from_numpy(image, binary_data=binary)
    return InferRequest(model, [tensor], **more)


def check(response: Any, num_rows: int = 1) -> None:
    scores = response.outputs[0].as_numpy()
    assert response.model_name == "digits"
    assert scores.shape == (num_rows, 10)
    assert (scores.argmax(axis=1) == LABEL).all()


def test_health_is_asked_over_http(gateway: Gateway) -> None:
    assert rest(gateway, lambda client: client.is_server_live(gateway.url)) is True
    assert rest(gateway, lambda client: client.is_server_ready(gateway.url)) is True
    assert rest(gateway, lambda client: client.is_model_ready(gateway.url, "digits")) is True
    assert rest(gateway, lambda client: client.is_model_ready(gateway.url, "nobody")) is False


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("wants_binary", [None, False, True])
def test_a_digit_is_recognised_over_http(gateway: Gateway, binary: bool, wants_binary: bool | None) -> None:
    outputs = None if wants_binary is None else [RequestedOutput("probabilities", {"binary_data": wants_binary})]
    asked = request(binary=binary, request_id="mine", request_outputs=outputs)
    headers: dict[str, str] = {}
    response = rest(
        gateway, lambda client: client.infer(gateway.url, asked, model_name="digits", response_headers=headers)
    )
    check(response)
    assert response.id == "mine"
    assert headers["tandem-variant"]


def test_a_plain_dictionary_is_a_request_too(gateway: Gateway) -> None:
    check(rest(gateway, lambda client: client.infer(gateway.url, {"inputs": [SAMPLE]}, model_name="digits")))


def test_a_batch_asks_for_binary_answers(gateway: Gateway) -> None:
    batch = np.repeat(digits.IMAGE, 8, axis=0)
    asked = request(binary=True, image=batch, parameters={"binary_data_output": True})
    check(rest(gateway, lambda client: client.infer(gateway.url, asked, model_name="digits")), 8)


@pytest.mark.parametrize(
    ("model", "image", "status"), [("nobody", digits.IMAGE, 404), ("digits", digits.IMAGE[:, :, :4], 400)]
)
def test_a_mistake_over_http_is_the_clients_own_error_with_our_sentence(
    gateway: Gateway, model: str, image: np.ndarray, status: int
) -> None:
    asked = request(binary=False, model=model, image=image)
    with pytest.raises(httpx.HTTPStatusError) as raised:
        rest(gateway, lambda client: client.infer(gateway.url, asked, model_name=model))
    assert raised.value.response.status_code == status
    assert raised.value.response.json()["error"] in str(raised.value)


def test_health_is_asked_over_grpc(gateway: Gateway) -> None:
    assert over_grpc(gateway, lambda client: client.is_server_live()) is True
    assert over_grpc(gateway, lambda client: client.is_server_ready()) is True
    assert over_grpc(gateway, lambda client: client.is_model_ready("digits")) is True


@pytest.mark.parametrize("binary", [False, True])
def test_a_digit_is_recognised_over_grpc(gateway: Gateway, binary: bool) -> None:
    check(over_grpc(gateway, lambda client: client.infer(request(binary=binary, request_id="mine"))))


def test_a_mistake_over_grpc_has_its_status(gateway: Gateway) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        over_grpc(gateway, lambda client: client.infer(request(binary=True, model="nobody")))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert "nobody" in raised.value.details()
