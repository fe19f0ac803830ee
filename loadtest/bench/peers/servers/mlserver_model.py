"""MLServer's runtime for the file of a digits model, named in `model-settings.json` beside it. Imports nothing of this project."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]


class Digits(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_FILE"], options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32, copy=False)
        output = self.session.run(None, {"image": tensor})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", output)])
