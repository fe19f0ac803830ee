"""Views of photographs: as many as asked, always the same, whole, and none of the gate's among calibration's."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from serving.export.recipes import photographs


def decoded(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


def test_views_are_the_same_every_time_and_never_twice() -> None:
    assert photographs.gate(6) == photographs.gate(6)
    assert photographs.gate(4) == photographs.gate(6)[:4]
    assert len(set(photographs.gate(12))) == 12
    assert not set(photographs.gate(12)) & set(photographs.calibration(12))


@pytest.mark.parametrize("kind", [photographs._GATE, photographs._CALIBRATION])
def test_turning_leaves_no_black_corners(kind: photographs._Kind) -> None:
    white = Image.new("RGB", (640, 427), (255, 255, 255))
    random = np.random.default_rng(0)
    for _ in range(50):
        view = np.asarray(photographs._view(white, kind, random))
        assert view.shape[0] == view.shape[1]
        assert view.min() == 255


def test_the_gate_looks_at_nearly_all_and_calibration_at_parts() -> None:
    smallest = min(decoded(file).shape[0] for file in photographs.gate(20))
    assert smallest > 427 * 0.8
    assert max(decoded(file).shape[0] for file in photographs.calibration(20)) < 427 * 0.86
