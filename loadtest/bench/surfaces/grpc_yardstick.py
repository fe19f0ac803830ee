"""The least that a Python gRPC server costs: it answers every ModelInfer with the same bytes at once. `grpc_yardstick.py PORT`.

No Triton, no checks, nothing read. Under uvloop, as the gateway is. What the gateway's port costs beyond this is the gateway's own.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc  # type: ignore[import-untyped]
import uvloop

from loadtest.bench.surfaces.grpc_client import METHOD

ANSWER = bytes(100)  # about as long as a digit's answer


async def answer(message: bytes, context: Any) -> bytes:
    del message, context
    return ANSWER


async def serve(port: int) -> None:
    _, service, method = METHOD.split("/")
    server = grpc.aio.server()
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
