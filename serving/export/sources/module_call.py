"""A user's torch module: running the code that makes it, its inputs and outputs, and the model file that comes of it.

The current directory can be imported from, as with `python -m`; a file's own folder, as with `python FILE.py`. Inputs are named
as in the example's dictionary, else like forward's parameters; outputs as in the dictionary that forward returns, else `output`.
Only the batch is dynamic: every other length is the example's. Rules: whatever that code raises becomes one line with the place
in it; what Triton cannot carry, one number per row, becomes [n, 1] here, inside the graph.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays, ExportedModel, Run, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import torch_export, torch_faults
from serving.repository.record import CLASSIFICATION, OTHER

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UserModule:
    """`example` None: the code gave none."""

    module: Any
    example: Any
    labels: tuple[str, ...] | None


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
    if isinstance(result, tuple) and len(result) == 2:
        return _checked(place, name, result[0], result[1])
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


def _checked(place: str, name: str, module: Any, example: Any) -> UserModule:
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"{place}:{name} returned {_kind(module)}, want a torch.nn.Module, or one and its example inputs: (module, example)"
        )
    return UserModule(module.eval().float(), example, _labels(module))


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


MIN_ROWS = 4  # a batch of 3, and one row that is not in it
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WANT = "a tensor, a tuple of tensors or a dictionary of them, each [n, …]"


def read_example(given: Any, signature: inspect.Signature) -> tuple[dict[str, NDArray[Any]], bool]:
    """Arrays by input name, and whether forward is to be called by these names. UserError for what is no example.

    Rows that are missing are made of those that are there: floats get noise of their own size, whole numbers change places
    along the last axis, because their values may be ids of a table. Floats become FP32.
    """
    if given is None:
        raise UserError(
            "there are no example inputs, which say the model's shapes: return (module, example), or give --example FILE.npz"
        )
    named = _named(given, signature)
    arrays = {name: _array(name, value) for name, value in named.items()}
    rows = {name: len(values) for name, values in arrays.items()}
    if len(set(rows.values())) != 1 or min(rows.values()) < 1:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise UserError(f"the example's inputs need the same number of rows, 1 or more; got {counts}")
    return _filled(arrays), isinstance(given, Mapping) and _is_by_name(list(arrays), signature)


def _named(given: Any, signature: inspect.Signature) -> dict[str, Any]:
    if isinstance(given, Mapping):
        if not given or not all(isinstance(name, str) for name in given):
            raise UserError(f"the example's dictionary maps no input names; want {_WANT}")
        return dict(given)
    values = list(given) if isinstance(given, tuple | list) else [given]
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        names += [f"input_{index}" for index in range(len(names), len(values))]
    if not values or len(values) > len(names):
        raise UserError(f"the example has {len(values)} tensors, and forward takes {', '.join(names) or 'none'}")
    return dict(zip(names, values, strict=False))


def _is_by_name(names: list[str], signature: inspect.Signature) -> bool:
    """One input may have any name. Of several, each has to be a parameter's, or their order would be a guess."""
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    unknown = [name for name in names if name not in parameters]
    if unknown and len(names) > 1:
        raise UserError(f"the example has {unknown[0]!r}, and forward takes {', '.join(parameters) or 'nothing'}")
    return not unknown


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        detached = value.detach().cpu()
        value = (detached.float() if detached.is_floating_point() else detached).numpy()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or value.ndim == 0:
        raise UserError(f"the example's {name!r} is a {type(value).__name__}; want {_WANT}")
    if not np.isfinite(value).all():
        raise UserError(f"the example's {name!r} holds NaN or infinite values")
    return np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else value.dtype)


def _filled(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    num_rows = len(next(iter(arrays.values())))
    if num_rows >= MIN_ROWS:
        return arrays
    random = np.random.default_rng(0)
    filled = {}
    for name, values in arrays.items():
        more = [_altered(values, turn, random) for turn in range(1, -(-MIN_ROWS // num_rows))]
        filled[name] = np.concatenate([values, *more])
    return filled


def _altered(values: NDArray[Any], turn: int, random: np.random.Generator) -> NDArray[Any]:
    if values.dtype.kind == "f":
        noise = random.standard_normal(values.shape) * (values.std() or 1.0)
        return (values + noise).astype(values.dtype)
    return np.roll(values, turn, axis=-1) if values.ndim > 1 else values


_NUM_ROWS_ALONE = 4  # of the example; more of the same kind show nothing new
_ROW_TOLERANCE = (
    1e-2  # of the output's scale: ten times the gate's, so that only what is plainly wrong is blamed on the module
)
_SUM_TOLERANCE = 1e-3  # of probabilities: FP32's own error over some thousand classes


def export(user: UserModule, source: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    given = user.example if options.example is None else options.example
    if isinstance(user.module, torch.jit.ScriptModule):
        raise UserError(
            "the module is TorchScript, of which PyTorch's exporter makes no graph: return the module that it was made of"
        )
    example, by_name = read_example(given, inspect.signature(user.module.forward))
    module = _FlatModule(user.module, example, by_name)
    columns = {name: values[:, None] if values.ndim == 1 else values for name, values in example.items()}
    running(source, lambda: module.look(columns))
    run = torch_export.runner(module.eval(), list(columns))
    answers = running(source, lambda: run(columns))
    running(source, lambda: _check_repeats(run, columns, answers, module.outputs))
    task = _task(options.task, answers[0], module.outputs)
    if user.labels is not None and answers[0].shape[-1] != len(user.labels):
        raise UserError(
            f"the module's `labels` are {len(user.labels)} names, and {module.outputs[0]!r} has {answers[0].shape[-1]} columns"
        )
    return torch_export.export_module(
        module, columns, module.outputs, options, progress, task=task, source=source, labels=user.labels
    )


def _check_repeats(run: Run, example: Arrays, answers: list[NDArray[Any]], outputs: list[str]) -> None:
    """Raises UserError where the module itself gives a row another answer the next time, or beside other rows.

    No graph can be judged beside such answers, and its refusal would blame the export.
    """
    for name, first, again in zip(outputs, answers, run(example), strict=True):
        if not _is_close(again, first):
            raise UserError(
                f"the module's own {name!r} changes from call to call on the same inputs: a dropout or random numbers that stay "
                "on in evaluation mode, or a buffer that forward changes; make forward depend on its inputs alone"
            )
    for row in range(min(_NUM_ROWS_ALONE, len(answers[0]))):
        alone = run({name: values[row : row + 1] for name, values in example.items()})
        for name, together, own in zip(outputs, answers, alone, strict=True):
            if not _is_close(own, together[row : row + 1]):
                raise UserError(
                    f"the module's own {name!r} of a row depends on the rows beside it, and a server mixes rows of strangers: "
                    "a normalisation by the batch's own statistics, or a sum, a largest or a sort over the batch"
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
    """Tensors in the example's order -> a flat tuple of tensors, none of them [n] alone."""

    def __init__(self, module: Any, example: Mapping[str, NDArray[Any]], by_name: bool) -> None:
        super().__init__()
        self.module = module
        self.inputs = list(example)
        self.numbers = {name for name, values in example.items() if values.ndim == 1}
        self.by_name = by_name
        self.outputs: list[str] = []

    def forward(self, *tandem_inputs: Any) -> tuple[Any, ...]:
        return tuple(_column(tensor) for tensor in _flat(self._call(tandem_inputs)).values())

    def look(self, example: Mapping[str, NDArray[Any]]) -> None:
        """Learns the outputs' names. Raises UserError for what is no tensor with a batch."""
        with torch.no_grad():
            flat = _flat(self._call([torch.from_numpy(example[name]) for name in self.inputs]))
        num_rows = len(next(iter(example.values())))
        for name, tensor in flat.items():
            if tensor.ndim == 0 or len(tensor) != num_rows:
                raise UserError(
                    f"{name!r} has the shape {list(tensor.shape)} for {num_rows} rows: a batch has to stay a batch"
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
            name: tensor.squeeze(1) if name in self.numbers else tensor
            for name, tensor in zip(self.inputs, tensors, strict=True)
        }
        return self.module(**given) if self.by_name else self.module(*given.values())


def _flat(returned: Any) -> dict[str, Any]:
    """Output name -> tensor."""
    if isinstance(returned, Mapping):
        flat = {str(name): value for name, value in returned.items() if value is not None}
    elif isinstance(returned, tuple | list) and len(returned) > 1:
        flat = {f"output_{index}": value for index, value in enumerate(returned)}
    else:
        flat = {"output": returned[0] if isinstance(returned, tuple | list) and returned else returned}
    for name, value in flat.items():
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"forward returns a {type(value).__name__} as {name!r}: want a tensor, or a flat tuple or dictionary of them"
            )
    if not flat:
        raise UserError("forward returns nothing")
    return flat


def _column(tensor: Any) -> Any:
    column = tensor.unsqueeze(1) if tensor.ndim == 1 else tensor
    return column.float() if column.is_floating_point() else column


def _task(chosen: str | None, answers: NDArray[Any], outputs: list[str]) -> str:
    is_flat = answers.ndim == 2 and answers.dtype.kind == "f"
    if chosen is None:
        is_sure = is_flat and answers.shape[1] > 1 and (answers >= 0).all()
        return CLASSIFICATION if is_sure and (abs(answers.sum(axis=1) - 1) < _SUM_TOLERANCE).all() else OTHER
    if chosen != OTHER and not is_flat:
        shape = ["n", *answers.shape[1:]]
        raise UserError(f"the first output, {outputs[0]!r}, is {answers.dtype} {shape}: {chosen} needs float [n, size]")
    return chosen
