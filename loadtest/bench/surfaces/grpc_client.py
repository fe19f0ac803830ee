"""A gRPC client in a closed loop, as a process of its own: `grpc_client.py AUTHORITY REQUEST_FILE NUM_IN_FLIGHT SECONDS [KEY]`.

Sends one whole ModelInferRequest, as bytes, over and over; messages are neither made nor read here. Prints
`calls SECONDS_IT_TOOK MEDIAN_LATENCY_S`. Rule: one call that fails ends it with exit code 1.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc  # type: ignore[import-untyped]

METHOD = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S = 30.0


async def run(
    authority: str, request: bytes, num_in_flight: int, seconds: float, key: str | None
) -> tuple[int, float, float]:
    """(calls, seconds, median latency in seconds)"""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(authority) as channel:
        call = channel.unary_unary(METHOD)
        began = time.perf_counter()
        end = began + seconds

        async def client() -> None:
            while (sent := time.perf_counter()) < end:
                await call(request, metadata=metadata, timeout=TIMEOUT_S)
                latencies.append(time.perf_counter() - sent)

        await asyncio.gather(*(client() for _ in range(num_in_flight)))
        took = time.perf_counter() - began
    return len(latencies), took, statistics.median(latencies)


def main(arguments: Sequence[str]) -> int:
    authority, file, num_in_flight, seconds, *key = arguments
    request = Path(file).read_bytes()
    try:
        calls, took_s, median_s = asyncio.run(
            run(authority, request, int(num_in_flight), float(seconds), key[0] if key else None)
        )
    except grpc.aio.AioRpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    print(calls, took_s, median_s)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
