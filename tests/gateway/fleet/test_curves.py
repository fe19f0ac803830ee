"""Where predictions begin: what a configuration says, and what made-up inputs tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.fleet.curves import (
    UNKNOWN_SIZE,
    WAY_S,
    Facts,
    Input,
    Measurement,
    made_up,
    measure,
    mended,
    read_facts,
)
from serving.gateway.fleet.upstream import Answer, Lost
from serving.scheduling.curve import Curve

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 32,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["1", "8", "8"]}],
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
}
GOOD = Answer(200, None, b"{}")


def with_curve(text: str) -> dict[str, Any]:
    return CONFIG | {"parameters": {"tandem_emulated_curve": {"string_value": text}}}


def test_facts_are_those_of_the_configuration() -> None:
    facts = read_facts(CONFIG)
    assert facts == Facts(2, 32, (Input("x", "FP32", (1, 8, 8)),), max_elements=32 * 64, takes_parameters=True)
    service = facts.service()
    assert (service.num_instances, service.max_batch) == (2, 32)


def test_an_instance_on_each_of_two_cards_counts_twice() -> None:
    assert read_facts(CONFIG | {"instance_group": [{"count": 2, "gpus": [0, 1]}]}).num_instances == 4


@pytest.mark.parametrize(("batching", "gathers"), [({}, False), ({"max_queue_delay_microseconds": "2000"}, True)])
def test_an_instance_that_waits_for_fuller_batches_gathers_what_comes_at_once(
    batching: dict[str, str], gathers: bool
) -> None:
    facts = read_facts(CONFIG | {"dynamic_batching": batching})
    assert facts.service().full.gathers is gathers
    assert facts.service(Curve(((1, 0.01), (32, 0.02)))).full.gathers is gathers


def test_a_model_without_a_batch_takes_one_row() -> None:
    facts = read_facts(CONFIG | {"max_batch_size": 0})
    assert facts.max_rows == 1
    assert facts.service().max_batch == 1


def test_an_emulated_pool_brings_its_curve() -> None:
    text = json.dumps({"seconds": [0.004, 0.005, 0.006, 0.007], "check_rows": [1, 4]})
    curve = read_facts(with_curve(text)).curve
    assert curve is not None
    assert curve.points == ((1.0, 0.004), (4.0, 0.007))


@pytest.mark.parametrize(
    "text", ["", "no", "{}", "[]", '{"seconds": [1], "check_rows": [2]}', '{"seconds": [0], "check_rows": [1]}']
)
def test_a_curve_that_is_none_is_left_aside(text: str) -> None:
    assert read_facts(with_curve(text)).curve is None


def test_made_up_inputs_have_every_kind_of_tensor_at_its_true_size() -> None:
    facts = Facts(1, 8, (Input("words", "BYTES", (-1,)), Input("ids", "INT64", (2,)), Input("yes", "BOOL", (1,))))
    made = made_up(facts, 3)
    assert made is not None
    body, length = made
    entries = orjson.loads(body[:length])["inputs"]
    assert [entry["shape"] for entry in entries] == [[3, UNKNOWN_SIZE], [3, 2], [3, 1]]
    assert [entry["parameters"]["binary_data_size"] for entry in entries] == [3 * UNKNOWN_SIZE * 5, 3 * 2 * 8, 3]
    assert len(body) - length == sum(entry["parameters"]["binary_data_size"] for entry in entries)


def test_without_a_batch_dimension_none_is_made_up() -> None:
    made = made_up(Facts(1, 0, (Input("x", "FP32", (4,)),)), 1)
    assert made is not None
    assert orjson.loads(made[0][: made[1]])["inputs"][0]["shape"] == [4]


@pytest.mark.parametrize("given", [Input("x", "FP32", (4096, 4096)), Input("x", "COMPLEX", (1,))])
def test_what_is_too_large_or_not_known_is_not_made_up(given: Input) -> None:
    assert made_up(Facts(1, 8, (given,)), 1) is None


class Server:
    """One that takes so long for so many rows, by a clock of its own; `first_s` for what it is asked first."""

    def __init__(self, seconds: Mapping[int, float], *, first_s: float | None = None, status: int = 200) -> None:
        self.seconds, self.first_s, self.status = seconds, first_s, status
        self.now, self.asked = 100.0, list[int]()

    async def ask(self, body: bytes, length: int, _: float) -> Answer:
        rows = orjson.loads(body[:length])["inputs"][0]["shape"][0]
        self.now += self.seconds[rows] if self.asked or self.first_s is None else self.first_s
        self.asked.append(rows)
        return GOOD._replace(status=self.status)

    def measured(self, facts: Facts) -> Measurement:
        return asyncio.run(measure(facts, self.ask, lambda: self.now))


def points(facts: Facts, seconds: Mapping[int, float], status: int = 200) -> tuple[tuple[float, float], ...] | None:
    curve = Server(seconds, status=status).measured(facts).curve
    return None if curve is None else curve.points


FACTS = Facts(1, 32, (Input("x", "FP32", (4,)),))


def test_one_row_and_eight_are_measured() -> None:
    measured = points(FACTS, {1: 0.02, 8: 0.06})  # 32 would take 0.24 s
    assert measured == ((1, pytest.approx(0.02)), (8, pytest.approx(0.06)))


def test_many_rows_are_measured_where_they_are_not_likely_to_take_long() -> None:
    measured = points(FACTS, {1: 0.001, 8: 0.002, 32: 0.004})
    assert measured is not None
    assert [rows for rows, _ in measured] == [1, 8, 32]
    assert [rows for rows, _ in points(Facts(1, 4, FACTS.inputs), {1: 0.001, 4: 0.002}) or ()] == [1, 4]


def test_what_takes_longer_than_the_measuring_may_is_known_by_its_first_answer() -> None:
    measured = points(FACTS, {1: 1.2, 8: 1.2})
    assert measured is not None
    assert measured[0][1] == pytest.approx(1.2)


def test_a_model_that_cannot_be_asked_with_made_up_inputs_has_no_curve() -> None:
    assert points(FACTS, {1: 0.0}, status=400) is None

    async def lost(body: bytes, length: int, until: float) -> Answer:
        raise Lost("gone")

    assert asyncio.run(measure(FACTS, lost)) == (None, False)


@pytest.mark.parametrize("first_s", [0.005, 0.7, 2.3])
def test_the_first_inference_is_never_counted(first_s: float) -> None:
    server = Server(dict.fromkeys((1, 8, 32), 0.005), first_s=first_s)
    curve, is_whole = server.measured(FACTS)
    assert is_whole
    assert curve is not None
    assert curve.points == tuple((rows, pytest.approx(0.005)) for rows in (1, 8, 32))
    assert all(server.asked.count(rows) >= 2 for rows in (1, 8, 32))


def test_what_is_lost_on_the_way_leaves_what_is_known_and_is_not_whole() -> None:
    async def ask(body: bytes, length: int, until: float) -> Answer:
        if orjson.loads(body[:length])["inputs"][0]["shape"][0] > 8:
            raise Lost("gone")
        return GOOD

    curve, is_whole = asyncio.run(measure(FACTS, ask))
    assert not is_whole
    assert curve is not None
    assert [rows for rows, _ in curve.points] == [1, 8]


IMAGE = Input("image", "FP32", (3, 224, 224))


def test_a_usual_batch_of_images_is_made_up() -> None:
    made = made_up(Facts(1, 64, (IMAGE,)), 64)
    assert made is not None
    assert len(made[0]) - made[1] == 64 * 3 * 224 * 224 * 4


def test_of_larger_images_as_many_are_measured_as_can_be_made_up() -> None:
    facts = Facts(1, 64, (Input("image", "FP32", (3, 512, 512)),))
    measured = points(facts, dict.fromkeys(range(1, 65), 0.002))
    assert [rows for rows, _ in measured or ()] == [1, 8, 16]
    assert facts.most_made_up == 16


def test_where_nobody_measured_how_it_batches_two_full_batches_may_be_in_flight() -> None:
    large = Facts(1, 64, (Input("image", "FP32", (3, 512, 512)),))
    assert large.service(Curve(((1, 0.002), (8, 0.004), (16, 0.006)))).bound == 128
    assert Facts(2, 64, (IMAGE,)).service().bound == 256
    assert Facts(1, 1, (IMAGE,)).service().bound == 2


def test_what_was_not_run_because_it_takes_long_batches_as_far_as_was_seen() -> None:
    assert Facts(1, 64, (IMAGE,)).service(Curve(((1, 0.02), (8, 0.16)))).bound == 2


@pytest.mark.parametrize(
    ("facts", "length"),
    [
        (Facts(1, 8, (Input("ids", "INT64", (-1,)), Input("mask", "INT64", (-1,)))), UNKNOWN_SIZE),
        (Facts(1, 0, (Input("ids", "INT64", (-1,)),)), 0),
        (Facts(1, 8, (Input("x", "FP32", (3, -1, -1)),)), 0),
        (Facts(1, 8, (Input("text", "BYTES", (-1,)),)), 0),  # how long a string is stands nowhere in its shape
        (Facts(1, 8), 0),
    ],
)
def test_rows_of_any_length_are_measured_at_a_usual_one(facts: Facts, length: int) -> None:
    assert facts.usual_length == length


QUIET = Curve(((1, 0.010), (8, 0.040), (64, 0.300)))


def test_a_curve_that_was_measured_in_a_crowd_is_mended_by_what_executions_took() -> None:
    crowded = QUIET.scaled(30.0)
    curve = mended(crowded, {8: (4, 4 * 0.040), 4: (2, 2 * 0.022)})
    assert curve is not None
    assert [rows for rows, _ in curve.points] == [4, 8, 64]
    assert curve.seconds(4) == pytest.approx(0.022 + WAY_S)
    assert curve.seconds(8) == pytest.approx(0.040 + WAY_S)
    assert curve.seconds(64) == pytest.approx(0.300, rel=0.1)  # as many times less


@pytest.mark.parametrize(
    "took",
    [
        {},
        {8: (2, 2 * 0.001)},  # too few to tell
        {8: (9, 9 * 0.030)},  # an hour of less noise
        {1: (9, 9 * 0.005), 8: (9, 9 * 0.037)},  # the way there and back is in the curve alone
        {8: (9, 9 * 0.090)},  # what others compute meanwhile is no mistake of the curve
    ],
)
def test_a_curve_that_is_about_right_stays(took: dict[int, tuple[int, float]]) -> None:
    assert mended(QUIET, took) is None


@given(
    old=st.tuples(st.floats(0.001, 9), st.floats(0.001, 9)),
    took=st.dictionaries(st.integers(1, 16), st.tuples(st.integers(1, 9), st.floats(0.0001, 9))),
)
def test_what_is_mended_is_a_curve_that_stays(old: tuple[float, float], took: dict[int, tuple[int, float]]) -> None:
    curve = mended(Curve(((1, min(old)), (8, max(old)))), took)
    if curve is not None:
        assert mended(curve, took) is None


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        ({"backend": "onnxruntime"}, False),
        ({"platform": "tensorrt_plan"}, False),
        ({"platform": "onnxruntime_onnx", "backend": ""}, False),
        ({"backend": "python"}, True),
        ({"backend": "mine"}, True),
    ],
)
def test_backends_that_compute_a_graph_read_no_parameters(said: dict[str, str], takes: bool) -> None:
    config = {key: value for key, value in CONFIG.items() if key not in ("backend", "platform")}
    assert read_facts(config | said).takes_parameters is takes
