"""FILE.onnx: a model that somebody exported, by any framework, becomes the FP32 baseline of a new one.

It is checked, upgraded, freed of a fixed batch of 1 where its answers prove that it can be, and run once on inputs that are
made up or given. How old frameworks export is for the docs. Rule: a graph is changed only where running it shows that the
answers stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions, fits
from serving.export.progress import Progress
from serving.export.sources import generative
from serving.export.sources.checks import check_onnx
from serving.export.sources.graphs import batching, lengths
from serving.export.sources.graphs.external_data import read_whole, weights_beside
from serving.export.sources.graphs.onnx_model import OLD_SERVERS_OPSET, Port, checked, input_ports, opset_of, upgraded
from serving.export.sources.graphs.outputs import tensors_text, to_exported_model
from serving.export.sources.graphs.runnable import RunnableGraph, runnable
from serving.repository import CLASSIFICATION, Tensor
from serving.repository.preprocessing import LAYOUTS, NCHW, NHWC, ImagePreprocessing, Preprocessing

_CHANNELS = (1, 3, 4)  # grey, colours, colours with alpha


def with_user_settings(exported: ExportedModel, options: SourceOptions, name: str) -> ExportedModel:
    """With the user's labels, preprocessing and layout. Raises UserError where they do not fit."""
    has_batch = exported.max_batch_size > 0
    images = {tensor.name: dims for tensor in exported.inputs if (dims := _image(tensor, has_batch)) is not None}
    layouts = {input_name: _layout(input_name, dims, options, name) for input_name, dims in images.items()}
    if options.layout is not None and not images:
        raise UserError(
            f"--layout does not apply to {name}: no input is an image, it takes {tensors_text(exported.inputs)}"
        )
    inputs = tuple(
        replace(tensor, layout=layouts.get(tensor.name) if len(tensor.shape) == 3 else None)
        for tensor in exported.inputs
    )
    labels = options.labels
    if labels is not None and (exported.task != CLASSIFICATION or exported.outputs[0].shape[-1] != len(labels)):
        raise UserError(
            f"--labels names {len(labels)} classes, and {name} gives {tensors_text(exported.outputs)}, task {exported.task}"
        )
    preprocessing = options.preprocessing
    if isinstance(preprocessing, ImagePreprocessing):
        preprocessing = _fitting(preprocessing, images, layouts, exported.inputs, name)
    return replace(exported, inputs=inputs, labels=labels, preprocessing=preprocessing)


def check_preprocessing(how: Preprocessing | None, takes: Sequence[Port], name: str) -> None:
    """Before a graph is tried on images made so. Raises UserError where they fit no layout of the input that it names."""
    if how is None:
        return
    if not isinstance(how, ImagePreprocessing):
        raise UserError("--preprocessing of texts needs a tokenizer beside the model: export it as hf:DIR")
    dims = next((port.dims for port in takes if port.name == how.input), None)
    whole = [Tensor(port.name, port.datatype, port.dims) for port in takes]
    if dims is None:
        raise _of_another_input(how, whole, name)
    if len(dims) not in (3, 4) or not any(fits(dims[-3:], replace(how, layout=layout).shape) for layout in LAYOUTS):
        raise _of_another_shape(how, whole, name)


def _of_another_input(how: ImagePreprocessing, inputs: Sequence[Tensor], name: str) -> UserError:
    return UserError(
        f"--preprocessing is for the input {how.input!r}, and {name} takes {tensors_text(inputs)}: "
        "images are three dimensions of FP32"
    )


def _of_another_shape(how: ImagePreprocessing, inputs: Sequence[Tensor], name: str) -> UserError:
    return UserError(
        f"--preprocessing makes {how.layout} images {list(how.shape)}, and {name} takes {tensors_text(inputs)}"
    )


def _image(tensor: Tensor, has_batch: bool) -> tuple[int, ...] | None:
    """Dimensions of one image; None for what is none."""
    dims = tensor.shape
    if not has_batch and len(dims) == 4 and dims[0] == 1:
        dims = dims[1:]
    is_image = len(dims) == 3 and tensor.datatype in ("FP32", "FP16", "UINT8")
    return dims if is_image and {dims[0], dims[2]} & {*_CHANNELS, -1} else None


def _layout(input_name: str, dims: Sequence[int], options: SourceOptions, name: str) -> str | None:
    """None where it is neither given nor certain."""
    how = options.preprocessing
    if isinstance(how, ImagePreprocessing) and how.input == input_name:
        candidates = [layout for layout in LAYOUTS if fits(dims, replace(how, layout=layout).shape)]
    else:
        how, candidates = None, [layout for layout, place in ((NCHW, 0), (NHWC, 2)) if dims[place] in _CHANNELS]
    if len(candidates) != 1:
        return options.layout or (how.layout if how is not None else None)
    if options.layout not in (None, candidates[0]):
        raise UserError(
            f"--layout {options.layout} does not fit {name}: an image is {list(dims)}, which is {candidates[0]}"
        )
    return candidates[0]


def _fitting(
    preprocessing: ImagePreprocessing,
    images: dict[str, tuple[int, ...]],
    layouts: dict[str, str | None],
    inputs: Sequence[Tensor],
    name: str,
) -> Preprocessing:
    if preprocessing.input not in images:
        raise _of_another_input(preprocessing, inputs, name)
    dims = images[preprocessing.input]
    fitting = replace(preprocessing, layout=layouts[preprocessing.input] or preprocessing.layout)
    if not fits(dims, fitting.shape):
        raise _of_another_shape(fitting, inputs, name)
    return fitting


_STEPS = 4


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for a file that cannot be read, raised to the opset, loaded or run."""
    check_onnx(path, options)
    name = path.name
    step = f"reading {name}"
    progress(step, 0, _STEPS)
    read = read_whole(path)
    options = replace(options, weights=weights_beside(read, path))
    batching.without_zipmaps(read)
    original = checked(read, name, is_whole=options.weights is None)
    if options.task is None:
        generative.check_names((value.name for value in (*original.graph.input, *original.graph.output)), name)
    progress(step, 1, _STEPS)
    model = upgraded(original, options.opset, name) if options.weights is None else original
    progress(step, 2, _STEPS)
    model, ranges = lengths.pinned(model, options, name)
    check_preprocessing(options.preprocessing, input_ports(model, name), name)
    graph, notes = lengths.settled(runnable(model, options, name, ranges), ranges, name, options.weights)
    progress(step, 3, _STEPS)
    exported = to_exported_model(graph, options, _source(original, graph, options, name), name)
    exported = with_user_settings(exported, options, name)
    progress(step, _STEPS, _STEPS)
    return replace(
        exported,
        ranges=ranges,
        notes=(*_without_batches(graph, options), *notes, *_for_few_servers(graph), *_made_up(graph, options)),
    )


def _without_batches(graph: RunnableGraph, options: SourceOptions) -> tuple[str, ...]:
    if graph.has_batch or options.max_rows == 0:
        return ()
    return (
        f"served without batches, each request one whole input: {graph.change.removeprefix('served without batches: ')}",
    )


def _for_few_servers(graph: RunnableGraph) -> tuple[str, ...]:
    opset = opset_of(graph.model) or 0
    if opset <= OLD_SERVERS_OPSET:
        return ()
    return (f"its opset {opset} needs ONNX Runtime 1.21 or later: Triton 24.10 reads {OLD_SERVERS_OPSET} at most",)


def _made_up(graph: RunnableGraph, options: SourceOptions) -> tuple[str, ...]:
    """Says so where nobody gave inputs."""
    if options.example is not None:
        return ()
    shapes = ", ".join(f"{name} {list(values.shape[1:])}" for name, values in graph.rows.items())
    return (f"tried on inputs that were made up ({shapes}); give real ones with --example, or with an .npz as --data",)


def _source(original: onnx.ModelProto, graph: RunnableGraph, options: SourceOptions, name: str) -> str:
    maker = f"{original.producer_name} {original.producer_version}".strip()
    before, after = opset_of(original), opset_of(graph.model)
    notes = (
        f"made by {maker}" if re.fullmatch(r"[\w .+-]{1,60}", maker) else "",
        f"opset {before} upgraded to {after}" if before and after and before < after else "",
        graph.change,
        ", ".join(f"{dim} {said}" for dim, said in (options.dims or {}).items()),
        f"already {graph.holds.already}" if graph.holds.already else "",
        "over 2 GB: as it came, in FP32 alone" if options.weights else "",
        "for CPUs only" if graph.holds.is_cpu_only else "",
    )
    return "; ".join((f"onnx: {name}", *(note for note in notes if note)))
