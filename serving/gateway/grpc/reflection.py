"""Server reflection, v1 and v1alpha: what grpcurl and the like ask to learn which services there are and what their messages look like.

It tells what is public anyway, and all the same only to who may see metadata. Rule: requests of a stream are answered one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.access import INFER, Access
from serving.gateway.grpc.rpc import Method, Rpc, StreamAnswer
from serving.gateway.grpc.status import code_of
from serving.protocol.grpc_descriptors import HEALTH, POOL, REFLECTION, files_of, message
from serving.protocol.grpc_v2 import parsed
from serving.protocol.http2 import Piece

METHOD = "ServerReflectionInfo"
POOLS = (pb.DESCRIPTOR.pool, POOL)


class Reflection:
    """`services` are those that are told of beside gRPC's own."""

    def __init__(self, services: tuple[str, ...], access: Access) -> None:
        self._services = sorted((*services, HEALTH, *REFLECTION))
        self._files = {file.name: file for name in self._services for file in _with_dependencies(_found(name).file)}
        self._access = access

    def methods(self) -> dict[str, Method]:
        """By their paths."""
        return {f"/{name}/{METHOD}": Method(stream=self._of(name)) for name in REFLECTION}

    def _of(self, service: str) -> StreamAnswer:
        taken, given = message(service, "ServerReflectionRequest"), message(service, "ServerReflectionResponse")

        async def answer(rpc: Rpc) -> AsyncIterator[Sequence[Piece]]:
            """Raises RequestError."""
            async for came in rpc.messages():
                self._access.caller_of(rpc.metadata).require(INFER)
                request = parsed(taken, came)
                response = given(valid_host=request.host, original_request=request)
                self._fill(response, request)
                yield (response.SerializeToString(),)

        return answer

    def _fill(self, response: Any, request: Any) -> None:
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            elif kind in ("file_by_filename", "file_containing_symbol"):
                name = getattr(request, kind)
                file = self._file_by_name(name) if kind == "file_by_filename" else self._file_of(name)
                response.file_descriptor_response.file_descriptor_proto.extend(files_of(file))
            elif kind == "all_extension_numbers_of_type":
                self._file_of(request.all_extension_numbers_of_type)  # proto3 has no extensions
                response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
            elif kind == "file_containing_extension":
                raise errors.NotFound("there are no extensions here")
            else:
                raise errors.BadRequest("the request asks for nothing")
        except errors.RequestError as error:
            response.error_response.error_code = code_of(error)
            response.error_response.error_message = str(error)

    def _file_by_name(self, name: str) -> Any:
        if name not in self._files:
            raise errors.NotFound(f"there is no file '{name[:100]}'")
        return self._files[name]

    def _file_of(self, symbol: str) -> Any:
        """Of anything that has a name. Raises NotFound, also for what this process knows and does not serve."""
        file = self._served_file(symbol)
        if file is None:
            parent, _, name = symbol.rpartition(".")
            file = self._served_file(parent)
            if file is None or name not in _names_in(parent, file):
                raise errors.NotFound(f"there is no '{symbol[:100]}' here")
        return file

    def _served_file(self, symbol: str) -> Any:
        for pool in POOLS:
            with suppress(KeyError):
                file = pool.FindFileContainingSymbol(symbol)
                if file.name in self._files:
                    return file
        return None


def _found(service: str) -> Any:
    return (POOL if service in (HEALTH, *REFLECTION) else pb.DESCRIPTOR.pool).FindServiceByName(service)


def _names_in(symbol: str, file: Any) -> set[str]:
    """What a pool does not find by itself: methods of a service, and values of an enum under the enum's name."""
    with suppress(KeyError):
        return set(file.pool.FindServiceByName(symbol).methods_by_name)
    with suppress(KeyError):
        return set(file.pool.FindEnumTypeByName(symbol).values_by_name)
    return set()


def _with_dependencies(file: Any) -> list[Any]:
    return [file, *(deeper for one in file.dependencies for deeper in _with_dependencies(one))]
