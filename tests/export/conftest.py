"""The committed digits in a repository of one's own, its exact content, and the held-out images without scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.decisions.engines import EnginePython
from serving.export import pool_gates
from serving.export.data.dataset import Dataset
from serving.export.data.npz import read_npz
from serving.export.gates.file import Interface
from serving.export.progress import Progress
from serving.export.speed.results import Entrant, Results
from serving.local.environments import ENGINES
from serving.measure.machine import processor_key
from serving.repository import Repository
from tests.committed import copy_committed
from tests.home import in_users_cache

MODEL_FILE = "1/model.onnx"  # of every committed variant
ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "model_repo"
PAYLOAD = ROOT / "loadtest" / "payloads" / "digits.npz"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return copy_committed(tmp_path / "model_repo")


@pytest.fixture
def content() -> Callable[[Path], dict[str, bytes]]:
    """Path -> bytes of every file below a directory, the writers' lock left out."""

    def read(directory: Path) -> dict[str, bytes]:
        files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".tandem-lock")
        return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}

    return read


def by_size(entrants: Sequence[Entrant], *, batch_sizes: Sequence[int], progress: Progress, **_: Any) -> Results:
    """Stands in for the contest of files: each takes as long as it is large."""
    progress("timing", 1, 1)
    one_round = {entrant.key: np.full(3, entrant.model.stat().st_size * 1e-9) for entrant in entrants}
    versions = {entrant.engine: "1.0" for entrant in entrants}
    return Results(
        dict.fromkeys(batch_sizes, [one_round] * pool_gates.MIN_ROUNDS),
        versions,
        {"cpu": processor_key()},
        1,
        "2026-01-01",
    )


@pytest.fixture(scope="module")
def untimed() -> Iterator[None]:
    """Exports take no time for timing, which tests/export/speed is about and one export here and there does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_gates, "contest", by_size)
        yield


@pytest.fixture(scope="session")
def openvino() -> EnginePython:
    """In its own environment, made once in the user's cache (100 MB of wheels)."""
    made = in_users_cache(ENGINES["openvino"])
    return EnginePython("openvino", made.python, made.engine_version)


@pytest.fixture(scope="session")
def fp32() -> bytes:
    return (COMMITTED / "digits-fp32" / MODEL_FILE).read_bytes()


@pytest.fixture(scope="session")
def interface() -> Interface:
    record = Repository(COMMITTED).variant("digits-fp32").record
    return Interface(record.inputs, record.outputs, record.max_batch_size)


@pytest.fixture(scope="session")
def held_out(interface: Interface) -> Dataset:
    return read_npz(PAYLOAD, interface.inputs, 10)
