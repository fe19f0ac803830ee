"""Tells a running Triton what to serve, over gRPC.

gRPC and not HTTP, because an HTTP load holds one of Triton's HTTP threads and every connection that lives on it. This is
the one place where the client's exceptions become ours. Not here: clients' inference, which the gateway forwards by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput  # type: ignore[import-untyped]
from tritonclient.grpc.aio import InferenceServerClient  # type: ignore[import-untyped]
from tritonclient.utils import InferenceServerException  # type: ignore[import-untyped]

from serving.errors import EnvironmentFault
from serving.local.recycling import REFUSING
from serving.protocol.triton_reason import plain_reason
from serving.repository import Tensor

ANSWER_S = 5.0  # Triton answers its index in under 2 ms; one that is stopped does not
LOAD_S = 1200.0  # TensorRT builds an engine for minutes, at a first inference, too; what takes longer stands still (guess, not measured)
UNLOAD_S = 60.0  # Triton only begins to unload; a refused load starts one process, beside others that load (guess, not measured)
LIVE_POLL_S = 0.02  # a start takes about 0.3 s; a finer look gains nothing


class TritonLost(EnvironmentFault):
    """Triton does not answer at all."""

    def __init__(self, url: str) -> None:
        super().__init__(f"Triton at {url} does not answer")
        self.url = url


class LoadFailed(EnvironmentFault):
    """Triton answered that it cannot load a model."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"Triton could not load {model}: {reason}")
        self.model, self.reason = model, reason


class Control:
    """One gRPC channel to one Triton, e.g. at 127.0.0.1:8001."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = InferenceServerClient(url)

    async def close(self) -> None:
        with contextlib.suppress(InferenceServerException):
            await self._client.close()

    async def is_live(self) -> bool:
        try:
            return bool(await self._client.is_server_live(client_timeout=ANSWER_S))
        except InferenceServerException:
            return False

    async def wait_live(self, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await self.is_live():
            if asyncio.get_running_loop().time() > deadline:
                raise TritonLost(self.url)
            await asyncio.sleep(LIVE_POLL_S)

    async def load(self, model: str, config: str) -> None:
        """Loads with this configuration (JSON) in place of the file's; loads again, files unchanged, when it is loaded."""
        try:
            await self._client.load_model(model, config=config, client_timeout=LOAD_S)
        except InferenceServerException as error:
            if "DEADLINE_EXCEEDED" in str(error.status()):
                raise LoadFailed(model, f"it was not loaded after {LOAD_S / 60:.0f} minutes") from None
            raise self._ours(error, model) from None

    async def refuse(self, model: str, version: int, reason: str) -> None:
        """Lets Triton fail to load this version of it for this reason, so that its index says so. Nothing of the model's files is read."""
        config = {
            "name": model,
            "backend": "python",
            "input": [{"name": "none", "data_type": "TYPE_FP32", "dims": [1]}],
            "output": [{"name": "none", "data_type": "TYPE_FP32", "dims": [1]}],
            "instance_group": [{"kind": "KIND_CPU", "count": 1}],
            "version_policy": {"specific": {"versions": [version]}},
        }
        files = {f"file:{version}/model.py": REFUSING.format(reason=reason).encode()}
        try:
            await self._client.load_model(model, config=json.dumps(config), files=files, client_timeout=UNLOAD_S)
        except InferenceServerException as error:
            failure = self._ours(error, model)
            if not isinstance(failure, LoadFailed):
                raise failure from None

    async def server(self) -> str:
        """Its name and version."""
        try:
            answer = await self._client.get_server_metadata(client_timeout=ANSWER_S)
        except InferenceServerException as error:
            raise self._ours(error, "") from None
        return f"{answer.name} {answer.version}"

    async def infer(
        self, model: str, inputs: Sequence[Tensor], rows: Mapping[str, NDArray[Any]], outputs: Sequence[Tensor]
    ) -> list[NDArray[Any]]:
        """The outputs in their order; text as text. For the check before a model is published: clients' requests are the gateway's."""
        given = []
        for tensor in inputs:
            values = rows[tensor.name]
            given.append(InferInput(tensor.name, list(values.shape), tensor.datatype))
            given[-1].set_data_from_numpy(values.astype(object) if tensor.datatype == "BYTES" else values)
        try:
            answer = await self._client.infer(model, given, client_timeout=LOAD_S)
        except InferenceServerException as error:
            raise self._ours(error, model) from None
        return [_text(answer.as_numpy(tensor.name)) for tensor in outputs]

    async def unload(self, model: str) -> None:
        try:
            await self._client.unload_model(model, client_timeout=UNLOAD_S)
        except InferenceServerException as error:
            raise self._ours(error, model) from None

    async def states(self, model: str) -> list[tuple[str, str]]:
        """(READY, UNAVAILABLE …, the reason) of each version that Triton has tried to load."""
        try:
            answer = await self._client.get_model_repository_index(client_timeout=ANSWER_S)
        except InferenceServerException as error:
            raise self._ours(error, model) from None
        return [(entry.state, entry.reason) for entry in answer.models if entry.name == model and entry.state]

    async def is_loading(self) -> bool:
        """Whether it loads any model now."""
        try:
            answer = await self._client.get_model_repository_index(client_timeout=ANSWER_S)
        except InferenceServerException as error:
            raise self._ours(error, "") from None
        return any(entry.state == "LOADING" for entry in answer.models)

    async def num_answered(self) -> dict[str, int]:
        """Requests that each model has answered since it was loaded, errors included."""
        try:
            answer = await self._client.get_inference_statistics(client_timeout=ANSWER_S)
        except InferenceServerException as error:
            raise self._ours(error, "") from None
        counts: Counter[str] = Counter()
        for row in answer.model_stats:
            counts[row.name] += row.inference_stats.success.count + row.inference_stats.fail.count
        return counts

    async def parameters(self, model: str) -> set[str]:
        """The names of the parameters in the configuration that it was loaded with."""
        try:
            answer = await self._client.get_model_config(model, client_timeout=ANSWER_S)
        except InferenceServerException as error:
            raise self._ours(error, model) from None
        return set(answer.config.parameters)

    def _ours(self, error: InferenceServerException, model: str) -> EnvironmentFault:
        if any(word in str(error.status()) for word in ("UNAVAILABLE", "DEADLINE_EXCEEDED")):
            return TritonLost(self.url)
        return LoadFailed(model, plain_reason(str(error.message())))


def _text(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind != "O":
        return values
    text = np.empty(values.shape, object)
    text.ravel()[:] = [item.decode() for item in values.ravel()]
    return text
