"""A transformers tokenizer as one tokenizer.json that gives the same ids without transformers.

Cutting and padding are taken out of the file: preprocessing.json says them. Rule: before it leaves here, the file has given
transformers' own ids on real sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tokenizers
import transformers  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.sources.hugging_face import hf_loading
from serving.export.sources.hugging_face.hf_folder import Folder

PROBES = (
    "Straße, naïve café: 3.50 € for two!",
    "UPPER and lower,  two spaces\tand a tab",
    "北京 is a city; don't split it's.",
    "x" * 60,
)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`words` are the inputs that it makes. `max_length` may be anything, as transformers writes it."""

    file: bytes
    words: tuple[str, ...]
    pad_token_id: int
    max_length: int


def of(folder: Folder, options: SourceOptions, *, is_lowered: bool) -> Tokenizer:
    """Raises UserError where there is no fast tokenizer, no padding, or the file does something else."""
    with hf_loading.foreign(folder, "tokenizer"):
        own: Any = transformers.AutoTokenizer.from_pretrained(
            folder.path, trust_remote_code=options.is_trusted, local_files_only=True
        )
    if not any(folder.has(name) for name in own.vocab_files_names.values()):
        names = ", ".join(own.vocab_files_names.values())  # transformers makes an empty one where it finds none
        raise UserError(f"{folder.path} holds no tokenizer (none of {names}): save the tokenizer beside the model")
    if not getattr(own, "is_fast", False):
        raise UserError(
            f"{folder.path}: {type(own).__name__} exists in Python alone and has no tokenizer.json that clients could use: "
            "save the model with a fast tokenizer"
        )
    if own.pad_token_id is None:
        raise UserError(f"{folder.path}: the tokenizer has no padding token, without which texts make no batch")
    copy = tokenizers.Tokenizer.from_str(own.backend_tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    if is_lowered:
        parts = [tokenizers.normalizers.Lowercase(), *([copy.normalizer] if copy.normalizer else [])]
        copy.normalizer = tokenizers.normalizers.Sequence(parts)
    for probe in PROBES:
        want = own(probe.lower() if is_lowered else probe)["input_ids"]
        if copy.encode(probe).ids != want:
            raise UserError(
                f"{folder.path}: {type(own).__name__} does more in Python than its tokenizer.json says (it differs on "
                f"{probe!r}), which clients could not repeat"
            )
    return Tokenizer(
        copy.to_str(pretty=False).encode(), tuple(own.model_input_names), own.pad_token_id, own.model_max_length
    )
