"""What a measurement of speed must be like to count, which engine it speaks for, and what FP32 it is a gain over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.decisions.engines import best_at, best_engine, clear_ratio, gains, here
from serving.repository import Speed

KEY = "x86_64-avx512_vnni"
VERSIONS = {"cpu": "1.31.1", "openvino": "1.24.1"}


def speed(low: float, ratio: float, high: float, batch_size: int = 1, **changes: object) -> Speed:
    """On the plain engine, beside FP32 on the plain engine, unless said otherwise."""
    fields = {"processor": KEY, "engine": "cpu", "engine_version": None, "baseline_engine": "cpu", "num_threads": 1}
    fields |= {"latency_s": 1e-4, "fp32_latency_s": ratio * 1e-4, "measured": "2026-11-21", **changes}
    fields["engine_version"] = fields["engine_version"] or VERSIONS.get(str(fields["engine"]), "1")
    return Speed(**fields, batch_size=batch_size, ratio=ratio, ratio_low=low, ratio_high=high)  # type: ignore[arg-type]


def about(ratio: float, batch_size: int = 1, **changes: object) -> Speed:
    """Known to one per cent."""
    return speed(ratio * 0.99, ratio, ratio * 1.01, batch_size, **changes)


def openvino(ratio: float, batch_size: int = 1, **changes: object) -> Speed:
    return about(ratio, batch_size, engine="openvino", **changes)


# -- what counts here -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"processor": "x86_64-avx2"}, id="another processor"),
        pytest.param({"engine_version": "1.30.0"}, id="another version of the engine"),
        pytest.param({"engine": "cuda"}, id="an engine that is not installed"),
        pytest.param({"baseline_engine": "tensorrt"}, id="beside FP32 on an engine that is not installed"),
    ],
)
def test_what_was_measured_elsewhere_says_nothing_here(elsewhere: dict[str, object]) -> None:
    near = about(1.5)
    assert here([about(2.0, **elsewhere), near], processor=KEY, versions=VERSIONS) == {"cpu": (near,)}


def test_measurements_are_sorted_by_their_engine() -> None:
    rows = [about(1.5), openvino(2.0), about(1.6, 8), openvino(1.9, baseline_engine="openvino")]
    found = here(rows, processor=KEY, versions=VERSIONS)
    assert found == {"cpu": (rows[0], rows[2]), "openvino": (rows[1], rows[3])}


# -- which engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "other", "best"),
    [
        pytest.param([], [], None, id="nothing measured"),
        pytest.param([about(2)], [], "cpu", id="only the plain one"),
        pytest.param([], [openvino(0.5)], "openvino", id="only another, whatever it is worth"),
        pytest.param([about(2)], [openvino(3)], "openvino", id="clearly faster"),
        pytest.param([about(2)], [openvino(1)], "cpu", id="clearly slower"),
        pytest.param([about(2)], [openvino(2.01)], "cpu", id="faster, but within the intervals"),
        pytest.param([about(2), about(2, 8)], [openvino(2.2), openvino(2.01, 8)], "openvino", id="clear at one size"),
        pytest.param([about(2), about(2, 8)], [openvino(2.2), openvino(1.83, 8)], "cpu", id="clear at one size only"),
        pytest.param([about(2), about(2, 8)], [openvino(4), openvino(0.5, 8)], "cpu", id="more lost than won"),
        pytest.param([about(2), about(2, 8)], [openvino(6), openvino(1.5, 8)], "openvino", id="more won than lost"),
        pytest.param([about(2)], [openvino(9, 8)], "cpu", id="no batch size in common"),
        pytest.param([about(2)], [openvino(9, baseline_engine="openvino")], "cpu", id="another denominator"),
    ],
)
def test_the_plain_engine_is_left_only_for_one_that_is_clearly_faster(
    plain: list[Speed], other: list[Speed], best: str | None
) -> None:
    assert best_engine({"cpu": plain, "openvino": other}, "cpu") == best


@pytest.mark.parametrize(("ratio", "best"), [(1.8, "openvino"), (0.8, "cpu"), (1.005, "cpu")])
def test_fp32_on_the_plain_engine_is_the_measure_and_needs_no_measurement(ratio: float, best: str) -> None:
    assert best_engine({"openvino": [openvino(ratio)]}, "cpu", is_baseline=True) == best


def test_fp32_that_nobody_measured_has_no_best_engine() -> None:
    assert best_engine({}, "cpu", is_baseline=True) is None


# -- beside FP32 on its best engine -----------------------------------------------------------------------------------


def test_without_a_faster_engine_the_gain_is_that_over_the_plain_one() -> None:
    [gain] = gains([about(1.5)], {"openvino": [openvino(0.9)]}, "cpu")
    assert (gain.ratio, gain.baseline_engine) == (1.5, "cpu")


def test_a_gain_over_an_engine_that_is_used_badly_is_no_gain() -> None:
    fp32 = {"openvino": [openvino(2.0)]}
    [gain] = gains([about(1.5)], fp32, "cpu")
    assert (round(gain.ratio, 3), gain.baseline_engine) == (0.75, "openvino")
    assert clear_ratio([gain]) is None


def test_what_ran_side_by_side_counts_before_what_is_computed_from_two_ratios() -> None:
    rows = [openvino(3.0), openvino(1.7, baseline_engine="openvino")]
    [gain] = gains(rows, {"openvino": [openvino(2.0)]}, "cpu")
    assert gain.ratio == 1.7


def test_a_ratio_of_two_ratios_has_the_widest_interval_that_both_allow() -> None:
    [gain] = gains([speed(2.8, 3.0, 3.2)], {"openvino": [speed(1.9, 2.0, 2.1, engine="openvino")]}, "cpu")
    assert (gain.ratio_low, gain.ratio, gain.ratio_high) == (2.8 / 2.1, 1.5, 3.2 / 1.9)


def test_fp32s_best_engine_is_another_at_every_batch_size() -> None:
    fp32 = {"openvino": [openvino(2.0, 1), openvino(0.9, 8), speed(0.9, 1.3, 1.7, 32, engine="openvino")]}
    assert [best_at(size, fp32, "cpu") for size in (1, 8, 32, 64)] == [fp32["openvino"][0], None, None, None]
    found = gains([about(3.0, 1), about(3.0, 8)], fp32, "cpu")
    assert [(g.batch_size, round(g.ratio, 2), g.baseline_engine) for g in found] == [
        (1, 1.5, "openvino"),
        (8, 3.0, "cpu"),
    ]


# -- whether it is one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "ratio"),
    [
        pytest.param([], None, id="nothing measured"),
        pytest.param([speed(1.4, 1.5, 1.6)], 1.5, id="clears one"),
        pytest.param([speed(0.99, 1.5, 1.6)], None, id="the interval holds one"),
        pytest.param([speed(1.0, 1.5, 1.6)], None, id="the interval touches one"),
        pytest.param([speed(1.4, 1.5, 1.6), speed(1.9, 2.0, 2.1, 8)], 2.0, id="the best batch size counts"),
        pytest.param([speed(0.9, 1.0, 1.1), speed(1.9, 2.0, 2.1, 8)], 2.0, id="unclear at one size does no harm"),
        pytest.param([speed(0.7, 0.8, 0.9), speed(1.9, 2.0, 2.1, 8)], None, id="a clear loss at one size does"),
    ],
)
def test_a_gain_counts_only_if_it_is_clear(rows: list[Speed], ratio: float | None) -> None:
    assert clear_ratio(gains(rows, {}, "cpu")) == ratio


ratios = st.floats(0.1, 9.0)


@given(ratios, ratios, ratios)
def test_a_variant_is_a_gain_only_if_it_beats_fp32_on_every_engine(plain: float, other: float, fp32: float) -> None:
    known = {"cpu": [about(plain)], "openvino": [openvino(other)]}
    baseline = {"openvino": [openvino(fp32)]}
    engine = best_engine(known, "cpu")
    assert engine is not None
    ratio = clear_ratio(gains(known[engine], baseline, "cpu"))
    if ratio is not None:
        assert max(plain, other) > max(1.0, fp32)
