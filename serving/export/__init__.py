"""From a model to gated variants in a repository. `sources` is the way in, `inventory` lists and verifies what is there.

`digits` makes a network (torch), `precision` its FP16 and INT8 (onnx, onnxruntime), `gates` and `speed` prove them, `publish`
writes them. Rule: only this room imports torch, onnx, onnxruntime and scikit-learn, and `inventory` none of them.
"""
