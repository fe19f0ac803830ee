"""KServe's Python server with the file of a digits model: `kserve_server.py MODEL_FILE PORT`. Imports nothing of this project."""

from __future__ import annotations

import sys
from typing import Any

import kserve  # type: ignore[import-not-found]
import onnxruntime  # type: ignore[import-untyped]

FILE, PORT = sys.argv[1], int(sys.argv[2])
sys.argv = sys.argv[:1]  # KServe reads the rest


class Digits(kserve.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("digits")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(FILE, options, providers=["CPUExecutionProvider"])
        self.ready = True

    async def predict(self, payload: kserve.InferRequest, *_: Any, **__: Any) -> kserve.InferResponse:
        output = self.session.run(None, {"image": payload.inputs[0].as_numpy()})[0]
        answer = kserve.InferOutput("probabilities", list(output.shape), "FP32")
        answer.set_data_from_numpy(output, binary_data=False)
        return kserve.InferResponse(payload.id or "1", "digits", [answer])


if __name__ == "__main__":
    kserve.ModelServer(http_port=PORT, enable_grpc=False, workers=1, access_log_format=None).start([Digits()])
