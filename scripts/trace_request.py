"""Which files does one request walk through? Traces one v2 request through a real gateway on a socket, before a stand-in of Triton.

    python -m scripts.trace_request [--verbose]

A stay is a run of consecutive calls inside one file of `serving/`; a return is a file that is entered again. A coroutine that goes on
after an await is no call. `tests/gateway/request/test_walk.py` holds the figures down.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvloop

from serving.gateway.http.origin import OriginPolicy
from serving.gateway.listeners import listen
from serving.gateway.serve import _config, _Server
from tests.gateway.odd_triton import BODY, OddTriton, gateway_of

ROOT = Path(__file__).parents[1]
SERVING = f"{ROOT / 'serving'}/"
NUM_WARM = 20  # requests before the one that is traced: caches are filled, connections open


class Call(NamedTuple):
    file: str  # below serving/
    function: str


class Walk(NamedTuple):
    calls: list[Call]

    @property
    def stays(self) -> list[tuple[str, list[str]]]:
        """File and functions called there, in order."""
        return [(file, [c.function for c in calls]) for file, calls in groupby(self.calls, key=lambda c: c.file)]

    @property
    def num_files(self) -> int:
        return len({call.file for call in self.calls})

    @property
    def num_folders(self) -> int:
        return len({str(Path(call.file).parent) for call in self.calls})

    @property
    def num_returns(self) -> int:
        return len(self.stays) - self.num_files

    def summary(self) -> str:
        return (
            f"{len(self.stays)} stays in {self.num_files} files of {self.num_folders} folders, {self.num_returns} returns, "
            f"{len(self.calls)} calls"
        )


class _Tracer:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._known: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SERVING) or frame in self._known:
            return
        self._known.add(frame)
        if code.co_name[0] != "<":  # comprehensions are no calls to a reader
            self.calls.append(Call(code.co_filename.removeprefix(SERVING), code.co_name))


def trace_request() -> Walk:
    return uvloop.run(_traced())


async def _traced() -> Walk:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    async with gateway_of({"cpu": [OddTriton()]}) as gateway:
        server = _Server(_config(gateway, gateway._settings, OriginPolicy("127.0.0.1", (), has_keys=False)))
        serving = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(NUM_WARM):
            await _ask(reader, writer, request)
        tracer = _Tracer()
        for task in asyncio.all_tasks() - {asyncio.current_task(), serving}:
            if "forever" in str(task.get_coro()):  # polls and sweeps are no part of a request
                task.cancel()
        await asyncio.sleep(0)
        sys.setprofile(tracer)
        await _ask(reader, writer, request)
        sys.setprofile(None)
        writer.close()
        server.should_exit = True
        await serving
    return Walk(tracer.calls)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    assert head.startswith(b"HTTP/1.1 200 "), head


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--verbose", action="store_true", help="the stays one by one")
    verbose = parser.parse_args(arguments).verbose
    walk = trace_request()
    if verbose:
        for number, (file, functions) in enumerate(walk.stays, 1):
            print(f"{number:3} {file}: {', '.join(functions)}")
    print(walk.summary())


if __name__ == "__main__":
    main()
