"""The two ends that a gRPC port is measured with, each as a process of its own: a client in a closed loop, and a server that does nothing.

    python -m loadtest.bench.surfaces.grpc_ends call AUTHORITY REQUEST_FILE NUM_IN_FLIGHT SECONDS [KEY]
    python -m loadtest.bench.surfaces.grpc_ends serve PORT

The client sends one whole ModelInferRequest, as bytes, over and over, and prints `calls SECONDS_IT_TOOK MEDIAN_LATENCY_S`. The server,
under uvloop as the gateway is, answers every call with the same bytes at once: what the gateway's port costs beyond this is its own.
Rule: messages are neither made nor read at either end, and one call that fails ends the client with exit code 1.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import uvloop

SERVICE, METHOD = "inference.GRPCInferenceService", "ModelInfer"
TIMEOUT_S = 30.0
ANSWER = bytes(100)  # about as long as a digit's answer


async def call(
    authority: str, request: bytes, num_in_flight: int, seconds: float, key: str | None
) -> tuple[int, float, float]:
    """(calls, seconds, median latency in seconds)"""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(authority) as channel:
        infer = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        began = time.perf_counter()
        end = began + seconds

        async def client() -> None:
            while (sent := time.perf_counter()) < end:
                await infer(request, metadata=metadata, timeout=TIMEOUT_S)
                latencies.append(time.perf_counter() - sent)

        await asyncio.gather(*(client() for _ in range(num_in_flight)))
        took = time.perf_counter() - began
    return len(latencies), took, statistics.median(latencies)


async def _answer(message: bytes, context: Any) -> bytes:
    del message, context
    return ANSWER


async def serve(port: int) -> None:
    server = grpc.aio.server()
    handlers = {METHOD: grpc.unary_unary_rpc_method_handler(_answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main(arguments: Sequence[str]) -> int:
    what, *rest = arguments
    if what == "serve":
        uvloop.run(serve(int(rest[0])))
        return 0
    authority, file, num_in_flight, seconds, *key = rest
    request = Path(file).read_bytes()
    try:
        calls, took_s, median_s = asyncio.run(
            call(authority, request, int(num_in_flight), float(seconds), key[0] if key else None)
        )
    except grpc.aio.AioRpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    print(calls, took_s, median_s)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
