"""Which outputs a v2 request asks for as JSON: those of FP16 and BF16 have none, and Triton would say so after the model ran."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from serving.errors import BadRequest
from serving.protocol.v2.head import parse


def require_json_outputs(head: bytes, binary_only: Set[str]) -> None:
    """`binary_only`: the outputs of the model that have no JSON form. Raises BadRequest where one is asked for as JSON.

    Triton 2.51 takes a listed output as JSON unless it says `binary_data` itself, whatever `binary_data_output` says.
    """
    request = parse(head)
    listed = request.get("outputs")
    if isinstance(listed, list) and listed:
        asked = {str(entry.get("name")) for entry in listed if isinstance(entry, dict) and not _is_other(entry)}
    else:
        is_binary = _parameters(request).get("binary_data_output") is True
        asked = set() if is_binary else set(binary_only)
    if missing := sorted(asked & binary_only):
        raise BadRequest(
            f"output '{missing[0]}' is FP16 or BF16, which have no JSON form; ask for it with the parameter binary_data: true"
        )


def _is_other(entry: dict[str, Any]) -> bool:
    """Whether it comes back in binary, or as classes, which are text."""
    parameters = _parameters(entry)
    return parameters.get("binary_data") is True or "classification" in parameters


def _parameters(entry: dict[str, Any]) -> dict[str, Any]:
    found = entry.get("parameters")
    return found if isinstance(found, dict) else {}
