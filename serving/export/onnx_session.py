"""ONNX Runtime as an export uses it: bytes in, all outputs out, on the plain CPU provider, in batches; its errors in one line.

Engines that run elsewhere can stand in for `Session.run`: whatever takes one batch of inputs and gives all outputs. Timing is
`speed`'s. Rule: no other file here opens a session of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays, Run, filled, stacked
from serving.export.large_model import weights_of

VERSION: str = ort.__version__
_MAX_THREADS = 8  # guess, not measured: gates are not timed, and a build machine has other work


_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class CannotRun(UserError):
    """This file does not run on this batch. `reason` is ONNX Runtime's, `num_rows` the batch's."""

    def __init__(self, name: str, num_rows: int, reason: str) -> None:
        super().__init__(f"{name} does not run on a batch of {num_rows}: {reason}")
        self.name, self.num_rows, self.reason = name, num_rows, reason


def opened(model: bytes) -> Any:
    """Opens a session of ONNX Runtime that logs nothing. Raises whatever ONNX Runtime raises."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # it logs what it also raises, and advice
    options.enable_mem_pattern = False  # a batch's second run would take its memory once more: 3,834 MB for 2,465
    if weights := weights_of(model):
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights.path.parent))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Session:
    """An open ONNX file. `run` takes one batch."""

    def __init__(self, name: str, model: bytes) -> None:
        """Raises UserError where ONNX Runtime does not load it."""
        try:
            self._session = opened(model)
        except Exception as error:  # ONNX Runtime's classes share no root of their own
            raise UserError(f"{name}: {why_not_loaded(error)}") from None
        self.name = name

    @property
    def inputs(self) -> list[Any]:
        return list(self._session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        return list(self._session.get_outputs())

    def run(self, inputs: Arrays, options: Any = None) -> list[NDArray[Any]]:
        """Returns all outputs, in the file's order. Raises CannotRun. `options`: ONNX Runtime's own, of this run."""
        try:
            found = self._session.run(None, {name: _fed(values) for name, values in inputs.items()}, options)
        except Exception as error:
            if is_out_of_memory(error):
                raise EnvironmentFault(
                    f"there is not enough memory to run {self.name} on a batch of {_num_rows(inputs)}; "
                    "give a smaller --max-batch"
                ) from None
            raise CannotRun(self.name, _num_rows(inputs), why_not_run(error)) from None
        if any(not isinstance(values, np.ndarray) for values in found):
            raise UserError(f"{self.name}: an output is a list or a map, not a tensor; export it with tensors alone")
        return list(found)


def answers(model: bytes, inputs: Arrays, batch_size: int, name: str = "the model") -> list[NDArray[Any]]:
    """Computes all outputs for every row, [n, …] each. `batch_size` 0: the file has no batch dimension."""
    return in_batches(Session(name, model).run, inputs, batch_size, name)


def in_batches(run: Run, inputs: Arrays, batch_size: int, name: str = "the model") -> list[NDArray[Any]]:
    """Computes all outputs for every row, [n, …] each; shorter answers are filled up with zeros, where lengths depend on inputs.

    `batch_size` 0: `run` takes one row without a batch dimension. Raises CannotRun, and UserError where even ranks differ.
    """
    num_rows = _num_rows(inputs)
    if batch_size == 0:
        rows = [run({key: np.asarray(values[row]) for key, values in inputs.items()}) for row in range(num_rows)]
        return [_stacked(name, index, of_output) for index, of_output in enumerate(zip(*rows, strict=True))]
    batches = []
    for start in range(0, num_rows, batch_size):
        batch = {key: values[start : start + batch_size] for key, values in inputs.items()}
        batches.append([np.asarray(values) for values in run(batch)])
        _check_rows(name, _num_rows(batch), batches[-1])
    return joined(name, batches)


def _check_rows(name: str, num_rows: int, outputs: Sequence[NDArray[Any]]) -> None:
    for index, values in enumerate(outputs):
        if values.ndim == 0 or len(values) != num_rows:
            size = f"{len(values)} rows" if values.ndim else "one number"
            raise CannotRun(name, num_rows, f"its output {index} has {size} for {num_rows}")


def _stacked(name: str, index: int, of_output: Sequence[NDArray[Any]]) -> NDArray[Any]:
    try:
        return stacked([np.asarray(values) for values in of_output])
    except ValueError as error:
        raise UserError(f"{name}: output {index} has {error}, so that rows cannot be compared") from None


def joined(name: str, parts: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Outputs of batches [n, …] one below the other, filled up with zeros to the longest. Raises UserError where ranks differ."""
    whole = []
    for index, of_output in enumerate(zip(*parts, strict=True)):
        if len({values.ndim for values in of_output}) > 1:
            raise UserError(
                f"{name}: output {index} has another number of dimensions from batch to batch, so that rows cannot be compared"
            )
        longest = np.max([values.shape[1:] for values in of_output], axis=0) if of_output[0].ndim > 1 else ()
        whole.append(np.concatenate([filled(values, (len(values), *longest)) for values in of_output]))
    return whole


def _fed(values: NDArray[Any]) -> NDArray[Any]:
    """Turns text into objects: ONNX Runtime takes no other array of text for every shape."""
    return values.astype(object) if values.dtype.kind == "U" else np.asarray(values, order="C")


def _num_rows(inputs: Arrays) -> int:
    first = next(iter(inputs.values()))
    return len(first) if np.ndim(first) else 1


# -- its errors, in a line --------------------------------------------------------------------------------------------


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in ("allocate memory", "bad_alloc"))


def first_line(error: BaseException) -> str:
    """Returns the first line with words in it, without the source positions that C++ puts before them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = re.sub(r"\S+\.(?:cc|h|cpp):\d+:?\s*", "", lines[0]) if lines else type(error).__name__
    return line if len(line) <= 300 else f"{line[:297]}..."


# What ONNX Runtime says of a graph that it cannot load -> a sentence with the pattern's groups.
_REASONS = (
    (r"Could not find an implementation for (\S+?)\((\d+)\)", "ONNX Runtime {v} cannot run operator {0} of opset {1}"),
    (r"(\S+?)\(-?\d+\) is not a registered function/op", "ONNX Runtime {v} does not know operator {0}"),
    (r"No [Oo]p registered for (\S+)", "ONNX Runtime {v} does not know operator {0}"),
)


def why_not_loaded(error: Exception) -> str:
    words = str(error)
    for pattern, sentence in _REASONS:
        if match := re.search(pattern, words):
            node = re.search(r"node with name '([^']+)'", words)
            text = sentence.format(*match.groups(), v=ort.__version__)
            return f"{text} (node {node[1]})" if node else f"{text}: export the model without it"
    return f"ONNX Runtime {ort.__version__} cannot load it: {_plain(words)}"


def why_not_run(error: Exception) -> str:
    words = str(error)
    match = re.search(r"while running (\w+) node\. Name:'([^']*)' Status Message: (.*)", words, re.DOTALL)
    if not match:
        return _plain(words)
    node = f" (node {match[2]})" if match[2] else ""
    return f"operator {match[1]}{node}: {_plain(match[3])}"


def _plain(words: str) -> str:
    without = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)
    without = re.sub(r"^Load model from.*? failed:\s*", "", without)
    return first_line(Exception(re.sub(r"\S+\.(?:cc|h):\d+ .*?\)(?: \[\w.*?\])? (?=\S)", "", without, count=1)))
