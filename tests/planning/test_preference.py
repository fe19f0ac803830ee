"""What a measurement of speed must be like to count."""

from __future__ import annotations

import pytest

from serving.planning.preference import clear_ratio
from serving.repository import Speed

HERE = {"processor": "x86_64-avx512_vnni", "engine": "cpu", "engine_version": "1.31.1"}


def speed(low: float, ratio: float, high: float, **changes: object) -> Speed:
    fields = {**HERE, "batch_size": 1, "num_threads": 1, "latency_s": 1e-4, "fp32_latency_s": ratio * 1e-4}
    return Speed(**{**fields, **changes}, ratio=ratio, ratio_low=low, ratio_high=high, measured="2026-11-21")  # type: ignore[arg-type]


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
