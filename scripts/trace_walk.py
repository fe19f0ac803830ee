"""Counts how far one value walks through the house: which files of serving/ are entered, in which order.

    scripts/trace_walk.py export         an ONNX file of two layers, exported in this process without a server: FP32 alone
    scripts/trace_walk.py variants       the same with FP16 and INT8
    scripts/trace_walk.py request        one small v2 request through a gateway on a socket, before a stand-in of Triton
    scripts/trace_walk.py export --list  the stays one after another

A stay is a run of consecutive calls inside one file, a return a file that is entered again. A loop between the same few files
is also counted as one round of it (`folded`), because its length is the data's or the clock's. `Walk` counts any block of code.
Only calls of functions count: what a file does when it is imported is left out, and a coroutine that goes on after an await is not called.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
BY_THE_CLOCK = frozenset({"_tell_time"})  # once a second, whatever is asked
SERVING = Path(__file__).resolve().parents[1] / "serving"


class Walk:
    """`with Walk() as walk:` notes the files whose functions this thread calls in the block."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        self._suspended: set[FrameType] = set()  # frames that may go on
        self._root = f"{SERVING}/"

    def __enter__(self) -> Walk:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(self._root) or frame.f_code.co_name == "<module>":
            return
        if frame.f_code.co_name in BY_THE_CLOCK:
            return
        if frame.f_code.co_flags & SUSPENDABLE:
            if frame in self._suspended:
                return
            self._suspended.add(frame)
        name = file[len(self._root) :]
        if not self.stays or self.stays[-1] != name:
            self.stays.append(name)

    def below(self, room: str) -> list[str]:
        """The stays, where each other room counts as one place: it answers a question, and is not walked through to follow the value."""
        stays: list[str] = []
        for file in self.stays:
            place = file if file.startswith(f"{room}/") else file.partition("/")[0]
            if not stays or stays[-1] != place:
                stays.append(place)
        return stays

    def folded(self) -> list[str]:
        """The stays without immediate repetitions of the same one to four."""
        stays = list(self.stays)
        for length in (2, 3, 4):
            kept: list[str] = []
            for stay in stays:
                kept.append(stay)
                if len(kept) >= 2 * length and kept[-length:] == kept[-2 * length : -length]:
                    del kept[-length:]
            stays = kept
        return stays

    def __str__(self) -> str:
        files = set(self.stays)
        folders = {str(Path(file).parent) for file in files}
        steps = len(set(zip(self.stays, self.stays[1:], strict=False)))
        return (
            f"{len(self.stays)} stays in {len(files)} files of {len(folders)} folders, "
            f"{len(self.stays) - len(files)} returns, {steps} different steps from file to file; "
            f"folded {len(self.folded())} stays, {len(self.folded()) - len(files)} returns"
        )


def export(precisions: tuple[str, ...] = ("fp32",)) -> Walk:
    """A small net, judged on rows of numbers, on this Python's own ONNX Runtime."""
    import numpy as np
    import onnx

    from serving.export import command
    from serving.export.options import ExportOptions
    from serving.local.devices import installed

    random = np.random.default_rng(0)
    weights = {"w": (16, 32), "v": (32, 4)}
    make, tensor = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        make("MatMul", ["x", "w"], ["a"]),
        make("Relu", ["a"], ["b"]),
        make("MatMul", ["b", "v"], ["c"]),
        make("Softmax", ["c"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [tensor("x", onnx.TensorProto.FLOAT, ["n", 16])],
        [tensor("y", onnx.TensorProto.FLOAT, ["n", 4])],
        [
            onnx.numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    net = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    with tempfile.TemporaryDirectory() as folder:
        source, data = Path(folder, "net.onnx"), Path(folder, "rows.npz")
        onnx.save(net, source)
        np.savez(data, x=random.standard_normal((64, 16)).astype(np.float32))
        options = ExportOptions(
            str(source), Path(folder, "models"), data=str(data), precisions=precisions, seconds=0.01
        )
        engines = {"cpu": installed()["cpu"]}
        with Walk() as walk:
            command.run(options, engines)
    return walk


def request() -> Walk:
    """After some others, so that caches are filled and connections open."""
    import uvloop

    from tests.gateway.wire import request as written
    from tests.gateway.wire import wire

    async def traced() -> Walk:
        async with wire() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)

            async def ask() -> None:
                writer.write(written())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), head
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))

            for _ in range(20):
                await ask()
            for task in asyncio.all_tasks():
                if "forever" in str(task.get_coro()):  # polls and sweeps are no part of a request
                    task.cancel()
            await asyncio.sleep(0)
            with Walk() as walk:
                await ask()
            writer.close()
        return walk

    return uvloop.run(traced())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("walk", choices=["export", "variants", "request"])
    parser.add_argument("--list", action="store_true", help="also print every stay")
    chosen = parser.parse_args(arguments)
    if chosen.walk == "request":
        walk = request()
        stays = walk.below("gateway")
        print(
            f"in the gateway {len(stays)} stays, {len(stays) - len(set(stays))} returns, other rooms as one place each"
        )
    else:
        walk = export(("fp32",) if chosen.walk == "export" else ("fp32", "fp16", "int8"))
    if chosen.list:
        print("\n".join(walk.stays))
    print(walk)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
