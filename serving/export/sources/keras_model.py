"""A loaded Keras model as an `ExportedModel`: its inputs and outputs by name, its own answers, and its graph.

Imported only once Keras runs on torch, where its layers are torch modules. Rule: what the graph gives in another order or
shape than Keras (`outputs.py`, `batching.py`) is given so by `run` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np
import onnx
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import DATATYPES, Arrays, ExportedModel, Run, SourceOptions
from serving.export.onnx_parts import inferred
from serving.export.onnx_session import first_line
from serving.export.progress import Progress, quiet
from serving.export.sources import torch_export
from serving.export.sources.graphs import examples
from serving.export.sources.graphs.onnx_model import Port
from serving.export.sources.graphs.outputs import to_exported_model
from serving.export.sources.graphs.runnable import runnable

_DATATYPES = {name: kind for name, kind in DATATYPES.items() if kind not in ("UINT16", "UINT32", "UINT64")}


def export(model: Any, name: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    """`name`: of the file. Raises UserError where Keras or the exporter cannot run it."""
    takes = _inputs(model, name)
    module = _KerasModule(model)
    rows = _rows(module, takes, options, name)
    names = _output_names(model, module, rows, [port.name for port in takes])
    dynamic = {port.name: _free_axes(port) for port in takes}
    with quiet():
        content = torch_export.to_onnx(module, rows, names, dynamic, options.opset, progress)
    graph = runnable(inferred(onnx.load_from_string(content)), replace(options, example=rows), name)
    if not graph.has_batch:
        raise UserError(f"{name}: {graph.change}, but a Keras model takes any batch: bring it as .onnx to serve it so")
    exported = to_exported_model(graph, options, f"keras: {name} ({type(model).__name__})", name)
    return replace(
        exported,
        framework="keras",
        run=_run(module, [port.name for port in takes], names, [tensor.name for tensor in exported.outputs]),
        toolchain=torch_export.toolchain("keras"),
    )


def _inputs(model: Any, name: str) -> list[Port]:
    """Ports without the batch dimension."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        raise UserError(f"{name} does not say what it takes: build it with keras.Input, or bring it as .onnx")
    ports = []
    for tensor in tensors:
        kind = str(tensor.dtype)
        if kind not in _DATATYPES:
            raise UserError(f"{name}: input {tensor.name!r} is {kind}, which the torch backend does not take")
        if not tensor.shape or tensor.shape[0] is not None:
            raise UserError(
                f"{name}: input {tensor.name!r} has a fixed batch of {tensor.shape[0]}: save it with any batch"
            )
        dims = tuple(-1 if size is None else size for size in tensor.shape[1:])
        ports.append(Port(tensor.name, _DATATYPES[kind], dims))
    return ports


class _KerasModule(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Takes the inputs in order and gives a flat tuple, whatever structures the model has."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        structure = getattr(self.model, "_inputs_struct", None)
        given = keras.tree.pack_sequence_as(structure, inputs) if structure is not None else inputs[0]
        return tuple(keras.tree.flatten(self.model(given, training=False)))


def _rows(module: Any, takes: Sequence[Port], options: SourceOptions, name: str) -> Arrays:
    """Inputs that the model runs on."""
    if options.example is not None:
        return examples.given(options.example, takes)
    reason: Exception | None = None
    examples.check_sizes(takes, options.image_size, options.max_length, name)
    for rows in examples.attempts(takes, options, image_dims=3):
        try:
            _answers(module, rows, [port.name for port in takes])
        except Exception as error:  # whatever a layer's code raises
            reason = error
            continue
        return rows
    raise UserError(
        f"{name} does not run on made-up inputs, give real ones with --example: {first_line(reason or Exception())}"
    )


def _answers(module: Any, inputs: Arrays, takes: Sequence[str]) -> list[NDArray[Any]]:
    with quiet():
        return [np.asarray(values) for values in torch_export.runner(module, takes)(inputs)]


def _output_names(model: Any, module: Any, rows: Arrays, taken: Sequence[str]) -> list[str]:
    """The keys of a dictionary, else the layers' names; never an input's."""
    structure = getattr(model, "_outputs_struct", None)
    if isinstance(structure, dict):
        names = [str(path[-1]) for path, _ in keras.tree.flatten_with_path(structure)]
    elif hasattr(model, "output_names"):
        names = [str(name) for name in model.output_names]
    else:
        count = len(_answers(module, {key: values[:2] for key, values in rows.items()}, list(rows)))
        names = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    free = [f"{name}_output" if name in taken else name for name in names]
    return [name if free.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(free)]


def _free_axes(port: Port) -> dict[int, str]:
    free = {axis: f"{port.name}_{axis}" for axis, size in enumerate(port.dims, start=1) if size == -1}
    return {0: torch_export.BATCH, **free}


def _run(module: Any, takes: Sequence[str], gives: Sequence[str], order: Sequence[str]) -> Run:
    def run(inputs: Arrays) -> list[NDArray[Any]]:
        outputs = dict(zip(gives, _answers(module, inputs, takes), strict=True))
        return [outputs[name][:, np.newaxis] if outputs[name].ndim == 1 else outputs[name] for name in order]

    return run
