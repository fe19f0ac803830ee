"""Sends requests when they are due, whether or not earlier ones were answered; for one process, on gevent.

What is due while `max_in_flight` requests wait is dropped and counted, never delayed: a queue in the generator would hide what the server
does. The rule an editor keeps: between two arrivals the event loop gets its turn, also when sending is behind, or answers would wait for
arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gevent  # type: ignore[import-untyped]

from loadtest.records import Row
from loadtest.sending.generator import Generator, dropped, sent
from serving.http_client import Connection

ALWAYS_S = 0.002  # behind or not, the loop has its turn so often


class OpenLoop:
    """`add` takes each request's row."""

    def __init__(self, generator: Generator, add: Callable[[Row], None], max_in_flight: int) -> None:
        self._generator = generator
        self._add = add
        self._max_in_flight = max_in_flight
        self._idle: list[Connection] = []
        self.num_in_flight = 0

    def run(self, schedule: Iterator[float], is_over: Callable[[], bool]) -> None:
        """Returns when the last has been sent, not answered."""
        generator, turn_s = self._generator, 0.0
        for number, due_s in enumerate(schedule):
            while (
                due_s > (now_s := generator.now_s) or now_s > turn_s
            ):  # the loop's clock may be old, and wake too early
                turn_s = now_s + ALWAYS_S
                gevent.sleep(max(0.0, due_s - now_s))
            if is_over():
                return
            generator.num_scheduled += 1
            if self.num_in_flight >= self._max_in_flight:
                generator.num_dropped += 1
                self._add(dropped(due_s, max(0.0, generator.now_s - due_s)))
                continue
            self.num_in_flight += 1
            gevent.spawn(self._send, number, due_s)

    def _send(self, number: int, due_s: float) -> None:
        generator = self._generator
        request, body = generator.request(number)
        connection = self._idle.pop() if self._idle else generator.connect()
        try:
            self._add(sent(connection, request, body.labels, generator.origin, due_s))
        finally:
            self.num_in_flight -= 1
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
