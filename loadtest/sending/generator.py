"""What one generator process shares over a run: requests made beforehand, rows, and what it used itself.

Knows neither Locust nor how requests are paced (`locustfile.py`, `open_loop.py`). Rows stay in memory until the end, so that no disk write
stalls a request, and are written by one process to one file.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from loadtest.records import Row, write_json, write_rows
from loadtest.sending.bodies import HEADER_LENGTH, Body, check, encode, signature, top1
from loadtest.sending.inputs import batches, bodies, named, share
from loadtest.target import credentials
from serving.http_client import Answer, Connection, request_bytes

# A request that takes longer is an error (`timeout`). Longer than the gateway's own limit on work it has started (guess: 10 s would do).
NETWORK_TIMEOUT_S = 30.0
# Rows beyond this are written during the run: 400,000 rows hold about 150 MB.
MAX_ROWS_IN_MEMORY = 400_000
# A generator that keeps up sleeps between arrivals, many times in this (guess). Linux leaves others 5 % of a core at best, and none where
# an administrator has switched that off.
LONGEST_AWAKE_S = 0.5
BODIES_OF_A_SIZE = 16  # a trace may have many sizes, and each of these bodies is in memory; a guess, not measured
LONGEST_US = 3_600_000_000
DIGITS = 3  # of every latency in a histogram

RECEIPT = (b"tandem-variant", b"tandem-pool", b"tandem-device")
WANTED = frozenset((*RECEIPT, b"tandem-error", HEADER_LENGTH.lower().encode()))


@dataclass(frozen=True, slots=True)
class Task:
    """What to send, as the command line says it. `data`: digits, random or an npz file. `measure_s` 0: until stopped."""

    host: str
    model: str
    variant: str
    pool: str
    data: str
    encoding: str
    batch_size: int
    warmup_s: float
    measure_s: float
    seed: int
    rows: Path | None
    part: int = 0  # of the schedule's: every `num_parts`-th input is this process's, as every such arrival is
    num_parts: int = 1
    sizes: tuple[int, ...] = ()  # rows of each request of a trace, of all parts

    @property
    def end_s(self) -> float:
        return self.warmup_s + self.measure_s if self.measure_s else float("inf")


def histogram() -> Any:
    """Of microseconds, to three digits; those of several processes add up without loss."""
    return HdrHistogram(1, LONGEST_US, DIGITS)


class Generator:
    """Raises ValueError, KeyError or OSError where the model cannot be asked."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.requests, self._by_size = _requests(task)
        self.rows: list[Row] = []
        self.latencies = histogram()
        self.num_rows = self.num_scheduled = self.num_dropped = 0
        self.is_real_time = False
        self._used: tuple[float, float] | None = None  # CPU seconds and seconds, when the last was due
        self.began = time.time()  # of 1970, for whoever watched the servers meanwhile
        self.origin = time.perf_counter()
        self._origin_cpu = time.process_time()

    def start(self, *, is_punctual: bool = False) -> None:
        """`is_punctual`: before everything else that runs here, where that is allowed."""
        self.is_real_time = is_punctual and real_time(self._give_way)
        gc.collect()
        gc.freeze()  # the bodies outlive the run: a collection that walks them would stall requests
        self.began = time.time()
        self.origin, self._origin_cpu = time.perf_counter(), time.process_time()

    def _give_way(self) -> None:
        self.is_real_time = False

    def note_cpu(self) -> None:
        self._used = time.process_time() - self._origin_cpu, self.now_s

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self.origin

    def request(self, number: int) -> tuple[bytes, Body]:
        """The one that is this process's so many-th: of as many rows as the trace's, or as all have."""
        task, made = self.task, self.requests
        if self._by_size:
            made = self._by_size[task.sizes[task.part + number * task.num_parts]]
        return made[number % len(made)]

    def connect(self) -> Connection:
        return Connection(self.task.host, NETWORK_TIMEOUT_S, WANTED)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if len(self.rows) >= MAX_ROWS_IN_MEMORY:
            self.write()

    def write(self) -> None:
        rows, self.rows = self.rows, []
        self.num_rows += len(rows)
        for row in rows:
            if row.is_ok and self.task.warmup_s <= row.start_s < self.task.end_s:
                self.latencies.record_value(max(1, round(row.latency_s * 1e6)))
        if self.task.rows is not None:
            write_rows(self.task.rows, rows)

    def finish(self) -> dict[str, Any]:
        """Writes what is left, and beside the rows what the generator itself used; that file says that the rows are all there."""
        if self._used is None:
            self.note_cpu()
        assert self._used
        cpu_s, wall_s = self._used
        ordinary()  # writing rows is not urgent
        self.write()
        facts = {
            "version": 1,
            "num_rows": self.num_rows,
            "num_scheduled": self.num_scheduled,
            "num_dropped": self.num_dropped,
            "began": self.began,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "is_real_time": self.is_real_time,
            "latencies_us": self.latencies.encode().decode("ascii"),
        }
        if self.task.rows is not None:
            write_json(self.task.rows.with_suffix(".generator.json"), facts)
        return facts


def real_time(on_lost: Callable[[], None]) -> bool:
    """Gives this thread real-time priority, other threads and children none; False where that is not allowed, as for most users.

    On the server's own cores a generator would else wait for a core as long as a batch computes, and void most runs. One that does not
    sleep for LONGEST_AWAKE_S loses it, and `on_lost` is called: it is behind anyway, and must not take a machine from everybody else.
    """
    if not hasattr(os, "SCHED_RR"):  # not Linux
        return False

    def give_way(_: int, __: FrameType | None) -> None:
        ordinary()
        on_lost()

    try:
        signal.signal(signal.SIGXCPU, give_way)
        hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
        resource.setrlimit(resource.RLIMIT_RTTIME, (round(LONGEST_AWAKE_S * 1e6), hard))
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (ValueError, OSError):  # not the main thread, or not allowed
        return False
    return True


def ordinary() -> None:
    """Gives real-time priority back."""
    if hasattr(os, "SCHED_RR") and os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _requests(task: Task) -> tuple[list[tuple[bytes, Body]], dict[int, list[tuple[bytes, Body]]]]:
    """Whole requests, made before the clock starts; and some of each size that a trace has, where it has another than all.

    What has more rows than there are inputs is sent with all of these.
    """
    connection = Connection(task.host, NETWORK_TIMEOUT_S)
    answer = connection.send(request_bytes("GET", task.host, f"/v2/models/{task.model}", credentials()))
    connection.close()
    if answer.status != 200:
        raise ValueError(f"no model {task.model} ({answer.status})")
    model = signature(orjson.loads(answer.body))
    given = named(task.data, model, task.encoding, task.seed)
    pins = {k: v for k, v in (("Tandem-Variant", task.variant), ("Tandem-Pool", task.pool)) if v}
    path = f"/v2/models/{task.model}/infer"

    def whole(made: list[Body]) -> list[tuple[bytes, Body]]:
        return [
            (request_bytes("POST", task.host, path, {**body.headers, **pins, **credentials()}, body.data), body)
            for body in share(made, task.part, task.num_parts)
        ]

    every = whole(bodies(model, given, task.encoding, task.batch_size))
    if set(task.sizes) <= {task.batch_size}:
        return every, {}
    by_size: dict[int, list[tuple[bytes, Body]]] = {}
    for size in set(task.sizes):
        some = islice(batches(model, given, min(size, given.num_inputs)), BODIES_OF_A_SIZE)
        by_size[size] = whole([encode(model, batch, labels, task.encoding) for batch, labels in some])
    return every, by_size


def dropped(due_s: float, lag_s: float) -> Row:
    """It was never sent: too many were waiting for their answers. `lag_s`: how long after it was due that was found."""
    return Row(due_s, lag_s, lag_s, 0, 0, None, "", "", "", "dropped")


def sent(connection: Connection, request: bytes, labels: tuple[int, ...], origin: float, due_s: float | None) -> Row:
    """Sends one request now and waits. `due_s`: when that was to be, from `origin` (perf_counter); None: now."""
    began = time.perf_counter()
    lag_s = 0.0 if due_s is None else max(0.0, began - origin - due_s)
    start_s = began - origin if due_s is None else due_s
    try:
        answer = connection.send(request)
    except OSError as error:
        what = "timeout" if isinstance(error, TimeoutError) else "connection"
        return Row(start_s, lag_s, time.perf_counter() - began + lag_s, 0, 0, None, "", "", "", what)
    return judged(start_s, lag_s, time.perf_counter() - began + lag_s, answer, labels)


def judged(start_s: float, lag_s: float, latency_s: float, answer: Answer, labels: tuple[int, ...]) -> Row:
    """The row of an answer. `correct` is 1 only if every row of the batch got its true label, None where no truth is known."""
    correct, error = None, ""
    if answer.status == 200:
        try:
            length = answer.headers.get(HEADER_LENGTH.lower().encode())
            header_length = int(length) if length else None
            if labels:
                correct = int(tuple(top1(answer.body, header_length)) == labels)
            else:
                check(answer.body, header_length)
        except (ValueError, KeyError, IndexError, TypeError):
            error = "body"
    else:
        error = answer.headers.get(b"tandem-error") or f"http_{answer.status}"
    variant, pool, device = (answer.headers.get(name, "") for name in RECEIPT)
    return Row(start_s, lag_s, latency_s, answer.status, len(answer.body), correct, variant, pool, device, error)
