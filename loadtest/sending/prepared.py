"""What one campaign sends: made once, before its first run, so that every run of every arm sends the same inputs in the same order.

From the words of the campaign file to arrays that fit the model that is served. Deliberately not here: how arrays are made
(`sending/inputs.py`, `real_inputs.py`) and how they become requests (`sending/bodies.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.campaign_file import ARRAYS, TEXTS
from loadtest.errors import PayloadError
from loadtest.records import Payload
from loadtest.sending import inputs, real_inputs
from loadtest.sending.bodies import Body, Signature, encode, signature
from loadtest.sending.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Prepared:
    """`first`: one row alone, to find out whether an arm answers at all. `payload`: what the report says of all this."""

    given: Inputs
    first: Body
    payload: Payload


def prepare(
    asked: Payload, model: str, metadata: dict[str, Any], folder: Path, repository: Path | None, seed: int
) -> Prepared:
    """`folder`: where the campaign's files are. `repository`: where the model's lie, None: as `tandem up` finds it. Raises PayloadError."""
    try:
        takes = signature(metadata)
        given, what, remark = _made(asked, model, takes, folder, repository, seed)
        first = next(inputs.batches(takes, given, 1))
        body = encode(takes, *first, asked.encoding)
        if given.num_inputs < asked.batch_size:
            raise PayloadError(f"{given.num_inputs} inputs are too few for a batch of {asked.batch_size}")
    except (ValueError, KeyError) as error:
        raise error if isinstance(error, PayloadError) else PayloadError(str(error)) from error
    facts = replace(asked, what=what, remark=remark, num_distinct=given.num_distinct, digest=given.digest)
    return Prepared(given, body, facts)


def _made(
    asked: Payload, model: str, takes: Signature, folder: Path, repository: Path | None, seed: int
) -> tuple[Inputs, str, str | None]:
    """The inputs, what they are in words, and what a reader must know."""
    if asked.data == "digits":
        return inputs.digits(takes), "real handwritten digits", None
    if asked.data == "random":
        length = asked.length or inputs.LENGTH
        given = inputs.noise(takes, asked.encoding, seed, length)
        opened = any(tensor.is_dynamic for tensor in takes.inputs)
        return given, "random inputs" + (f" of length {length}" if opened else ""), None
    if asked.data.endswith(ARRAYS):
        return inputs.read_npz(folder / asked.data, takes), f"inputs of {Path(asked.data).name}", None
    if repository is not None and not repository.is_dir():
        raise PayloadError(f"--model-repository {repository} is no directory")
    lies_in = folder / asked.model_repository if asked.model_repository else repository or _default_repository()
    if asked.data == "photographs":
        given, remark = real_inputs.photographs(takes, model, lies_in, asked.encoding)
        return given, "parts of two real photographs", remark
    file = folder / asked.data if asked.data.endswith(TEXTS) else real_inputs.SENTENCES
    what = f"texts of {file.name}" if asked.data.endswith(TEXTS) else "English texts of mixed length"
    return real_inputs.texts(takes, model, lies_in, file, asked.encoding, seed), what, None


def _default_repository() -> Path:
    from serving.repository.layout import default_repository

    return default_repository()
