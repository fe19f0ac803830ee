"""One run of one arm: closed-loop users that send real inputs to a Tandem gateway, every answer checked and written down as a row.

    python -m locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8080 --users 8 --spawn-rate 8 --rows rows.csv

Without --rows it is an ordinary locustfile with Locust's own statistics (they round to 1 ms and more; rows do not). The only
file that imports Locust, which patches its process: nothing may import this one. Rows stay in memory until the end, so that
no disk write stalls a request.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import time
from pathlib import Path
from typing import Any

import gevent  # type: ignore[import-untyped]
import orjson
from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.bodies import HEADER_LENGTH, Body, bodies, images, signature, top1
from loadtest.connection import Answer, Connection, request_bytes
from loadtest.records import Row, write_json, write_rows

# A request that takes longer is an error (`timeout`). Longer than the gateway's own limit on work it has started (guess: 10 s would do).
NETWORK_TIMEOUT_S = 30.0
# Rows beyond this are written during the run: 400,000 rows hold about 150 MB.
MAX_ROWS_IN_MEMORY = 400_000
# Locust's own loop around a task costs 40 µs: a task sends for this long before it gives Locust a chance to stop it.
SLICE_S = 0.1

RECEIPT = (b"tandem-variant", b"tandem-pool", b"tandem-device")
WANTED = frozenset((*RECEIPT, b"tandem-error", HEADER_LENGTH.lower().encode()))


class Run:
    """What the users of this process share."""

    def __init__(self, environment: Environment) -> None:
        options: argparse.Namespace = environment.parsed_options  # type: ignore[assignment]
        self.environment = environment
        self.model: str = options.model
        self.rows_file = Path(options.rows) if options.rows else None
        self.end_s = options.warmup + options.measure if options.measure else float("inf")
        self.seed: int = options.seed
        assert environment.host
        self.host = environment.host.rstrip("/")
        self.requests = self._requests(options)
        self.rows: list[Row] = []
        self.num_rows = 0
        self.num_active = 0
        self.user_numbers = itertools.count()
        self.origin = time.perf_counter()
        self.origin_cpu = time.process_time()

    def _requests(self, options: argparse.Namespace) -> list[tuple[bytes, Body]]:
        """Whole requests, made before the clock starts."""
        connection = Connection(self.host, NETWORK_TIMEOUT_S)
        answer = connection.send(request_bytes("GET", self.host, f"/v2/models/{self.model}", {}))
        connection.close()
        if answer.status != 200:
            raise ValueError(f"no model {self.model} ({answer.status})")
        model = signature(orjson.loads(answer.body))
        pixels, labels = images(options.data, model.shape, self.seed)
        pins = {k: v for k, v in (("Tandem-Variant", options.variant), ("Tandem-Pool", options.pool)) if v}
        path = f"/v2/models/{self.model}/infer"
        made = bodies(model, pixels, labels, options.encoding, options.batch)
        return [(request_bytes("POST", self.host, path, {**body.headers, **pins}, body.data), body) for body in made]

    def start(self) -> None:
        gc.collect()
        gc.freeze()  # the bodies outlive the run: a collection that walks them would stall requests
        self.origin, self.origin_cpu = time.perf_counter(), time.process_time()

    def add(self, row: Row) -> None:
        if self.rows_file is None:
            self._tell_locust(row)
            return
        self.rows.append(row)
        if len(self.rows) >= MAX_ROWS_IN_MEMORY:
            self.write()

    def _tell_locust(self, row: Row) -> None:
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type="POST",
            name=self.model,
            response_time=row.latency_s * 1000,
            response_length=row.num_bytes,
            exception=RuntimeError(row.error) if row.error else None,
            context={},
        )

    def write(self) -> None:
        if self.rows_file is not None:
            rows, self.rows = self.rows, []
            self.num_rows += len(rows)
            write_rows(self.rows_file, rows)

    def finish(self) -> None:
        """Writes what is left, and beside the rows what the generator itself used; that file says that the rows are all there."""
        if self.rows_file is None:
            return
        wall_s, cpu_s = time.perf_counter() - self.origin, time.process_time() - self.origin_cpu
        self.write()
        generator = {"version": 1, "num_rows": self.num_rows, "wall_s": wall_s, "cpu_s": cpu_s}
        write_json(self.rows_file.with_suffix(".generator.json"), generator)


run: Run


class Inference(User):
    """One connection, one request at a time."""

    wait_time = constant(0)

    def on_start(self) -> None:
        number = next(run.user_numbers)
        run.num_active += 1
        self.connection = Connection(run.host, NETWORK_TIMEOUT_S, WANTED)
        # Each user begins at its own place and goes round: the same seed gives every arm the same images in the same order.
        self.position = random.Random(run.seed * 4099 + number).randrange(len(run.requests))

    def on_stop(self) -> None:
        self.connection.close()
        run.num_active -= 1

    @task
    def infer(self) -> None:
        slice_end = time.perf_counter() + SLICE_S
        end = run.origin + run.end_s
        while (now := time.perf_counter()) < slice_end:
            if now >= end:
                raise StopUser
            request, body = run.requests[self.position]
            self.position = (self.position + 1) % len(run.requests)
            run.add(self.send(request, body.labels))

    def send(self, request: bytes, labels: tuple[int, ...]) -> Row:
        start = time.perf_counter()
        try:
            answer = self.connection.send(request)
        except OSError as error:
            row = lost(start - run.origin, time.perf_counter() - start, error)
            gevent.sleep(0.05)  # a refused connection must not become a busy loop
            return row
        return judged(start - run.origin, time.perf_counter() - start, answer, labels)


def lost(start_s: float, latency_s: float, error: OSError) -> Row:
    return Row(
        start_s, latency_s, 0, 0, None, "", "", "", "timeout" if isinstance(error, TimeoutError) else "connection"
    )


def judged(start_s: float, latency_s: float, answer: Answer, labels: tuple[int, ...]) -> Row:
    """The row of an answer. `correct` is 1 only if every image of the batch got its true label, None where no truth is known."""
    correct, error = None, ""
    if answer.status == 200:
        try:
            length = answer.headers.get(HEADER_LENGTH.lower().encode())
            predicted = top1(answer.body, int(length) if length else None)
            correct = int(tuple(predicted) == labels) if labels else None
        except (ValueError, KeyError, IndexError, TypeError):
            error = "body"
    else:
        error = answer.headers.get(b"tandem-error") or f"http_{answer.status}"
    variant, pool, device = (answer.headers.get(name, "") for name in RECEIPT)
    return Row(start_s, latency_s, answer.status, len(answer.body), correct, variant, pool, device, error)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    group = parser.add_argument_group("Tandem")
    group.add_argument("--model", default="digits", help="public or pinned name")
    group.add_argument("--variant", default="", help="pin: Tandem-Variant")
    group.add_argument("--pool", default="", help="pin: Tandem-Pool")
    group.add_argument("--data", default="digits", choices=["digits", "random"])
    group.add_argument("--encoding", default="json", choices=["json", "binary"])
    group.add_argument("--batch", type=int, default=1, help="images per request")
    group.add_argument("--warmup", type=float, default=0.0, help="seconds before what counts")
    group.add_argument("--measure", type=float, default=0.0, help="seconds that count; 0: until stopped")
    group.add_argument("--seed", type=int, default=1)
    group.add_argument("--rows", default="", help="CSV file for the raw rows")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_test_start(environment: Environment, **_: Any) -> None:
    global run
    try:
        run = Run(environment)
    except (ValueError, KeyError, OSError) as error:  # Locust would log it and go on without a run
        raise SystemExit(f"{environment.host}: {error}") from error
    run.start()
    if run.end_s != float("inf"):
        gevent.spawn(quit_after, environment)


def quit_after(environment: Environment) -> None:
    """Ends the run once every user has got its last answer, so that the slowest requests are not cut off."""
    while (left_s := run.origin + run.end_s - time.perf_counter()) > 0:
        gevent.sleep(left_s)  # wakes too early after work that kept the event loop from looking at its clock
    deadline = time.perf_counter() + NETWORK_TIMEOUT_S
    while run.num_active and time.perf_counter() < deadline:
        gevent.sleep(0.02)
    assert environment.runner
    environment.runner.quit()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def on_test_stop(**_: Any) -> None:
    if "run" in globals():  # not if it was stopped while it was being prepared
        run.finish()
