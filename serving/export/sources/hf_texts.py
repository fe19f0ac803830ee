"""Text models of transformers: sentence vectors and text classifiers, from token ids to the answer in one graph.

Batch and length are dynamic. The tokenizer travels as tokenizer.json, which any client can use without transformers. Rule:
the example goes through that file and the reader that clients' data goes through, never through transformers' own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
import transformers  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError
from serving.export.data import texts
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import hf_loading, torch_export, torch_faults
from serving.export.sources.hf_folder import TOKENIZER, Folder, Sentences
from serving.repository.preprocessing import TextPreprocessing
from serving.repository.record import CLASSIFICATION, EMBEDDING, OTHER

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


def tokenizer_of(folder: Folder, options: SourceOptions, *, is_lowered: bool) -> Tokenizer:
    """transformers' tokenizer as a file that gives the same ids without transformers, compared on real sentences.

    Cutting and padding are taken out of it: preprocessing.json says them. Raises UserError where there is no fast tokenizer, no
    padding, or the file does something else.
    """
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
        ids = own(probe.lower() if is_lowered else probe)["input_ids"]
        if copy.encode(probe).ids != ids:
            raise UserError(
                f"{folder.path}: {type(own).__name__} does more in Python than its tokenizer.json says (it differs on "
                f"{probe!r}), which clients could not repeat"
            )
    return Tokenizer(
        copy.to_str(pretty=False).encode(), tuple(own.model_input_names), own.pad_token_id, own.model_max_length
    )


VECTOR = "sentence_vector"
EXAMPLES = (
    "A short one.",
    "The harbour was quiet after the last boat had come in.",
    "Is the train to the coast still running on Sundays?",
    "She repaired the old radio with parts from three others, and it has played every morning since then.",
    "Prices rose by four per cent in spring.",
    "Please send the invoice again, the first one had the wrong address.",
)
_ANY_LENGTH = 1_000_000  # transformers writes 1e30 where a tokenizer has no limit
_LONGEST_TRIED = 2_048  # tokens: attention over more takes gigabytes
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True)
class _Text:
    """A model on its way, with how texts get into it."""

    folder: Folder
    config: Any
    module: Any
    preprocessing: TextPreprocessing
    tokenizer: bytes


def embedding(sentences: Sentences, options: SourceOptions, progress: Progress) -> ExportedModel:
    folder = sentences.transformer
    config = hf_loading.config_of(folder, options)
    # the pooler is a head for sentence pairs, which no pooling here looks at
    model = hf_loading.model_of(transformers.AutoModel, folder, config, options, unused=("pooler.",))
    tokenizer = tokenizer_of(folder, options, is_lowered=sentences.is_lowered)
    preprocessing = TextPreprocessing(
        tokenizer=TOKENIZER,
        inputs=_inputs(model, config, tokenizer),
        max_length=_max_length(config, tokenizer, options.max_length or sentences.max_length),
        pad_token_id=tokenizer.pad_token_id,
        pooling=sentences.pooling,
        is_normalised=sentences.is_normalised,
    )
    module = hf_loading.Embedding(model, sentences.pooling, sentences.is_normalised)
    text = _Text(folder, config, module.eval(), preprocessing, tokenizer.file)
    return _exported(text, VECTOR, EMBEDDING, None, options, progress)


def classifier(folder: Folder, options: SourceOptions, progress: Progress, *, is_raw: bool) -> ExportedModel:
    config = hf_loading.config_of(folder, options)
    output, activation = hf_loading.scores(config, is_raw)
    task, labels = (OTHER, None) if is_raw else (CLASSIFICATION, hf_loading.labels_of(config))
    model = hf_loading.model_of(transformers.AutoModelForSequenceClassification, folder, config, options)
    tokenizer = tokenizer_of(folder, options, is_lowered=False)
    preprocessing = TextPreprocessing(
        tokenizer=TOKENIZER,
        inputs=_inputs(model, config, tokenizer),
        max_length=_max_length(config, tokenizer, options.max_length),
        pad_token_id=tokenizer.pad_token_id,
        pooling="none",
        is_normalised=False,
    )
    text = _Text(folder, config, hf_loading.TextClassifier(model, activation).eval(), preprocessing, tokenizer.file)
    return _exported(text, output, task, labels, options, progress)


def _exported(
    text: _Text, output: str, task: str, labels: tuple[str, ...] | None, options: SourceOptions, progress: Progress
) -> ExportedModel:
    example = texts.encode(text.tokenizer, text.preprocessing, EXAMPLES)
    _try_longest(text, example)
    return torch_export.export_module(
        text.module,
        example,
        [output],
        options,
        progress,
        task=task,
        source=text.folder.source,
        labels=labels,
        preprocessing=text.preprocessing,
        files={TOKENIZER: text.tokenizer},
        free={name: {1: "sequence"} for name in example},
        packages=("transformers", "tokenizers"),
    )


def _inputs(model: Any, config: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """Tokenizer's word -> input. Types of tokens only where the model has weights for them."""
    parameters = set(inspect.signature(model.forward).parameters)
    has_types = "token_type_ids" in tokenizer.words and getattr(config, "type_vocab_size", 1) > 0
    names = [name for name in _INPUTS if name in parameters and (name != "token_type_ids" or has_types)]
    if names[:2] != list(_INPUTS[:2]):
        raise UserError(
            f"{type(model).__name__} takes {', '.join(sorted(parameters))}; want input_ids and attention_mask"
        )
    return {name: name for name in names}


def _max_length(config: Any, tokenizer: Tokenizer, chosen: int | None) -> int:
    """Tokens at which texts are cut: as asked, else what the tokenizer and the positions allow."""
    if chosen is not None:
        return chosen
    limits = [tokenizer.max_length, getattr(config, "max_position_embeddings", None)]
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < _ANY_LENGTH]
    if not known:
        raise UserError("neither the tokenizer nor config.json says how long a text may be: give --max-length TOKENS")
    return min(known)


def _try_longest(text: _Text, example: Mapping[str, Any]) -> None:
    """Positions may end before max_length, or begin at 2, as RoBERTa's do: then it fails here and not at a client's."""
    length = min(text.preprocessing.max_length, _LONGEST_TRIED)
    row = {name: np.resize(values[:1], (1, length)) for name, values in example.items()}
    row["attention_mask"] = np.ones((1, length), np.int64)
    try:
        torch_export.runner(text.module, list(row))(row)
    except Exception as error:
        raise UserError(
            f"{text.folder.path}: the model does not take a text of {length} tokens "
            f"({torch_faults.first_line(error)}): give a smaller --max-length"
        ) from None
