"""Fires requests when they are due, whether or not earlier ones were answered, and writes down what became of each.

A thread with an event loop of its own; raw HTTP/1.1 on kept connections, as many as there are requests under way. Also here: the closed
loop that keeps servers busy, over the very same connections, so that both cost alike. Keep: nothing is sent twice, and whatever is
fired ends as one `Shot`, at the latest when its time limit is over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from loadtest.bench.prove.judging.shot import Shot
from loadtest.bench.prove.line import Answer, Fired, Line, Request
from loadtest.errors import CannotMeasure
from loadtest.sending.connection import address, request_bytes

TIME_LIMIT_S = 10.0  # past it a request counts as hanging
NUM_OPENED = 32  # connections for each address to begin with: opening one takes as long as an answer
NUM_PROBES = 3000  # that are sent before a door counts as shut for good


def infer(url: str, model: str, body: bytes, headers: dict[str, str] | None = None, kind: int = 0) -> Request:
    head = {"Content-Type": "application/json", **(headers or {})}
    return Request(address(url), request_bytes("POST", url, f"/v2/models/{model}/infer", head, body), kind)


@dataclass(slots=True)
class Load:
    """What was seen so far; `shots` only grows. `began_s` is the moment that arrivals count from."""

    began_s: float = 0.0
    shots: list[Shot] = field(default_factory=list)

    def so_far(self) -> list[Shot]:
        return self.shots[:]


@contextmanager
def open_load(requests: Sequence[Request], arrivals: Iterable[float]) -> Iterator[Load]:
    """Runs beside the block, the requests in turn; leaving the block waits for the last arrival and the last answer."""
    with _beside(requests, lambda gun: gun.open_loop(requests, arrivals)) as load:
        yield load


def open_loop(requests: Sequence[Request], arrivals: Iterable[float]) -> Load:
    with open_load(requests, arrivals) as load:
        pass
    return load


def closed_loop(requests: Sequence[Request], num_clients: int, duration_s: float) -> Load:
    """So many clients of each request that ask again as soon as they are answered, until the time is over."""
    with _beside(requests, lambda gun: gun.closed_loop(requests, num_clients, duration_s)) as load:
        pass
    return load


def one_by_one(requests: Sequence[Request]) -> list[Shot]:
    """Each when the one before it has its answer."""
    return _one_by_one(requests, lambda _: False, 0.0)


def probe(request: Request, is_over: Callable[[Shot], bool], pause_s: float) -> list[Shot]:
    """The same one again and again until one ends it, which is the last."""
    return _one_by_one([request] * NUM_PROBES, is_over, pause_s)


def _one_by_one(requests: Sequence[Request], is_over: Callable[[Shot], bool], pause_s: float) -> list[Shot]:
    with _beside(requests[:1], lambda gun: gun.one_by_one(requests, is_over, pause_s)) as load:
        pass
    return load.shots


@contextmanager
def _beside(requests: Sequence[Request], work: Callable[[_Gun], Awaitable[None]]) -> Iterator[Load]:
    load, begun, failed = Load(), threading.Event(), list[BaseException]()

    async def run() -> None:
        gun = _Gun(load)
        try:
            await gun.prepare({request.address for request in requests})
            load.began_s = time.monotonic()
            begun.set()
            await work(gun)
        finally:
            gun.close()

    def body() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=body)
    thread.start()
    begun.wait()
    if not load.began_s:  # nothing was sent, so the block has nothing to look at
        thread.join()
        raise failed[0]
    try:
        yield load
    finally:
        thread.join()
    if failed:
        raise failed[0]


class _Gun:
    """Lives in one event loop. `under_way`: fired, and not yet written down."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.idle: dict[tuple[str, int], list[Line]] = {}
        self.under_way: set[Fired] = set()
        self._lines: set[Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: Callable[[Shot], None] = self.load.shots.append
        self._quiet = asyncio.Event()

    async def prepare(self, addresses: Iterable[tuple[str, int]]) -> None:
        for one in addresses:
            try:
                lines = await asyncio.gather(*(self._connect(one) for _ in range(NUM_OPENED)))
            except OSError as error:
                raise CannotMeasure(f"{one[0]}:{one[1]} takes no connection: {error.strerror or error}") from None
            self.idle.setdefault(one, []).extend(lines)

    async def open_loop(self, requests: Sequence[Request], arrivals: Iterable[float]) -> None:
        for number, at_s in enumerate(arrivals):
            due_s = self.load.began_s + at_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))  # also when behind: answers must have their turn
            self.fire(requests[number % len(requests)], due_s)
        await self.finish()

    async def closed_loop(self, requests: Sequence[Request], num_clients: int, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s

        def again(shot: Shot) -> None:
            self.load.shots.append(shot)
            if time.monotonic() < end_s and shot.is_answered:
                self.fire(by_kind[shot.kind], time.monotonic())

        by_kind = {request.kind: request for request in requests}
        self._done = again
        for request in requests:
            for _ in range(num_clients):
                self.fire(request, time.monotonic())
        await asyncio.sleep(duration_s)
        await self.finish()

    async def one_by_one(self, requests: Sequence[Request], is_over: Callable[[Shot], bool], pause_s: float) -> None:
        for request in requests:
            self.fire(request, time.monotonic())
            await self.finish()
            if is_over(self.load.shots[-1]):
                return
            await asyncio.sleep(pause_s)

    def fire(self, request: Request, due_s: float) -> None:
        fired = Fired(request, due_s, time.monotonic())
        self.under_way.add(fired)
        idle = self.idle.setdefault(request.address, [])
        while idle:
            line = idle.pop()
            if line.is_open:
                line.send(fired)
                return
        task = asyncio.get_running_loop().create_task(self._send_anew(fired))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, fired: Fired, answer: Answer | None, error: str = "") -> None:
        """Written down once, whatever comes later."""
        if fired not in self.under_way:
            return
        self.under_way.remove(fired)
        headers = answer.headers if answer else {}
        retry_ms = headers.get(b"retry-after-ms", "")
        self._done(
            Shot(
                fired.due_s,
                fired.sent_s,
                time.monotonic(),
                answer.status if answer else None,
                pool=headers.get(b"tandem-pool", ""),
                reason=headers.get(b"tandem-reason", ""),
                tandem_error=headers.get(b"tandem-error", ""),
                retry_after=headers.get(b"retry-after"),
                retry_after_ms=float(retry_ms) if retry_ms.isdigit() else None,
                error=error,
                kind=fired.request.kind,
            )
        )
        if not self.under_way:
            self._quiet.set()

    async def finish(self) -> None:
        """Until everything has its answer, or its time is over."""
        while self.under_way:
            limit_s = min(fired.sent_s for fired in self.under_way) + TIME_LIMIT_S - time.monotonic()
            self._quiet.clear()
            try:
                await asyncio.wait_for(self._quiet.wait(), max(0.0, limit_s))
            except TimeoutError:
                for fired in list(self.under_way):
                    if time.monotonic() - fired.sent_s >= TIME_LIMIT_S:
                        self.ended(fired, None, f"nothing for {TIME_LIMIT_S:g} s")

    def free(self, line: Line) -> None:
        self.idle[line.address].append(line)

    def lost(self, line: Line) -> None:
        self._lines.discard(line)
        idle = self.idle.get(line.address, [])
        if line in idle:
            idle.remove(line)

    def close(self) -> None:
        for line in list(self._lines):
            line.close()

    async def _connect(self, to: tuple[str, int]) -> Line:
        _, line = await asyncio.get_running_loop().create_connection(
            lambda: Line(to, self.free, self.lost, self.ended), *to
        )
        self._lines.add(line)
        return line

    async def _send_anew(self, fired: Fired) -> None:
        try:
            line = await self._connect(fired.request.address)
        except OSError as error:
            self.ended(fired, None, f"no connection: {error.strerror or error}")
        else:
            line.send(fired)
