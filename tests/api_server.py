"""Whether an API server takes an object: the schemas of kubernetes-validate, of strict validity, each read once."""

from __future__ import annotations

import functools
from typing import Any

import kubernetes_validate
from kubernetes_validate import ValidationError, utils

__all__ = ["ValidationError", "validate"]

# Each validation read the definitions of all kinds again, 15 of its 16 ms; validations only look at them.
utils.all_versions = functools.cache(utils.all_versions)
utils.schema_contents = functools.cache(utils.schema_contents)


def validate(made: dict[str, Any], version: str) -> None:
    """Of Kubernetes `version`. Raises ValidationError."""
    kubernetes_validate.validate(made, version, strict=True)
