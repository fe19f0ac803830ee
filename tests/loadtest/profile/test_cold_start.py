"""A cold start is told by phase: stages in their order, each by its own time, and the median of several starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from loadtest.profile.cold_start import StartWatch, phases

STAGES = {"/v2/health/live": 1, "/v2/models/net/ready": 2}


class Starting(BaseHTTPRequestHandler):
    """Answers 200 for what its stage has reached."""

    stage = 0

    def do_GET(self) -> None:
        self.send_response(200 if STAGES[self.path] <= Starting.stage else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Starting.stage = 0
    with HTTPServer(("127.0.0.1", 0), Starting) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def at(watched: StartWatch, stage: int) -> tuple[bool, bool, bool]:
    """Ready, as it says; seen live; seen ready."""
    Starting.stage = stage
    is_ready = watched.look()
    return is_ready, watched.live_s is not None, watched.ready_s is not None


def test_a_server_is_live_before_its_model_is_ready(url: str) -> None:
    watched = StartWatch(url, "net", time.monotonic())
    assert at(watched, 0) == (False, False, False)
    assert at(watched, 1) == (False, True, False)
    seen_s = watched.live_s
    assert at(watched, 2) == (True, True, True)
    assert watched.live_s == seen_s
    assert (watched.ready_s or 0.0) > (seen_s or 0.0) > 0


def test_nobody_there_is_not_live() -> None:
    watched = StartWatch("http://127.0.0.1:9", "net", 0.0)
    assert not watched.look()
    assert watched.live_s is None


def test_each_phase_is_the_median_of_its_own() -> None:
    found = phases([(1.0, 5.0, 0.1), (2.0, 4.0, 0.9), (3.0, 9.0, 0.2)])
    assert [(phase.name, phase.seconds) for phase in found] == [("process", 2.0), ("load", 5.0), ("first_answer", 0.2)]


def test_no_start_has_no_phases() -> None:
    assert phases([]) == ()
