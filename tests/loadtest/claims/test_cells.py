"""Which numbers answer a claim: picked out of findings that are written down here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtest.claims.cells import cells, prices_of_million
from loadtest.claims.claims_file import Claim
from loadtest.claims.values import (
    NOT_MEASURED_HERE,
    NOT_RUN,
    Bandwidth,
    Cell,
    Energy,
    EngineTime,
    Findings,
    Omission,
    Price,
    Reading,
    ScalingRun,
    ServingRates,
    apart,
    median,
    paired,
)
from serving.measure.machine import Machine

HERE = Machine("AMD EPYC", ("avx2",), 2.0, "Linux")
WITH_CARD = replace(HERE, cards=("Tesla T4, driver 1, 16 GB",))
PAIR = {"variant": "fp32", "engine": "cpu", "against_variant": "fp32", "against_engine": "cpu"}


def timed(variant: str, engine: str, size: int, seconds: float, **more: Any) -> EngineTime:
    return EngineTime("mlp", variant, engine, size, 100_000_000, (seconds, seconds * 1.01, seconds * 0.99), **more)


FP32 = [timed("fp32", "cpu", 1, 0.010), timed("fp32", "cpu", 8, 0.020)]
INT8 = [
    timed("int8", "cpu", 1, 0.005, ratios=(2.0, 2.1, 2.2)),
    timed("int8", "cpu", 8, 0.008, ratios=(2.5, 2.6, 2.7)),
]
CUDA = [timed("fp32", "cuda", 1, 0.001), timed("fp32", "cuda", 8, 0.002)]
FP16 = [timed("fp16", "cuda", 8, 0.001, ratios=(1.8, 1.9, 2.0))]
FOUND = Findings(speeds=(*FP32, *INT8, *CUDA, *FP16))
CPU_ONLY = Findings(speeds=(*FP32, *INT8))


def claim(number: str, **chosen: Any) -> Claim:
    return Claim("a", "says", "source", number, 1.0, models=("mlp",), **chosen)


def picked(one: Claim, found: Findings, machine: Machine = WITH_CARD) -> list[Cell]:
    return [cell for cell in cells(one, found, machine) if cell.is_judged]


def test_a_ratio_on_one_device_is_the_one_of_the_same_turns() -> None:
    found = picked(claim("speed_up", **PAIR | {"variant": "int8"}), FOUND)
    assert [(cell.at, cell.reading.value) for cell in found] == [("batch 1", 2.1), ("batch 8", 2.6)]


def test_a_ratio_of_two_devices_is_of_their_own_rounds() -> None:
    (one, eight) = picked(claim("speed_up", **PAIR | {"engine": "cuda"}), FOUND)
    assert one.reading.value == pytest.approx(10)
    assert eight.reading.low is not None
    assert 9.7 < eight.reading.low < 10 < (eight.reading.high or 0) < 10.3  # t over three rounds of 1 %


def test_the_cpu_against_the_gpu_is_the_same_the_other_way_round() -> None:
    (one,) = picked(claim("speed_up", **PAIR | {"against_engine": "cuda"}, batch_sizes=(1,)), FOUND)
    assert one.reading.value == pytest.approx(0.1)


@pytest.mark.parametrize(
    "number", ["speed_up", "batch_gain", "weights_share", "price_gain", "energy_gain", "served_share"]
)
def test_without_a_card_every_cell_of_one_is_not_measured_here(number: str) -> None:
    chosen = {"variant": "fp32", "engine": "cuda"}
    if number in ("speed_up", "price_gain", "energy_gain"):
        chosen |= {"against_variant": "fp32", "against_engine": "cpu"}
    (cell,) = picked(claim(number, **chosen), CPU_ONLY, HERE)
    assert cell.reading.absent == NOT_MEASURED_HERE
    assert "no GPU" in (cell.reading.reason or "")


def test_a_batch_size_that_was_left_out_says_why() -> None:
    out = Omission("mlp", "fp32", "cpu", 32, "batch 32 was left out: a round of it takes 90 s")
    found = replace(CPU_ONLY, left_out=(out,))
    (cell,) = picked(claim("speed_up", **PAIR | {"variant": "int8"}, batch_sizes=(32,)), found)
    assert (cell.reading.absent, cell.reading.reason) == (NOT_RUN, out.reason)


@pytest.mark.parametrize(
    ("found", "absent", "reason"),
    [
        (Findings(left_out=(Omission("mlp", "int8", "cpu", None, "its load crashed"),)), NOT_RUN, "its load crashed"),
        (Findings(left_out=(Omission("mlp", "int8", "cpu", None, "cpu is not installed here"),)), NOT_MEASURED_HERE, "cpu is not installed here"),
        (Findings(not_run={"speeds of mlp": "mlp could not be made"}), NOT_RUN, "mlp could not be made"),
        (Findings(not_run={"speeds": "interrupted"}), NOT_RUN, "interrupted"),
        (Findings(), NOT_RUN, "int8 on cpu was not timed"),
    ],
)  # fmt: skip
def test_a_variant_that_did_not_run_says_why(found: Findings, absent: str, reason: str) -> None:
    (cell,) = picked(claim("speed_up", **PAIR | {"variant": "int8"}), found)
    assert (cell.reading.absent, cell.reading.reason) == (absent, reason)


def test_the_gain_of_batches_is_of_the_best_batch_size() -> None:
    (cell,) = picked(claim("batch_gain", variant="fp32", engine="cpu"), FOUND)
    assert cell.at == "8 against 1"
    assert cell.reading.value == pytest.approx(4)


def test_reading_the_weights_is_a_share_of_the_latency() -> None:
    bandwidth = Bandwidth("cpu", "NumPy", 2**28, (20e9, 20e9, 20e9), (10e9, 10e9))
    (cell,) = picked(claim("weights_share", variant="fp32", engine="cpu"), replace(FOUND, bandwidths=(bandwidth,)))
    assert cell.reading.value == pytest.approx(0.5)  # 5 ms of 10 ms
    (cell,) = picked(claim("weights_share", variant="fp32", engine="cpu"), FOUND)
    assert "bandwidth" in (cell.reading.reason or "")
    half = replace(bandwidth, copy=(10e9, 10e9, 10e9), triad=(), when="after")
    (cell,) = picked(claim("weights_share", variant="fp32", engine="cpu"), replace(FOUND, bandwidths=(bandwidth, half)))
    assert cell.reading.value == pytest.approx(0.75)
    assert (
        (cell.reading.low or 1) < 0.5 < 1 < (cell.reading.high or 0)
    )  # before and after differ: as far as either reaches
    failed = Bandwidth("gpu", "ONNX Runtime", reason="the copy failed")
    (cell,) = picked(claim("weights_share", variant="fp32", engine="cuda"), replace(FOUND, bandwidths=(failed,)))
    assert cell.reading.reason == "the copy failed"


def test_a_million_rows_cost_what_the_hour_costs_for_as_long_as_they_take() -> None:
    price = Price("cpu", "c", 3.6, "$", "list", "2026-01-01")
    assert prices_of_million(timed("fp32", "cpu", 10, 1.0), price)[0] == pytest.approx(
        100
    )  # 100,000 s at a thousandth of a dollar


def test_the_cheaper_device_is_found_at_the_best_batch_of_each() -> None:
    prices = (Price("cpu", "c", 0.2, "$", "l", "2026-01-01"), Price("gpu", "g", 0.8, "$", "l", "2026-01-01"))
    asked = claim("price_gain", variant="fp16", engine="cuda", against_variant="int8", against_engine="cpu")
    (cell,) = picked(asked, replace(FOUND, prices=prices))
    assert cell.reading.value == pytest.approx(8 / 4)  # eight times the rate for four times the price
    (cell,) = picked(asked, replace(FOUND, prices=prices[:1]))
    assert "price list" in (cell.reading.reason or "")
    assert len(cells(asked, replace(FOUND, prices=prices), WITH_CARD)) == 3  # both prices are told beside it


def test_joules_are_compared_where_each_side_takes_the_fewest_for_a_row() -> None:
    pair = {"variant": "fp16", "engine": "cuda", "against_variant": "int8", "against_engine": "cpu"}
    found = Findings(
        energies=(
            Energy("mlp", "fp16", "cuda", 1, (0.4, 0.4, 0.4), (1.0,) * 3),
            Energy("mlp", "fp16", "cuda", 128, (0.1, 0.1, 0.1), (1.0,) * 3),
            Energy("mlp", "int8", "cpu", 8, (0.3, 0.3, 0.3), (1.0,) * 3),
        )
    )
    (cell,) = picked(claim("energy_gain", **pair), found)
    assert cell.reading.value == pytest.approx(3.0)
    (cell,) = picked(claim("energy_gain", **pair | {"against_variant": "fp32"}), found)
    assert cell.reading.absent == NOT_MEASURED_HERE


def test_saved_gpu_hours_are_marked_as_simulated() -> None:
    runs = tuple(ScalingRun("tandem", seed, 1.0, 4.0, 0.99, 1.0, 2.0, 3.0) for seed in (1, 2))
    asked = Claim("a", "s", "s", "gpu_hours_saved", 0.1, policies=("tandem", "hold"))
    tandem, hold = picked(asked, Findings(simulated=runs))
    assert (tandem.at, tandem.reading.value) == ("simulated", 0.75)
    assert (hold.reading.absent, "simulated" in (hold.reading.reason or "")) == (NOT_RUN, True)


def test_the_served_share_is_taken_where_the_engine_itself_does_most() -> None:
    small, large = (
        ServingRates("mlp", "fp32", "cpu", 1, (90, 90), (100, 100)),
        ServingRates("mlp", "fp32", "cpu", 8, (80, 80), (200, 200)),
    )
    asked = claim("served_share", variant="fp32", engine="cpu")
    (cell,) = picked(asked, Findings(served=(small, large)))
    assert (cell.at, cell.reading.value) == ("batch 8", 0.4)
    (cell,) = picked(asked, Findings(served=(ServingRates("mlp", "fp32", "cpu", 1, reason="no start"),)))
    assert cell.reading.reason == "no start"


def test_what_is_served_on_two_pools_is_compared_one_row_at_a_time() -> None:
    cpu, gpu = ServingRates("mlp", "fp32", "cpu", 1, (300, 300)), ServingRates("mlp", "fp32", "gpu", 1, (200, 200))
    asked = claim("served_gain", variant="fp32", engine="cpu", against_variant="fp32", against_engine="cuda")
    (cell,) = picked(asked, Findings(served=(cpu, gpu)))
    assert cell.reading.value == 1.5
    (cell,) = picked(asked, Findings(served=(cpu,)), HERE)
    assert "no GPU" in (cell.reading.reason or "")


def test_trees_have_no_number_on_a_gpu_and_say_why() -> None:
    trees = EngineTime("boosted-trees", "fp32", "cpu", 1, 1, (0.0001, 0.0001))
    found = cells(Claim("a", "s", "s", "trees_latency", None, 0.001, batch_sizes=(1,)), Findings(speeds=(trees,)), HERE)
    assert (found[0].reading.value, found[0].unit) == (0.0001, "s")
    assert (found[-1].is_judged, found[-1].reading.absent) == (False, NOT_MEASURED_HERE)


def test_one_round_has_no_interval_and_none_no_number() -> None:
    assert median([2.0]) == Reading(2.0)
    assert apart([4.0, 4.0], [2.0, 2.0]) == paired([2.0, 2.0]) == Reading(2.0)  # nor of two
    with pytest.raises(ValueError, match="no rounds"):
        median([])
    with pytest.raises(ValueError, match="no rounds"):
        apart([], [2.0])


def test_three_rounds_hold_the_truth_as_often_as_they_say() -> None:
    """A percentile bootstrap of three calls two equal sides different in more than one case of four."""
    rng = np.random.default_rng(7)
    sides = rng.lognormal(0, 0.05, (1000, 2, 3)).tolist()
    found = [
        (apart(top, bottom), paired([a / b for a, b in zip(top, bottom, strict=True)]), median(top))
        for top, bottom in sides
    ]
    for each in zip(*found, strict=True):
        missed = sum(not (one.low or 0) <= 1 <= (one.high or 0) for one in each)
        assert 20 <= missed <= 80
