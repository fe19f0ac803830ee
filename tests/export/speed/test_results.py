"""What follows from times: speeds for the record, best engines, verdicts and their reasons. Made-up times, nothing runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from serving.export.speed import Results
from serving.export.speed.results import Key
from serving.repository import NOT_USEFUL, PASSED

PLAIN: Key = ("fp32", "cpu")
FP32_OV: Key = ("fp32", "openvino")
INT8: Key = ("int8", "cpu")
INT8_OV: Key = ("int8", "openvino")
BF16: Key = ("bf16", "openvino")


def results(per_size: dict[int, dict[Key, float]], *, noise: float = 0.01, **more: Any) -> Results:
    """`per_size`: batch size -> milliseconds of each; five rounds of twenty turns with a little noise."""
    rng = np.random.default_rng(0)
    times = {
        size: [
            {key: ms * 1e-3 * np.exp(noise * rng.standard_normal(20)) for key, ms in entrants.items()} for _ in range(5)
        ]
        for size, entrants in per_size.items()
    }
    given = {
        "versions": {"cpu": "1.31.1", "openvino": "1.24.1", "cuda": "1.31.1"},
        "processors": {"cpu": "x86_64-avx2", "gpu": "NVIDIA Z1"},
        "num_threads": 2,
        "measured": "2026-11-21",
    }
    return Results(times=times, **{**given, **more})


def test_every_speed_is_beside_fp32_on_the_plain_engine() -> None:
    found = results({1: {PLAIN: 4, INT8: 2}, 8: {PLAIN: 30, INT8: 10}})
    one, eight = found.speeds(*INT8)
    assert (one.batch_size, eight.batch_size) == (1, 8)
    assert one.ratio_low < one.ratio < one.ratio_high
    assert one.ratio == pytest.approx(2, rel=0.05)
    assert eight.latency_s == pytest.approx(0.010, rel=0.05)
    assert eight.fp32_latency_s == pytest.approx(0.030, rel=0.05)
    assert (one.processor, one.engine, one.engine_version, one.baseline_engine) == (
        "x86_64-avx2",
        "cpu",
        "1.31.1",
        "cpu",
    )
    assert (one.num_threads, one.measured) == (2, "2026-11-21")


def test_fp32_on_the_plain_engine_is_one_exactly() -> None:
    [speed] = results({1: {PLAIN: 4, INT8: 2}}).speeds(*PLAIN)
    assert (speed.ratio_low, speed.ratio, speed.ratio_high) == (1, 1, 1)


def test_where_another_engine_runs_fp32_faster_there_is_a_second_speed_beside_that() -> None:
    found = results({1: {PLAIN: 4, FP32_OV: 2, INT8_OV: 1}, 8: {PLAIN: 4, FP32_OV: 5, INT8_OV: 1}})
    told = [(s.baseline_engine, s.batch_size, round(s.ratio, 1)) for s in found.speeds(*INT8_OV)]
    assert told == [("cpu", 1, 4.0), ("cpu", 8, 4.0), ("openvino", 1, 2.0)]
    assert {s.baseline_engine for s in found.speeds(*FP32_OV)} == {"cpu"}


def test_an_fp32_that_is_only_perhaps_faster_is_no_second_baseline() -> None:
    found = results({1: {PLAIN: 4, FP32_OV: 3.95, INT8_OV: 1}}, noise=0.2)
    assert {s.baseline_engine for s in found.speeds(*INT8_OV)} == {"cpu"}


def test_rounds_that_are_too_few_make_no_speed() -> None:
    times = {1: [{PLAIN: np.array([4.0] * 9), INT8: np.array([2.0] * 9)} for _ in range(2)]}
    found = Results(times, {"cpu": "1"}, {"cpu": "x86_64-avx2"}, 1, "2026-11-21")
    assert found.speeds(*INT8) == ()
    assert found.verdict("int8").status == NOT_USEFUL


def test_a_single_round_makes_no_speed_because_new_sessions_might_be_otherwise() -> None:
    times = {1: [{PLAIN: np.full(50, 4.0), INT8: np.full(50, 2.0)}]}
    found = Results(times, {"cpu": "1"}, {"cpu": "x86_64-avx2"}, 1, "2026-11-21")
    assert found.speeds(*INT8) == ()


def test_without_the_baseline_there_is_no_speed() -> None:
    found = results({1: {INT8: 2}}, left_out={PLAIN: "its load crashed (SIGSEGV)"})
    assert found.speeds(*INT8) == ()
    assert "(cpu: its load crashed (SIGSEGV))" in found.verdict("fp32").reason


def test_only_what_is_unknown_and_blurred_is_undecided() -> None:
    assert results(FASTER_EVERYWHERE, noise=0.3).undecided() == []
    assert results({1: {PLAIN: 4, INT8: 4}}, noise=0.01).undecided() == []
    [blurred] = results({1: {PLAIN: 4, INT8: 4, FP32_OV: 1}}, noise=0.5).undecided()
    assert re.match(r"int8 on cpu .*1 \(0\.", blurred)


# -- verdicts ---------------------------------------------------------------------------------------------------------

FASTER_EVERYWHERE = {1: {PLAIN: 4, INT8: 2}, 8: {PLAIN: 30, INT8: 20}}
VERDICTS = {
    "faster everywhere": (FASTER_EVERYWHERE, PASSED, "cpu", "faster than FP32, with ONNX Runtime's own provider on"),
    "faster at one size and the same at another": (
        {1: {PLAIN: 4, INT8: 4}, 8: {PLAIN: 30, INT8: 20}},
        PASSED,
        "cpu",
        "faster than FP32, with",
    ),
    "the same": ({1: {PLAIN: 4, INT8: 4}}, NOT_USEFUL, "cpu", "no clear gain over FP32, with"),
    "slower everywhere": ({1: {PLAIN: 4, INT8: 6}}, NOT_USEFUL, "cpu", "slower than FP32, with"),
    "faster at one size and slower at another": (
        {1: {PLAIN: 4, INT8: 6}, 8: {PLAIN: 30, INT8: 5}},
        NOT_USEFUL,
        "cpu",
        "slower than FP32 at some batch size, with",
    ),
    "faster than FP32 only where FP32 runs badly": (
        {1: {PLAIN: 4, FP32_OV: 1, INT8: 2, INT8_OV: 1.5}},
        NOT_USEFUL,
        "openvino",
        "slower than FP32 on its best engine (OpenVINO), with OpenVINO on",
    ),
    "faster than FP32 on its best engine, on another": (
        {1: {PLAIN: 4, FP32_OV: 2, INT8: 1, INT8_OV: 3}},
        PASSED,
        "cpu",
        "faster than FP32 on its best engine (OpenVINO), with ONNX Runtime's own provider on",
    ),
    "faster on both, more so on one": (
        {1: {PLAIN: 4, FP32_OV: 4, INT8: 2, INT8_OV: 1}},
        PASSED,
        "openvino",
        "faster than FP32, with OpenVINO on x86_64-avx2",
    ),
}


@pytest.mark.parametrize("what", VERDICTS)
def test_the_verdict_is_that_of_the_best_engine_beside_fp32s_best_engine(what: str) -> None:
    times, status, engine, reason = VERDICTS[what]
    gate = results(times).verdict("int8")
    assert (gate.status, gate.engine) == (status, engine)
    assert gate.reason.startswith(reason)


def test_the_reason_shows_both_ratios_where_fp32s_best_engine_is_not_the_plain_one() -> None:
    reason = results({1: {PLAIN: 8, FP32_OV: 4, BF16: 2}}, noise=1e-6).verdict("bf16").reason
    assert re.findall(r"ONNX Runtime|OpenVINO|x86_64-avx2|batch 1 \S+", reason) == [
        "OpenVINO",
        "OpenVINO",
        "x86_64-avx2",
        "batch 1 2.00x",
        "ONNX Runtime",
        "batch 1 4.00x",
    ]


@pytest.mark.parametrize(
    ("fp32_ms", "engine", "ratios"),
    [
        ({PLAIN: 4}, "cpu", []),
        ({PLAIN: 4, FP32_OV: 8}, "cpu", ["batch 1 0.50x (0.50..0.50)"]),
        ({PLAIN: 4, FP32_OV: 2}, "openvino", ["batch 1 2.00x (2.00..2.00)"]),
    ],
)
def test_fp32_passes_with_its_best_engine(fp32_ms: dict[Key, float], engine: str, ratios: list[str]) -> None:
    gate = results({1: fp32_ms}, noise=1e-6).verdict("fp32")
    assert (gate.status, gate.engine) == (PASSED, engine)
    assert re.findall(r"batch 1 \S+ \S+\)", gate.reason) == ratios


def test_a_variant_that_ran_nowhere_is_not_useful_and_the_reasons_are_told() -> None:
    out = {INT8: "its load took too long", INT8_OV: "OpenVINO computes no node of this model", BF16: "no BF16"}
    gate = results({1: {PLAIN: 4}}, left_out=out).verdict("int8")
    assert gate.status == NOT_USEFUL
    why_not = [f"{engine}: {why}" for (variant, engine), why in out.items() if variant == "int8"]
    assert gate.reason == f"not timed ({'; '.join(why_not)})"


def test_on_a_card_the_plain_engine_is_cuda_and_the_processor_is_the_card() -> None:
    found = results({8: {PLAIN: 400, ("fp32", "cuda"): 4, ("fp16", "cuda"): 2}})
    [speed] = found.speeds("fp16", "cuda")
    assert (speed.processor, speed.baseline_engine, round(speed.ratio, 1)) == ("NVIDIA Z1", "cuda", 2.0)
    gate = found.verdict("fp16", "gpu")
    assert (gate.status, gate.engine) == (PASSED, "cuda")
    assert "on NVIDIA Z1: batch 8" in gate.reason
    assert found.verdict("fp16").reason == "not timed"


def test_of_several_candidates_the_fastest_is_that_with_the_fastest_engine() -> None:
    found = results({1: {PLAIN: 4, ("int8 a", "cpu"): 2, ("int8 b", "cpu"): 3, ("int8 b", "openvino"): 1}})
    assert found.fastest(["int8 a", "int8 b"]) == "int8 b"
    assert found.fastest(["int8 a", "nobody"]) == "int8 a"
    assert found.fastest(["nobody"]) is None
