"""Turns are fair, and what they say together claims no more than they tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from loadtest.errors import CannotMeasure
from loadtest.profile.ladder import NetworkRung, Step, TritonTimes, in_turns, read_times, timings
from loadtest.profile.server import setup_of
from serving.decisions.profile import Rung, Settings
from serving.measure.intervals import MIN_REPEATS


@dataclass(slots=True)
class Planted:
    """A way whose times are given, a round each."""

    rounds: list[list[float]]
    rung: Rung = "gateway_json"
    num_bytes: int | None = 7
    num_turns: int = field(default=0)

    def times(self, slice_s: float) -> list[float]:
        assert slice_s >= 0
        self.num_turns += 1
        return self.rounds[self.num_turns - 1]


@dataclass(slots=True)
class Failing(Planted):
    """Works for so many rounds."""

    def times(self, slice_s: float) -> list[float]:
        if self.num_turns == len(self.rounds):
            raise CannotMeasure("gateway_json: a request failed: 413")
        return Planted.times(self, slice_s)


def not_lost(step: Step, error: CannotMeasure) -> None:
    raise AssertionError(f"{step.server}: {error}")


def taken(way: Planted, num_rounds: int = 3) -> Step:
    step = Step("digits-fp32", 1, way, None)
    in_turns([step], num_rounds, 0.1, 60.0, lambda _: None, not_lost)
    return step


def test_the_median_is_over_rounds_so_that_one_bad_round_does_not_move_it() -> None:
    timing = taken(Planted([[0.001] * 5, [0.009] * 500, [0.0012] * 5])).timing
    assert timing is not None
    assert timing.latency_p50_s == 0.0012
    assert timing.num_requests == 510
    assert timing.low_s is not None
    assert timing.high_s is not None
    assert timing.low_s <= 0.0012 <= timing.high_s
    assert timing.latency_p99_s is None


def test_p99_is_told_from_a_thousand_requests_on() -> None:
    timing = taken(Planted([[0.001] * 990 + [0.5] * 20] * 3)).timing
    assert timing is not None
    assert timing.latency_p99_s == pytest.approx(0.5)


def test_a_step_without_a_turn_is_in_no_ladder() -> None:
    assert timings([Step("digits-fp32", 1, Planted([]), None)], "digits-fp32") == ()


def test_a_ladder_is_of_one_server_and_goes_up() -> None:
    steps = [taken(Planted([[0.001]] * 3, rung)) for rung in ("gateway_json", "in_process", "triton_grpc")]
    other = taken(Planted([[0.001]] * 3))
    other.server = "digits-int8"
    rungs = [timing.rung for timing in timings([*steps, other], "digits-fp32")]
    assert rungs == ["in_process", "triton_grpc", "gateway_json"]


def test_a_slow_net_gets_fewer_rounds_but_enough_for_an_interval() -> None:
    way = Planted([[1.0]] * 10)
    in_turns([Step("x", 1, way, None)], 10, 0.1, 0.0, lambda _: None, not_lost)
    assert way.num_turns == MIN_REPEATS


def test_a_rung_that_fails_at_once_is_left_out_and_told_and_the_others_go_on() -> None:
    lost: list[str] = []
    works, fails = Step("x", 1, Planted([[1.0]] * 3, "triton_grpc"), None), Step("x", 1, Failing([]), None)
    in_turns([fails, works], 3, 0.1, 60.0, lambda _: None, lambda step, error: lost.append(f"{step.server}: {error}"))
    assert [re.split(": ", one)[:2] for one in lost] == [["x", "gateway_json"]]
    assert lost[0].endswith("413")
    assert [timing.rung for timing in timings([fails, works], "x")] == ["triton_grpc"]


@pytest.mark.parametrize("rounds", [[], [[1.0]]])
def test_where_nothing_works_or_what_worked_does_no_more_the_measurement_ends(rounds: list[list[float]]) -> None:
    with pytest.raises(CannotMeasure, match="413"):
        in_turns([Step("x", 1, Failing(rounds), None)], 3, 0.1, 60.0, lambda _: None, lambda *_: None)


def test_tritons_times_are_those_of_the_turn_alone() -> None:
    counts = iter([TritonTimes(100, (9.0, 9.0, 9.0, 9.0)), TritonTimes(110, (9.1, 9.0, 9.5, 9.0))])
    step = Step("x", 1, Planted([[0.001]]), lambda: next(counts))
    step.take_turn(0.1)
    assert step.timing is not None
    assert step.timing.queue_s == pytest.approx(0.01)
    assert step.timing.compute_infer_s == pytest.approx(0.05)


def test_a_request_that_fails_ends_the_measurement_with_the_rung() -> None:
    def ask() -> None:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(CannotMeasure, match=r"triton_grpc.*request"):
        NetworkRung("triton_grpc", 1, ask).times(0.1)


@pytest.mark.parametrize("answer", [None, {}, {"model_stats": [{}]}, {"model_stats": [{"inference_stats": {}}]}, "no"])
def test_statistics_that_cannot_be_read_are_told(answer: object) -> None:
    with pytest.raises(CannotMeasure, match="statistics"):
        read_times(answer)


def test_nothing_counted_has_no_means() -> None:
    assert TritonTimes().means_s == {}


CONFIG = {
    "parameters": {
        "intra_op_thread_count": {"string_value": "2"},
        "session.intra_op.allow_spinning": {"string_value": "0"},
        "tandem_engine": {"string_value": "openvino"},
        "tandem_device_name": {"string_value": "A processor"},
    },
    "instance_group": [{"count": 3}],
    "max_batch_size": 32,
    "dynamic_batching": {"max_queue_delay_microseconds": "500"},
}


def test_how_triton_runs_a_model_is_read_from_its_configuration() -> None:
    running = setup_of(CONFIG)
    assert running.settings == Settings(num_instances=3, num_threads=2, max_batch_size=32, queue_delay_us=500)
    assert (running.engine, running.allow_spinning, running.device_name) == ("openvino", False, "A processor")


@pytest.mark.parametrize("missing", ["parameters", "instance_group", "max_batch_size"])
def test_a_configuration_that_does_not_say_how_it_runs_is_told(missing: str) -> None:
    with pytest.raises(CannotMeasure, match="runs"):
        setup_of({name: value for name, value in CONFIG.items() if name != missing})
