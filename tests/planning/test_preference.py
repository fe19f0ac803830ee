"""Which variant answers by default: a table, and what a measurement must be like to count."""

from __future__ import annotations

from itertools import permutations

import pytest

from serving.planning.preference import Candidate, clear_ratio, order, preferred
from serving.repository import Speed

HERE = {"processor": "x86_64-avx512_vnni", "engine": "cpu", "engine_version": "1.31.1"}

FP32 = Candidate("fp32", "passed", None)
UNMEASURED = Candidate("int8", "passed", None)
FAST = Candidate("int8", "passed", 1.8)
FASTER = Candidate("bf16", "passed", 2.4)


def speed(low: float, ratio: float, high: float, **changes: object) -> Speed:
    fields = {**HERE, "batch_size": 1, "num_threads": 1, "latency_s": 1e-4, "fp32_latency_s": ratio * 1e-4}
    return Speed(**{**fields, **changes}, ratio=ratio, ratio_low=low, ratio_high=high, measured="2026-11-21")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidates", "winner"),
    [
        pytest.param([], None, id="nothing loaded"),
        pytest.param([FP32], "fp32", id="only FP32"),
        pytest.param([FP32, UNMEASURED], "fp32", id="unmeasured stays behind FP32"),
        pytest.param([FP32, FAST], "int8", id="measured faster wins"),
        pytest.param([FP32, FAST, FASTER], "bf16", id="the fastest wins"),
        pytest.param([FP32, Candidate("int8", "passed", 1.0)], "fp32", id="a ratio of one is no gain"),
        pytest.param([FP32, Candidate("int8", "passed", 0.4)], "fp32", id="slower loses"),
        pytest.param([FP32, Candidate("int8", "refused", 9.0)], "fp32", id="refused never wins, however fast"),
        pytest.param([FP32, Candidate("fp16", "not_allowed", 9.0)], "fp32", id="not allowed never wins"),
        pytest.param([FP32, Candidate("int8", "surprise", 9.0)], "fp32", id="a status it does not know never wins"),
        pytest.param([FP32, Candidate("int8", "not_useful", None)], "fp32", id="not useful and unmeasured here"),
        pytest.param([FP32, Candidate("int8", "not_useful", 1.8)], "int8", id="not useful there, faster here"),
        pytest.param([Candidate("int8", "not_useful", None)], None, id="not useful is no stand-in for FP32"),
        pytest.param([UNMEASURED], "int8", id="unmeasured stands in where FP32 is not loaded"),
        pytest.param([Candidate("fp32", "refused", None), UNMEASURED], "int8", id="a refused FP32 is none"),
        pytest.param(
            [Candidate("int8", "passed", 2.0), Candidate("bf16", "passed", 2.0)], "bf16", id="a tie goes by name"
        ),
    ],
)
def test_the_default_variant(candidates: list[Candidate], winner: str | None) -> None:
    for arrangement in permutations(candidates):
        choice = preferred(arrangement)
        assert (choice.variant if choice else None) == winner


def test_the_order_has_the_fast_ones_first_then_fp32_then_the_unmeasured_each_with_a_reason() -> None:
    choices = order([UNMEASURED, FP32, Candidate("fp16", "passed", 1.2), FASTER])
    assert [choice.variant for choice in choices] == ["bf16", "fp16", "fp32", "int8"]
    assert choices[0].reason == "measured 2.40 times as fast as FP32 here"
    assert all(choice.reason for choice in choices)


@pytest.mark.parametrize(
    ("speeds", "ratio"),
    [
        pytest.param([], None, id="nothing measured"),
        pytest.param([speed(1.4, 1.5, 1.6)], 1.5, id="clears one"),
        pytest.param([speed(0.99, 1.5, 1.6)], None, id="the interval holds one"),
        pytest.param([speed(1.0, 1.5, 1.6)], None, id="the interval touches one"),
        pytest.param([speed(1.4, 1.5, 1.6), speed(1.9, 2.0, 2.1, batch_size=8)], 2.0, id="the best batch size counts"),
        pytest.param(
            [speed(0.9, 1.0, 1.1), speed(1.9, 2.0, 2.1, batch_size=8)], 2.0, id="unclear at one size does no harm"
        ),
        pytest.param(
            [speed(0.7, 0.8, 0.9), speed(1.9, 2.0, 2.1, batch_size=8)], None, id="a clear loss at one size does"
        ),
        pytest.param([speed(1.4, 1.5, 1.6, processor="x86_64-avx2")], None, id="another processor"),
        pytest.param([speed(1.4, 1.5, 1.6, engine="openvino")], None, id="another engine"),
        pytest.param([speed(1.4, 1.5, 1.6, engine_version="1.30.0")], None, id="another version of the engine"),
        pytest.param(
            [speed(0.7, 0.8, 0.9, processor="x86_64-avx2"), speed(1.4, 1.5, 1.6)],
            1.5,
            id="a loss elsewhere is no loss here",
        ),
    ],
)
def test_a_gain_counts_only_if_it_is_clear_and_measured_here(speeds: list[Speed], ratio: float | None) -> None:
    assert clear_ratio(speeds, **HERE) == ratio
