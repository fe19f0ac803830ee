"""Which parameters of a v2 request go on to Triton, and which of them Triton would misread or must not see."""

from __future__ import annotations

from serving.errors import BadRequest, Unsupported
from serving.protocol.budget import BINARY

TYPED_PARAMETERS: dict[str, tuple[set[type], str]] = {
    "binary_data": ({bool}, "true or false"),
    "binary_data_output": ({bool}, "true or false"),
    "binary_data_size": ({int}, "a number of bytes"),
    "classification": ({int}, "a whole number"),
    "priority": ({int}, "a whole number"),
}
# Triton 2.51 answers 500 below the least and cuts off what is above the most: a classification of 2**32 becomes none at all.
BOUNDS: dict[str, tuple[int, int]] = {
    "binary_data_size": (0, 2**31 - 1),
    "classification": (1, 2**31 - 1),
    "priority": (0, 2**32 - 1),
}
# Which mean something, by where they stand; of the others a model may read those of the request.
KNOWN = {"parameters": BINARY | {"priority", "timeout"}, "inputs": BINARY, "outputs": BINARY | {"classification"}}
SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})


def check_parameters(parameters: object, where: str) -> int | None:
    """Refuses reserved names and wrong types; returns `timeout` in microseconds if set. `where`: `parameters` for those of the request.

    Of an input or an output also those that nobody reads. Raises BadRequest or Unsupported.
    """
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise BadRequest(f"{where} must be an object, not {json_type(parameters)}")
    for name in parameters:
        if not name.isprintable():
            raise BadRequest(f"{where} has a name with control characters: {name[:40]!r}")
        lower = name.lower()
        if lower.startswith("shared_memory"):
            raise BadRequest(f"{where}.{name}: shared memory is not offered here; send the tensor in the request")
        if lower.startswith(("triton_", "tandem_")) or lower == "headers":
            raise BadRequest(f"{where}.{name} is a reserved name")
    for name, (kinds, what) in TYPED_PARAMETERS.items():
        if name in parameters and type(parameters[name]) not in kinds:
            raise BadRequest(f"{where}.{name} must be {what}, not {json_type(parameters[name])}")
    for name, (low, high) in BOUNDS.items():
        if name in parameters and not low <= parameters[name] <= high:
            side = f"{low} or more" if parameters[name] < low else f"{high} or less"
            raise BadRequest(f"{where}.{name} must be {side}")
    if where == "parameters":
        return _check_own(parameters)
    if names := unknown(parameters, where.partition("[")[0]):
        raise BadRequest(f"{where} has {names}, which nobody reads there; leave it out")
    return None


def unknown(parameters: object, level: str) -> str:
    """The names of those that mean nothing there, to be read in an error; empty where there are none. `level`: of `KNOWN`."""
    names = sorted(parameters.keys() - KNOWN[level]) if isinstance(parameters, dict) else []
    return ", ".join(f"'{name[:40]}'" for name in names[:10])


def _check_own(parameters: dict[str, object]) -> int | None:
    """Those that only the request itself has."""
    if used := SEQUENCE_PARAMETERS & parameters.keys():
        raise Unsupported(f"parameters.{min(used)}: models that keep a sequence's state are not served")
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if type(timeout) is not int or not 0 <= timeout < 2**63:
        raise BadRequest("parameters.timeout must be a whole number of microseconds, 0 or more")
    return timeout or None


def json_type(value: object) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")
