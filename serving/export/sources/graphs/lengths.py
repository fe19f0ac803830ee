"""A graph's open dimensions: those that a user pinned, and those that do not take the lengths that they claim to.

Exporters leave dimensions open that only run at one length, and read the length of a trace into constants all the same. Rule:
what the user said stands; of the rest, a dimension that fails at half or twice the length that ran is fixed at that length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from serving.errors import UserError
from serving.export import dimensions
from serving.export.dimensions import Lengths, Place
from serving.export.exported_model import SourceOptions
from serving.export.gates.lengths import FreeDimensions, each_row, free_dimensions, other_lengths, resized
from serving.export.large_model import Weights
from serving.export.onnx_parts import inferred
from serving.export.onnx_session import Session
from serving.export.sources.graphs.onnx_model import finished
from serving.export.sources.graphs.runnable import RunFailed, RunnableGraph, Trial
from serving.repository import Tensor


def pinned(model: onnx.ModelProto, options: SourceOptions, name: str) -> tuple[onnx.ModelProto, dict[Place, Lengths]]:
    """The model with what --dim fixes, and the ranges that are left. Raises UserError for a name or size that it has not."""
    if not options.dims:
        return model, {}
    said = dimensions.placed(options.dims, dimensions.places(_symbols(model)), name)
    symbols = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims, start=-len(dims)):
            if (lengths := said.get((value.name, axis))) is None:
                continue
            if dim.dim_value > 0 and dim.dim_value != lengths.low:
                raise UserError(
                    f"--dim: dimension {axis + len(dims)} of input {value.name!r} of {name} is {dim.dim_value} and not open; "
                    f"it cannot be {lengths}"
                )
            if axis == -len(dims) and not lengths.is_fixed:
                raise UserError(f"--dim: the first dimension of input {value.name!r} is the batch: say --max-batch")
            if lengths.is_fixed:
                symbols[dim.dim_param] = lengths.low
                dim.dim_value = lengths.low
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param in symbols and dimensions.is_name(dim.dim_param):
                dim.dim_value = symbols[dim.dim_param]
    del model.graph.value_info[:]
    return inferred(model), {place: lengths for place, lengths in said.items() if not lengths.is_fixed}


def settled(
    graph: RunnableGraph, ranges: Mapping[Place, Lengths], name: str, weights: Weights | None = None
) -> tuple[RunnableGraph, tuple[str, ...]]:
    """The graph with what runs at one length only fixed there, and a sentence for each such dimension."""
    symbols = {key: list(dims) for key, dims in _symbols(graph.model).items()}
    trial, fixed = Trial(finished(graph.model, name, weights), name, is_bounded=True), list[FreeDimensions]()
    for free in free_dimensions(graph.inputs, symbols, graph.rows, ranges):
        if free.said is None and not all(
            _runs(trial, graph, free, length) for length in other_lengths(free, graph.rows)
        ):
            fixed.append(free)
    if not fixed:
        return graph, ()
    lengths = {place: free.length for free in fixed for place in free.places}
    inputs = tuple(_with(tensor, lengths) for tensor in graph.inputs)
    notes = tuple(
        f"{free.name} runs at {free.length} and not at every other length: fixed at {free.length}; "
        f"--dim {free.places[0][0]}:{free.axis}=LOW..HIGH leaves it open"
        for free in fixed
    )
    return replace(graph, model=_fixed(graph.model, lengths, name, weights), inputs=inputs), notes


def _fixed(model: onnx.ModelProto, lengths: Mapping[Place, int], name: str, weights: Weights | None) -> onnx.ModelProto:
    """A copy with those lengths. Where it does not load, the model itself, which its configuration alone will narrow.

    A branch that is never taken at these lengths may contradict them.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims, start=-len(dims)):
            if (value.name, axis) in lengths:
                dim.dim_value = lengths[value.name, axis]
    fixed = inferred(fixed)
    try:
        Session(name, finished(fixed, name, weights))
    except UserError:
        return model
    return fixed


def _runs(trial: Trial, graph: RunnableGraph, free: FreeDimensions, length: int) -> bool:
    rows = resized(free, graph.rows, length)
    try:
        for row in each_row(rows):
            trial.run({key: values[None] for key, values in row.items()} if graph.has_batch else row)
    except RunFailed:
        return False
    except UserError:  # more memory or time than what nobody asked for may take
        return True
    return True


def _with(tensor: Tensor, lengths: Mapping[Place, int]) -> Tensor:
    places: Sequence[int] = range(-len(tensor.shape), 0)
    shape = (lengths.get((tensor.name, place), size) for place, size in zip(places, tensor.shape, strict=True))
    return replace(tensor, shape=tuple(shape))


def _symbols(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    """Input -> its dimensions: a length, the graph's name for it, or -1."""
    return {
        value.name: [dim.dim_param or dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
