"""A torch module as one FP32 ONNX file, by the dynamo exporter: what `hf:`, `module:`, `keras:` and the recipes share.

Two steps, because they fail for different reasons: `torch.export` runs the module's own code on shapes, then every operator
is put into ONNX. Whose line failed, in words, is `torch_faults`'. Rule: what leaves here is one file that ONNX's full check
passes, at the opset that was asked, IR version at most 10, without a trace of this machine.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import onnx
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.dimensions import Lengths, Place
from serving.export.exported_model import DATATYPES, Arrays, ExportedModel, Run, SourceOptions
from serving.export.onnx_parts import MAX_BYTES, cleaned, nodes_of
from serving.export.progress import Progress, quiet
from serving.export.sources import torch_faults
from serving.repository import Tensor
from serving.repository.preprocessing import Preprocessing

BATCH = "batch"
STEP = "exporting FP32"

_NUM_STEPS = 3
_RUN_ROWS = 32  # at a time: a thousand images at once would take gigabytes of activations
_HEADROOM_BYTES = 2**24  # the graph beside the weights: guess, not measured; BERT-base's has under 1 MB

Dynamic = Mapping[str, Mapping[int, str]]


def export_module(
    module: Any,
    example: Arrays,
    outputs: Sequence[str],
    options: SourceOptions,
    progress: Progress,
    *,
    task: str,
    source: str,
    labels: tuple[str, ...] | None = None,
    preprocessing: Preprocessing | None = None,
    files: Mapping[str, bytes] | None = None,
    free: Dynamic | None = None,
    ranges: Mapping[Place, Lengths] | None = None,
    packages: Sequence[str] = (),
) -> ExportedModel:
    """A module in evaluation mode, judged beside its own answers; the rest as in `to_onnx` and `ExportedModel`.

    The first dimension of every input is the batch, unless `options` ask for none: then each row of `example` is a whole input.
    `free`: further axes of any length, as `to_onnx` has them; `ranges`: how long those may be, where the user said it.
    `packages`: what made it, beside torch.
    """
    has_batch = options.max_batch_size != 0
    batch = {0: BATCH} if has_batch else {}
    dynamic = {name: {**batch, **(free or {}).get(name, {})} for name in example}
    traced = example if has_batch else {name: values[0] for name, values in example.items()}
    model = to_onnx(module, traced, outputs, dynamic, options.opset, progress, ranges or {})
    takes, gives = interface(model, has_batch=has_batch)
    return ExportedModel(
        model=model,
        inputs=takes,
        outputs=gives,
        max_batch_size=options.max_rows,
        task=task,
        source=source,
        framework="pytorch",
        run=runner(module, list(example), has_batch=has_batch),
        example=example,
        labels=labels,
        preprocessing=preprocessing,
        files=files or {},
        toolchain=toolchain(*packages),
        ranges=ranges or {},
    )


def to_onnx(
    module: Any,
    example: Mapping[str, Any],
    outputs: Sequence[str],
    dynamic: Dynamic,
    opset: int,
    progress: Progress,
    ranges: Mapping[Place, Lengths] | None = None,
) -> bytes:
    """`example`: input name -> tensor [n, …], n at least 2: a 1 would become a constant of the graph.

    Inputs go to `forward` by name where its parameters are called so, else in this order. `outputs` names what it returns,
    a tensor or a flat tuple or dictionary of them. `dynamic`: input -> axis -> name of the dimension; the rest stays as in
    the example; `ranges`: how long those may be, where it is not any length. Raises UserError that names the operator or the line.
    """
    _check_size(module)
    if both := set(example) & set(outputs):
        raise UserError(f"{both.pop()!r} is the name of an input and of an output; give one another name")
    inputs = {name: torch.as_tensor(values) for name, values in example.items()}
    for name, axes in dynamic.items():
        if short := [axis for axis in axes if inputs[name].shape[axis] < 2]:
            raise UserError(f"the example of {name!r} is shorter than 2 along axis {short[0]}, which is to be open")
    progress(STEP, 0, _NUM_STEPS)
    with quiet_torch():
        program, names = _captured(module, inputs, dynamic)
        _check_ranges(program, names, dynamic, ranges or {})
        dynamic = _of_one_name(program, names, dynamic)
        progress(STEP, 1, _NUM_STEPS)
        model = _converted(program, list(names.values()), dynamic, opset)
    progress(STEP, 2, _NUM_STEPS)
    checked = _checked(model, outputs, opset)
    progress(STEP, _NUM_STEPS, _NUM_STEPS)
    return checked


def runner(module: Any, names: Sequence[str], *, has_batch: bool = True) -> Run:
    """What the framework itself answers: arrays by input name -> every output, in order; without a batch, of one whole input."""

    def answer(inputs: Arrays) -> list[Any]:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names}
        with torch.no_grad():
            given = module(**tensors) if _takes_names(module, tensors) else module(*tensors.values())
        flat = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else [given]
        return [values.numpy() for values in flat]

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        num_rows = len(inputs[names[0]])
        starts = range(0, num_rows, _RUN_ROWS)
        parts = [answer({name: inputs[name][start : start + _RUN_ROWS] for name in names}) for start in starts]
        return [np.concatenate(values) for values in zip(*parts, strict=True)]

    return run if has_batch else answer


def toolchain(*packages: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in ("torch", "onnx", "onnxscript", *packages)}


def interface(model: bytes, *, has_batch: bool = True) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs, batch dimension left out. UserError for an output that has no batch of its own."""
    graph = onnx.load_from_string(model).graph
    for output in graph.output if has_batch else ():
        dims = output.type.tensor_type.shape.dim
        if not dims or dims[0].dim_param != BATCH:
            found = [dim.dim_param or dim.dim_value for dim in dims]
            raise UserError(
                f"output {output.name!r} has the shape {found}: its first dimension has to be the batch, as the inputs' is"
            )
    first = 1 if has_batch else 0
    return tuple(_tensor(value, first) for value in graph.input), tuple(_tensor(value, first) for value in graph.output)


def _tensor(value: onnx.ValueInfoProto, first: int) -> Tensor:
    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    shape = tuple(
        -1 if dim.dim_param or not dim.dim_value else dim.dim_value for dim in value.type.tensor_type.shape.dim
    )
    return Tensor(value.name, DATATYPES.get(kind, kind.upper()), shape[first:])


def _check_size(module: Any) -> None:
    weights = [*module.parameters(), *module.buffers()]
    size = sum(values.numel() * values.element_size() for values in weights)
    if size + _HEADROOM_BYTES > MAX_BYTES:
        raise _too_large(size)


def _too_large(size: int) -> UserError:
    return UserError(
        f"the model has {size / 1e9:.1f} GB in FP32, and one ONNX file holds at most 2 GB: export it yourself, with its weights in "
        "one file beside it (torch.onnx.export(…, external_data=True)), and bring that as FILE.onnx"
    )


def _captured(module: Any, inputs: Mapping[str, Any], dynamic: Dynamic) -> tuple[Any, dict[str, str]]:
    """The module's own code, run on shapes: a graph of torch's operators, and its inputs -> our names, in its order."""
    axes = {name: dict.fromkeys(dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs}
    by_name = _takes_names(module, inputs)
    args, kwargs = ((), dict(inputs)) if by_name else (tuple(inputs.values()), {})
    shapes: Any = axes if by_name else _in_order(module, list(axes.values()))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints the graph so far before it raises
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise torch_faults.capture(error, dynamic) from error
    given = program.graph_signature.user_inputs
    return program, dict(zip(given, given if by_name else inputs, strict=True))


def _of_one_name(program: Any, names: Mapping[str, str], dynamic: Dynamic) -> Dynamic:
    """Dimensions that the module's code made equal have one name: the first of theirs."""
    called: dict[Any, str] = {}
    found = {name: dict(axes) for name, axes in dynamic.items()}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            for axis, name in dynamic.get(names[node.name], {}).items():
                size = node.meta["val"].shape[axis]
                if not isinstance(size, int):
                    found[names[node.name]][axis] = called.setdefault(size.node.expr, name)
    return found


def _in_order(module: Any, shapes: list[Any]) -> tuple[Any, ...]:
    """As forward's parameters take them: those of *args together."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    alone = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:alone], tuple(shapes[alone:]))


def _takes_names(module: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether forward's parameters are called like the inputs. Some of them only: UserError."""
    parameters = set(inspect.signature(module.forward).parameters)
    known = [name for name in inputs if name in parameters]
    if known and len(known) < len(inputs):
        other = next(name for name in inputs if name not in parameters)
        raise UserError(f"forward takes {', '.join(sorted(parameters))}, but no {other!r}")
    return bool(known)


def _check_ranges(program: Any, names: Mapping[str, str], dynamic: Dynamic, ranges: Mapping[Place, Lengths]) -> None:
    """The code may have looked at a size and so narrowed it: a batch has to be free, the rest as far as the user said."""
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in names:
            continue
        shape = node.meta["val"].shape
        for axis, dimension in dynamic.get(names[node.name], {}).items():
            size = shape[axis]
            if isinstance(size, int) or size.node.expr not in program.range_constraints:
                continue
            values = program.range_constraints[size.node.expr]
            said = ranges.get((names[node.name], axis - len(shape)))
            is_low = int(values.lower) > max(2, said.low if said else 0)  # 2: sizes 0 and 1 are always told apart
            most = said.high if said else None
            is_capped = values.upper.is_Integer and (
                dimension == BATCH or (most is not None and int(values.upper) < most)
            )
            if is_low or is_capped:
                want = f"--dim says {said}" if said else "a served model takes any from 1"
                raise UserError(
                    f"the model's code works for {dimension} sizes {values.lower} to {values.upper} only (it asks for the "
                    f"shape of {names[node.name]!r}); {want}"
                )


def _converted(program: Any, names: Sequence[str], dynamic: Dynamic, opset: int) -> onnx.ModelProto:
    try:
        converted: Any = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(names),
            dynamic_shapes={name: dict(dynamic.get(name, {})) for name in names},
            opset_version=opset,
            verbose=False,
        )
        model: onnx.ModelProto = converted.model_proto
    except Exception as error:
        raise torch_faults.conversion(error) from error
    return model


def _checked(model: onnx.ModelProto, outputs: Sequence[str], opset: int) -> bytes:
    _name_outputs(model.graph, outputs)
    reached = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if reached != opset:
        raise UserError(f"the model exports at opset {reached} and does not convert to {opset}; leave --opset off")
    if (size := model.ByteSize()) > MAX_BYTES:
        raise _too_large(size)
    model = cleaned(model)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UserError(
            f"PyTorch exported a file that ONNX's own check refuses: {torch_faults.first_line(error)}"
        ) from None
    return bytes(model.SerializeToString(deterministic=True))


def _name_outputs(graph: onnx.GraphProto, outputs: Sequence[str]) -> None:
    """Renames what the graph returns. A value inside that is called so already makes room: names are unique in a graph."""
    if len(graph.output) != len(outputs):
        raise UserError(f"the model returns {len(graph.output)} tensors, but {len(outputs)} names are given")
    nodes = list(nodes_of(graph))
    taken = {name for node in nodes for name in (*node.input, *node.output)} | {value.name for value in graph.input}
    new = {value.name: name for value, name in zip(graph.output, outputs, strict=True)}
    for name in outputs:
        if name in taken and name not in new:
            new[name] = next(f"{name}_{i}" for i in itertools.count(1) if f"{name}_{i}" not in taken)
    for node in nodes:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in (*graph.output, *graph.value_info, *graph.initializer):
        value.name = new.get(value.name, value.name)


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    trace = logging.getLogger("torch.__trace")  # torch writes graphs for it as long as it has a handler, silent or not
    handlers, trace.handlers = trace.handlers, []
    try:
        with quiet():
            yield
    finally:
        trace.handlers = handlers
