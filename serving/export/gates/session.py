"""ONNX Runtime as the gates use it: bytes in, all outputs out, on the plain CPU provider, in batches.

Engines that run elsewhere can stand in for it: whatever takes one batch of inputs and gives all outputs. Rule: errors of
ONNX Runtime leave here as ours, in one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays, Run

_MAX_THREADS = 8  # guess, not measured: gates are not timed, and a build machine has other work


class CannotRun(UserError):
    """This file does not run on this batch. `reason` is ONNX Runtime's, `num_rows` the batch's."""

    def __init__(self, name: str, num_rows: int, reason: str) -> None:
        super().__init__(f"{name} does not run on a batch of {num_rows}: {reason}")
        self.name, self.num_rows, self.reason = name, num_rows, reason


class Session:
    """An open file. `run` takes one batch."""

    def __init__(self, name: str, model: bytes) -> None:
        """UserError where ONNX Runtime does not load it."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4  # what is wrong becomes our own message
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's classes share no root of their own
            raise UserError(
                f"{name}: ONNX Runtime {ort.__version__} does not load the file: {first_line(error)}"
            ) from None
        self.name = name

    @property
    def inputs(self) -> list[Any]:
        return list(self._session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        return list(self._session.get_outputs())

    def run(self, inputs: Arrays) -> list[NDArray[Any]]:
        """All outputs, in the file's order. Raises CannotRun."""
        try:
            found = self._session.run(None, {name: _fed(values) for name, values in inputs.items()})
        except Exception as error:
            reason = first_line(error)
            if isinstance(error, MemoryError) or "allocate memory" in reason or "bad_alloc" in reason:
                raise EnvironmentFault(
                    f"there is not enough memory to run {self.name} on a batch of {_num_rows(inputs)}; "
                    "give a smaller --max-batch"
                ) from None
            raise CannotRun(self.name, _num_rows(inputs), reason) from None
        if any(not isinstance(values, np.ndarray) for values in found):
            raise UserError(f"{self.name}: an output is a list or a map, not a tensor; export it with tensors alone")
        return list(found)


def answers(model: bytes, inputs: Arrays, batch_size: int, name: str = "the model") -> list[NDArray[Any]]:
    """All outputs for every row, [n, …] each. `batch_size` 0: the file has no batch dimension."""
    return in_batches(Session(name, model).run, inputs, batch_size, name)


def in_batches(run: Run, inputs: Arrays, batch_size: int, name: str = "the model") -> list[NDArray[Any]]:
    """All outputs for every row, [n, …] each. `batch_size` 0: `run` takes one row without a batch dimension."""
    num_rows = _num_rows(inputs)
    if batch_size == 0:
        rows = [run({key: np.asarray(values[row]) for key, values in inputs.items()}) for row in range(num_rows)]
        return _joined(name, [[np.asarray(values)[None] for values in outputs] for outputs in rows])
    batches = []
    for start in range(0, num_rows, batch_size):
        batch = {key: values[start : start + batch_size] for key, values in inputs.items()}
        batches.append([np.asarray(values) for values in run(batch)])
        _check_rows(name, _num_rows(batch), batches[-1])
    return _joined(name, batches)


def _check_rows(name: str, wanted: int, outputs: Sequence[NDArray[Any]]) -> None:
    for index, values in enumerate(outputs):
        if values.ndim == 0 or len(values) != wanted:
            told = f"{len(values)} rows" if values.ndim else "one number"
            raise CannotRun(name, wanted, f"its output {index} has {told} for {wanted}")


def _joined(name: str, parts: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    joined = []
    for index in range(len(parts[0])):
        of_output = [part[index] for part in parts]
        if len(shapes := sorted({values.shape[1:] for values in of_output})) > 1:
            raise UserError(
                f"{name}: output {index} is {list(shapes[0])} for one row and {list(shapes[-1])} for another, so that "
                "rows cannot be compared; give inputs of one length"
            )
        joined.append(np.concatenate(of_output))
    return joined


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _fed(values: NDArray[Any]) -> NDArray[Any]:
    """Text goes in as objects: ONNX Runtime takes no other array of it for every shape."""
    return values.astype(object) if values.dtype.kind == "U" else np.asarray(values, order="C")


def _num_rows(inputs: Arrays) -> int:
    first = next(iter(inputs.values()))
    return len(first) if np.ndim(first) else 1
