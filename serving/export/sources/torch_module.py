"""`module:PKG.MOD:CALLABLE`, or `module:FILE.py:CALLABLE`: any torch.nn.Module of the user's own.

CALLABLE is a Module, or returns one, or returns (module, example): a tensor, a tuple or a dictionary of tensors with a batch
first. Its `labels`, where it has such, name the classes. Rule: this runs the user's code, so trust is asked for before
anything is imported, and its errors are reported with their line.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import checks

_MAKES_ANY_NAME = {"globals", "locals", "vars", "exec", "eval", "setattr"}
SPELLING = "module:PKG.MOD:CALLABLE or module:FILE.py:CALLABLE"


def check(rest: str, options: SourceOptions) -> None:
    """What is wrong without running anything. Raises UserError."""
    place, colon, name = rest.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UserError(f"'module:{rest}' names no callable; want {SPELLING}")
    if place.endswith(".py") and not Path(place).is_file():
        raise UserError(f"there is no file {place}")
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise UserError(f"'{place}' is not the name of a Python module; want {SPELLING}")
    if not options.is_trusted:
        raise UserError(f"module:{rest} runs the code in {place}: add --trust if you trust who wrote it")
    checks.refuse("module", options)
    if (file := _file(place)) is not None:
        _check_file(file, name)


def _file(place: str) -> Path | None:
    """Which file will be run; None where only importing tells."""
    if place.endswith(".py"):
        return Path(place)
    path = Path(*place.split("."))
    if not all((parent / "__init__.py").is_file() for parent in [*path.parents][:-1]):
        return None  # a package of that name, installed, would come before a folder of the current directory
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _check_file(file: Path, name: str) -> None:
    """UserError for Python that does not parse, or where nothing can have made `name`. Nothing is run."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{file}{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from None
    bound = _bound(tree.body)
    if bound is not None and name not in bound:
        raise UserError(f"{file} has no {name!r}{nearest(name, sorted(bound)) if bound else ': it defines no names'}")


def _bound(body: Sequence[ast.AST]) -> set[str] | None:
    """Names that a module may have once it has run; None where it may make any."""
    names, queue = set[str](), [*body]
    while queue:
        node = queue.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
                queue += [part for part in ast.walk(node) if isinstance(part, ast.Global | ast.Call | ast.Attribute)]
                queue += node.decorator_list
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Global(names=globals_):
                names.update(globals_)
            case ast.alias(name=name, asname=asname):
                if name == "*":
                    return None
                names.add(asname or name.partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.Name(id=name) if name in _MAKES_ANY_NAME:
                return None
            case ast.Attribute(attr="modules" | "__dict__"):
                return None
        queue += ast.iter_child_nodes(node)
    return None if "__getattr__" in names else names


def load(rest: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    """UserError names --trust, the user's line, or the operator that does not export."""
    check(rest, options)
    place, _, name = rest.rpartition(":")
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: F401

        from serving.export.sources import module_call
    except ImportError as error:
        raise checks.not_installed("module", error) from None
    module: Any = module_call.user_module(place, name)
    return module_call.export(module, f"module: {Path(place).name}:{name}", options, progress)
