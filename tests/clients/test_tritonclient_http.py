"""tritonclient.http, sync and aio: every method of the class is asked, or is on the list of those that the gateway refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import digits
import methods
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from conftest import Gateway, Keys
from tritonclient.utils import InferenceServerException

ENCODED = {"generate_request_body", "parse_response_body"}  # static: bytes without a connection


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Any]:
    with triton.InferenceServerClient(gateway.http, concurrency=4) as made:
        yield made


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, gateway: Gateway) -> Any:
    """ask(method, ...): the same call through either client."""

    async def through_aio(name: str, given: tuple[Any, ...], how: dict[str, Any]) -> Any:
        async with triton_aio.InferenceServerClient(gateway.http) as client:
            return await getattr(client, name)(*given, **how)

    def call(name: str, *given: Any, **how: Any) -> Any:
        if request.param == "aio":
            return asyncio.run(through_aio(name, given, how))
        with triton.InferenceServerClient(gateway.http) as client:
            return getattr(client, name)(*given, **how)

    return call


def test_every_method_of_the_client_is_asked_or_listed_as_refused() -> None:
    methods.check(triton.InferenceServerClient, ENCODED | {"async_infer"})
    methods.check(triton_aio.InferenceServerClient, ENCODED)


def test_the_server_and_a_model_say_that_they_are_ready(ask: Any) -> None:
    assert ask("is_server_live")
    assert ask("is_server_ready")
    assert ask("is_model_ready", "digits")
    assert ask("is_model_ready", "digits", "1")
    assert not ask("is_model_ready", "nobody")


def test_metadata_bear_the_name_that_was_asked_for(ask: Any) -> None:
    server = ask("get_server_metadata")
    assert server["name"]
    assert not [word for word in server["extensions"] if "shared_memory" in word]
    model = ask("get_model_metadata", "digits")
    assert model["name"] == "digits"
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert ask("get_model_metadata", "digits-fp32", "1")["name"] == "digits-fp32"


def test_the_config_is_the_whole_one(ask: Any) -> None:
    config = ask("get_model_config", "digits")
    assert config["name"] == "digits"
    assert config["max_batch_size"] == 32
    assert config["input"][0]["dims"] == [1, 8, 8]


def test_the_index_names_models(ask: Any) -> None:
    found = {entry["name"]: entry.get("state") for entry in ask("get_model_repository_index")}
    assert found["digits"] == "READY"


def test_statistics_count_what_was_asked(ask: Any) -> None:
    def successes() -> int:
        (of_digits,) = ask("get_inference_statistics", "digits")["model_stats"]
        assert of_digits["name"] == "digits"
        return int(of_digits["inference_stats"]["success"]["count"])

    before = successes()
    ask("infer", "digits", digits.inputs(triton))
    assert successes() == before + 1
    assert "digits" in str(ask("get_inference_statistics"))


@pytest.mark.parametrize("sends_binary", [True, False])
@pytest.mark.parametrize("wants_binary", [True, False])
def test_a_digit_is_recognised_as_json_and_as_binary_tensors(ask: Any, sends_binary: bool, wants_binary: bool) -> None:
    digits.check(
        ask(
            "infer",
            "digits",
            digits.inputs(triton, binary_data=sends_binary),
            outputs=digits.outputs(triton, binary_data=wants_binary),
        )
    )


def test_outputs_need_not_be_named(ask: Any) -> None:
    result = ask("infer", "digits", digits.inputs(triton))
    digits.check(result)
    assert result.get_output("probabilities")["datatype"] == "FP32"
    assert result.get_output("nothing") is None


@pytest.mark.parametrize("to_server", [None, "gzip", "deflate"])
@pytest.mark.parametrize("to_client", [None, "gzip", "deflate"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_bodies_are_compressed_both_ways(
    request: pytest.FixtureRequest, ask: Any, to_server: str | None, to_client: str | None, is_binary: bool
) -> None:
    if to_server and "aio" in request.node.callspec.id and not hasattr(triton_aio, "zlib"):
        pytest.skip("this version's aio client compresses with modules that it does not import")
    result = ask(
        "infer",
        "digits",
        digits.inputs(triton, binary_data=is_binary),
        request_compression_algorithm=to_server,
        response_compression_algorithm=to_client,
    )
    digits.check(result)


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
        headers={"Tandem-Variant": "fp32"},
        query_params={"anything": "ignored"},
    )
    digits.check(result, 32)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("mine", "digits", "1")


def test_the_three_best_classes_come_with_labels(ask: Any) -> None:
    digits.check_classes(ask("infer", "digits", digits.inputs(triton), outputs=digits.outputs(triton, class_count=3)))


@pytest.mark.parametrize("num_rows", [1, 3])
def test_requests_that_wait_for_each_other_are_all_answered(client: Any, num_rows: int) -> None:
    given = digits.inputs(triton, np.repeat(digits.IMAGE, num_rows, axis=0))
    waiting = [client.async_infer("digits", given) for _ in range(20)]
    for one in waiting:
        digits.check(one.get_result(), num_rows)


def test_a_body_that_was_made_by_hand_is_answered(gateway: Gateway) -> None:
    import http.client

    client = triton.InferenceServerClient
    body, length = client.generate_request_body(digits.inputs(triton), outputs=digits.outputs(triton))
    connection = http.client.HTTPConnection(gateway.http, timeout=30)
    connection.request("POST", "/v2/models/digits/infer", body, {"Inference-Header-Content-Length": str(length)})
    answer = connection.getresponse()
    parsed = client.parse_response_body(
        answer.read(), header_length=int(answer.headers["Inference-Header-Content-Length"])
    )
    connection.close()
    digits.check(parsed)


def test_an_embedding_is_two_inputs_of_numbers(ask: Any) -> None:
    ids, mask = (triton.InferInput(name, [1, 3], "INT64") for name in ("input_ids", "attention_mask"))
    ids.set_data_from_numpy(np.array([[2, 6, 0]]), binary_data=False)
    mask.set_data_from_numpy(np.array([[1, 1, 0]]))
    vector = ask("infer", "words", [ids, mask]).as_numpy("vector")
    assert vector.shape == (1, 4)
    assert np.linalg.norm(vector) == pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "image", "words"),
    [
        ("nobody", digits.IMAGE, "nobody"),
        ("digits", digits.IMAGE[:, :, :4], "image"),
        ("digits", np.repeat(digits.IMAGE, 33, axis=0), "32"),
    ],
)
def test_a_mistake_is_told_in_the_clients_own_exception(ask: Any, model: str, image: np.ndarray, words: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask("infer", model, digits.inputs(triton, image))
    assert words in raised.value.message()
    assert raised.value.status() in ("400", "404")


def test_a_short_timeout_of_the_client_leaves_nothing_broken(gateway: Gateway) -> None:
    with triton.InferenceServerClient(gateway.http, network_timeout=30, connection_timeout=5) as client:
        for _ in range(3):
            digits.check(client.infer("digits", digits.inputs(triton)))


def test_a_key_is_a_header_of_each_call(keyed: Gateway, keys: Keys) -> None:
    with triton.InferenceServerClient(keyed.http) as client:
        for header in ({"Authorization": f"Bearer {keys.of_digits}"}, {"X-API-Key": keys.of_digits}):
            digits.check(client.infer("digits", digits.inputs(triton), headers=header))
            assert client.get_model_metadata("digits", headers=header)
        assert client.is_server_live()
        with pytest.raises(InferenceServerException) as raised:
            client.infer("digits", digits.inputs(triton))
        assert raised.value.status() == "401"


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
    assert raised.value.status() in ("501", "403"), raised.value
    assert len(raised.value.message()) > 20
