"""gRPC clients of the gateways: channels that are opened once and kept, as such clients keep them, with gRPC's defaults.

Those send an RPC again that no server has begun; what one has begun is not tried again. Rule: an answer that no gateway gave is its status
alone; one that a gateway gave has the gateway's words after it.
"""

from __future__ import annotations

import json
import os
from collections import Counter

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # this process starts others all the time

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from tests.cluster.hybrid.endpoints import Forward, Known

METHOD = "/inference.GRPCInferenceService/ModelInfer"
NUM_CHANNELS = 2  # one for each gateway
OPTIONS = (
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


def message(model: str, body: bytes) -> bytes:
    """The HTTP body of a request, whose tensors are FP32, as gRPC has it."""
    request = pb.ModelInferRequest(model_name=model)
    for it in json.loads(body)["inputs"]:
        tensor = request.inputs.add(name=it["name"], datatype=it["datatype"], shape=it["shape"])
        tensor.contents.fp32_contents.extend(it["data"])
    return bytes(request.SerializeToString())


class Channels:
    """Asked in turn. Lives in one event loop, from `start`."""

    def __init__(self, known: Known, request: bytes) -> None:
        taken: Counter[str] = Counter()
        self._forwards = [Forward(known, taken) for _ in range(NUM_CHANNELS)]
        self._request = request
        self._channels: list[grpc.aio.Channel] = []
        self._next = 0

    async def start(self) -> None:
        self._channels = [grpc.aio.insecure_channel(await it.start(), options=OPTIONS) for it in self._forwards]

    async def stop(self) -> None:
        for it in self._channels:
            await it.close()

    async def ask(self, timeout_s: float) -> tuple[str, str, str]:
        """What was said, the pool that answered, the gateway."""
        number = self._next = (self._next + 1) % NUM_CHANNELS
        call = self._channels[number].unary_unary(METHOD)(self._request, timeout=timeout_s)
        try:
            await call
            fields = dict(await call.trailing_metadata())
            return "OK", str(fields.get("tandem-pool", "")), self._forwards[number].endpoint
        except grpc.aio.AioRpcError as error:
            said = error.code().name
            if "tandem-error" in dict(error.trailing_metadata() or ()):
                said += f" {error.details()}"
            return said, "", self._forwards[number].endpoint
