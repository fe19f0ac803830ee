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
ALSO = {  # recipe or kind of source -> what it imports beside that, of the same extra
    "sklearn": ("sklearn", "skl2onnx", "onnxmltools"),
    "digits": ("sklearn",),
    "minilm": ("tokenizers",),
    "efficientnet-lite0": ("sklearn", "skl2onnx", "PIL"),
}


def missing(source: str) -> str | None:
    """The extra, or None where all is there."""
    kind = source if source in RECIPES else "speed" if source.startswith("speed:") else split(source)[0]
    extra = "onnx" if kind == "speed" else RECIPES.get(kind) or NEEDS[kind]
    return None if is_here(extra) and all(map(_is_found, ALSO.get(kind, ()))) else extra


def is_here(extra: str) -> bool:
    return all(map(_is_found, PACKAGES[extra]))


def _is_found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
