"""From a model to proven variants in a repository: `tandem export`, and `models` and `verify`, which look at what came of it.

`sources` and `recipes` are the ways in, `variants` makes the precisions, `gates` judge and `speed` times them, `pipeline` has the
order, `publish` writes. Rule: only this room imports torch, onnx, onnxruntime and scikit-learn, and `inventory` none of them.
"""

import os

# ONNX Runtime reads it once, when it is imported, which only this room does in a process of ours.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
