"""tritonclient.grpc, sync and aio: every method of the class is asked, or is on the list of those that the gateway refuses."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import digits
import methods
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from conftest import Gateway, Keys
from tritonclient.utils import InferenceServerException

STREAMS = {"start_stream", "async_stream_infer", "stop_stream"}
REFUSALS = ("StatusCode.UNIMPLEMENTED", "StatusCode.PERMISSION_DENIED")


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Any]:
    with triton.InferenceServerClient(gateway.grpc) as made:
        yield made


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, gateway: Gateway) -> Any:
    """ask(method, ...): the same call through either client."""

    async def through_aio(name: str, given: tuple[Any, ...], how: dict[str, Any]) -> Any:
        async with triton_aio.InferenceServerClient(gateway.grpc) as client:
            return await getattr(client, name)(*given, **how)

    def call(name: str, *given: Any, **how: Any) -> Any:
        if request.param == "aio":
            return asyncio.run(through_aio(name, given, how))
        with triton.InferenceServerClient(gateway.grpc) as client:
            return getattr(client, name)(*given, **how)

    return call


def test_every_method_of_the_client_is_asked_or_listed_as_refused() -> None:
    methods.check(triton.InferenceServerClient, {*STREAMS, "async_infer"})
    methods.check(triton_aio.InferenceServerClient, {"stream_infer"})


def test_the_server_and_a_model_say_that_they_are_ready(ask: Any) -> None:
    assert ask("is_server_live")
    assert ask("is_server_ready")
    assert ask("is_model_ready", "digits")
    assert ask("is_model_ready", "digits", "1")
    assert not ask("is_model_ready", "nobody")


@pytest.mark.parametrize("as_json", [False, True])
def test_metadata_bear_the_name_that_was_asked_for(ask: Any, as_json: bool) -> None:
    server, model = ask("get_server_metadata", as_json=as_json), ask("get_model_metadata", "digits", as_json=as_json)
    assert (server["name"] if as_json else server.name) != ""
    assert (model["name"] if as_json else model.name) == "digits"
    assert list(model["versions"] if as_json else model.versions) == ["1"]


def test_no_shared_memory_is_advertised(ask: Any) -> None:
    assert not [word for word in ask("get_server_metadata").extensions if "shared_memory" in word]


def test_the_config_is_the_whole_one(ask: Any) -> None:
    config = ask("get_model_config", "digits").config
    assert config.name == "digits"
    assert config.max_batch_size == 32
    assert list(config.input[0].dims) == [1, 8, 8]


def test_the_index_names_models(ask: Any) -> None:
    found = {entry.name: entry.state for entry in ask("get_model_repository_index").models}
    assert found["digits"] == "READY"


def test_statistics_count_what_was_asked(ask: Any) -> None:
    def successes() -> int:
        (of_digits,) = ask("get_inference_statistics", "digits").model_stats
        assert of_digits.name == "digits"
        return int(of_digits.inference_stats.success.count)

    before = successes()
    ask("infer", "digits", digits.inputs(triton))
    assert successes() == before + 1


def test_a_digit_is_recognised(ask: Any) -> None:
    digits.check(ask("infer", "digits", digits.inputs(triton), outputs=digits.outputs(triton)))


def test_outputs_need_not_be_named(ask: Any) -> None:
    result = ask("infer", "digits", digits.inputs(triton))
    digits.check(result)
    assert result.get_output("probabilities").datatype == "FP32"
    assert result.get_output("nothing") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_messages_are_compressed(ask: Any, algorithm: str) -> None:
    digits.check(ask("infer", "digits", digits.inputs(triton), compression_algorithm=algorithm))


def test_a_batch_an_id_a_version_and_parameters_are_understood(ask: Any) -> None:
    batch = np.repeat(digits.IMAGE, 32, axis=0)
    result = ask(
        "infer",
        "digits",
        digits.inputs(triton, batch),
        model_version="1",
        request_id="mine",
        priority=1,
        timeout=30_000_000,
        client_timeout=30,
        headers={"tandem-variant": "fp32"},
    )
    digits.check(result, 32)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("mine", "digits", "1")


def test_the_three_best_classes_come_with_labels(ask: Any) -> None:
    digits.check_classes(ask("infer", "digits", digits.inputs(triton), outputs=digits.outputs(triton, class_count=3)))


def test_numbers_inside_the_message_are_as_good_as_raw_ones(gateway: Gateway) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="digits")
    tensor = request.inputs.add(name="image", datatype="FP32", shape=digits.IMAGE.shape)
    tensor.contents.fp32_contents.extend(digits.IMAGE.ravel())
    with grpc.insecure_channel(gateway.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).argmax() == 2


def test_calls_that_wait_for_each_other_are_all_answered(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for _ in range(20):
        client.async_infer("digits", digits.inputs(triton), callback=lambda result, error: answers.put((result, error)))
    for _ in range(20):
        result, error = answers.get(timeout=30)
        assert error is None
        digits.check(result)


def test_a_call_that_is_cancelled_tells_so_and_leaves_the_connection_whole(client: Any) -> None:
    told: queue.Queue[Any] = queue.Queue()
    context = client.async_infer("digits", digits.inputs(triton), callback=lambda result, error: told.put(error))
    if context is None:
        pytest.skip("this version cannot cancel")
    context.cancel()
    error = told.get(timeout=30)
    assert error is None or error.status() in ("StatusCode.CANCELLED", None)
    digits.check(client.infer("digits", digits.inputs(triton)))


def test_a_deadline_that_is_over_is_told_as_such(client: Any) -> None:
    """A microsecond of `timeout`; `client_timeout` of so little becomes a millisecond on its way, which may be enough."""
    with pytest.raises(InferenceServerException) as raised:
        client.infer("digits", digits.inputs(triton), timeout=1)
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_a_stream_is_answered_or_refused_with_a_sentence(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("digits", digits.inputs(triton))
    result, error = answers.get(timeout=30)
    client.stop_stream()
    if error is None:
        digits.check(result)
    else:
        assert error.status() in REFUSALS
        assert len(error.message()) > 20


def test_an_asynchronous_stream_is_answered_or_refused_with_a_sentence(gateway: Gateway) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "digits", "inputs": digits.inputs(triton_aio)}

    async def first() -> tuple[Any, Any]:
        async with triton_aio.InferenceServerClient(gateway.grpc) as client:
            async for result, error in client.stream_infer(requests()):
                return result, error
        raise AssertionError("no answer")

    try:
        result, error = asyncio.run(first())
    except InferenceServerException as raised:
        result, error = None, raised
    if error is None:
        digits.check(result)
    else:
        assert error.status() in REFUSALS


def test_threads_share_a_client(client: Any) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                digits.check(client.infer("digits", digits.inputs(triton)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("model", "image", "words", "status"),
    [
        ("nobody", digits.IMAGE, "nobody", "StatusCode.NOT_FOUND"),
        ("digits", digits.IMAGE[:, :, :4], "image", "StatusCode.INVALID_ARGUMENT"),
        ("digits", np.repeat(digits.IMAGE, 33, axis=0), "32", "StatusCode.INVALID_ARGUMENT"),
    ],
)
def test_a_mistake_is_told_in_the_clients_own_exception(
    ask: Any, model: str, image: np.ndarray, words: str, status: str
) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask("infer", model, digits.inputs(triton, image))
    assert words in raised.value.message()
    assert raised.value.status() == status


def test_a_key_is_a_header_of_each_call(keyed: Gateway, keys: Keys) -> None:
    with triton.InferenceServerClient(keyed.grpc) as client:
        for header in ({"authorization": f"Bearer {keys.of_digits}"}, {"x-api-key": keys.of_digits}):
            digits.check(client.infer("digits", digits.inputs(triton), headers=header))
            assert client.get_model_metadata("digits", headers=header)
        assert client.is_server_live()
        with pytest.raises(InferenceServerException) as raised:
            client.infer("digits", digits.inputs(triton))
        assert raised.value.status() == "StatusCode.UNAUTHENTICATED"


def test_a_model_is_unloaded_and_loaded_again(ask: Any) -> None:
    ask("unload_model", "digits")
    assert not ask("is_model_ready", "digits")
    ask("load_model", "digits")
    assert ask("is_model_ready", "digits")
    digits.check(ask("infer", "digits", digits.inputs(triton)))


@pytest.mark.parametrize("name", sorted(methods.REFUSED))
def test_what_the_gateway_refuses_is_refused_with_a_sentence(ask: Any, name: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask(name, *methods.arguments(triton.InferenceServerClient, name))
    assert raised.value.status() in REFUSALS, raised.value
    assert len(raised.value.message()) > 20
