"""What does a campaign file say of what is sent? Its keys, and what does not go together.

Part of `campaign_file.py`'s form. Not here: whether it fits the model, which only the gateway knows (`sending/prepared.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from loadtest.records import Payload
from loadtest.strict_yaml import Reader, a_number, a_text, one_of
from serving.documents.nearest import closest

DATA = ("digits", "random", "photographs", "texts")
ARRAYS, TEXTS = ".npz", ".txt"  # a file of arrays by input name, one of a text a line
ENCODINGS = ("json", "binary")


def some_data(value: Any) -> str | None:
    if value in DATA or (isinstance(value, str) and value.endswith((ARRAYS, TEXTS))):
        return None
    near = closest(str(value), DATA)
    what = f"must be one of {', '.join(DATA)}, or a file's name that ends in {ARRAYS} or {TEXTS}"
    return f"{what} (did you mean {near!r}?)" if near else what


# 32 rows a request is the largest batch `digits` takes; beyond 65,536 a length is a typing mistake (guess).
FORM: dict[str, Any] = {
    "data": (some_data, "digits"),
    "encoding": (one_of(*ENCODINGS), "json"),
    "batch_size": (a_number(1, 32, int), 1),
    "length": (a_number(1, 65536, int), None),
    "model_repository": (a_text, None),
}


def payload(reader: Reader, node: yaml.Node, values: dict[str, Any], folder: Path) -> Payload:
    """What these data cannot use is an error, not a word without effect; so is a file that is not there."""
    given = {key.value: key for key, _ in node.value} if isinstance(node, yaml.MappingNode) else {}
    data, repository = values["data"], values["model_repository"]
    if "length" in given and data != "random":
        raise reader.error(given["length"], f"'length' does nothing here: it is of random inputs, not of {data}")
    if "model_repository" in given and (data in ("digits", "random") or data.endswith(ARRAYS)):
        why = "only texts and photographs are made as the model's files say"
        raise reader.error(given["model_repository"], f"'model_repository' does nothing here: {why}")
    if data.endswith((ARRAYS, TEXTS)) and not (folder / data).is_file():
        raise reader.error(given["data"], f"'data': there is no file {folder / data}")
    if repository and not (folder / repository).is_dir():
        raise reader.error(
            given["model_repository"], f"'model_repository': there is no directory {folder / repository}"
        )
    return Payload(**values)
