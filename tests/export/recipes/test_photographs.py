"""Views of photographs: as many as asked, always the same, whole, and none of the gate's among calibration's."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from serving.export.recipes import photographs


@pytest.fixture(scope="module")
def gate() -> list[bytes]:
    return photographs.gate(5)


@pytest.fixture(scope="module")
def calibration() -> list[bytes]:
    return photographs.calibration(5)


def decoded(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


@pytest.mark.thorough
def test_views_are_the_same_every_time_and_never_twice(gate: list[bytes], calibration: list[bytes]) -> None:
    assert photographs.gate(4) == gate[:4]
    assert len(set(gate)) == 5
    assert not set(gate) & set(calibration)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [photographs._GATE, photographs._CALIBRATION])
def test_turning_leaves_no_black_corners(kind: photographs._Kind) -> None:
    white = Image.new("RGB", (640, 427), (255, 255, 255))
    random = np.random.default_rng(0)
    for _ in range(50):
        view = np.asarray(photographs._view(white, kind, random))
        assert view.shape[0] == view.shape[1]
        assert view.min() == 255


@pytest.mark.thorough
def test_the_gate_looks_at_nearly_all_and_calibration_at_parts(gate: list[bytes], calibration: list[bytes]) -> None:
    assert min(decoded(file).shape[0] for file in gate) > 427 * 0.8
    assert max(decoded(file).shape[0] for file in calibration) < 427 * 0.86
