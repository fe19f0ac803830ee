"""How far answers are from each other, row by row, as those who watch served answers ask."""

from __future__ import annotations

import numpy as np
import pytest

from serving.export.gates.likeness import METRICS, losses
from serving.repository import OTHER

SOME = [np.zeros((3, 2), np.float32)]


@pytest.mark.parametrize("task", [*METRICS, OTHER])
def test_answers_without_outputs_have_no_rows_and_are_as_far_as_can_be_from_those_that_have(task: str) -> None:
    assert losses(task, [], []) == []
    assert losses(task, [], SOME) == losses(task, SOME, []) == [1.0, 1.0, 1.0]
