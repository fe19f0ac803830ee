"""The peer: LitServe with the file of digits-fp32, run by an environment that has LitServe: `litserve_server.py MODEL_FILE PORT`.

Takes the very body that the gateway takes and answers likewise, on one worker with one thread, which is what digits has in Triton too.
Imports nothing of this project.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import onnxruntime  # type: ignore[import-untyped]


class Digits(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        del device
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads annotations, and wants none or its own
        tensor = request["inputs"][0]
        return np.array(tensor["data"], np.float32).reshape(tensor["shape"])

    def predict(self, x: np.ndarray) -> np.ndarray:
        scores: np.ndarray = self.session.run(None, {"image": x})[0]
        return scores

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        tensor = {"name": "probabilities", "datatype": "FP32", "shape": output.shape, "data": output.ravel().tolist()}
        return {"model_name": "digits", "outputs": [tensor]}


if __name__ == "__main__":
    server = litserve.LitServer(Digits(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", generate_client_file=False)
