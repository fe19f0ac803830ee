"""A graph that runs becomes an `ExportedModel`: its answers decide the shapes and the order of its outputs, and its task.

Graphs often say less of their outputs than is true of them, and old ones something else. Rule: a fixed length is believed
only where every answer had it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.onnx_parts import operators
from serving.export.sources.graphs.batching import BATCH
from serving.export.sources.graphs.onnx_model import Port, finished, output_ports
from serving.export.sources.graphs.runnable import AS_IT_IS, RunnableGraph
from serving.repository import Tensor
from serving.repository.preprocessing import LOGITS, PROBABILITIES, ImagePreprocessing, Preprocessing
from serving.repository.record import CLASSIFICATION, EMBEDDING, OTHER

# Of memory for a batch that nobody asked for. DNSMOS has 160 MB a row: with 8 of them an export took 3,778 MB, FP16's stand-in most.
MAX_BATCH_BYTES = 2**30

# The length of what they give depends on the values that they get.
_DATA_DEPENDENT = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "Range", "If", "Loop", "Scan", "StringSplit"}


def to_exported_model(graph: RunnableGraph, options: SourceOptions, source: str, name: str) -> ExportedModel:
    """Raises UserError where an output holds NaN or the outputs do not fit the chosen task."""
    outputs = _settle(graph, name)
    task_option = options.task or (CLASSIFICATION if options.labels else None)
    task = _task_of(graph, outputs, task_option, name)
    _check_scores(graph, outputs, options.preprocessing, name)
    outputs = _order(outputs, graph, task)
    _declare(graph.model, outputs, has_batch=graph.has_batch)
    return ExportedModel(
        model=finished(graph.model, name, options.weights),
        inputs=graph.inputs,
        outputs=outputs,
        max_batch_size=_max_rows(graph, options) if graph.has_batch else 0,
        task=task,
        source=source,
        framework="onnx",
        run=None,
        example=graph.rows,
        precisions=graph.holds.precisions if options.weights is None else AS_IT_IS,
        is_cpu_only=graph.holds.is_cpu_only,
        toolchain={"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
    )


def _max_rows(graph: RunnableGraph, options: SourceOptions) -> int:
    """As asked; else the usual, or as many large ones as fit into memory, a power of two."""
    if options.max_batch_size is not None or not graph.bytes_per_row:
        return options.max_rows
    fitting = max(1, MAX_BATCH_BYTES // graph.bytes_per_row)
    return min(options.max_rows, 1 << (fitting.bit_length() - 1))


def _settle(graph: RunnableGraph, name: str) -> tuple[Tensor, ...]:
    """The outputs as Triton will name them. Raises UserError where an answer is not a number."""
    is_free = any(-1 in tensor.shape for tensor in graph.inputs)
    is_free |= not _DATA_DEPENDENT.isdisjoint(operators(graph.model))
    tensors = []
    for port in output_ports(graph.model, name):
        answers = graph.answers[port.name]
        if any(values.dtype.kind == "f" and np.isnan(values).any() for values in answers):
            raise UserError(
                f"{name}: output {port.name!r} is NaN on the inputs that it was tried on; "
                "give inputs as the model expects them with --example"
            )
        tensors.append(Tensor(port.name, port.datatype, _shape(port, answers, graph.has_batch, is_free)))
    return tuple(tensors)


def _shape(port: Port, answers: Sequence[NDArray[Any]], has_batch: bool, is_free: bool) -> tuple[int, ...]:
    shapes = {values.shape for values in answers}
    first = answers[0].shape
    if len({len(shape) for shape in shapes}) > 1:
        raise UserError(
            f"output {port.name!r} has another number of dimensions from row to row, which nobody can serve"
        )
    dims = port.dims[1:] if has_batch else port.dims
    if len(dims) != len(first):
        dims = (-1,) * len(first)
    lengths_of_axes = [{shape[axis] for shape in shapes} for axis in range(len(first))]
    return tuple(_length(length, lengths, is_free) for length, lengths in zip(dims, lengths_of_axes, strict=True))


def _length(length_in_graph: int, lengths: set[int], is_free: bool) -> int:
    if len(lengths) > 1 or 0 in lengths:
        return -1
    (length,) = lengths
    return length if length_in_graph == length or not is_free else -1


def _task_of(graph: RunnableGraph, outputs: Sequence[Tensor], task_option: str | None, name: str) -> str:
    """The chosen task, checked against the outputs; by default classification where one output is probabilities."""
    scores = [tensor for tensor in outputs if _is_flat(tensor, graph.has_batch)]
    if task_option is None:
        return CLASSIFICATION if _probabilities(graph, outputs) else OTHER
    if task_option in (CLASSIFICATION, EMBEDDING) and not scores:
        raise UserError(
            f"{name} is not a model for {task_option}: no output is float [batch, n], it gives {tensors_text(outputs)}"
        )
    return task_option


def _check_scores(graph: RunnableGraph, outputs: Sequence[Tensor], how: Preprocessing | None, name: str) -> None:
    """Raises UserError for probabilities that are said to be logits: whoever classifies would apply softmax once more."""
    is_of_logits = isinstance(how, ImagePreprocessing) and how.scores == LOGITS
    if is_of_logits and (ready := _probabilities(graph, outputs)):
        raise UserError(
            f'--preprocessing says "scores": "{LOGITS}", but output {ready.name!r} of {name} is probabilities already (every row '
            f'sums to 1), and /v1/classify would apply softmax twice: say "scores": "{PROBABILITIES}"'
        )


def _order(outputs: Sequence[Tensor], graph: RunnableGraph, task: str) -> tuple[Tensor, ...]:
    """The output that the task is about first; masks and boxes stay in the order of the graph."""
    if task == OTHER:
        return tuple(outputs)
    likely = _probabilities(graph, outputs) if task == CLASSIFICATION else None
    first = likely or next((tensor for tensor in outputs if _is_flat(tensor, graph.has_batch)), outputs[0])
    return (first, *(tensor for tensor in outputs if tensor is not first))


def _is_flat(tensor: Tensor, has_batch: bool) -> bool:
    """float [batch, n], where a graph without batches may write the batch as 1."""
    shape = tensor.shape if has_batch else tensor.shape[1:] if tensor.shape[:1] == (1,) else ()
    return len(shape) == 1 and tensor.datatype in ("FP32", "FP16", "FP64")


def _probabilities(graph: RunnableGraph, outputs: Sequence[Tensor]) -> Tensor | None:
    """The only flat float output, where its rows are at least two numbers that sum to 1."""
    flat = [tensor for tensor in outputs if _is_flat(tensor, graph.has_batch)]
    if len(flat) != 1:
        return None
    rows = [values.ravel().astype(np.float64) for values in graph.answers[flat[0].name]]
    sums_to_1 = all(
        len(row) > 1 and (row >= 0).all() and abs(row.sum() - 1) < 0.01 for row in rows
    )  # FP16 sums to 0.998
    return flat[0] if sums_to_1 else None


def _declare(model: onnx.ModelProto, outputs: Sequence[Tensor], *, has_batch: bool) -> None:
    """Writes the order and the shapes into the graph, in place: Triton compares them with its configuration."""
    values = {value.name: value for value in model.graph.output}
    for tensor in outputs:
        sizes = (0, *tensor.shape) if has_batch else tensor.shape
        shape = values[tensor.name].type.tensor_type.shape
        if len(shape.dim) != len(sizes):
            del shape.dim[:]
            for _ in sizes:
                shape.dim.add()
        shape.SetInParent()  # a shape of no dimensions is a shape too
        for axis, size in enumerate(sizes):
            if size > 0:
                shape.dim[axis].dim_value = size
            elif has_batch and axis == 0:
                shape.dim[axis].dim_param = BATCH
            elif not shape.dim[axis].dim_param:
                shape.dim[axis].dim_param = f"{tensor.name}_{axis}"
    ordered = [values[tensor.name] for tensor in outputs]
    del model.graph.output[:]
    model.graph.output.extend(ordered)


def tensors_text(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors)
