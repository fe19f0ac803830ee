"""What does an engine answer, in its own Python? For gates: a file that is right on one engine may be wrong on another.

Timing is `contest`'s. Rule: what goes wrong over there is an EnvironmentFault or a UserError here, in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.decisions.engines import EnginePython
from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays, Run
from serving.export.scratch import scratch, writing_into
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefused

TIMEOUT_S = 600.0  # of one batch: loading a large file included (guess, not measured)


@contextmanager
def running(engine: EnginePython, model: bytes, precision: str, num_threads: int = 1) -> Iterator[Run]:
    """A function from one batch of inputs to all outputs, as long as the block runs."""
    with scratch("answers") as folder, _worker(engine) as worker:
        file, inputs, outputs = (Path(folder, name) for name in ("model.onnx", "in.npz", "out.npz"))
        with writing_into(folder):
            file.write_bytes(model)
        how = {"engine": engine.engine, "precision": precision, "num_threads": num_threads, "allow_spinning": False}
        _ask(worker, how, "open", file=str(file), inputs=None, **how)

        def run(batch: Arrays) -> list[NDArray[Any]]:
            arrays: Any = {name: _plain(values) for name, values in batch.items()}
            with writing_into(folder):
                np.savez(inputs, **arrays)
            _ask(worker, how, "run", inputs=str(inputs), outputs=str(outputs))
            with np.load(outputs) as found:
                return [found[str(place)] for place in range(len(found.files))]

        yield run


@contextmanager
def _worker(engine: EnginePython) -> Iterator[WorkerProcess]:
    try:
        worker = WorkerProcess(engine)
    except WorkerLost as loss:
        raise EnvironmentFault(str(loss)) from None
    try:
        yield worker
    finally:
        worker.end()


def _ask(worker: WorkerProcess, how: Mapping[str, object], do: str, **command: object) -> None:
    try:
        worker.ask(TIMEOUT_S, do, name="model", **command)
    except WorkerRefused as refusal:
        raise UserError(f"{how['engine']} does not run {how['precision']}: {refusal}") from None
    except WorkerLost as loss:
        raise EnvironmentFault(f"{how['engine']} running {how['precision']} {loss}") from None


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Text without pickles."""
    return values.astype(str) if values.dtype.kind == "O" else values
