"""`inference.GRPCInferenceService`: answers each RPC but inference, checks keys, and turns errors into statuses.

It says of server and models what HTTP says (`models/metadata.py`). Rule: an RPC that is not offered says why with HTTP's sentence; a method
needs a key unless it is named as open, and no message is read before its sender's key was checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.access import ADMIN, INFER, Access, Caller, require_name
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.grpc.health import Health
from serving.gateway.grpc.infer import GrpcInfer
from serving.gateway.grpc.reflection import Reflection
from serving.gateway.grpc.rpc import Method, Rpc, UnaryAnswer
from serving.gateway.models import metadata, statistics
from serving.gateway.models.loading import Action, Loading
from serving.gateway.triton_words import worded
from serving.protocol.budget import PARAMETERS
from serving.protocol.grpc_descriptors import HEALTH
from serving.protocol.grpc_v2 import parsed
from serving.protocol.http2 import Piece

NAME = "inference.GRPCInferenceService"
REFUSED = {
    "SystemSharedMemoryStatus": "systemsharedmemory",
    "SystemSharedMemoryRegister": "systemsharedmemory",
    "SystemSharedMemoryUnregister": "systemsharedmemory",
    "CudaSharedMemoryStatus": "cudasharedmemory",
    "CudaSharedMemoryRegister": "cudasharedmemory",
    "CudaSharedMemoryUnregister": "cudasharedmemory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
OPEN = ("ServerLive", "ServerReady")


class Service:
    """`required` are the models that must have answered before the server is ready; `admin_here`: whether models are loaded here too."""

    def __init__(
        self,
        infer: GrpcInfer,
        access: Access,
        catalogue: Catalogue,
        state: metadata.State,
        loading: Loading,
        required: list[str],
        *,
        admin_here: bool,
    ) -> None:
        self._infer = infer
        self._access = access
        self._catalogue = catalogue
        self._state = state
        self._loading = loading
        self._required = required
        self._admin_here = admin_here

    def methods(self) -> dict[str, Method]:
        """By their paths. Messages stay bytes on their way here and back, so that a client is told what is wrong with them."""
        answers: dict[str, UnaryAnswer] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            **{name: partial(self._refuse, what) for name, what in REFUSED.items()},
        }
        health = Health(NAME, self._is_ready)
        return {
            **{f"/{NAME}/{name}": Method(unary=it, is_open=name in OPEN) for name, it in answers.items()},
            f"/{NAME}/ModelInfer": Method(unary=self._infer.unary, is_inference=True),
            f"/{NAME}/ModelStreamInfer": Method(stream=self._infer.stream, is_inference=True),
            f"/{HEALTH}/Check": Method(unary=health.check, is_open=True),
            f"/{HEALTH}/Watch": Method(stream=health.watch, is_open=True),
            **Reflection((NAME,), self._access).methods(),
        }

    def guard(self, method: Method, rpc: Rpc) -> str:
        """The tenant, before a message is read; empty where nobody asks who it is.

        Raises Unauthenticated, BadRequest, or as `require_quota`.
        """
        if method.is_open:
            return ""
        tenant = "" if self._access.table is None else self._access.caller_of(rpc.metadata).tenant
        if method.is_inference and method.unary is not None:
            self._infer.require_quota(tenant, rpc)
        return tenant

    def worded(self, error: errors.RequestError) -> errors.RequestError:
        """As clients hear it."""
        return worded(error) if self._catalogue.has_triton_words else error

    # -- health: needs no key -----------------------------------------------------------------------------------------

    async def _live(self, message: bytes, _: Rpc) -> Sequence[Piece]:
        parsed(pb.ServerLiveRequest, message)
        return _bytes(pb.ServerLiveResponse(live=True))

    async def _ready(self, message: bytes, _: Rpc) -> Sequence[Piece]:
        parsed(pb.ServerReadyRequest, message)
        state = self._state
        good = state.is_informed() and metadata.all_routable(self._catalogue, self._required)
        good = good and not state.unanswered() and not state.closing
        return _bytes(pb.ServerReadyResponse(ready=good))

    def _is_ready(self) -> bool:
        """What `/health/ready` says."""
        state = self._state
        state.was_ready = state.was_ready or (
            state.is_informed() and metadata.all_routable(self._catalogue, self._required, may_sleep=True)
        )
        return state.was_ready and not state.closing

    # -- about server and models --------------------------------------------------------------------------------------

    async def _server_metadata(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        parsed(pb.ServerMetadataRequest, message)
        self._caller(rpc, INFER)
        return _from_json(metadata.server_metadata(self._catalogue), pb.ServerMetadataResponse())

    async def _model_ready(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        request = parsed(pb.ModelReadyRequest, message)
        require_name(self._caller(rpc, INFER), request.name, self._catalogue.fleet)
        try:
            good = await metadata.is_model_ready(self._catalogue, request.name, request.version)
        except errors.NotFound:  # Triton's own answer, on which clients wait for a model to come
            good = False
        return _bytes(pb.ModelReadyResponse(ready=good))

    async def _model_metadata(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        described = await self._of_model(parsed(pb.ModelMetadataRequest, message), rpc, metadata.METADATA)
        return _from_json(described, pb.ModelMetadataResponse())

    async def _model_config(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        described = await self._of_model(parsed(pb.ModelConfigRequest, message), rpc, metadata.CONFIG)
        return _from_json({"config": described}, pb.ModelConfigResponse())

    async def _statistics(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        request = parsed(pb.ModelStatisticsRequest, message)
        if request.name:
            described = await self._of_model(request, rpc, metadata.STATISTICS)
        else:
            described = await statistics.of_all(self._catalogue, self._caller(rpc, INFER))
        return _from_json(described, pb.ModelStatisticsResponse())

    async def _of_model(self, request: Any, rpc: Rpc, what: str) -> dict[str, Any]:
        require_name(self._caller(rpc, INFER), request.name, self._catalogue.fleet)
        return await metadata.of_model(self._catalogue, request.name, request.version, what)

    async def _index(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        request = parsed(pb.RepositoryIndexRequest, message)
        rows = metadata.index(self._catalogue, self._caller(rpc, INFER), is_ready=request.ready)
        return _from_json({"models": rows}, pb.RepositoryIndexResponse())

    # -- for whoever runs the gateway ---------------------------------------------------------------------------------

    async def _load(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        await self._change(parsed(pb.RepositoryModelLoadRequest, message), rpc, "load")
        return _bytes(pb.RepositoryModelLoadResponse())

    async def _unload(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        await self._change(parsed(pb.RepositoryModelUnloadRequest, message), rpc, "unload")
        return _bytes(pb.RepositoryModelUnloadResponse())

    async def _change(self, request: Any, rpc: Rpc, action: Action) -> None:
        require_name(self._caller(rpc, ADMIN), request.model_name, self._catalogue.fleet)
        if not self._admin_here:
            metadata.refuse_load(request.model_name)
        PARAMETERS.check(len(request.parameters))
        given = {name: _value(parameter) for name, parameter in request.parameters.items()}
        await self._loading.change(request.model_name, action, orjson.dumps({"parameters": given}))

    async def _refuse(self, what: str, _: bytes, rpc: Rpc) -> Sequence[Piece]:
        self._caller(rpc, ADMIN)
        raise errors.Unsupported(metadata.NOT_OFFERED[what])

    def _caller(self, rpc: Rpc, scope: str) -> Caller:
        """Raises Unauthenticated or Forbidden."""
        caller = self._access.caller_of(rpc.metadata)
        caller.require(scope)
        return caller


def _value(parameter: Any) -> bool | int | str | None:
    """A ModelRepositoryParameter's; bytes are files, which are refused by their names."""
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind in (None, "bytes_param") else getattr(parameter, kind)


def _from_json(described: dict[str, Any], into: Any) -> Sequence[Piece]:
    """v2's JSON as the message of the same names. A newer Triton may say more than these messages hold."""
    return _bytes(ParseDict(described, into, ignore_unknown_fields=True))


def _bytes(message: Any) -> Sequence[Piece]:
    return (message.SerializeToString(),)
