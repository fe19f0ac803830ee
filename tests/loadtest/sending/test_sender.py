"""What the open-loop generator writes down, against servers that answer, keep silent and hang up."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from loadtest.bench.prove.emulated import GeneratorLag, attempts, on_time
from loadtest.errors import CannotMeasure
from loadtest.sending import sender
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, one_by_one, open_load, open_loop, paused_clients, probe
from loadtest.sending.sent_request import Shot
from tests.local.harness import wait_until

GOOD = b"HTTP/1.1 200 OK\r\nTandem-Pool: cpu\r\nTandem-Reason: spill\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Busy\r\nTandem-Error: overloaded\r\nRetry-After: 1\r\nRetry-After-Ms: 250\r\nContent-Length: 0\r\n\r\n"
LAST = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
BYTES = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers every request alike, each connection on a thread; an empty answer hangs up, None says nothing."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = answers
        self.num_asked = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.threads = [threading.Thread(target=self._accept)]
        self.open: list[socket.socket] = []
        self.threads[0].start()

    def request(self, kind: int = 0) -> Request:
        return Request(self.listener.getsockname(), BYTES, kind)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.open.append(client)
                self.threads.append(threading.Thread(target=self._serve, args=(client,)))
                self.threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while client.recv(65536):
                with self.lock:
                    answer = self.answers[min(self.num_asked, len(self.answers) - 1)]
                    self.num_asked += 1
                if answer == b"":
                    return
                if answer is not None:
                    client.sendall(answer)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for client in self.open:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)


@contextlib.contextmanager
def server(*answers: bytes | None) -> Iterator[Server]:
    made = Server(*answers)
    try:
        yield made
    finally:
        made.close()


def test_every_arrival_is_asked_once_and_written_down_with_its_receipt() -> None:
    with server(GOOD) as here:
        load = open_loop([here.request()], [n / 1000 for n in range(100)])
        assert here.num_asked == 100
    assert len(load.shots) == 100
    assert {(s.status, s.pool, s.reason) for s in load.shots} == {(200, "cpu", "spill")}
    assert sorted(s.due_s - load.began_s for s in load.shots) == pytest.approx([n / 1000 for n in range(100)])
    assert all(shot.due_s <= shot.sent_s <= shot.ended_s for shot in load.shots)


def test_a_server_that_stalls_is_sent_to_all_the_same() -> None:
    with server(None) as here, open_load([here.request()], [n / 1000 for n in range(50)]) as load:
        wait_until(lambda: here.num_asked >= 50, "each is sent")
        assert here.num_asked == 50  # a closed loop would have waited for the first
        assert load.so_far() == []
        here.close()
    assert {str(shot)[:9] for shot in load.shots} == {"no answer"}
    assert len(load.shots) == 50


def test_what_hangs_ends_with_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(GOOD, None) as here:
        [first] = open_loop([here.request()], [0.0]).shots
        monkeypatch.setattr(sender, "TIME_LIMIT_S", 1.0)
        [second] = open_loop([here.request()], [0.0]).shots
    assert str(first) == "200"
    assert re.match(r"no answer .*1 s\)", str(second))


@pytest.mark.parametrize("answer", [b"", GOOD[:-1], b"\x16\x03\x01 hello\r\n\r\n"], ids=["none", "half", "not HTTP"])
def test_a_request_without_a_whole_answer_is_lost_and_not_sent_again(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "TIME_LIMIT_S", 1.0)
    with server(answer) as here:
        [shot] = open_loop([here.request()], [0.0]).shots
        wait_until(lambda: here.num_asked, "it is asked")
        assert here.num_asked == 1
    assert shot.status is None
    assert not shot.is_honest


def test_where_nobody_listens_any_more_is_written_down() -> None:
    is_over = threading.Event()

    def arrivals() -> Iterator[float]:
        """A hundred in a second, and one a moment after nobody listens any more, by when the sender has heard of that."""
        began = time.monotonic()
        while not is_over.is_set():
            yield time.monotonic() - began + 0.01
        yield time.monotonic() - began + 0.05

    with server(GOOD) as here, open_load([here.request()], arrivals()) as load:
        wait_until(load.so_far, "one is answered")
        here.close()
        is_over.set()
    told = [(str(shot)[:9], shot.is_sent) for shot in sorted(load.shots, key=lambda shot: shot.due_s)]
    assert ("200", True) in told
    assert told[-1] == ("no answer", False)


def test_a_connection_that_the_server_closes_is_replaced() -> None:
    with server(LAST) as here:
        load = open_loop([here.request()], [n / 500 for n in range(100)])
    assert [shot.status for shot in load.shots] == [200] * 100


def test_requests_take_turns_and_say_which_they_were() -> None:
    with server(GOOD) as one, server(BUSY) as two:
        load = open_loop([one.request(0), two.request(1)], [n / 1000 for n in range(20)])
        assert (one.num_asked, two.num_asked) == (10, 10)
    assert {(shot.kind, shot.status) for shot in load.shots} == {(0, 200), (1, 503)}
    assert {shot.retry_after_ms for shot in load.shots if shot.kind == 1} == {250.0}


def test_a_closed_loop_keeps_as_many_under_way_as_there_are_clients() -> None:
    with server(GOOD) as here:
        load = closed_loop([here.request()], 3, 0.2, min_shots=4)
        assert here.num_asked == len(load.shots) > 3
    begun = [(shot.sent_s, 1) for shot in load.shots] + [(shot.ended_s, -1) for shot in load.shots]
    under_way = most = 0
    for _, change in sorted(begun):
        under_way += change
        most = max(most, under_way)
    assert most <= 3


def test_clients_of_a_closed_loop_may_take_the_requests_in_turn() -> None:
    with server(GOOD) as here:
        load = closed_loop([here.request(kind) for kind in range(3)], 2, 0.0, in_turn=True, min_shots=9)
    counts = Counter(shot.kind for shot in load.shots)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert counts.total() in (9, 10)


def test_clients_that_pause_go_on_after_a_refusal_until_their_block_ends() -> None:
    with server(BUSY, GOOD) as here, paused_clients(here.request(), 2) as load:
        wait_until(lambda: len(load.so_far()) >= 5, "they go on")
    assert len(load.shots) == here.num_asked >= 5
    assert {shot.status for shot in load.shots} == {200, 503}


def test_a_closed_loop_does_not_hammer_a_server_that_refuses() -> None:
    with server(BUSY) as here:
        assert len(closed_loop([here.request()], 3, 0.2).shots) == 3


def test_a_door_is_asked_until_it_opens() -> None:
    with server(BUSY, BUSY, GOOD, BUSY) as here:
        shots = probe(here.request(), lambda shot: shot.status == 200, 0.001)
    assert [shot.status for shot in shots] == [503, 503, 200]


def test_one_by_one_is_one_at_a_time() -> None:
    with server(GOOD) as here:
        shots = one_by_one([here.request(kind) for kind in range(5)])
    assert [shot.kind for shot in shots] == list(range(5))
    assert all(after.sent_s >= before.ended_s for before, after in pairwise(shots))


def test_a_server_that_takes_no_connection_is_named_before_anything_is_sent() -> None:
    with server(GOOD) as here:
        request = here.request()
    with pytest.raises(CannotMeasure, match=r"127\.0\.0\.1:\d+ takes no connection"), open_load([request], [0.0]):
        raise AssertionError("there is no load to look at")
    with pytest.raises(CannotMeasure):
        closed_loop([request], 1, 0.1)


def test_a_trial_whose_generator_was_late_is_made_again_and_no_other() -> None:
    late = sender.Load(1.0, [Shot(0.0, 0.1, 0.2, 200)] * 10)
    fine = sender.Load(1.0, [Shot(0.0, 0.001, 0.2, 500)] * 10)
    assert attempts(lambda number: (number, on_time([late, fine][number], 0.25))) == (1, fine.shots)
    tried: list[int] = []
    with pytest.raises(GeneratorLag, match=r"100.*p99.*5%.*deadline"):
        attempts(lambda number: tried.append(number) or on_time(late, 0.25))
    assert tried == [0, 1, 2]
    with pytest.raises(CannotMeasure, match="something else"):
        attempts(lambda number: tried.append(number) or fail("something else"))
    assert tried == [0, 1, 2, 0]


def fail(why: str) -> None:
    raise CannotMeasure(why)
