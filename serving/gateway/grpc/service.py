"""`inference.GRPCInferenceService`: answers each RPC but inference, checks keys, and turns errors into statuses.

It says of server and models what HTTP says (`models/metadata.py`). Rule: an RPC that is not offered says why with HTTP's sentence; a method
needs a key unless it is named as open, and no message is read before its sender's key was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import orjson
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.access import ADMIN, INFER, Access, Caller, require_name
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.grpc.health import Health
from serving.gateway.grpc.infer import GrpcInfer
from serving.gateway.grpc.partial_messages import PartialMessages
from serving.gateway.grpc.reflection import METHOD, Reflection
from serving.gateway.grpc.status import Answer, metadata_in, set_status, with_status
from serving.gateway.grpc.streams import Streams
from serving.gateway.models import metadata, statistics
from serving.gateway.models.loading import Action, Loading
from serving.gateway.triton_words import worded
from serving.protocol.budget import PARAMETERS
from serving.protocol.grpc_descriptors import HEALTH
from serving.protocol.grpc_v2 import parsed


class Guard(grpc.GenericRpcHandler):  # type: ignore[misc]
    """In front of a service. `is_open`: its methods that need no key, as `/SERVICE/METHOD`; `count` hears of each refusal, and where."""

    def __init__(
        self,
        service: grpc.GenericRpcHandler,
        access: Access,
        is_open: Collection[str],
        count: Callable[[str, errors.RequestError], None],
    ) -> None:
        self._service = service
        self._access = access
        self._is_open = is_open
        self._count = count

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        """gRPC asks for the method's handler when it has the metadata, and reads the message for it: for a stream, when it is asked to."""
        handler = self._service.service(details)
        if handler is None or self._access.table is None or details.method in self._is_open:
            return handler
        try:
            self._access.caller_of(metadata_in(details.invocation_metadata))
        except errors.RequestError as error:
            self._count(details.method, error)
            return _refusing(error)
        return handler


def _refusing(error: errors.RequestError) -> grpc.RpcMethodHandler:
    """For every method: of the four kinds of handlers this one reads no message and sends none."""

    async def refuse(_messages: Any, context: Any) -> None:
        set_status(error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _unary(answer: Answer) -> grpc.RpcMethodHandler:
    """Of one message, which the handler reads by itself: otherwise gRPC waits for it, whatever its size and however long."""
    return grpc.stream_unary_rpc_method_handler(answer)


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
OPEN = (f"/{NAME}/ServerLive", f"/{NAME}/ServerReady")


class Service:
    """`required` are the models that must have answered before the server is ready; `streams`: those that a stop ends; `admin_here`:
    whether models are loaded here too.
    """

    def __init__(
        self,
        infer: GrpcInfer,
        access: Access,
        catalogue: Catalogue,
        state: metadata.State,
        loading: Loading,
        required: list[str],
        streams: Streams,
        partial: PartialMessages,
        *,
        admin_here: bool,
    ) -> None:
        self._infer = infer
        self._access = access
        self._catalogue = catalogue
        self._state = state
        self._loading = loading
        self._required = required
        self._streams = streams
        self._partial = partial
        self._admin_here = admin_here

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Messages stay bytes on their way here and back: gRPC's own parsing tells a client nothing of what was wrong."""
        answers: dict[str, Answer] = {
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
            "ModelInfer": self._infer.unary,
            **{name: partial(self._refuse, what) for name, what in REFUSED.items()},
        }
        methods = {
            name: _unary(with_status(self._partial.whole(answer), self._worded)) for name, answer in answers.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._infer.stream)
        health = Health(NAME, self._is_ready, self._streams, self._partial)
        checks = {
            "Check": _unary(with_status(self._partial.whole(health.check))),
            "Watch": grpc.stream_stream_rpc_method_handler(health.watch),
        }
        reflection = Reflection((NAME,), self._access, self._streams).handlers()
        services = {NAME: methods, **{name: {METHOD: handler} for name, handler in reflection.items()}}
        return (
            *(
                Guard(grpc.method_handlers_generic_handler(name, offered), self._access, OPEN, self._count)
                for name, offered in services.items()
            ),
            grpc.method_handlers_generic_handler(HEALTH, checks),
        )

    def _worded(self, error: errors.RequestError) -> errors.RequestError:
        return worded(error) if self._catalogue.has_triton_words else error

    def _count(self, method: str, error: errors.RequestError) -> None:
        if method.endswith("Infer"):
            self._infer.refused(error)

    # -- health: needs no key -----------------------------------------------------------------------------------------

    async def _live(self, message: bytes, _: Any) -> bytes:
        parsed(pb.ServerLiveRequest, message)
        return _bytes(pb.ServerLiveResponse(live=True))

    async def _ready(self, message: bytes, _: Any) -> bytes:
        parsed(pb.ServerReadyRequest, message)
        good = metadata.all_routable(self._catalogue, self._required) and not self._state.closing
        return _bytes(pb.ServerReadyResponse(ready=good))

    def _is_ready(self) -> bool:
        """What `/health/ready` says."""
        state = self._state
        state.was_ready = state.was_ready or metadata.all_routable(self._catalogue, self._required, may_sleep=True)
        return state.was_ready and not state.closing

    # -- about server and models --------------------------------------------------------------------------------------

    async def _server_metadata(self, message: bytes, context: Any) -> bytes:
        parsed(pb.ServerMetadataRequest, message)
        self._caller(context, INFER)
        return _from_json(metadata.server_metadata(self._catalogue), pb.ServerMetadataResponse())

    async def _model_ready(self, message: bytes, context: Any) -> bytes:
        request = parsed(pb.ModelReadyRequest, message)
        require_name(self._caller(context, INFER), request.name, self._catalogue.fleet)
        try:
            good = await metadata.is_model_ready(self._catalogue, request.name, request.version)
        except errors.NotFound:  # Triton's own answer, on which clients wait for a model to come
            good = False
        return _bytes(pb.ModelReadyResponse(ready=good))

    async def _model_metadata(self, message: bytes, context: Any) -> bytes:
        described = await self._of_model(parsed(pb.ModelMetadataRequest, message), context, metadata.METADATA)
        return _from_json(described, pb.ModelMetadataResponse())

    async def _model_config(self, message: bytes, context: Any) -> bytes:
        described = await self._of_model(parsed(pb.ModelConfigRequest, message), context, metadata.CONFIG)
        return _from_json({"config": described}, pb.ModelConfigResponse())

    async def _statistics(self, message: bytes, context: Any) -> bytes:
        request = parsed(pb.ModelStatisticsRequest, message)
        if request.name:
            described = await self._of_model(request, context, metadata.STATISTICS)
        else:
            described = await statistics.of_all(self._catalogue, self._caller(context, INFER))
        return _from_json(described, pb.ModelStatisticsResponse())

    async def _of_model(self, request: Any, context: Any, what: str) -> dict[str, Any]:
        require_name(self._caller(context, INFER), request.name, self._catalogue.fleet)
        return await metadata.of_model(self._catalogue, request.name, request.version, what)

    async def _index(self, message: bytes, context: Any) -> bytes:
        request = parsed(pb.RepositoryIndexRequest, message)
        rows = metadata.index(self._catalogue, self._caller(context, INFER), is_ready=request.ready)
        return _from_json({"models": rows}, pb.RepositoryIndexResponse())

    # -- for whoever runs the gateway ---------------------------------------------------------------------------------

    async def _load(self, message: bytes, context: Any) -> bytes:
        await self._change(parsed(pb.RepositoryModelLoadRequest, message), context, "load")
        return _bytes(pb.RepositoryModelLoadResponse())

    async def _unload(self, message: bytes, context: Any) -> bytes:
        await self._change(parsed(pb.RepositoryModelUnloadRequest, message), context, "unload")
        return _bytes(pb.RepositoryModelUnloadResponse())

    async def _change(self, request: Any, context: Any, action: Action) -> None:
        require_name(self._caller(context, ADMIN), request.model_name, self._catalogue.fleet)
        if not self._admin_here:
            metadata.refuse_load(request.model_name)
        PARAMETERS.check(len(request.parameters))
        given = {name: _value(parameter) for name, parameter in request.parameters.items()}
        await self._loading.change(request.model_name, action, orjson.dumps({"parameters": given}))

    async def _refuse(self, what: str, _: bytes, context: Any) -> bytes:
        self._caller(context, ADMIN)
        raise errors.Unsupported(metadata.NOT_OFFERED[what])

    def _caller(self, context: Any, scope: str) -> Caller:
        """Raises Unauthenticated or Forbidden."""
        caller = self._access.caller_of(metadata_in(context.invocation_metadata()))
        caller.require(scope)
        return caller


def _value(parameter: Any) -> bool | int | str | None:
    """A ModelRepositoryParameter's; bytes are files, which are refused by their names."""
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind in (None, "bytes_param") else getattr(parameter, kind)


def _from_json(described: dict[str, Any], into: Any) -> bytes:
    """v2's JSON as the message of the same names. A newer Triton may say more than these messages hold."""
    return _bytes(ParseDict(described, into, ignore_unknown_fields=True))


def _bytes(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made
