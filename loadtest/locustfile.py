"""One run of one arm on Locust's users, events and distribution: real inputs, every answer checked and written down as a row.

    python -m locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8080 --users 8 --spawn-rate 8
    python -m locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8080 --rate 200 --measure 10 --rows rows.csv

A closed loop: each user sends its next request when it has its answer. With --rate or --trace an open one: one user a process sends what
is due, whether or not earlier requests were answered. With several processes or machines (`--processes`, `--master`, `--worker`) each
worker sends its part of one schedule, writes rows of its own and tells the master its histogram. Without --rows Locust's own statistics
are all there is (they round to 1 ms and more; rows do not). The only file that imports Locust, which patches its process: nothing may
import this one.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent  # type: ignore[import-untyped]
from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, Runner, WorkerRunner

from loadtest.arrivals import Arrivals, Kind, schedule
from loadtest.records import Row, write_json
from loadtest.sending.generator import NETWORK_TIMEOUT_S, Generator, Task, histogram, sent
from loadtest.sending.open_loop import OpenLoop

# Locust's own loop around a task costs 40 µs: a task sends for this long before it gives Locust a chance to stop it.
SLICE_S = 0.1
GIVE_UP_S = 1.0  # after the end on sending what was due before it; a guess: such a run is void anyway
DONE = "tandem_done"  # a worker's message to the master: what its part of the run came to
UNABLE = "tandem_unable"  # another: why it cannot send its part
# Locust misses a worker that said nothing for 3 s, which one that writes its rows may do; so much later it is taken for dead (a guess).
LOST_S = 10.0


class Run:
    """What the users of this process share."""

    def __init__(self, environment: Environment) -> None:
        options: argparse.Namespace = environment.parsed_options  # type: ignore[assignment]
        self.environment = environment
        self.options = options
        runner = environment.runner
        self.part = runner.worker_index if isinstance(runner, WorkerRunner) else None
        assert environment.host
        rows = Path(options.rows) if options.rows else None
        if rows is not None and self.part is not None:
            rows = rows.with_suffix(f".{self.part}.csv")
        self.is_open = is_open(options)
        is_shared = self.is_open and self.part is not None
        given = Task(
            host=environment.host.rstrip("/"),
            model=options.model,
            variant=options.variant,
            pool=options.pool,
            data=options.data,
            encoding=options.encoding,
            batch_size=options.batch,
            warmup_s=options.warmup,
            measure_s=options.measure,
            seed=options.seed,
            rows=rows,
            part=(self.part or 0) if is_shared else 0,
            num_parts=options.num_parts if is_shared else 1,
            sizes=tuple(rows for _, rows in recorded(options)),
        )
        self.schedule = self._schedule(given.end_s) if self.is_open else iter(())
        self.generator = Generator(given)
        self.num_active = 0
        self.user_numbers = itertools.count()
        self.is_stopped = False

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.generator.now_s >= self.generator.task.end_s

    def _schedule(self, end_s: float) -> Iterator[float]:
        """Raises ValueError or OSError."""
        part, num_parts = (0, 1) if self.part is None else (self.part, self.options.num_parts)
        if part >= num_parts:
            raise ValueError(f"this is worker {part + 1} of a schedule in {num_parts} parts")
        return schedule(arrivals(self.options), end_s, self.options.seed, part, num_parts)

    def add(self, row: Row) -> None:
        if self.generator.task.rows is None:
            self._tell_locust(row)
        else:
            self.generator.add(row)

    def _tell_locust(self, row: Row) -> None:
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type="POST",
            name=self.generator.task.model,
            response_time=row.latency_s * 1000,
            response_length=row.num_bytes,
            exception=RuntimeError(row.error) if row.error else None,
            context={},
        )


run: Run


def is_open(options: argparse.Namespace) -> bool:
    return bool(options.rate or options.trace)


def recorded(options: argparse.Namespace) -> list[tuple[float, int]]:
    """Seconds and rows of the trace's requests; those of --batch where it does not say. Raises ValueError or OSError."""
    if not options.trace:
        return []
    lines = [line.split() for line in Path(options.trace).read_text().splitlines() if line.strip()]
    return [(float(at), int(rows[0]) if rows else options.batch) for at, *rows in lines]


def arrivals(options: argparse.Namespace) -> Arrivals:
    """Raises ValueError or OSError."""
    times_s = tuple(at for at, _ in recorded(options))
    kind: Kind = "trace" if options.trace else options.arrivals
    bursts = {"burst_times": options.burst_times, "burst_every_s": options.burst_every}
    return Arrivals(kind, options.rate, times_s=times_s, burst_lasting_s=options.burst_lasting, **bursts)


class Client(User):
    """In a closed loop one connection and one request at a time; in an open one all that this process is to send."""

    wait_time = constant(0)

    def on_start(self) -> None:
        number = next(run.user_numbers)
        run.num_active += 1
        self.connection = run.generator.connect()
        # Each user begins at its own place and goes round: the same seed gives every arm the same inputs in the same order.
        requests = run.generator.requests
        self.position = random.Random(run.generator.task.seed * 4099 + number).randrange(len(requests))

    def on_stop(self) -> None:
        self.connection.close()
        run.num_active -= 1

    @task
    def act(self) -> None:
        if run.is_open:
            self.send_what_is_due()
        else:
            self.send_one_after_the_other()

    def send_one_after_the_other(self) -> None:
        generator = run.generator
        slice_end = time.perf_counter() + SLICE_S
        while time.perf_counter() < slice_end:
            if run.is_over:
                raise StopUser
            request, body = generator.requests[self.position]
            self.position = (self.position + 1) % len(generator.requests)
            row = sent(self.connection, request, body.labels, generator.origin, None)
            run.add(row)
            if row.error == "connection":
                gevent.sleep(0.05)  # a refused connection must not become a busy loop

    def send_what_is_due(self) -> None:
        sender = OpenLoop(run.generator, run.add, run.options.max_in_flight)
        last_s = run.generator.task.end_s + GIVE_UP_S
        sender.run(run.schedule, lambda: run.is_stopped or run.generator.now_s > last_s)
        end_s = time.perf_counter() + NETWORK_TIMEOUT_S
        while sender.num_in_flight and time.perf_counter() < end_s:
            gevent.sleep(0.02)
        sender.close()
        raise StopUser


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    group = parser.add_argument_group("Tandem")
    group.add_argument("--model", default="digits", help="public or pinned name")
    group.add_argument("--variant", default="", help="pin: Tandem-Variant")
    group.add_argument("--pool", default="", help="pin: Tandem-Pool")
    group.add_argument("--data", default="digits", help="digits, random, or an npz file: an array for each input")
    group.add_argument("--encoding", default="json", choices=["json", "binary"])
    group.add_argument("--batch", type=int, default=1, help="rows per request")
    group.add_argument("--warmup", type=float, default=0.0, help="seconds before what counts")
    group.add_argument("--measure", type=float, default=0.0, help="seconds that count; 0: until stopped")
    group.add_argument("--seed", type=int, default=1)
    group.add_argument("--rows", default="", help="CSV file for the raw rows")
    opened = parser.add_argument_group("Tandem, open loop")
    opened.add_argument("--arrivals", default="poisson", choices=["constant", "poisson", "bursts"])
    opened.add_argument("--rate", type=float, default=0.0, help="requests per second, of all workers together")
    opened.add_argument("--burst-times", type=float, default=4.0, help="rate within a burst, in rates outside")
    opened.add_argument("--burst-every", type=float, default=10.0, help="seconds between starts of bursts, on average")
    opened.add_argument("--burst-lasting", type=float, default=2.0, help="seconds, on average")
    opened.add_argument("--trace", default="", help="file of seconds, and rows, a request a line, instead of a rate")
    opened.add_argument("--max-in-flight", type=int, default=512, help="in each worker; what is due beyond is dropped")


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        global together
        together = Together(environment)
        environment.runner.register_message(DONE, together.on_done)
        environment.runner.register_message(UNABLE, together.on_unable)


class Together:
    """At the master: what the workers' parts come to."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.latencies = histogram()
        self.num_done = 0
        self.is_over = False

    def on_done(self, environment: Environment, msg: Any, **_: Any) -> None:
        options = environment.parsed_options
        assert options
        self.latencies.decode_and_add(msg.data["latencies_us"].encode("ascii"))
        self.num_done += 1
        if self.num_done < options.num_parts:
            return
        if options.rows:
            facts = {"version": 1, "latencies_us": self.latencies.encode().decode("ascii")}
            write_json(Path(options.rows).with_suffix(".together.json"), facts)
        self.is_over = True
        assert environment.runner
        gevent.spawn(environment.runner.quit)

    def on_unable(self, environment: Environment, msg: Any, **_: Any) -> None:
        self._fail(f"{environment.host}: {msg.data['why']}")

    def watch(self, num_parts: int) -> None:
        """Ends the run without a worker that was killed, which nobody else would miss before the time is over."""
        runner, lost_s = self.environment.runner, 0.0
        assert isinstance(runner, MasterRunner)
        while not self.is_over:
            gevent.sleep(0.5)
            lost_s = lost_s + 0.5 if runner.worker_count < num_parts else 0.0
            if lost_s >= LOST_S:
                self._fail(f"{num_parts - runner.worker_count} of {num_parts} workers were lost during the run")

    def _fail(self, why: str) -> None:
        """Once."""
        if self.is_over:
            return
        self.is_over = True
        say_last(self.environment, why)
        assert self.environment.runner
        gevent.spawn(self.environment.runner.quit)


together: Together


def say_last(environment: Environment, why: str) -> None:
    """After Locust's own statistics, as the last line; and that the run failed."""
    environment.process_exit_code = 1
    said = environment.events.quit
    said.add_listener(lambda **_: print(why, file=sys.stderr, flush=True))  # type: ignore[no-untyped-call]


def check(runner: Runner, options: argparse.Namespace) -> None:
    """What a worker would find out too, but could not tell anybody. Raises ValueError."""
    if not is_open(options):
        return
    num_senders = runner.worker_count if isinstance(runner, MasterRunner) else 1
    if runner.target_user_count != num_senders:
        raise ValueError(f"an open loop needs one user for each process that sends: --users {num_senders}")
    if not options.trace:  # which need not be here, but with the workers
        arrivals(options)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_test_start(environment: Environment, **_: Any) -> None:
    global run
    runner, options = environment.runner, environment.parsed_options
    assert runner
    assert options
    try:
        if not isinstance(runner, WorkerRunner):
            check(runner, options)
        if isinstance(runner, MasterRunner):
            options.num_parts = runner.worker_count  # goes to the workers with all other options
            gevent.spawn(together.watch, options.num_parts)
            return
        run = Run(environment)
    except (ValueError, KeyError, OSError) as error:  # Locust would log it and go on without a run
        if isinstance(runner, MasterRunner):
            runner.quit()  # or the workers would wait for a minute
        if isinstance(runner, WorkerRunner):
            runner.send_message(UNABLE, {"why": str(error)})  # or the master would wait for this part
            gevent.sleep(0.5)  # until it is on its way
        raise SystemExit(f"{environment.host}: {error}") from error
    run.generator.start(is_punctual=run.is_open)
    if run.generator.task.end_s != float("inf"):
        gevent.spawn(quit_after, environment)


def quit_after(environment: Environment) -> None:
    """Ends the run once every user has got its last answer, so that the slowest requests are not cut off."""
    generator = run.generator
    while (left_s := generator.task.end_s - generator.now_s) > 0:
        gevent.sleep(left_s)  # wakes too early after work that kept the event loop from looking at its clock
    deadline = time.perf_counter() + NETWORK_TIMEOUT_S
    generator.note_cpu()  # before the wait for last answers, which would make a busy generator look idle
    while run.num_active and time.perf_counter() < deadline:
        gevent.sleep(0.02)
    runner = environment.runner
    assert runner
    if isinstance(runner, WorkerRunner):
        finish()  # the master ends it when all have told it
    else:
        runner.quit()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def on_test_stop(**_: Any) -> None:
    if "run" in globals():  # not if it was stopped while it was being prepared
        finish()


def finish() -> None:
    """Once."""
    if run.is_stopped:
        return
    run.is_stopped = True
    if run.generator.task.rows is None:
        return
    runner = run.environment.runner
    try:
        facts = run.generator.finish()
    except OSError as error:  # a full disk
        say_last(run.environment, str(error))
        if isinstance(runner, WorkerRunner):
            runner.send_message(UNABLE, {"why": str(error)})
        return
    if isinstance(runner, WorkerRunner):
        runner.send_message(DONE, {"latencies_us": facts["latencies_us"]})
