"""A user's torch module: running the code that makes it, its inputs and outputs, and the model file that comes of it.

The current directory can be imported from, as with `python -m`; a file's own folder, as with `python FILE.py`. Inputs are named
as in the example's dictionary, else like forward's parameters; outputs as in what forward returns, however it is nested, else
`output`. Beside the batch a dimension is open where the code or --dim says so. Rules: whatever that code raises becomes one line
with the place in it; what Triton cannot carry, one number per row, becomes [n, 1] here, inside the graph.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays, ExportedModel, Run, SourceOptions, num_rows
from serving.export.onnx_session import in_batches
from serving.export.progress import Progress
from serving.export.sources import generative, torch_export, torch_faults
from serving.export.sources.module_example import Example, read_example
from serving.repository.record import CLASSIFICATION, OTHER

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UserModule:
    """`example` None: the code gave none. `dims`: input -> axis of the example -> name of a dimension of any length."""

    module: Any
    example: Any
    labels: tuple[str, ...] | None
    dims: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def user_module(place: str, name: str) -> UserModule:
    """`place`: a module's dotted name or a .py file. Raises UserError."""
    code = running(place, lambda: _imported(place))
    if not hasattr(code, name):
        raise UserError(f"{place} has no {name!r}")
    attribute = getattr(code, name)
    if isinstance(attribute, torch.nn.Module):
        return _checked(place, name, attribute, None)
    if not callable(attribute):
        raise UserError(
            f"{place}: {name!r} is {_kind(attribute)}, want a torch.nn.Module or a callable that returns one"
        )
    result = running(f"{place}:{name}", attribute)
    if isinstance(result, tuple) and len(result) in (2, 3):
        return _checked(place, name, *result)
    return _checked(place, name, result, None)


def running(what: str, code: Callable[[], _T]) -> _T:
    """The user's code at work. Raises UserError with their line; Ctrl-C stays Ctrl-C."""
    try:
        return code()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} failed: {torch_faults.first_line(error)}{torch_faults.line_of(error)}") from None


def _imported(place: str) -> Any:
    folder = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # and it stays: forward may import when it is called
    if not place.endswith(".py"):
        importlib.invalidate_caches()
        return importlib.import_module(place)
    name = f"tandem_module_{Path(place).stem}"  # not the stem alone, which may be a package's: `torch.py`
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise UserError(f"{place} is not a Python file")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code  # dataclasses and pickles look themselves up there
    spec.loader.exec_module(code)
    return code


def _checked(place: str, name: str, module: Any, example: Any, dims: Any = None) -> UserModule:
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"{place}:{name} returned {_kind(module)}, want a torch.nn.Module, or one and its example inputs: (module, example)"
        )
    return UserModule(module.eval().float(), example, _labels(module), _dims(dims))


def _dims(dims: Any) -> Mapping[str, Mapping[int, str]]:
    """Raises UserError for what does not say names of dimensions."""
    if dims is None:
        return {}
    is_named = isinstance(dims, Mapping) and all(
        isinstance(axes, Mapping)
        and all(
            isinstance(axis, int) and isinstance(called, str) and called.isidentifier() for axis, called in axes.items()
        )
        for axes in dims.values()
    )
    if not is_named:
        raise UserError(
            "what is returned after the example names no dimensions: want {input: {axis: name}}, such as {'ids': {1: 'tokens'}}"
        )
    return dict(dims)


def _labels(module: Any) -> tuple[str, ...] | None:
    labels = getattr(module, "labels", None)
    if labels is None:
        return None
    is_list = isinstance(labels, Sequence) and not isinstance(labels, str | Mapping)
    if not is_list or not labels or not all(isinstance(label, str) and label.strip() for label in labels):
        raise UserError("the module's `labels` is not a list of names, one per class")
    return tuple(" ".join(label.split()) for label in labels)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "nothing"


_NUM_ROWS_ALONE = 4  # of the example; more of the same kind show nothing new
_ROW_TOLERANCE = (
    1e-2  # of the output's scale: ten times the gate's, so that only what is plainly wrong is blamed on the module
)
_SUM_TOLERANCE = 1e-3  # of probabilities: FP32's own error over some thousand classes


def export(user: UserModule, source: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    if isinstance(user.module, torch.jit.ScriptModule):
        raise UserError(
            "the module is TorchScript, of which PyTorch's exporter makes no graph: return the module that it was made of"
        )
    if options.task is None:
        generative.check_module(user.module, source)
    example = read_example(user.example, user.dims, inspect.signature(user.module.forward), options, source)
    module = _FlatModule(user.module, example)
    columns = {name: values[:, None] if values.ndim == 1 else values for name, values in example.rows.items()}
    running(source, lambda: module.look(columns))
    run = torch_export.runner(module.eval(), list(columns), has_batch=example.has_batch)
    answers = running(source, lambda: in_batches(run, columns, num_rows(columns) if example.has_batch else 0, source))
    running(source, lambda: _check_repeats(run, columns, answers, module.outputs, has_batch=example.has_batch))
    task = _task(options.task, answers[0], module.outputs, has_batch=example.has_batch)
    if user.labels is not None and answers[0].shape[-1] != len(user.labels):
        raise UserError(
            f"the module's `labels` are {len(user.labels)} names, and {module.outputs[0]!r} has {answers[0].shape[-1]} columns"
        )
    said = ", ".join(f"{dim} {lengths}" for dim, lengths in (options.dims or {}).items())
    return torch_export.export_module(
        module,
        columns,
        module.outputs,
        options,
        progress,
        task=task,
        source=f"{source}; {said}" if said else source,
        labels=user.labels,
        free=example.free,
        ranges=example.ranges,
    )


def _check_repeats(
    run: Run, example: Arrays, answers: list[NDArray[Any]], outputs: list[str], *, has_batch: bool
) -> None:
    """Raises UserError where the module itself gives a row another answer the next time, or beside other rows.

    No graph can be judged beside such answers, and its refusal would blame the export.
    """
    size = num_rows(example) if has_batch else 0
    for name, first, again in zip(outputs, answers, in_batches(run, example, size), strict=True):
        if not _is_close(again, first):
            raise UserError(
                f"the module's own {name!r} changes from call to call on the same inputs: a dropout or random numbers that stay "
                "on in evaluation mode, or a buffer that forward changes; make forward depend on its inputs alone"
            )
    if not has_batch:
        return
    for row in range(min(_NUM_ROWS_ALONE, len(answers[0]))):
        alone = run({name: values[row : row + 1] for name, values in example.items()})
        for name, together, own in zip(outputs, answers, alone, strict=True):
            if not _is_close(own, together[row : row + 1]):
                raise UserError(
                    f"the module's own {name!r} of a row depends on the rows beside it, and a server mixes rows of strangers: "
                    "a normalisation by the batch's own statistics, or a sum, a largest or a sort over the batch; or serve it "
                    "without batches, with --max-batch 0"
                )


def _is_close(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """NaN is the graph's own gate's to name."""
    if ours.shape != theirs.shape:
        return False
    if theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))
    return bool(np.allclose(ours, theirs, rtol=0, atol=_ROW_TOLERANCE * scale + 1e-30, equal_nan=True))


class _FlatModule(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Tensors in the example's order -> a flat tuple of tensors, none of them a single number or, of a batch, [n] alone."""

    def __init__(self, module: Any, example: Example) -> None:
        super().__init__()
        self.module = module
        self.inputs = list(example.rows)
        self.numbers = {name for name, values in example.rows.items() if values.ndim == 1}
        self.by_name, self.has_batch = example.is_by_name, example.has_batch
        self.outputs: list[str] = []

    def forward(self, *tandem_inputs: Any) -> tuple[Any, ...]:
        flat = _flat(self._call(tandem_inputs)).values()
        return tuple(_column(tensor, 1 if self.has_batch else 0) for tensor in flat)

    def look(self, example: Mapping[str, NDArray[Any]]) -> None:
        """Learns the outputs' names. Raises UserError for what is no tensor, or has no batch where it should."""
        rows = example if self.has_batch else {name: values[0] for name, values in example.items()}
        with torch.no_grad():
            flat = _flat(self._call([torch.from_numpy(np.ascontiguousarray(rows[name])) for name in self.inputs]))
        for name, tensor in flat.items():
            if self.has_batch and (tensor.ndim == 0 or len(tensor) != num_rows(example)):
                raise UserError(
                    f"{name!r} has the shape {list(tensor.shape)} for {num_rows(example)} rows: a batch has to stay a batch; "
                    "or serve it without batches, with --max-batch 0"
                )
            if tensor.is_complex():
                raise UserError(
                    f"forward returns complex numbers as {name!r}, which no answer can carry: return torch.view_as_real of them"
                )
            if name in self.inputs:
                raise UserError(f"forward returns {name!r}, which is an input's name as well; give it another")
        self.outputs = list(flat)

    def _call(self, tensors: Any) -> Any:
        given = {
            name: tensor.squeeze(-1) if name in self.numbers else tensor
            for name, tensor in zip(self.inputs, tensors, strict=True)
        }
        return self.module(**given) if self.by_name else self.module(*given.values())


def _flat(returned: Any) -> dict[str, Any]:
    """Output name -> tensor, of any nesting: `boxes`, `heads_0`, `state_hidden`. A single one is `output`."""
    flat: dict[str, Any] = {}
    for path, value in _leaves(returned, ()):
        name = "_".join(path) or "output"
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"forward returns a {type(value).__name__} as {name!r}: want a tensor, or tuples, lists and dictionaries of them"
            )
        if name in flat:
            raise UserError(f"forward returns two outputs that are called {name!r}; give them other names")
        flat[name] = value
    if not flat:
        raise UserError("forward returns nothing")
    if len(flat) == 1 and not isinstance(returned, Mapping):
        return {"output": next(iter(flat.values()))}
    return flat


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (names from the outside in, what is no collection). None is left out inside of one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        value = dict(zip(names, value, strict=True))
    if isinstance(value, Mapping):
        parts = [(str(name), part) for name, part in value.items() if part is not None]
    elif isinstance(value, tuple | list):
        parts = [(str(place), part) for place, part in enumerate(value) if part is not None or not path]
        parts = [(name if path else f"output_{name}", part) for name, part in parts]
    else:
        yield path, value
        return
    for name, part in parts:
        yield from _leaves(part, (*path, name))


def _column(tensor: Any, least: int) -> Any:
    """With a dimension more where a row of it would have none. `least`: dimensions that are too few."""
    column = tensor.unsqueeze(-1) if tensor.ndim <= least else tensor
    return column.float() if column.is_floating_point() else column


def _task(chosen: str | None, answers: NDArray[Any], outputs: list[str], *, has_batch: bool) -> str:
    is_flat = answers.ndim == 2 and answers.dtype.kind == "f" and has_batch
    if chosen is None:
        is_sure = is_flat and answers.shape[1] > 1 and (answers >= 0).all()
        return CLASSIFICATION if is_sure and (abs(answers.sum(axis=1) - 1) < _SUM_TOLERANCE).all() else OTHER
    if chosen != OTHER and not is_flat:
        shape = ["n", *answers.shape[1:]]
        raise UserError(f"the first output, {outputs[0]!r}, is {answers.dtype} {shape}: {chosen} needs float [n, size]")
    return chosen
