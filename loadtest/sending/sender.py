"""Sends requests and writes down what became of each: when they are due (open loop), when clients are free (closed loop), or one by one.

A thread with an event loop of its own; raw HTTP/1.1 on kept connections, as many as there are requests under way. Every pace uses the
very same connections, so that all cost alike. Campaigns send with Locust instead, which has many processes. Keep: nothing is sent twice,
and whatever is sent ends as one `Shot`, at the latest when its time limit is over.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from loadtest.errors import CannotMeasure
from loadtest.sending.link import Link, Pending, Request, Response
from loadtest.sending.sent_request import Shot
from serving.http_client import address, request_bytes

TIME_LIMIT_S = 10.0  # past it a request counts as hanging
NUM_OPENED = 32  # connections for each address to begin with: opening one takes as long as an answer
NUM_PROBES = 3000  # that are sent before a door counts as shut for good
NUM_CLIENTS = 8  # that pause
PAUSE_S = 0.002  # leaves the two cores time to bring back what was killed
PAUSE_AFTER_REFUSAL_S = 0.02  # short of Retry-After on purpose: recovery is to be seen when it comes


def infer(url: str, model: str, body: bytes, headers: dict[str, str] | None = None, kind: int = 0) -> Request:
    head = {"Content-Type": "application/json", **(headers or {})}
    return Request(address(url), request_bytes("POST", url, f"/v2/models/{model}/infer", head, body), kind)


@dataclass(slots=True)
class Load:
    """What became of requests so far; `shots` only grows, but for what is taken. `began_s` is the moment that arrivals count from.

    `num_dropped`: not sent, because too many were under way.
    """

    began_s: float = 0.0
    shots: list[Shot] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)  # for clients that pause
    num_dropped: int = 0

    def so_far(self) -> list[Shot]:
        return self.shots[:]

    def take(self) -> list[Shot]:
        """What ended since the last call, which is not kept: for loads that last for hours."""
        taken = self.shots[:]
        del self.shots[: len(taken)]  # more may have come meanwhile
        return taken


# -- paces ------------------------------------------------------------------------------------------------------------


@contextmanager
def open_load(
    requests: Sequence[Request], arrivals: Iterable[float], max_in_flight: int | None = None
) -> Iterator[Load]:
    """Runs beside the block, the requests in turn; leaving the block waits for the last arrival and the last answer.

    What is due while `max_in_flight` are under way is dropped and counted, never delayed.
    """

    async def send(sender: _Sender) -> None:
        for number, at_s in enumerate(arrivals):
            due_s = sender.load.began_s + at_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))  # also when behind: answers must have their turn
            if max_in_flight is not None and sender.num_under_way >= max_in_flight:
                sender.load.num_dropped += 1
            else:
                sender.send(requests[number % len(requests)], due_s)

    with _beside(requests, send) as load:
        yield load


def open_loop(requests: Sequence[Request], arrivals: Iterable[float], max_in_flight: int | None = None) -> Load:
    with open_load(requests, arrivals, max_in_flight) as load:
        pass
    return load


def closed_loop(
    requests: Sequence[Request],
    num_clients: int,
    duration_s: float,
    *,
    in_turn: bool = False,
    time_limit_s: float | None = None,
    min_shots: int = 0,
) -> Load:
    """So many clients of each request that send it again as soon as it is answered, until the time is over and `min_shots` came.

    `in_turn`: so many clients altogether, which take the requests in turn. A client whose request fails ends.
    """

    async def send(sender: _Sender) -> None:
        end_s, shots = time.monotonic() + duration_s, sender.load.shots

        async def client(source: Iterator[Request]) -> None:
            while (await sender.send(next(source))).is_answered:
                if time.monotonic() >= end_s and len(shots) >= min_shots:
                    return

        sources = [itertools.cycle(requests)] if in_turn else [itertools.repeat(request) for request in requests]
        await asyncio.gather(*(client(source) for source in sources for _ in range(num_clients)))

    num_opened = num_clients if in_turn else NUM_OPENED
    with _beside(requests, send, time_limit_s, num_opened) as load:
        pass
    return load


@contextmanager
def paused_clients(request: Request, num_clients: int = NUM_CLIENTS) -> Iterator[Load]:
    """Clients that send the request until the block ends, with a moment's pause after each answer, whatever it is."""

    async def send(sender: _Sender) -> None:
        async def client() -> None:
            while not sender.load.is_over.is_set():
                shot = await sender.send(request)
                await asyncio.sleep(PAUSE_S if shot.is_answered else PAUSE_AFTER_REFUSAL_S)

        await asyncio.gather(*(client() for _ in range(num_clients)))

    with _beside([request], send, num_opened=num_clients) as load:
        yield load


def one_by_one(requests: Sequence[Request]) -> list[Shot]:
    """Each when the one before it has its answer."""
    return _one_by_one(requests, lambda _: False, 0.0)


def probe(request: Request, is_over: Callable[[Shot], bool], pause_s: float) -> list[Shot]:
    """The same one again and again until one ends it, which is the last."""
    return _one_by_one([request] * NUM_PROBES, is_over, pause_s)


def _one_by_one(requests: Sequence[Request], is_over: Callable[[Shot], bool], pause_s: float) -> list[Shot]:
    async def send(sender: _Sender) -> None:
        for request in requests:
            if is_over(await sender.send(request)):
                return
            await asyncio.sleep(pause_s)

    with _beside(requests[:1], send, num_opened=1) as load:
        pass
    return load.shots


# -- the thread and its connections -----------------------------------------------------------------------------------


@contextmanager
def _beside(
    requests: Sequence[Request],
    work: Callable[[_Sender], Awaitable[None]],
    time_limit_s: float | None = None,
    num_opened: int = NUM_OPENED,
) -> Iterator[Load]:
    """Raises CannotMeasure where an address takes no connection, before anything is sent."""
    load, begun = Load(), threading.Event()

    async def run() -> None:
        sender = _Sender(load, TIME_LIMIT_S if time_limit_s is None else time_limit_s)
        try:
            await sender.open({request.address for request in requests}, num_opened)
            load.began_s = time.monotonic()
            begun.set()
            await work(sender)
            await sender.finish()
        finally:
            sender.close()
            begun.set()

    with event_loop(run, load.is_over):
        begun.wait()
        if load.began_s:  # or nothing was sent, and the block has nothing to look at
            yield load


@contextmanager
def event_loop(run: Callable[[], Coroutine[None, None, None]], is_over: threading.Event) -> Iterator[None]:
    """Runs it in an event loop beside the block, whose end is told and which then waits for it. Raises what it raised."""
    failed = list[BaseException]()

    def body() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failed:
        raise failed[0]


class _Sender:
    """Lives in one event loop. `_under_way`: sent, and not yet written down."""

    def __init__(self, load: Load, time_limit_s: float) -> None:
        self.load = load
        self._time_limit_s = time_limit_s
        self._idle: dict[tuple[str, int], list[Link]] = {}
        self._under_way: dict[Pending, tuple[asyncio.Future[Shot], asyncio.TimerHandle]] = {}
        self._links: set[Link] = set()
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    async def open(self, addresses: Iterable[tuple[str, int]], num_opened: int) -> None:
        for one in addresses:
            try:
                links = await asyncio.gather(*(self._connect(one) for _ in range(num_opened)))
            except OSError as error:
                raise CannotMeasure(f"{one[0]}:{one[1]} takes no connection: {error.strerror or error}") from None
            self._idle.setdefault(one, []).extend(links)

    def send(self, request: Request, due_s: float | None = None) -> asyncio.Future[Shot]:
        """Sends it now. `due_s`: when that was to be; None: now."""
        now_s, future = time.monotonic(), self._loop.create_future()
        pending = Pending(request, now_s if due_s is None else due_s, now_s)
        timer = self._loop.call_later(
            self._time_limit_s, self._ended, pending, None, f"nothing for {self._time_limit_s:g} s"
        )
        self._under_way[pending] = future, timer
        idle = self._idle.setdefault(request.address, [])
        while idle:
            link = idle.pop()
            if link.is_open:
                link.send(pending)
                return future
        task = self._loop.create_task(self._send_anew(pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def finish(self) -> None:
        """Until everything has its answer, or its time is over."""
        while self._under_way:
            await asyncio.wait([future for future, _ in self._under_way.values()])

    def close(self) -> None:
        self._is_closed = True
        for link in list(self._links):
            link.close()

    def _ended(self, pending: Pending, response: Response | None, error: str) -> None:
        """Written down once, whatever comes later."""
        if pending not in self._under_way:
            return
        future, timer = self._under_way.pop(pending)
        timer.cancel()
        headers = response.headers if response else {}
        retry_ms = headers.get(b"retry-after-ms", "")
        shot = Shot(
            pending.due_s,
            pending.sent_s,
            time.monotonic(),
            response.status if response else None,
            pool=headers.get(b"tandem-pool", ""),
            reason=headers.get(b"tandem-reason", ""),
            tandem_error=headers.get(b"tandem-error", ""),
            retry_after=headers.get(b"retry-after"),
            retry_after_ms=float(retry_ms) if retry_ms.isdigit() else None,
            error=error if response is None else response.body.decode(errors="replace"),
            kind=pending.request.kind,
            is_sent=pending.is_sent,
        )
        self.load.shots.append(shot)
        if not future.done():
            future.set_result(shot)

    def _free(self, link: Link) -> None:
        self._idle[link.address].append(link)

    def _gone(self, link: Link) -> None:
        self._links.discard(link)
        idle = self._idle.get(link.address, [])
        if link in idle:
            idle.remove(link)

    async def _connect(self, to: tuple[str, int]) -> Link:
        _, link = await self._loop.create_connection(lambda: Link(to, self._free, self._gone, self._ended), *to)
        self._links.add(link)
        if self._is_closed:  # it came after the end
            link.close()
        return link

    async def _send_anew(self, pending: Pending) -> None:
        try:
            link = await self._connect(pending.request.address)
        except OSError as error:
            self._ended(pending, None, f"no connection: {error.strerror or error}")
            return
        if pending in self._under_way:
            link.send(pending)
        else:  # its time was over before there was a connection
            self._free(link)
