"""What does a file of YAML, or of JSON where its name says so, hold?

Whatever is wrong with it as a file is one UserError with its name; what its words mean is the reader's that asked. Rule: nothing that
anybody can write into such a file is a traceback.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from serving.errors import UserError

# Beside its own errors the YAML reader lets these through: for dates that are none, for tags that their values do not fit, for a
# thousand brackets.
BROKEN = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


def read_document(path: Path, what: str) -> Any:
    """`what` it is to be: `the scenario`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} {path}: {getattr(error, 'strerror', None) or error}") from None
    is_json = path.suffix == ".json"
    try:
        return json.loads(text) if is_json else yaml.safe_load(text)
    except (yaml.YAMLError, *BROKEN) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{path}: not valid {'JSON' if is_json else 'YAML'}: {said}") from None
