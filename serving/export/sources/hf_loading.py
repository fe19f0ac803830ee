"""A transformers model out of its folder, and the head that makes its answer inside the graph: pooling, softmax.

Every weight comes from the folder, FP32, attention written out, nobody's code unless trusted: transformers fills missing weights
with random numbers and only warns. Rules: what the answer depends on comes from the folder, or it is an error; a row whose mask
is all zero gives zeros, never NaN, in FP16 as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import transformers  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.sources import hf_folder, torch_faults
from serving.export.sources.hf_folder import Folder
from serving.export.sources.torch_export import quiet_torch
from serving.repository.preprocessing import LOGITS, NO_SCORES, PROBABILITIES


def config_of(folder: Folder, options: SourceOptions) -> Any:
    with foreign(folder, "settings"):
        return transformers.AutoConfig.from_pretrained(folder.path, **_origin(options))


def model_of(kind: Any, folder: Folder, config: Any, options: SourceOptions, unused: tuple[str, ...] = ()) -> Any:
    """By one of transformers' Auto classes, in evaluation mode. `unused`: beginnings of weights that no answer needs."""
    with foreign(folder, "weights"):
        model, info = kind.from_pretrained(
            folder.path,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",  # the fused kinds have no ONNX operator of their own in opset 18
            use_safetensors=hf_folder.has_safetensors(folder),
            ignore_mismatched_sizes=True,  # told below, with their names
            output_loading_info=True,
            **_origin(options),
        )
    if mismatched := sorted(info["mismatched_keys"]):
        name, saved, wanted = mismatched[0]
        raise UserError(
            f"{folder.path}: {len(mismatched)} weights do not have the shape that config.json says, the first of them {name}: "
            f"want {list(wanted)}, got {list(saved)}; save model and settings together, by save_pretrained"
        )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(unused))
    if missing:
        raise UserError(
            f"{folder.path} lacks {len(missing)} weights of {type(model).__name__} ({missing[0]}), which would be random "
            "numbers: is it the model that was trained for this task?"
        )
    return model.eval()


def scores(config: Any, is_raw: bool) -> tuple[str, Activation]:
    """A classifier's output: its name, and what makes it of the raw scores."""
    if is_raw:
        return "scores", raw
    if config.problem_type == "regression" or config.num_labels < 2:
        raise UserError("the model gives one number, no classes: --task other serves it as it is")
    if config.problem_type == "multi_label_classification":
        return "probabilities", sigmoid
    return "probabilities", softmax


def meaning_of(config: Any, is_raw: bool) -> str:
    """Of that output, in the words of preprocessing.json."""
    if not is_raw:
        return PROBABILITIES
    is_single_choice = config.num_labels > 1 and config.problem_type in (None, "single_label_classification")
    return LOGITS if is_single_choice else NO_SCORES  # softmax of anything else would be no probability


def labels_of(config: Any) -> tuple[str, ...]:
    """The classes' names in the order of the scores."""
    labels = {int(index): " ".join(str(label).split()) for index, label in config.id2label.items()}
    if sorted(labels) != list(range(len(labels))) or len(labels) != config.num_labels:
        raise UserError(f"config.json: id2label does not name classes 0 to {config.num_labels - 1}, each once")
    return tuple(labels[index] for index in range(len(labels)))


@contextlib.contextmanager
def foreign(folder: Folder, what: str) -> Iterator[None]:
    """transformers at work: silent, and its errors in one line."""
    bars: Any = transformers.utils.logging
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with quiet_torch():
            yield
    except UserError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{folder.path} brings Python code of its own that has to run: add --trust if you trust who wrote it"
            ) from None
        if isinstance(error, ImportError) and error.name:
            raise UserError(f"{folder.path}: its {what} need {error.name}: pip install {error.name}") from None
        raise UserError(
            f"{folder.path}: transformers cannot read its {what}: {torch_faults.first_line(error)}"
        ) from None
    finally:
        if had_bars:
            bars.enable_progress_bar()


def _origin(options: SourceOptions) -> dict[str, Any]:
    return {"trust_remote_code": options.is_trusted, "local_files_only": True}


_MIN_NORM = 1e-6  # FP16 holds it, as it does not hold torch's 1e-12; no real vector is that short
_BELOW_ALL = -1e4  # under any activation of an encoder, inside FP16's 65,504

Activation = Callable[[Any], Any]


def softmax(scores: Any) -> Any:
    return torch.softmax(scores, dim=-1)


def sigmoid(scores: Any) -> Any:
    return torch.sigmoid(scores)


def raw(scores: Any) -> Any:
    return scores


class Embedding(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """One vector per text, float32 [n, size]."""

    def __init__(self, model: Any, pooling: str, is_normalised: bool) -> None:
        super().__init__()
        self.model = model
        self.pool = {"mean": mean, "cls": first, "max": highest}[pooling]
        self.is_normalised = is_normalised

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        tokens = self.model(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state
        vectors = self.pool(tokens, attention_mask.unsqueeze(-1))
        return torch.nn.functional.normalize(vectors, dim=-1, eps=_MIN_NORM) if self.is_normalised else vectors


def mean(tokens: Any, mask: Any) -> Any:
    weights = mask.to(tokens.dtype)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def first(tokens: Any, mask: Any) -> Any:
    return tokens[:, 0] * mask[:, 0].to(tokens.dtype)


def highest(tokens: Any, mask: Any) -> Any:
    """The largest value of each place over all tokens that count."""
    largest = torch.where(mask > 0, tokens, torch.full_like(tokens, _BELOW_ALL)).amax(dim=1)
    return torch.where(mask.amax(dim=1) > 0, largest, torch.zeros_like(largest))


class TextClassifier(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """float32 [n, classes]."""

    def __init__(self, model: Any, activation: Activation) -> None:
        super().__init__()
        self.model = model
        self.activation = activation

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.activation(self.model(input_ids=input_ids, attention_mask=attention_mask, **more).logits)


class ImageClassifier(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """float32 [n, classes]."""

    def __init__(self, model: Any, activation: Activation) -> None:
        super().__init__()
        self.model = model
        self.activation = activation

    def forward(self, pixel_values: Any) -> Any:
        return self.activation(self.model(pixel_values=pixel_values).logits)
