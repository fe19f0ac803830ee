"""Some clients in a closed loop: each sends its next request when the answer is there, over a connection of its own.

Requests are bytes that were made beforehand and answers are not decoded, so that on shared cores the clients cost little. Rule: a round
with one failed request measures nothing.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.errors import CannotMeasure
from loadtest.sending.connection import Connection

ANSWER_TIMEOUT_S = 60.0
NUM_CHARACTERS = 200  # of an answer that is told


@dataclass(frozen=True, slots=True)
class Request:
    """`num_items`: images or texts in it."""

    data: bytes
    num_items: int


@dataclass(frozen=True, slots=True)
class Round:
    num_items: int
    duration_s: float
    latency_p50_s: float

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.num_items / self.duration_s


def send(requests: Sequence[Request], url: str, *, num_clients: int, round_s: float) -> Round:
    """The requests in turn, all clients taking from one row of them, until the time is over. Raises CannotMeasure."""
    turn = itertools.cycle(requests)
    taken: list[tuple[int, float]] = []  # items, seconds of each
    failures: list[str] = []
    began = time.perf_counter()
    end = began + round_s

    def client() -> None:
        connection = Connection(url, ANSWER_TIMEOUT_S)
        try:
            while not failures and (time.perf_counter() < end or not taken):
                request = next(turn)
                sent = time.perf_counter()
                answer = connection.send(request.data)
                if answer.status != 200:
                    raise OSError(f"{answer.status}: {answer.body[:NUM_CHARACTERS].decode(errors='replace')}")
                taken.append((request.num_items, time.perf_counter() - sent))
        except OSError as error:
            failures.append(str(error))
        finally:
            connection.close()

    clients = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    if failures:
        raise CannotMeasure(f"a request to {url} failed: {failures[0]}")
    latencies = [seconds for _, seconds in taken]
    return Round(sum(items for items, _ in taken), time.perf_counter() - began, statistics.median(latencies))
