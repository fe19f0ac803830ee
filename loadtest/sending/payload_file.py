"""What does a campaign file say of what is sent? Its keys, and what does not go together.

Part of `campaign_file.py`'s form. Not here: whether it fits the model, which only the gateway knows (`sending/prepared.py`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from loadtest.file_fields import Text, between
from loadtest.records import Payload
from serving.documents.nearest import closest
from serving.documents.reader import Document

DATA = ("digits", "random", "photographs", "texts")
ARRAYS, TEXTS = ".npz", ".txt"  # a file of arrays by input name, one of a text a line


def _data(value: str) -> str:
    if value in DATA or value.endswith((ARRAYS, TEXTS)):
        return value
    near = closest(value, DATA)
    what = f"must be one of {', '.join(DATA)}, or a file's name that ends in {ARRAYS} or {TEXTS}, not {value[:40]!r}"
    raise ValueError(f"{what}; did you mean {near!r}?" if near else what)


# 32 rows a request is the largest batch `digits` takes; beyond 65,536 a length is a typing mistake (guess).
@dataclass(frozen=True, slots=True)
class PayloadForm:
    data: Annotated[str, AfterValidator(_data)] = "digits"
    encoding: Literal["json", "binary"] = "json"
    batch_size: Annotated[int, between(1, 32)] = 1
    length: Annotated[int, between(1, 65536)] | None = None
    model_repository: Text | None = None


DEFAULT_PAYLOAD = PayloadForm()


def payload(document: Document, form: PayloadForm, folder: Path) -> Payload:
    """What these data cannot use is an error, not a word without effect; so is a file that is not there."""
    data, repository = form.data, form.model_repository
    if form.length is not None and data != "random":
        raise document.wrong(("payload", "length"), f"it does nothing here: it is of random inputs, not of {data}")
    if repository is not None and (data in ("digits", "random") or data.endswith(ARRAYS)):
        why = "only texts and photographs are made as the model's files say"
        raise document.wrong(("payload", "model_repository"), f"it does nothing here: {why}")
    if data.endswith((ARRAYS, TEXTS)) and not (folder / data).is_file():
        raise document.wrong(("payload", "data"), f"there is no file {folder / data}")
    if repository and not (folder / repository).is_dir():
        raise document.wrong(("payload", "model_repository"), f"there is no directory {folder / repository}")
    return Payload(**asdict(form))
