"""Is this a model that writes its answer token by token? Such a one is named, and sent where it is served better.

Its answer takes as many runs as it has tokens, each with the cache of the one before: what makes that fast (batches that change
with every token, pages of cache) is not here. Rule: `--task` overrules, so that one step of it can be served all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from serving.errors import UserError

_ENDINGS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "LMHeadModel",
    "ForSpeechSeq2Seq",
    "ForImageTextToText",
    "ForVision2Seq",
)
_FAMILIES = (  # of config.json's model_type, whose plain "…Model" is a decoder, too
    "gpt|llama|mistral|mixtral|qwen|phi|gemma|falcon|opt|bloom|olmo|deepseek|granite|cohere|starcoder|stablelm|smollm|"
    "mamba|rwkv|xglm|codegen|glm|exaone|nemotron"
)
_CACHES = re.compile(
    r"past(_key|_value|[._]\d)|present(_key|_value|[._]\d)|past_key_values|cache_position|decoder_input_ids"
)


def check_config(config: Mapping[str, Any], architecture: str, path: object) -> None:
    """Raises UserError for a folder of transformers that was saved to generate."""
    family = re.match(_FAMILIES, str(config.get("model_type", "")))
    is_plain = architecture.endswith("Model") and not architecture.endswith("LMHeadModel")
    is_decoder = is_plain and bool(family or config.get("is_decoder") or config.get("is_encoder_decoder"))
    if architecture.endswith(_ENDINGS) or is_decoder:
        raise _error(
            f"{path} was saved as {architecture}", "give --task embedding with --pooling, if its vectors are wanted"
        )


def check_names(names: Iterable[str], name: str) -> None:
    """Raises UserError where a graph's inputs or outputs are a cache of what was generated so far."""
    if caches := [one for one in names if _CACHES.match(one)]:
        raise _error(
            f"{name} keeps a cache of earlier tokens ({caches[0]})", "say --task other to serve one step of it"
        )


def check_module(module: Any, name: str) -> None:
    """Raises UserError for a model of transformers that can generate."""
    if getattr(module, "can_generate", None) is not None and module.can_generate():
        raise _error(f"{name} is {type(module).__name__}", "say --task other to serve one step of it")


def _error(what: str, way_out: str) -> UserError:
    return UserError(
        f"{what}: it generates its answer token by token, for which Tandem has no scheduler; serve it with vLLM, SGLang or "
        f"llama.cpp (speech: faster-whisper), or {way_out}"
    )
