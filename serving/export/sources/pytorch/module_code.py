"""Runs the user's code until it has given a torch.nn.Module, and with it what it said of inputs and labels.

The current directory can be imported from, as with `python -m`; a file's own folder, as with `python FILE.py`. Rule: whatever
that code raises becomes one line with the place in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError
from serving.export.sources.pytorch import torch_faults

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UserModule:
    """`example` None: the code gave none."""

    module: Any
    example: Any
    labels: tuple[str, ...] | None


def made(place: str, name: str) -> UserModule:
    """`place`: a module's dotted name or a .py file. Raises UserError."""
    code = running(place, lambda: _imported(place))
    if not hasattr(code, name):
        raise UserError(f"{place} has no {name!r}")
    found = getattr(code, name)
    if isinstance(found, torch.nn.Module):
        return _checked(place, name, found, None)
    if not callable(found):
        raise UserError(f"{place}: {name!r} is {_kind(found)}, want a torch.nn.Module or a callable that returns one")
    given = running(f"{place}:{name}", found)
    if isinstance(given, tuple) and len(given) == 2:
        return _checked(place, name, given[0], given[1])
    return _checked(place, name, given, None)


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
        raise UserError(f"{place} is no Python file")
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
