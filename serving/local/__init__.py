"""Embedded Triton on this machine: its environments, its start, its supervision, its stop; and `tandem up`.

Nothing here computes an inference: the genuine `tritonserver` does, with the backend in `backends/onnxruntime/`.
What runs inside Triton's own environments imports nothing of this package.
"""
