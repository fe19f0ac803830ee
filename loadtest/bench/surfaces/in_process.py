"""ONNX Runtime in this very process, set up as Triton's backend sets it up: the other side of embeddings and classification.

The project's own environment has the same release of it as Triton's (both are pinned). Rule: threads and spinning are what Triton's
configuration says, or the two sides are not comparable.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.surfaces.part import NUM_THREADS


class Session:
    """One model file, one run at a time, as one instance has it. Called with arrays by name, gives the first output."""

    def __init__(self, file: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]  # takes 0.2 s, which parts that need it wait for

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = NUM_THREADS
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._one_at_a_time = threading.Lock()

    def __call__(self, arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        with self._one_at_a_time:
            (first, *_) = self._session.run(None, arrays)
        given: NDArray[np.float32] = first
        return given
