"""Large tensors reach a Triton on this machine in shared memory: the right ones, whatever becomes of segments, servers and gateways."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.gateway.fleet import shared_memory
from serving.gateway.fleet.shared_memory import FOLDER, FROM_BYTES, SPARED_BYTES, STEP_BYTES, SharedMemory
from serving.gateway.fleet.upstream import Target
from serving.protocol.tensors import all_outputs
from tests.gateway.conftest import Reply, Running
from tests.local.harness import Served, wait_until

_room = os.statvfs(FOLDER)
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        _room.f_bavail * _room.f_frsize < SPARED_BYTES + 32 * STEP_BYTES, reason="too little shared memory is free"
    ),
]
COLUMNS = FROM_BYTES // 4  # of two rows of FP32: twice what is enough
Body = tuple[bytes, dict[str, str]]


def binary(arrays: dict[str, NDArray[np.float32]], size: int | None = None) -> Body:
    """A request that wants its answer in binary. `size`: said of each tensor instead of its own."""
    inputs = [
        {"name": n, "shape": a.shape, "datatype": "FP32", "parameters": {"binary_data_size": size or a.nbytes}}
        for n, a in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(a.tobytes() for a in arrays.values()), {"Inference-Header-Content-Length": str(len(head))}


def ask(gateway: Running, model: str, body: Body) -> Reply:
    return gateway.infer(body[0], model, body[1])


def outputs(reply: Reply) -> dict[str, NDArray[Any]]:
    assert reply.status == 200, reply.body
    length = reply.headers.get("Inference-Header-Content-Length")
    return all_outputs(reply.body, None if length is None else int(length))


def values(seed: int, rows: int = 2, columns: int = COLUMNS) -> NDArray[np.float32]:
    """Whole numbers, so that sums of them are exact."""
    return np.random.default_rng(seed).integers(0, 100, (rows, columns)).astype(np.float32)


def sums(given: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the model `ragged` answers."""
    return given.reshape(len(given), -1, 4).sum(1)


def regions(kinds: Served) -> set[str]:
    return {str(region["name"]) for region in kinds.http.get_system_shared_memory_status()}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of segments in this process: a busy Triton is no other machine. No other gateway takes them for what a dead one left."""
    prefix = f"tandem-t{os.getpid()}-"
    monkeypatch.setattr(shared_memory, "_prefix", lambda: prefix)
    monkeypatch.setattr(shared_memory, "ANSWER_S", 60.0)


def segments_of(gateway: Running, kinds: Served, body: Body) -> set[str]:
    """Those that Triton has, once the gateway took one for such a request: after a moment in which none was had it tries anew."""

    def asked() -> set[str]:
        assert ask(gateway, "ragged.any", body).status == 200
        return regions(kinds)

    return set(wait_until(asked, "Triton has a segment"))


def test_each_of_many_requests_at_once_is_answered_by_its_own_numbers(gateway: Running, kinds: Served) -> None:
    def is_right(seed: int) -> bool:
        given = values(seed, columns=COLUMNS * (1 + seed % 3))
        return np.array_equal(outputs(ask(gateway, "ragged.any", binary({"x": given})))["y"], sums(given))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_right, range(48)))
    found = segments_of(gateway, kinds, binary({"x": values(1)}))
    wait_until(lambda: not any((FOLDER / name).exists() for name in found), "they have names no more")


def test_several_tensors_of_one_request_share_a_segment(gateway: Running, kinds: Served) -> None:
    x, k = values(1, rows=FROM_BYTES // 16 + 1, columns=4), values(2, rows=1, columns=4)
    before = regions(kinds)
    found = outputs(ask(gateway, "optional.any", binary({"x": x, "k": k})))
    assert np.array_equal(found["y"], x * k)
    assert np.array_equal(found["z"], -x)
    assert len(regions(kinds) - before) <= 1


def test_numbers_in_json_take_the_same_way(gateway: Running, kinds: Served) -> None:
    given = values(3)
    body = {"inputs": [{"name": "x", "shape": given.shape, "datatype": "FP32", "data": given.ravel().tolist()}]}
    assert np.array_equal(outputs(ask(gateway, "ragged.any", (json.dumps(body).encode(), {})))["y"], sums(given))
    assert segments_of(gateway, kinds, (json.dumps(body).encode(), {}))


def test_a_triton_that_knows_no_segment_any_more_is_asked_over_its_socket(gateway: Running, kinds: Served) -> None:
    given = values(4)
    assert np.array_equal(outputs(ask(gateway, "ragged.any", binary({"x": given})))["y"], sums(given))
    kinds.http.unregister_system_shared_memory()  # all, as a new start does
    for seed in range(5, 9):
        given = values(seed)
        assert np.array_equal(outputs(ask(gateway, "ragged.any", binary({"x": given})))["y"], sums(given))


def test_a_tensor_of_another_length_than_its_shape_says_is_refused_as_a_small_one_is(gateway: Running) -> None:
    small, large = values(1, columns=8), values(1)
    refused = [ask(gateway, "ragged.any", binary({"x": one}, size=one.nbytes // 2)) for one in (small, large)]
    assert [reply.status for reply in refused] == [400, 400]
    large_again = values(10)
    assert np.array_equal(outputs(ask(gateway, "ragged.any", binary({"x": large_again})))["y"], sums(large_again))


@pytest.mark.parametrize(
    "inputs",
    [
        [1, None],
        [{"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": True}}],
        [{"name": "x", "datatype": "FP32", "parameters": {"binary_data_size": 2 * FROM_BYTES}}],
        [{"name": "x", "shape": [2, FROM_BYTES // 4], "datatype": "FP99", "parameters": {"binary_data_size": 2 * FROM_BYTES}}],
        {"x": 1},
    ],
)  # fmt: skip
def test_inputs_that_are_none_are_refused_however_long_the_body_is(gateway: Running, inputs: object) -> None:
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    assert ask(gateway, "ragged.any", (head + bytes(2 * FROM_BYTES), headers)).status == 400


# -- one server's segments, without a gateway around them ---------------------------------------------------------------


def with_memory(kinds: Served, work: Callable[[SharedMemory, SharedMemory], Awaitable[None]]) -> None:
    """Of two gateways before one Triton."""

    async def run() -> None:
        target = Target(f"http://{kinds.url}", asyncio.get_running_loop())
        try:
            await work(SharedMemory(target), SharedMemory(target))
        finally:
            target.close()

    asyncio.run(run())


def chunks(body: Body) -> tuple[bytes, list[bytes]]:
    """The JSON part and all."""
    return body[0][: int(body[1]["Inference-Header-Content-Length"])], [body[0]]


def test_a_segment_that_triton_may_be_reading_is_neither_used_again_nor_unregistered(kinds: Served) -> None:
    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        body = chunks(binary({"x": values(1)}))
        before = regions(kinds)
        first = await memory.place(*body, inf)
        assert first is not None
        (name,) = regions(kinds) - before
        first.is_given_up = True
        del first
        second = await memory.place(*body, inf)
        assert second is not None
        assert len(regions(kinds) - before) == 2
        del second
        third = await memory.place(*body, inf)  # in the one that is free
        assert third is not None
        del third
        assert len(regions(kinds) - before) == 2
        await memory.trim()
        assert regions(kinds) - before == {name}

    with_memory(kinds, work)


def test_what_a_killed_gateway_left_is_unregistered_by_the_next(kinds: Served) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()

    async def work(memory: SharedMemory, of_the_next: SharedMemory) -> None:
        before = regions(kinds)
        placed = await memory.place(*chunks(binary({"x": values(1)})), inf)
        assert placed is not None
        (own,) = regions(kinds) - before
        left = own.replace(f"-{os.getpid()}-", f"-{dead.pid}-")
        (FOLDER / left).write_bytes(bytes(64))
        try:
            kinds.http.register_system_shared_memory(left, f"/{left}", 64)
        finally:
            (FOLDER / left).unlink()
        other = await of_the_next.place(*chunks(binary({"x": values(1)})), inf)
        assert other is not None
        assert left in regions(kinds)  # whatever it had sent may be under way
        await of_the_next.trim()
        assert left not in regions(kinds)
        assert own in regions(kinds)
        del placed, other
        await memory.trim()
        await of_the_next.trim()
        assert regions(kinds) <= before

    with_memory(kinds, work)


def test_a_server_on_another_machine_gets_none(kinds: Served) -> None:
    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        body = chunks(binary({"x": values(1)}))
        elsewhere = SharedMemory(Target("http://192.0.2.1:1", asyncio.get_running_loop()))
        assert await elsewhere.place(*body, inf) is None
        assert await memory.place(*body, inf) is not None

    with_memory(kinds, work)


@pytest.mark.parametrize(("status", "num_asked"), [(400, 1), (503, 2)])
def test_a_triton_that_refuses_is_asked_once_and_one_that_is_ending_again(
    monkeypatch: pytest.MonkeyPatch, status: int, num_asked: int
) -> None:
    monkeypatch.setattr(shared_memory, "CLOSED_S", 0.0)
    asked: list[bytes] = []
    connections: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                asked.append(head.split()[1])
                said = b"[]" if head.startswith(b"GET") else b"{}"
                code = 200 if head.startswith(b"GET") else status
                writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: 2\r\n\r\n%b" % (code, said))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asyncio.get_running_loop())
        memory = SharedMemory(target)
        for _ in range(2):
            assert await memory.place(*chunks(binary({"x": values(1)})), inf) is None
        target.close()
        server.close()
        await asyncio.gather(*connections)

    asyncio.run(run())
    assert [path.endswith(b"/register") for path in asked].count(True) == num_asked


def test_a_request_waits_for_its_segment_no_longer_than_for_its_answer(kinds: Served) -> None:

    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        body, before = chunks(binary({"x": values(1)})), regions(kinds)
        assert await memory.place(*body, perf_counter()) is None
        await asyncio.gather(*memory._making)  # it comes, for the next one
        placed = await memory.place(*body, perf_counter())
        assert placed is not None
        assert len(regions(kinds) - before) == 1
        del placed
        await memory.trim()
        assert not regions(kinds) - before

    with_memory(kinds, work)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that were allocated."""
    allocate, sizes = os.posix_fallocate, list[int]()

    def noted(file: int, start: int, size: int) -> None:
        allocate(file, start, size)
        sizes.append(size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    return sizes


def test_a_request_that_is_cancelled_leaves_no_segment_that_only_triton_knows(kinds: Served, steps: list[int]) -> None:
    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        body, before = chunks(binary({"x": values(1)})), regions(kinds)
        asking = asyncio.create_task(memory.place(*body, inf))
        while not steps:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        while not regions(kinds) - before:
            await asyncio.sleep(0.01)
        while regions(kinds) - before:
            await memory.trim()
            await asyncio.sleep(0.01)

    with_memory(kinds, work)


def test_segments_are_allocated_in_steps_between_which_others_have_their_turn(kinds: Served, steps: list[int]) -> None:
    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        asking = asyncio.create_task(memory.place(*chunks(binary({"x": values(1, columns=3 * STEP_BYTES // 8)})), inf))
        seen = []
        while len(steps) < 3:
            await asyncio.sleep(0)
            seen.append(len(steps))
        assert seen[-3:] == [1, 2, 3]
        assert steps == [STEP_BYTES] * 3
        await asking
        await memory.trim()

    with_memory(kinds, work)


def test_names_that_a_killed_gateway_left_are_taken_away_by_the_next(kinds: Served) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()

    async def work(memory: SharedMemory, _: SharedMemory) -> None:
        placed = None
        while placed is None:
            placed = await memory.place(*chunks(binary({"x": values(1)})), inf)
        del placed
        await memory.trim()

    left = FOLDER / f"{shared_memory._prefix()}{dead.pid}-0123456789abcdef"
    other = FOLDER / f"{shared_memory._prefix()}{os.getpid()}-0123456789abcdef"
    for path in (left, other):
        path.write_bytes(b"")
    try:
        with_memory(kinds, work)
        assert not left.exists()
        assert other.exists()
    finally:
        for path in (left, other):
            path.unlink(missing_ok=True)
