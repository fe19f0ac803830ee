"""An ONNX graph on inputs that it can be run on: with a batch dimension where its answers prove one, else without.

Tried in the order of what is worth most; the user's example counts before made-up inputs, whose runs are bounded in memory and
time. Rule: `has_batch` is True only where three rows together were answered as each of them alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import EnvironmentFault, UserError
from serving.export.dimensions import Lengths, Place
from serving.export.exported_model import Arrays, SourceOptions, fits, num_rows
from serving.export.gates.file import row_limit
from serving.export.gates.lengths import each_row
from serving.export.onnx_parts import nodes_of, tensors
from serving.export.onnx_session import CannotRun, Session
from serving.export.sources.graphs import batching, examples
from serving.export.sources.graphs.onnx_model import Port, finished, input_ports, output_ports, random_operators
from serving.repository import Tensor
from serving.repository.preprocessing import ImagePreprocessing

_SAME = 1e-3  # of an output's scale: threads may add in another order, random numbers do far more
MAX_BYTES = 2 * 2**30  # of memory for made-up inputs: what nobody chose must not take the machine (guess)
MAX_RUN_S = 60.0  # of one run of them (guess)
_POLL_S = 0.02
BATCH = 3  # neither 1 nor a power of two, which kernels may treat as special


class RunFailed(Exception):
    """The graph loads but does not run on these inputs. The message is one line."""


class Trial:
    """One loaded graph."""

    def __init__(self, model: bytes, name: str, *, is_bounded: bool = False) -> None:
        """Raises UserError where ONNX Runtime cannot load the graph. `name` is what messages call it.

        `is_bounded`: the inputs are made up, and a run that takes too much memory or time is ended.
        """
        self._name, self._is_bounded = name, is_bounded
        self.bytes_per_row = 0  # that running one row at a time took, roughly
        self._session = Session(name, model)
        self._start_bytes = _resident_bytes()
        self.outputs: tuple[str, ...] = tuple(output.name for output in self._session.outputs)

    def run(self, inputs: Arrays) -> list[NDArray[Any]]:
        """All outputs. Raises RunFailed, and UserError where they take too much."""
        options, ended = onnxruntime.RunOptions(), list[str]()
        try:
            with self._bounded(options, ended):
                return self._session.run(inputs, options)
        except EnvironmentFault:
            raise self._too_large(inputs, "more memory than there is") from None
        except CannotRun as error:
            if ended:
                raise self._too_large(inputs, ended[0]) from None
            raise RunFailed(error.reason) from None

    def _too_large(self, inputs: Arrays, what: str) -> UserError:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in inputs.items())
        if not self._is_bounded:
            return UserError(f"{self._name} takes {what} to run on {shapes}: give smaller inputs")
        return UserError(
            f"{self._name} takes {what} to run on made-up inputs ({shapes}): give real ones with --data or --example"
        )

    @contextmanager
    def _bounded(self, options: Any, ended: list[str]) -> Iterator[None]:
        """Watches the run in the block from a second thread, which ends it between two operators."""
        if not self._is_bounded:
            yield
            return
        is_done, until = threading.Event(), time.monotonic() + MAX_RUN_S

        def watch() -> None:
            while not is_done.wait(_POLL_S):
                if _resident_bytes() - self._start_bytes > MAX_BYTES:
                    ended.append(f"more than {MAX_BYTES / 2**30:g} GB of memory")
                elif time.monotonic() > until:
                    ended.append(f"more than {MAX_RUN_S:g} s")
                if ended:
                    options.terminate = True
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_done.set()
            watcher.join()

    def answers(self, rows: Arrays) -> dict[str, list[NDArray[Any]]]:
        """Every output, one for each row, of a few rows at a time: all of them at once took 1.5 GB for DNSMOS's 16. As `run`."""
        starts = range(0, num_rows(rows), BATCH)
        parts = [self.run({name: values[start : start + BATCH] for name, values in rows.items()}) for start in starts]
        return {name: [row for part in parts for row in part[place]] for place, name in enumerate(self.outputs)}

    def changing(self, inputs: Arrays) -> str | None:
        """An output that is another one when the same inputs come again. Raises RunFailed."""
        first, second = self.run(inputs), self.run(inputs)
        pairs = zip(self.outputs, first, second, strict=True)
        return next((name for name, one, other in pairs if not _are_close(one, other, _SAME)), None)

    def mixing(self, rows: Arrays, tolerance: float) -> str | None:
        """Why the graph's first dimension is no batch: None where three rows together answer as each alone.

        `tolerance` is relative to the largest value of an output.
        """
        batch = {name: values[:BATCH] for name, values in rows.items()}
        try:
            alone = [self.run({name: values[row : row + 1] for name, values in batch.items()}) for row in range(BATCH)]
            self.bytes_per_row = max(0, _resident_bytes() - self._start_bytes)
            together = self.run(batch)
        except RunFailed as error:
            return str(error)
        for index, name in enumerate(self.outputs):
            if together[index].ndim == 0 or len(together[index]) != BATCH:
                return f"output {name!r} has shape {list(together[index].shape)} for {BATCH} rows"
            for row in range(BATCH):
                if not _are_close(together[index][row : row + 1], alone[row][index], tolerance):
                    return f"output {name!r} of a row depends on the rows beside it"
        return None


def _resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _are_close(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUSb" or (a.dtype.kind in "iu" and tolerance < 0.01):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    scale = max(1e-6, float(np.abs(y[finite]).max(initial=0.0)))
    return bool(np.all(np.abs(x[finite] - y[finite]) <= tolerance * scale))


ALL_PRECISIONS = ("fp32", "bf16", "fp16", "int8")
AS_IT_IS = ("fp32",)
ML_DOMAIN = "ai.onnx.ml"
_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Operators whose names say nothing of it; all others of this kind have Quant, QLinear, Integer or NBits in them.
_QUANTISED = ("QGemm", "QAttention", "QMoE", "QOrderedMatMul", "MatMulFpQ4")


@dataclass(frozen=True, slots=True)
class Contents:
    """`already`: "quantised", "FP16" or "" for an FP32 graph."""

    already: str
    has_fp32_weights: bool
    is_cpu_only: bool

    @property
    def precisions(self) -> tuple[str, ...]:
        return AS_IT_IS if self.already or self.is_cpu_only or not self.has_fp32_weights else ALL_PRECISIONS


def contents(model: onnx.ModelProto) -> Contents:
    nodes = list(nodes_of(model.graph))
    weights = {tensor.data_type for tensor in tensors(model) if len(tensor.dims) > 0}
    values = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    casts = {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    is_half = any(kind in weights | values | casts for kind in _HALF)
    return Contents(
        already="quantised" if any(_is_quantised(node.op_type) for node in nodes) else "FP16" if is_half else "",
        has_fp32_weights=onnx.TensorProto.FLOAT in weights,
        is_cpu_only=any(node.domain == ML_DOMAIN for node in nodes) or onnx.TensorProto.STRING in values,
    )


def _is_quantised(op: str) -> bool:
    return op in _QUANTISED or any(sign in op for sign in ("Quant", "QLinear", "Integer", "NBits"))


@dataclass(frozen=True, slots=True, eq=False)
class RunnableGraph:
    """A graph that runs. Tensor shapes leave out the batch dimension where `has_batch`."""

    model: onnx.ModelProto
    holds: Contents
    has_batch: bool
    change: str  # what was done to get a batch, or why there is none; empty where it had one
    inputs: tuple[Tensor, ...]
    rows: Arrays  # [n, …], each row an input by itself
    answers: dict[str, list[NDArray[Any]]]  # of every output, one for each row
    bytes_per_row: int = 0  # of memory that running it took, roughly; 0 where it hardly took any


MAX_REASON = 160  # characters of a record's line


class NoBatchDimension(Exception):
    """Why a graph's first dimension is no batch."""


def runnable(
    model: onnx.ModelProto, options: SourceOptions, name: str, ranges: Mapping[Place, Lengths] | None = None
) -> RunnableGraph:
    """Raises UserError where the graph does not load or does not run. `name` is what messages call it. `ranges`: the user's."""
    ranges = ranges or {}
    takes, gives = input_ports(model, name), output_ports(model, name)
    rows = [replace(port, dims=port.dims[1:] or port.dims) for port in takes]
    options = _in_layout(options, takes)
    if options.example is None:
        examples.check_sizes(rows, options.image_size, options.max_length, name)
    scalar = batching.scalar(takes, gives)
    change = f"no batch dimension{f': {scalar} has none' if scalar else ''}"
    if options.max_rows == 0:
        change = "without batches, as asked"
    may_batch = options.max_rows > 0 and batching.may_have_batch((*takes, *gives))
    if may_batch and not _is_of_whole_inputs(options.example, takes):
        for graph, how in batching.candidates(model):
            try:
                return _with_batch(graph, how, options, name, ranges)
            except NoBatchDimension as error:
                change = f"served without batches: {str(error)[:MAX_REASON]}"
    try:
        return _without_batch(model, change, options, name, ranges)
    except examples.ShapeMismatch as error:
        if scalar is None:
            raise
        raise UserError(
            f"{error}: {scalar} has no dimensions, so {name} has no batch and each row is a whole input; "
            "export it as [batch] or [batch, 1], or leave it out of the graph's inputs and outputs"
        ) from None


def _in_layout(options: SourceOptions, takes: Sequence[Port]) -> SourceOptions:
    """Images that were decoded channels first, channels last where the graph takes only that."""
    how = options.preprocessing
    if options.example is None or not isinstance(how, ImagePreprocessing) or how.input not in options.example:
        return options
    images, dims = options.example[how.input], next((port.dims[-3:] for port in takes if port.name == how.input), ())
    last = np.moveaxis(images, 1, -1) if images.ndim == 4 else images
    is_first, is_last = (len(dims) == 3 and fits(dims, values.shape[1:]) for values in (images, last))
    return replace(options, example={**options.example, how.input: last}) if is_last and not is_first else options


def _with_batch(
    graph: onnx.ModelProto, how: str, options: SourceOptions, name: str, ranges: Mapping[Place, Lengths]
) -> RunnableGraph:
    content = finished(graph, name, options.weights)
    try:
        trial = _trial(content, options, name)
    except UserError as error:
        raise NoBatchDimension(str(error)) from None
    holds, tolerance = contents(graph), row_limit(content)
    inputs = tuple(replace(port, dims=port.dims[1:]) for port in input_ports(graph, name))
    reason: str | None = None
    for rows in examples.attempts(inputs, options, 3, ranges):
        why_not = trial.mixing(rows, tolerance)
        reason = reason or why_not
        if why_not is None or random_operators(graph):
            _check_repeats(trial, rows, graph, name)
        if why_not is None:
            answers = trial.answers(rows)
            return RunnableGraph(graph, holds, True, how, _tensors(inputs), rows, answers, trial.bytes_per_row)
    raise NoBatchDimension(reason)


def _trial(content: bytes, options: SourceOptions, name: str) -> Trial:
    """On the user's rows as long and as large as they are; on made-up ones within bounds, because nobody chose those."""
    return Trial(content, name, is_bounded=options.example is None)


def _without_batch(
    model: onnx.ModelProto, change: str, options: SourceOptions, name: str, ranges: Mapping[Place, Lengths]
) -> RunnableGraph:
    if batching.has_scalars(model):
        model = batching.without_scalars(model)
    inputs, trial = input_ports(model, name), _trial(finished(model, name, options.weights), options, name)
    reason: RunFailed | None = None
    whole = replace(options, example=_as_whole_inputs(options.example, inputs))
    for rows in examples.attempts(inputs, whole, 4, ranges):
        try:
            _check_repeats(trial, next(each_row(rows)), model, name)
            alone = [trial.run(row) for row in each_row(rows)]
        except RunFailed as error:
            reason = error
            continue
        answers = {output: [one[index] for one in alone] for index, output in enumerate(trial.outputs)}
        return RunnableGraph(model, contents(model), False, change, _tensors(inputs), rows, answers)
    if options.example is not None:
        raise UserError(f"{name} does not run on {options.example_name}: {reason}")
    raise UserError(f"{name} does not run on made-up inputs, give real ones with --data or --example: {reason}")


def _check_repeats(trial: Trial, inputs: Arrays, model: onnx.ModelProto, name: str) -> None:
    """Raises UserError where the same inputs get other answers the next time: such a graph cannot be judged. RunFailed passes."""
    if (random := random_operators(model)) and (output := trial.changing(inputs)):
        raise UserError(
            f"{name}: output {output!r} changes from run to run on the same inputs, by {', '.join(random)}: export the model in "
            "evaluation mode, and without random numbers"
        )


def _is_of_whole_inputs(example: Arrays | None, takes: Sequence[Port]) -> bool:
    """Whether a user's rows have every dimension that the graph names, its first too."""
    if example is None:
        return False
    return all(port.name in example and np.ndim(example[port.name]) == len(port.dims) + 1 for port in takes)


def _as_whole_inputs(example: Arrays | None, inputs: Sequence[Port]) -> Arrays | None:
    """A user's rows [n, …] for a graph that takes [1, …], or any number, and no batch: [n, 1, …]."""
    if example is None:
        return None
    dims = {port.name: port.dims for port in inputs}
    return {
        name: np.expand_dims(values, 1)
        if len(dims.get(name, ())) > 1 and dims[name][0] in (1, -1) and np.ndim(values) == len(dims[name])
        else values
        for name, values in example.items()
    }


def _tensors(inputs: Sequence[Port]) -> tuple[Tensor, ...]:
    return tuple(Tensor(port.name, port.datatype, port.dims) for port in inputs)
