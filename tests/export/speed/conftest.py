"""Real engines to run on, and a repository file to run."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

from serving.export.speed import EnginePython
from serving.local.environments import ENGINES, ensure
from serving.repository import Repository

COMMITTED = Path(__file__).parents[3] / "model_repo"


@pytest.fixture(scope="session")
def here() -> EnginePython:
    """The plain engine, in this very Python."""
    return EnginePython("cpu", Path(sys.executable), onnxruntime.__version__)


@pytest.fixture(scope="session")
def both(here: EnginePython) -> dict[str, EnginePython]:
    """With OpenVINO's own environment, made once in the user's cache (100 MB of wheels)."""
    made = ensure(ENGINES["openvino"])
    return {"cpu": here, "openvino": EnginePython("openvino", made.python, made.engine_version)}


@pytest.fixture(scope="session")
def fp32_file() -> Path:
    return Repository(COMMITTED).variant("digits-fp32").model_path


@pytest.fixture(scope="session")
def int8_file() -> Path:
    return Repository(COMMITTED).variant("digits-int8").model_path
