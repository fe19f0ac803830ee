"""Planted parts of a request's time are found, said and drawn; noise is called noise."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from loadtest.profile.parts import split
from loadtest.profile.wording import where_time_goes, why_slower
from loadtest.verdict.figures import ladder
from tests.loadtest.profile.ladders import Server, server, together


def test_planted_parts_are_found() -> None:
    made = server("x", compute_s=0.004, transfer_s=0.003, json_s=0.002, gateway_s=0.001, queue_s=0.005)
    found = split(made.ladder, 1)
    assert found is not None
    assert {part.name: round(part.seconds, 6) for part in found.parts} == {
        "compute": 0.004,
        "queue": 0.005,
        "transfer": 0.003,
        "json": 0.002,
        "gateway": 0.001,
    }
    assert found.total_s == pytest.approx(0.015)
    assert sum(found.ratio(part.name) for part in found.parts) == pytest.approx(1.0)


def test_a_difference_below_zero_is_zero_and_noise() -> None:
    found = split(server("x", json_s=-0.0001).ladder, 1)
    assert found is not None
    assert found.seconds("json") == 0.0
    assert found.is_noise("json")
    assert "nothing measurable" in where_time_goes(server("x", json_s=-0.0001), 1)[0]


def test_a_net_that_was_slower_alone_than_in_triton_is_no_longer_than_triton_took() -> None:
    found = split(server("x", compute_s=0.009, transfer_s=-0.005).ladder, 1)
    assert found is not None
    assert found.seconds("compute") == pytest.approx(0.004)
    assert found.is_noise("compute")
    assert found.seconds("transfer") == 0.0
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.total_s)


def test_rungs_whose_intervals_meet_are_not_told_apart() -> None:
    found = split(server("x", gateway_s=0.00002).ladder, 1)
    assert found is not None
    assert found.is_noise("gateway")
    assert not found.is_noise("json")
    assert "0.02 ms (1%, within noise)" in where_time_goes(server("x", gateway_s=0.00002), 1)[0]


def test_without_the_engine_alone_tritons_own_count_stands_for_it() -> None:
    made = server("x", compute_s=0.004)
    found = split([one for one in made.ladder if one.rung != "in_process"], 1)
    assert found is not None
    assert found.seconds("compute") == pytest.approx(0.0044)


@pytest.mark.parametrize("rungs", [(), ("in_process",), ("gateway_json",), ("in_process", "gateway_json")])
def test_what_cannot_be_told_is_not_told(rungs: tuple[str, ...]) -> None:
    some = tuple(one for one in server("x").ladder if one.rung in rungs)
    assert split(some, 1) is None
    assert where_time_goes(Server("x", some), 1) == []
    assert ladder([Server("x", some)]) is None


def test_a_batch_size_that_was_not_measured_has_no_parts() -> None:
    assert split(server("x").ladder, 2) is None


def test_without_json_the_top_is_the_gateway_with_binary_tensors() -> None:
    found = split([one for one in server("x", gateway_s=0.007).ladder if "json" not in one.rung], 1)
    assert found is not None
    assert found.top.rung == "gateway_binary"
    assert found.seconds("gateway") == pytest.approx(0.007)


def test_the_words_name_every_part_with_its_share() -> None:
    said = " ".join(where_time_goes(server("x", compute_s=0.007, json_s=0.0015, gateway_s=0.0005), 1))
    assert "1 row takes 10.0 ms" in said
    assert "net itself 7.00 ms (70%)" in said
    assert "JSON save 1.50 ms" in said
    assert "not the net" not in said


def test_a_net_that_is_a_small_part_is_said_to_gain_little_from_a_faster_device() -> None:
    said = " ".join(where_time_goes(together(server("x"), server("x", 8, compute_s=0.002)), 1))
    assert re.search(r"1\.00 ms of 4\.00 ms.*0\.62 ms a row\b.* 4\.00 ms", said)


def test_a_wait_in_triton_with_one_request_under_way_is_its_queue_delay() -> None:
    assert "queue delay" in " ".join(where_time_goes(server("x", queue_s=0.004), 1))


def test_a_gpu_that_loses_on_the_way_is_told_where() -> None:
    gpu = together(
        server("gpu", compute_s=0.0005, transfer_s=0.004, json_s=0.003),
        server("gpu", 8, compute_s=0.0008, transfer_s=0.004, json_s=0.003),
    )
    cpu = together(server("cpu"), server("cpu", 8, compute_s=0.015))
    said = " ".join(why_slower(gpu, cpu, 1))
    values = (
        "8.50 ms, cpu 4.00 ms: 4.50 ms more",
        "0.50 ms instead of 1.00 ms",
        "8.80 ms instead of 18.0 ms",
        "save it 3.00 ms",
    )
    assert [value for value in values if value not in said] == []
    assert re.search(r"4\.00 ms .{,12} 1\.00 ms", said)


def test_a_gpu_that_no_batch_helps_is_told_so() -> None:
    gpu = together(server("gpu", compute_s=0.02), server("gpu", 8, compute_s=0.05))
    cpu = together(server("cpu"), server("cpu", 8))
    said = " ".join(why_slower(gpu, cpu, 1))
    assert re.search(r"20\.0 ms .{,12} 1\.00 ms", said)
    assert "up to 8 rows" in said


def test_a_batch_that_was_not_measured_is_not_guessed() -> None:
    said = why_slower(server("gpu", compute_s=0.02), server("cpu"), 1)
    assert "not measured" in " ".join(said)
    [line] = why_slower(server("gpu"), server("cpu"), 8)
    assert re.search("measured with 8 rows", line)


def test_a_faster_gpu_is_called_faster() -> None:
    said = why_slower(server("gpu", compute_s=0.001), server("cpu", compute_s=0.010), 1)
    assert re.findall(r"\d[.\d]*(?: times| ms| row)", said[0]) == ["1 row", "3.2 times", "4.00 ms", "13.0 ms"]
    assert re.findall(r"\S+ times", said[1]) == ["10.0 times"]


def test_equal_servers_are_not_told_apart() -> None:
    (said,) = why_slower(server("gpu"), server("cpu", compute_s=0.00101), 1)
    assert "no significant difference" in said


def test_bars_are_as_long_as_their_parts_and_names_are_escaped() -> None:
    figure = ladder([server("<b>fast</b>"), server("slow", compute_s=0.013)])
    assert figure is not None
    assert "<b>fast" not in figure.wide
    widths = [float(rect.attrib["width"]) for rect in ElementTree.fromstring(figure.wide).iter("rect")]
    assert len(widths) == 8
    assert widths[4] == pytest.approx(13 * widths[0], rel=0.2)
    assert sum(widths[4:]) < 760
