"""Nobody's message is read before its key was looked at.

What a key may is asked where the method is (`service.py`, `infer.py`), for each message, because a stream may outlive its key. Rule: a
method needs a key unless it is named as open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import grpc  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.access import Access
from serving.gateway.grpc.metadata import metadata_in
from serving.gateway.grpc.status import tell


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
        tell(error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)
