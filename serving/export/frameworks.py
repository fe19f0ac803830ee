"""Which extra does a source need that is not installed here? Asked before anything heavy is imported.

Rule: standard library only, and nothing is imported to find out.
"""

from __future__ import annotations

import importlib.util

from serving.export.sources import NEEDS, split

PACKAGES = {  # extra -> what it brings
    "onnx": ("numpy", "onnx", "onnxruntime"),
    "export": ("onnx", "onnxruntime", "torch", "transformers"),
    "keras": ("onnx", "onnxruntime", "torch", "keras"),
}
RECIPES = {"digits": "export", "minilm": "export", "efficientnet-lite0": "export"}


def missing(source: str) -> str | None:
    """The extra, or None where all is there."""
    extra = "onnx" if source.startswith("speed:") else RECIPES.get(source) or NEEDS[split(source)[0]]
    return None if is_here(extra) else extra


def is_here(extra: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES[extra])
