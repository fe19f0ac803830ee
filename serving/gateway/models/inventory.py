"""What a gateway's repository has of each model: its proofs, its speed, its size, what was refused and why, and a row to try it with.

Whether a variant is served is in `account.py`; the rows are those of `tandem models` (`export/inventory.py`). Rule: reads from disk, so
not on the event loop; and a file beside a model that changed after its gate is not shown.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from serving.errors import RequestError, UserError
from serving.export.inventory import models
from serving.gateway.model_files import Beside
from serving.repository import Repository, Variant
from serving.repository.preprocessing import ImagePreprocessing

MAX_EXAMPLE_BYTES = (
    512 * 1024
)  # a larger one than a page holds well: 1 image of 224 x 224 as JSON has 1.5 MB; a guess, not measured


def told(repository: Path | None) -> dict[str, Any]:
    """As JSON. Without a repository nothing is known but what the servers say."""
    if repository is None:
        return {"version": 1, "repository": None, "processor": None, "models": {}, "unreadable": {}}
    try:
        found, (variants, _) = models(repository), Repository(repository).readable()
    except UserError as error:
        return {"version": 1, "repository": None, "processor": None, "models": {}, "unreadable": {"": str(error)}}
    by_model: dict[str, dict[str, Any]] = {}
    for variant in variants:
        if variant.record.variant == "fp32" or variant.record.model not in by_model:
            by_model[variant.record.model] = _model(variant) | {"variants": []}
    for row in found.variants:
        by_model[row.model]["variants"].append(asdict(row))
        by_model[row.model]["not_made"] |= row.not_made
    return {
        "version": 1,
        "repository": str(repository),
        "processor": found.processor,
        "models": by_model,
        "unreadable": dict(found.unreadable) | dict.fromkeys(found.ungated, "there is no gate record beside it"),
    }


def _model(variant: Variant) -> dict[str, Any]:
    """What all of its variants share. `takes`: images or texts, which the gateway itself makes tensors; None: tensors alone."""
    record, beside = variant.record, Beside(variant)
    takes = labels = None
    try:
        if (preprocessing := beside.preprocessing()) is not None:
            takes = "images" if isinstance(preprocessing, ImagePreprocessing) else "texts"
        labels = beside.labels()
    except RequestError:
        takes = labels = None
    return {
        "task": record.task,
        "source": record.source,
        "takes": takes,
        "labels": labels,
        "example": _example(variant),
        "not_made": {},
    }


def _example(variant: Variant) -> dict[str, Any] | None:
    """A v2 request that the gate kept, with the right answer where that is known."""
    sample = variant.record.sample
    if sample is None:
        return None
    try:
        data = Beside(variant).file(sample.file)
    except RequestError:
        return None
    if len(data) > MAX_EXAMPLE_BYTES:
        return None
    return {"request": orjson.loads(data), "label": sample.label, "index": sample.index}
