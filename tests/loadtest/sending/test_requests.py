"""A connection that meets bad servers, and a generator that is to be punctual."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from serving.http_client import Connection, request_bytes

# -- a connection, against sockets that behave as told ------------------------------------------------------------------


@contextmanager
def server(*scripts: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts one connection per script."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for script in scripts:
            connection, _ = listener.accept()
            with connection:
                script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(10)
        listener.close()


def says(*answers: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        for text in answers:
            connection.recv(65536)
            connection.sendall(text)

    return script


OK = b"HTTP/1.1 200 OK\r\nTandem-Pool: cpu\r\nX-Other: 1\r\nContent-Length: 2\r\n\r\nhi"


def ask(connection: Connection, url: str) -> object:
    return connection.send(request_bytes("POST", url, "/x", {"A": "b"}, b"body"))[:3]


def test_a_connection_is_kept_and_wanted_headers_are_read() -> None:
    with server(says(OK, OK)) as url:
        connection = Connection(url, 5.0, frozenset((b"tandem-pool",)))
        assert [ask(connection, url) for _ in range(2)] == [(200, {b"tandem-pool": "cpu"}, b"hi")] * 2
        connection.close()


def test_a_connection_that_lay_still_for_long_is_made_anew_because_the_server_may_have_closed_it() -> None:
    with server(says(OK), says(OK)) as url:  # each closes after its answer, and does not say so
        connection = Connection(url, 5.0, max_idle_s=0.0)
        assert [ask(connection, url) for _ in range(2)] == [(200, {}, b"hi")] * 2
        connection.close()


def test_a_connection_that_the_server_closes_is_made_anew() -> None:
    closing = OK.replace(b"X-Other: 1", b"Connection: close")
    with server(says(closing), says(closing)) as url:
        connection = Connection(url, 5.0)
        assert [ask(connection, url) for _ in range(2)] == [(200, {}, b"hi")] * 2


@pytest.mark.parametrize("text", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"what is this\r\n\r\n"])
def test_half_an_answer_or_none_is_an_error_and_the_next_request_starts_clean(text: bytes) -> None:
    with server(says(text), says(OK)) as url:
        connection = Connection(url, 5.0)
        with pytest.raises(ConnectionError):
            ask(connection, url)
        assert ask(connection, url) == (200, {}, b"hi")
        connection.close()


def test_a_server_that_is_silent_is_a_timeout() -> None:
    done = threading.Event()
    with server(lambda _: done.wait(10) and None) as url:
        connection = Connection(url, 0.05)
        with pytest.raises(TimeoutError):
            ask(connection, url)
        done.set()


def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            ask(Connection(url, 5.0), url)


def test_a_process_that_may_goes_before_all_other_work_and_its_children_do_not() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from loadtest.sending.generator import real_time\n"
        "got = real_time(lambda: None)\n"
        "child = [sys.executable, '-c', 'import os; print(os.sched_getscheduler(0))']\n"
        "print(got, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, subprocess.check_output(child, text=True).strip())\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert said in (
        ["True", str(os.SCHED_RR), str(os.SCHED_OTHER)],
        ["False", str(os.SCHED_OTHER), str(os.SCHED_OTHER)],
    )


@pytest.mark.parametrize("how", [pytest.param("real_time_or_not.ordinary()", marks=pytest.mark.thorough), "spin()"])
def test_real_time_priority_is_given_back_when_asked_and_when_a_process_does_not_sleep(how: str) -> None:
    """Or a generator that cannot keep up would take a machine of one core from everybody else."""
    script = (
        "import os, time\n"
        "import loadtest.sending.generator as real_time_or_not\n"
        "lost = []\n"
        "def spin():\n"
        "    end_s = time.monotonic() + 20\n"
        "    while not lost and time.monotonic() < end_s: pass\n"
        "got = real_time_or_not.real_time(lambda: lost.append(True))\n"
        f"if got: {how}\n"
        "print(got, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, len(lost))\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    num_lost = "1" if how == "spin()" else "0"
    assert said in (["True", str(os.SCHED_OTHER), num_lost], ["False", str(os.SCHED_OTHER), "0"])
