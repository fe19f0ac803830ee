"""Example inputs of a user's torch module: what was given, as arrays by input name, in four rows or more.

Rows that are missing are made of those that are there: numbers get noise of their own size, whole numbers change places
along the last axis, because their values may be ids of a table. Rule: shapes and types are the user's; floats become FP32.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError

MIN_ROWS = 4  # a batch of 3, and one row that is not in it
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WANT = "a tensor, a tuple of tensors or a dictionary of them, each [n, …]"


def read(given: Any, signature: inspect.Signature) -> tuple[dict[str, NDArray[Any]], bool]:
    """Arrays by input name, and whether forward is to be called by these names. UserError for what is no example."""
    if given is None:
        raise UserError(
            "there are no example inputs, which say the model's shapes: return (module, example), or give --example FILE.npz"
        )
    named = _named(given, signature)
    arrays = {name: _array(name, value) for name, value in named.items()}
    rows = {name: len(values) for name, values in arrays.items()}
    if len(set(rows.values())) != 1 or min(rows.values()) < 1:
        told = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise UserError(f"the example's inputs need the same number of rows, 1 or more; got {told}")
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
