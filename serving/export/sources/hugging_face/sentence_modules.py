"""How a sentence-transformers folder makes one vector of a text: which pooling, normalised or not, cut at how many tokens.

It stands in modules.json, 1_Pooling/config.json and sentence_bert_config.json, in two generations of spelling. Rule: what is
not known to be done inside our graph is an error, because a vector without it lies in another space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.sources.hugging_face.hf_folder import Folder
from serving.repository.preprocessing import POOLINGS

MODULES = "modules.json"
KNOWN = ("Transformer", "Pooling", "Normalize")  # classes of sentence-transformers, in this order

_OURS = tuple(pooling for pooling in POOLINGS if pooling != "none")
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_BERT = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class Sentences:
    """`transformer` is the folder of the model itself. `max_length` None: the tokenizer's own."""

    transformer: Folder
    pooling: str
    is_normalised: bool
    max_length: int | None
    is_lowered: bool  # texts are put in lower case before the tokenizer sees them


def is_described(folder: Folder) -> bool:
    return folder.has(MODULES)


def read(folder: Folder, pooling: str | None, is_normalised: bool | None) -> Sentences:
    """`pooling` and `is_normalised` overrule the files where they are given."""
    if pooling is not None and pooling not in _OURS:
        raise UserError(f"unknown pooling {pooling!r}{nearest(pooling, _OURS)}")
    if not is_described(folder):
        if pooling is None:
            raise UserError(
                f"{folder.path} does not say how a sentence's vector is made ({MODULES} is missing): "
                f"give --pooling {', '.join(_OURS)}"
            )
        return Sentences(folder, pooling, bool(is_normalised), None, is_lowered=False)
    paths = _paths(folder)
    _check_prompts(folder)
    transformer = folder.below(paths["Transformer"])
    bert = next((f.json(_BERT) for f in (transformer, folder) if f.has(_BERT)), {})
    if pooling is None:
        if "Pooling" not in paths:
            raise UserError(f"{folder.path}: {MODULES} has no Pooling: give --pooling {', '.join(_OURS)}")
        pooling = _pooling(folder.below(paths["Pooling"]))
    normalised = "Normalize" in paths if is_normalised is None else is_normalised
    length = bert.get("max_seq_length")
    return Sentences(transformer, pooling, normalised, length, is_lowered=bool(bert.get("do_lower_case")))


def _paths(folder: Folder) -> dict[str, str]:
    """Class -> its folder."""
    paths: dict[str, str] = {}
    for module in _listed(folder):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in KNOWN:
            raise UserError(
                f"{folder.path}: {MODULES} has a {kind or 'module without a type'}, and only {', '.join(KNOWN)} are put "
                "into the graph here: export the whole as FILE.onnx, or give it as module:"
            )
        if kind in paths or [known for known in KNOWN if known in {*paths, kind}] != [*paths, kind]:
            raise UserError(f"{folder.path}: {MODULES} has {kind} in an order that is not {', '.join(KNOWN)}")
        paths[kind] = str(module.get("path", ""))
    if "Transformer" not in paths:
        raise UserError(f"{folder.path}: {MODULES} has no Transformer")
    return paths


def _listed(folder: Folder) -> list[Mapping[str, Any]]:
    try:
        modules = json.loads((folder.path / MODULES).read_text(encoding="utf-8"))
        ordered: list[Mapping[str, Any]] = sorted(modules, key=lambda module: int(module["idx"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder.path / MODULES} cannot be read: {type(error).__name__}: {error}") from None
    return ordered


def _pooling(folder: Folder) -> str:
    config = folder.json("config.json")
    if isinstance(named := config.get("pooling_mode"), str):
        chosen = [named]
    else:
        chosen = [name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on is True]
        chosen = [_FLAGS.get(name, name.removeprefix("pooling_mode_")) for name in chosen]
    if len(chosen) != 1 or chosen[0] not in _OURS:
        told = " and ".join(chosen) or "none"
        raise UserError(
            f"{folder.path}: the pooling is {told}, and one of {', '.join(_OURS)} is put into the graph here"
        )
    return chosen[0]


def _check_prompts(folder: Folder) -> None:
    if folder.has(_PROMPTS) and (name := folder.json(_PROMPTS).get("default_prompt_name")):
        raise UserError(
            f"{folder.path}: {_PROMPTS} puts the prompt {name!r} before every text, which clients would not know: "
            "set default_prompt_name to null there, and have the prompt in the texts themselves"
        )
