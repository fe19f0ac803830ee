"""A metric of the user's own: FILE.py:NAME, a function of (reference, answers, labels).

It takes lists of all outputs, [n, …] each, and labels or None, and returns a number, which is recorded without a limit, or
{name: (value, limit, is_minimum)}, each judged. Rule: it is code, so it runs only after --trust, and its errors are reported with
their line.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.gates.limits import RULES, digits
from serving.repository import Check


def check_metric(spec: str, *, is_trusted: bool) -> tuple[Path, str]:
    """The file and the function's name. Raises UserError without such a file, or without trust."""
    file, colon, name = spec.rpartition(":")
    path = Path(file)
    if not colon or not name.isidentifier() or path.suffix != ".py":
        raise UserError(f"--metric {spec}: want FILE.py:NAME")
    if not path.is_file():
        raise UserError(f"--metric {spec}: {path} is not there")
    if not is_trusted:
        raise UserError(f"--metric {spec} runs the code in {path}; read it, then say --trust")
    return path, name


Metric = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]], NDArray[Any] | None], Any]
_MODULE = "tandem_metric"
_WANTED = "want a number, or {name: (value, limit, is_minimum)}"


def load_metric(spec: str, *, is_trusted: bool) -> Metric:
    """Raises UserError without such a function, or without trust."""
    path, name = check_metric(spec, is_trusted=is_trusted)
    module_spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[_MODULE] = module  # dataclasses and pickles in it look for their module there
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # SystemExit would end the export in silence
        raise UserError(f"--metric {spec}: {_error_text(error, path)}") from None
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    metric = getattr(module, name, None)
    if not callable(metric):
        known = nearest(name, functions) if functions else "; it has no function"
        raise UserError(f"--metric {spec}: {path} has no function {name!r}{known}")
    return _guarded(metric, name, path)


def custom_checks(
    metric: Metric, reference: Sequence[NDArray[Any]], answers: Sequence[NDArray[Any]], labels: NDArray[Any] | None
) -> list[Check]:
    """The user's numbers of the answers, and of the reference beside itself. UserError for what is none."""
    name = getattr(metric, "__name__", "metric")
    values, reference_values = (_named(metric(reference, outputs, labels), name) for outputs in (answers, reference))
    checks = []
    for key, (value, limit, is_minimum) in values.items():
        if key in RULES:
            raise UserError(f"--metric: {key!r} is the name of a number of Tandem's own; call it something else")
        of_reference = (
            reference_values[key][0] if key in reference_values and math.isfinite(reference_values[key][0]) else None
        )
        checks.append(
            Check(
                metric=key,
                value=digits(value),
                limit=None if limit is None else digits(limit),
                is_minimum=is_minimum,
                reference=None if of_reference is None else digits(of_reference),
                is_default_limit=limit is None,
            )
        )
    return checks


def _named(given: Any, name: str) -> dict[str, tuple[float, float | None, bool]]:
    """metric -> (value, limit, is_minimum)."""
    if not isinstance(given, Mapping):
        return {name: (_number(given, name), None, True)}
    named: dict[str, tuple[float, float | None, bool]] = {}
    for key, entry in given.items():
        if not isinstance(key, str) or not key:
            raise UserError(f"--metric: the name {key!r} of a number is not text; {_WANTED}")
        if not isinstance(entry, tuple | list) or len(entry) != 3 or not isinstance(entry[2], bool):
            raise UserError(f"--metric: {key!r} is {entry!r:.80}; {_WANTED}")
        limit = _number(entry[1], f"the limit of {key}")
        if not math.isfinite(limit):
            raise UserError(f"--metric: the limit of {key} is {limit}; {_WANTED}")
        named[key] = (_number(entry[0], key), limit, entry[2])
    if not named:
        raise UserError(f"--metric: it gave no number; {_WANTED}")
    return named


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"--metric: {name} is {type(value).__name__}; {_WANTED}") from None


def _guarded(metric: Callable[..., Any], name: str, path: Path) -> Metric:
    """The function, whose own exceptions become the user's."""

    def guarded(reference: Sequence[NDArray[Any]], answers: Sequence[NDArray[Any]], labels: NDArray[Any] | None) -> Any:
        try:
            return metric(reference, answers, labels)
        except (Exception, SystemExit) as error:  # SystemExit would end the export in silence
            raise UserError(f"--metric {path}:{name}: {_error_text(error, path)}") from None

    guarded.__name__ = name
    return guarded


def _error_text(error: BaseException, path: Path) -> str:
    """The last line of the user's own file that it passed, and what it says."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    lines += [error.lineno] if isinstance(error, SyntaxError) else []
    where = f"line {lines[-1]}: " if lines and lines[-1] else ""
    return f"{where}{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
