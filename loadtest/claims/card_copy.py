"""Copies an array within a device's memory by ONNX Runtime and says how long each copy took, as one line of JSON.

    PYTHON card_copy.py copy.onnx cuda 256 15

Rule: standard library, NumPy and ONNX Runtime only, nothing of this project, because it runs in an engine's own environment.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
NUM_WARMUP = 3


def main(file: str, device: str, num_rows: int, num_rounds: int) -> int:
    if device == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    session = ort.InferenceSession(file, providers=[PROVIDERS[device]])
    if session.get_providers()[0] != PROVIDERS[device]:
        print(f"{PROVIDERS[device]} did not start", file=sys.stderr)
        return 1
    given = np.full((num_rows, session.get_inputs()[0].shape[1]), 7, np.float32)
    source = ort.OrtValue.ortvalue_from_numpy(given, device, 0)
    target = ort.OrtValue.ortvalue_from_shape_and_type(given.shape, np.float32, device, 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", target)
    seconds = []
    for _ in range(NUM_WARMUP + num_rounds):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        seconds.append(time.perf_counter() - start)
    if not np.array_equal(target.numpy()[-1], given[-1]):
        print("the copy is not what was copied", file=sys.stderr)
        return 1
    print(json.dumps({"onnxruntime": ort.__version__, "seconds": seconds[NUM_WARMUP:]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
