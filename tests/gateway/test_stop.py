"""A stop that cannot wait: the request in flight hangs in Triton, and whoever sent it must still hear the truth."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.local.processes import children_of
from tests.gateway.conftest import SAMPLE, Reply, Running, gateway_before
from tests.local.harness import Program, wait_until

pytestmark = pytest.mark.triton


@contextlib.contextmanager
def hanging_request(
    mortal: tuple[Program, str], folder: Path, drain_s: float
) -> Iterator[tuple[Running, list[Reply], threading.Thread]]:
    """A gateway with one request in flight that Triton, halted, will not answer."""
    triton, url = mortal
    with gateway_before(folder, {"cpu": [url]}, limits={"drain_s": drain_s}) as gateway:
        wait_until(lambda: gateway.infer(SAMPLE).status == 200, "the model is routed to")
        server = next(child.pid for child in children_of(triton.pid) if child.is_alive)
        halted = [triton.pid, server]  # or the first starts a new one where this takes long
        replies: list[Reply] = []
        client = threading.Thread(target=lambda: replies.append(gateway.infer(SAMPLE)))
        for pid in halted:
            os.kill(pid, signal.SIGSTOP)
        try:
            client.start()
            wait_until(lambda: in_flight(gateway) > 0, "the request waits for Triton")
            yield gateway, replies, client
        finally:
            for pid in reversed(halted):
                os.kill(pid, signal.SIGCONT)
            client.join(60)


def in_flight(gateway: Running) -> int:
    return int(gateway.ask("/admin/status").json()["pools"]["cpu"]["in_flight"])


def assert_told_to_come_back(reply: Reply) -> None:
    assert (reply.status, reply.headers["Tandem-Error"], reply.headers["Retry-After"]) == (503, "not_ready", "1")
    assert "stopping" in reply.json()["error"]


@pytest.mark.thorough
def test_a_second_signal_does_not_wait_for_requests_in_flight(mortal: tuple[Program, str], tmp_path: Path) -> None:
    with hanging_request(mortal, tmp_path, drain_s=100) as (gateway, replies, client):
        gateway.program.send(signal.SIGTERM)
        wait_until(lambda: not listens(gateway), "the gateway has closed its socket")
        assert gateway.program.process.poll() is None  # it waits for the request
        gateway.program.send(signal.SIGTERM)
        assert gateway.program.process.wait(60) == 0
        client.join(60)
        assert_told_to_come_back(replies[0])


def test_a_request_that_outlasts_the_drain_is_told_to_come_back(mortal: tuple[Program, str], tmp_path: Path) -> None:
    with hanging_request(mortal, tmp_path, drain_s=1) as (gateway, replies, client):
        gateway.program.send(signal.SIGTERM)
        assert gateway.program.process.wait(60) == 0
        client.join(60)
        assert_told_to_come_back(replies[0])
    assert not any("Traceback" in line for line in gateway.program.lines())


def listens(gateway: Running) -> bool:
    try:
        return gateway.ask("/health/live").status == 200
    except OSError:
        return False
