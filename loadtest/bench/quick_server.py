"""A server that answers every inference at once, as a gateway would answer a digit: what is measured against it is the load generator.

    python -m loadtest.bench.quick_server --port 8090 [--stall AT FOR]

Knows nothing of models. With `--stall 1 0.5` it stands still for half a second, a second after the first inference: every request that
comes meanwhile waits, as in a server whose garbage is collected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import cast

import uvloop

METADATA = {
    "name": "digits",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
}
RECEIPT = 'Tandem-Variant: fp32\r\nTandem-Pool: cpu\r\nTandem-Device: cpu; name="quick"\r\n'
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


def _answer(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{RECEIPT}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


OUTPUT = {"name": "probabilities", "datatype": "FP32", "shape": [1, 10], "data": [0.0] * 9 + [1.0]}
INFERRED = _answer({"model_name": "digits", "model_version": "1", "outputs": [OUTPUT]})
DESCRIBED = _answer(METADATA)


class Stall:
    """One pause of the whole process, some time after the first inference."""

    def __init__(self, at_s: float, for_s: float) -> None:
        self._at_s, self._for_s = at_s, for_s
        self._began_s: float | None = None
        self._is_over = not for_s

    def pass_by(self) -> None:
        if self._is_over:
            return
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        if now_s - self._began_s >= self._at_s:
            self._is_over = True
            time.sleep(self._for_s)  # the whole process, on purpose


class Line(asyncio.Protocol):
    """One connection; requests one after the other, each in as many pieces as it likes."""

    def __init__(self, stall: Stall) -> None:
        self._stall = stall
        self._waiting = b""
        self._num_skipped = 0  # bytes of a body that are still to come: kept, they would cost more than sending them
        self._is_inference = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport
        while data:
            if self._num_skipped == 0:
                self._waiting += data
                if (end := self._waiting.find(b"\r\n\r\n")) < 0:
                    return
                length = _LENGTH.search(self._waiting, 0, end)
                self._num_skipped = int(length[1]) if length else 0
                self._is_inference = self._waiting.startswith(b"POST")
                data, self._waiting = self._waiting[end + 4 :], b""
            rest = data[self._num_skipped :]
            self._num_skipped = max(0, self._num_skipped - len(data))
            if self._num_skipped:
                return
            if self._is_inference:
                self._stall.pass_by()
            self._transport.write(INFERRED if self._is_inference else DESCRIBED)
            data = rest


async def serve(port: int, stall: Stall) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Line(stall), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.quick_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--stall", type=float, nargs=2, default=(0.0, 0.0), metavar=("AT", "FOR"), help="seconds")
    options = parser.parse_args(arguments)
    uvloop.run(serve(options.port, Stall(*options.stall)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
