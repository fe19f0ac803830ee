"""The backend `onnxruntime` in a real Triton: what goes in comes out right, to the one who asked."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests.local.harness import Served
from tests.local.models import TYPES

pytestmark = pytest.mark.triton

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


def feed_of_every_type(rows: int = 2, columns: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(3).standard_normal((rows, columns)) * 50
    feed = {name: numbers.astype(kind) for name, (_, _, kind) in TYPES.items() if name != "bytes"}
    feed["int64"][0, 0], feed["uint64"][0, 0] = -(2**63), 2**64 - 1  # both ends would be lost in a float
    words = [["", "naïve 日本", 'a\0b "\n'], ["x" * 5000, "b", "c"]]
    feed["bytes"] = np.array(words, np.object_)[:rows, :columns]
    return feed


def as_sent(name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if name != "bytes":
        return value
    return np.array([[word.encode() for word in row] for row in value], np.object_).reshape(value.shape)


@pytest.fixture(scope="module")
def every_type(small_models: Served) -> dict[str, np.ndarray[Any, Any]]:
    return small_models.infer("types", feed_of_every_type())


@pytest.mark.parametrize("name", TYPES)
def test_a_value_of_every_type_comes_back_bit_for_bit(name: str, every_type: dict[str, np.ndarray[Any, Any]]) -> None:
    expected = as_sent(name, feed_of_every_type()[name])
    assert every_type[f"{name}_out"].dtype == expected.dtype
    assert np.array_equal(every_type[f"{name}_out"], expected)


def test_every_type_comes_back_over_grpc_too(small_models: Served) -> None:
    feed, inputs = feed_of_every_type(), []
    for name, value in feed.items():
        tensor = triton_grpc.InferInput(
            name, list(value.shape), TYPES[name][1].removeprefix("TYPE_").replace("STRING", "BYTES")
        )
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    with triton_grpc.InferenceServerClient(small_models.grpc_url) as client:
        result = client.infer("types", inputs)
    for name, value in feed.items():
        assert np.array_equal(result.as_numpy(f"{name}_out"), as_sent(name, value)), name


def test_bytes_that_are_not_utf8_are_the_clients_mistake_and_say_which_input(small_models: Served) -> None:
    feed = {**feed_of_every_type(), "bytes": np.array([[b"\xff\xfe"] * 3] * 2, np.object_)}
    with pytest.raises(InferenceServerException, match=r"\[400\].*input.*'bytes'.*UTF-8"):
        small_models.infer("types", feed)


def test_a_dimension_of_length_zero_passes(small_models: Served) -> None:
    empty = {name: value[:, :0] for name, value in feed_of_every_type().items()}
    assert small_models.infer("types", empty)["fp32_out"].shape == (2, 0)


def test_only_the_outputs_asked_for_are_answered(small_models: Served) -> None:
    answer = small_models.infer("types", feed_of_every_type(), ["int8_out", "bytes_out"])
    assert set(answer) == {"int8_out", "bytes_out"}


def test_a_model_without_a_batch_dimension_keeps_its_shape(small_models: Served) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(small_models.infer("unbatched", {"x": x})["y"], x.T)


@pytest.mark.parametrize(("given_k", "factor"), [(None, 3), (5, 5)], ids=["left out", "given"])
def test_an_optional_input_may_be_left_out(small_models: Served, given_k: int | None, factor: int) -> None:
    feed = {"x": ROW} if given_k is None else {"x": ROW, "k": np.full((1, 4), given_k, np.float32)}
    answer = small_models.infer("optional", feed)
    assert np.array_equal(answer["y"], ROW * factor)
    assert np.array_equal(answer["z"], -ROW)


@pytest.mark.parametrize(
    ("feed", "reason"),
    [
        ({"x": np.zeros((1, 5), np.float32)}, "unexpected shape"),
        ({"x": ROW.astype(np.float64)}, "data-type"),
        ({"x": np.zeros((17, 4), np.float32)}, "batch-size must be <= 16"),
        ({"z": ROW}, "x"),
    ],
    ids=["wrong dimension", "wrong type", "more rows than max_batch_size", "unknown input"],
)
def test_a_wrong_request_is_refused_as_the_clients(small_models: Served, feed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InferenceServerException, match=rf"\[400\].*{reason}"):
        small_models.infer("double", feed)


# -- dynamic batches --------------------------------------------------------------------------------------------------


def together(small_models: Served, model: str, inputs: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Every input in a request of its own, all at once; an answer or the error for each."""

    def one(x: np.ndarray[Any, Any]) -> Any:
        try:
            return small_models.infer(model, {"x": x})["y"]
        except InferenceServerException as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(inputs)) as clients:
        return list(clients.map(one, inputs))


def executions(small_models: Served, model: str) -> int:
    return int(small_models.http.get_inference_statistics(model)["model_stats"][0]["execution_count"])


@pytest.mark.parametrize("model", ["batching", "bucketed"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 16), min_size=2, max_size=8))
def test_whatever_shares_a_batch_every_caller_gets_exactly_its_rows(
    small_models: Served, model: str, sizes: list[int]
) -> None:
    rng = np.random.default_rng(sum(sizes))
    inputs = [rng.standard_normal((size, 4)).astype(np.float32) for size in sizes]
    for x, y in zip(inputs, together(small_models, model, inputs), strict=True):
        assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize("length", [2, 3, 4])  # there are no buffers for 3
@pytest.mark.parametrize("wanted", [["z"], ["z", "y"]])
def test_buffers_by_length_answer_what_is_asked_for(small_models: Served, length: int, wanted: list[str]) -> None:
    x = np.arange(5 * length, dtype=np.float32).reshape(5, length)
    answer = small_models.infer("lengths", {"x": x}, wanted)
    assert set(answer) == set(wanted)
    for name, value in answer.items():
        assert np.array_equal(value, {"y": x * x, "z": -x}[name])


def test_requests_that_wait_together_run_together(small_models: Served) -> None:
    before = executions(small_models, "batching")
    together(small_models, "batching", [ROW] * 8)
    assert executions(small_models, "batching") - before < 8


def test_requests_of_different_lengths_share_a_batch_and_keep_their_own(small_models: Served) -> None:
    lengths = [4, 8, 4, 12, 8]
    answers = together(small_models, "ragged", [np.ones((1, n), np.float32) for n in lengths])
    assert [float(y[0, 0]) for y in answers] == [n / 4 for n in lengths]


def test_one_bad_request_fails_alone(small_models: Served) -> None:
    lengths = [8, 5, 8, 12, 8]  # four does not divide 5: ONNX Runtime fails on it
    answers = together(small_models, "ragged", [np.ones((1, n), np.float32) for n in lengths])
    assert isinstance(answers[1], InferenceServerException)
    assert [float(y[0, 0]) for y in answers[:1] + answers[2:]] == [2, 2, 3, 2]


def test_one_request_that_is_not_utf8_fails_alone(small_models: Served) -> None:
    bad = {**feed_of_every_type(), "bytes": np.array([[b"\xff"] * 3] * 2, np.object_)}
    feeds = [feed_of_every_type(), bad, feed_of_every_type()]

    def one(feed: dict[str, Any]) -> bool:
        try:
            return bool((small_models.infer("types", feed)["fp32_out"] == feed["fp32"]).all())
        except InferenceServerException:
            return False

    with concurrent.futures.ThreadPoolExecutor(3) as clients:
        assert list(clients.map(one, feeds)) == [True, False, True]


def test_a_model_whose_output_is_no_batch_fails_instead_of_mixing_callers_up(small_models: Served) -> None:
    assert np.array_equal(small_models.infer("collapsing", {"x": ROW})["y"], ROW)
    with pytest.raises(InferenceServerException, match=r"dimension.*2"):
        small_models.infer("collapsing", {"x": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("model", ["tuned", "shrinking"])
def test_a_model_with_every_option_set_computes_the_same(small_models: Served, model: str) -> None:
    assert np.array_equal(small_models.infer(model, {"x": ROW})["y"], 2 * ROW)
