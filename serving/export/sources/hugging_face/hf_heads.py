"""What stands between a transformers model and its answer, as part of the graph: pooling and normalisation, softmax.

Forward's parameters are the graph's inputs. Rule: a row whose mask is all zero gives zeros, never NaN, in FP16 as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

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
