"""A gateway that is stopped under load over gRPC: channels that are kept, as such clients keep them, with gRPC's defaults."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.gateway.conftest import wait_for_model
from tests.gateway.grpc.conftest import Speaking, double, speaking_before
from tests.local.harness import Served

NUM_CLIENTS = 20
BEFORE_STOP = 500  # answers
pytestmark = pytest.mark.triton


@pytest.mark.thorough
def test_a_stop_cuts_no_rpc_off(kinds: Served, tmp_path: Path) -> None:
    """All that comes is answered until clients have gone; who comes anew is refused, and may ask another gateway."""
    with speaking_before(tmp_path, {"kinds": [f"http://{kinds.url}"]}) as both:
        wait_for_model(both.running, kinds)
        said = asyncio.run(busy(both))
    assert set(said) == {"OK", "UNAVAILABLE"}
    assert said["OK"] >= BEFORE_STOP


async def busy(both: Speaking) -> Counter[str]:
    """What clients on one channel hear that ask without a pause, until each has been refused."""
    said: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(both.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def client() -> None:
            while True:
                try:
                    await infer(double().SerializeToString(), timeout=20)
                    said["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    said[error.code().name] += 1
                    return

        clients = [asyncio.create_task(client()) for _ in range(NUM_CLIENTS)]
        while said["OK"] < BEFORE_STOP and not any(it.done() for it in clients):
            await asyncio.sleep(0.01)
        both.running.program.send(signal.SIGTERM)
        await asyncio.gather(*clients)
    return said
