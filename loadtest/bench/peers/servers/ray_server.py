"""Ray Serve with the file of a digits model: `ray_server.py MODEL_FILE PORT`. Imports nothing of this project."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import ray  # type: ignore[import-not-found]
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=64)
class Digits:
    def __init__(self, file: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    async def __call__(self, request: Any) -> dict[str, Any]:
        if request.method == "GET":  # the proxy is healthy before it has this route
            return {}
        tensor = json.loads(await request.body())["inputs"][0]
        output = self.session.run(None, {"image": np.array(tensor["data"], np.float32).reshape(tensor["shape"])})[0]
        answer = {
            "name": "probabilities",
            "datatype": "FP32",
            "shape": list(output.shape),
            "data": output.ravel().tolist(),
        }
        return {"model_name": "digits", "outputs": [answer]}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2]), "access_log": False})
    serve.run(Digits.bind(sys.argv[1]), route_prefix="/")  # type: ignore[attr-defined]
    signal.pause()
