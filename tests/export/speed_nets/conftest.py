"""Each net is drawn once for all tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from serving.export.exported_model import ExportedModel
from serving.export.speed_nets import load

Made = Callable[[str], ExportedModel]


@pytest.fixture(scope="session")
def made() -> Made:
    return functools.cache(lambda name: load(name))


def num_parameters(model: bytes) -> int:
    """Counts weights and biases: what a table of models calls its parameters. Integers are shapes and indices."""
    initializers = onnx.load_from_string(model).graph.initializer
    return sum(int(np.prod(values.dims)) for values in initializers if values.data_type == onnx.TensorProto.FLOAT)
