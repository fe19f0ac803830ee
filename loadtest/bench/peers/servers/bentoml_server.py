"""BentoML with the file of a digits model: `MODEL_FILE=… bentoml serve bentoml_server:Digits`.

Takes the very body that the gateway takes, on one worker with one thread. Imports nothing of this project.
"""

from __future__ import annotations

import os
from typing import Any

import bentoml  # type: ignore[import-not-found]
import numpy as np
import onnxruntime  # type: ignore[import-untyped]


@bentoml.service(workers=1, traffic={"timeout": 30})
class Digits:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_FILE"], options, providers=["CPUExecutionProvider"]
        )

    @bentoml.api(route="/infer")  # type: ignore[untyped-decorator]
    def infer(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        tensor = np.array(inputs[0]["data"], np.float32).reshape(inputs[0]["shape"])
        output = self.session.run(None, {"image": tensor})[0]
        answer = {"name": "probabilities", "datatype": "FP32", "shape": output.shape, "data": output.ravel().tolist()}
        return {"model_name": "digits", "outputs": [answer]}
