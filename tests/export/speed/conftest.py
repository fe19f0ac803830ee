"""Real engines to run on, and a repository file to run."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

from serving.export.speed import EnginePython
from serving.repository import Repository

COMMITTED = Path(__file__).parents[3] / "model_repo"


@pytest.fixture(scope="session")
def here() -> EnginePython:
    """The plain engine, in this very Python."""
    return EnginePython("cpu", Path(sys.executable), onnxruntime.__version__)


@pytest.fixture(scope="session")
def both(here: EnginePython, openvino: EnginePython) -> dict[str, EnginePython]:
    return {"cpu": here, "openvino": openvino}


@pytest.fixture(scope="session")
def fp32_file() -> Path:
    return Repository(COMMITTED).variant("digits-fp32").model_path


@pytest.fixture(scope="session")
def int8_file() -> Path:
    return Repository(COMMITTED).variant("digits-int8").model_path
