"""A model over 2 GB: one ONNX file holds no more, so that its weights lie in a second file beside it.

It goes through an export as its graph's bytes, which say where the weights are and what their digest is; every place that opens
or writes a model asks here. Rule: the weights are never read into this process whole.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serving.repository import Variant

DIGEST_KEY = "tandem_weights_sha256"  # in the graph's metadata: new weights make another file, and so another version


@dataclass(frozen=True, slots=True)
class Weights:
    path: Path  # its name is the one that the graph says
    digest: str  # SHA-256


class LargeModel(bytes):
    """The ONNX file without its weights."""

    weights: Weights

    @classmethod
    def of(cls, graph: bytes, weights: Weights) -> Self:
        made = cls(graph)
        made.weights = weights
        return made


def weights_of(model: bytes) -> Weights | None:
    """None where the model is whole."""
    return model.weights if isinstance(model, LargeModel) else None


def write_model(file: Path, model: bytes) -> None:
    """Writes it, with a link to its weights beside it: for a folder that is gone before they can change."""
    file.write_bytes(model)
    weights = weights_of(model)
    if weights is None or (beside := file.with_name(weights.path.name)).exists():
        return
    try:
        os.link(weights.path, beside)
    except OSError:  # another disk
        shutil.copyfile(weights.path, beside)


def read_model(variant: Variant) -> bytes:
    """The model file of a variant, with where its weights lie."""
    graph, folder = variant.model_path.read_bytes(), f"{variant.record.model_version}/"
    for path, digest in variant.record.files.items():
        is_weights = path.startswith(folder) and path != variant.record.model_file and not path.endswith(".json")
        if is_weights:
            return LargeModel.of(graph, Weights(variant.directory / path, digest))
    return graph
