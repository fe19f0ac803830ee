"""What clients see while a Triton dies, comes back, or the gateway is told to stop: order of events, no clock."""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from serving.http_client import address
from serving.local.processes import children_of, stubs_of
from tests.gateway.conftest import SAMPLE, Running, gateway_before
from tests.local.harness import Program, wait_until

pytestmark = pytest.mark.triton


@dataclass
class Load:
    """Clients that ask one after the other on kept connections; each answer or failure is noted."""

    port: int
    model: str
    body: bytes = SAMPLE
    pause_s: float = 0.002  # between its requests, or clients keep all cores busy
    answers: list[tuple[int, str, str]] = field(default_factory=list)  # status, Tandem-Error, Retry-After
    lost: list[str] = field(default_factory=list)  # a request was sent and no whole answer came
    refused: int = 0
    hung_up: int = 0  # idle connections that the gateway closed
    stop: threading.Event = field(default_factory=threading.Event)

    def client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        while not self.stop.is_set():
            try:
                if connection.sock is not None and is_over(connection.sock):
                    self.hung_up += 1
                    connection.close()
                if connection.sock is None:
                    connection.connect()
            except OSError:
                self.refused += 1
                self.stop.wait(0.02)
                continue
            try:
                connection.request("POST", f"/v2/models/{self.model}/infer", self.body)
                answer = connection.getresponse()
                answer.read()
                headers = answer.headers
                self.answers.append((answer.status, headers.get("Tandem-Error", ""), headers.get("Retry-After", "")))
                self.stop.wait(self.pause_s)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                connection.close()
        connection.close()

    def statuses(self) -> set[int]:
        return {status for status, _, _ in self.answers}

    def count(self, status: int) -> int:
        return sum(s == status for s, _, _ in self.answers)


def is_over(connection: socket.socket) -> bool:
    """Whether a server has closed a connection while it idled: clients look before they ask again."""
    return bool(select.select([connection], [], [], 0)[0])


@contextmanager
def load_on(
    port: int, model: str = "digits-fp32", clients: int = 4, body: bytes = SAMPLE, *, stops: bool = False
) -> Iterator[Load]:
    """`stops`: the gateway is told to, and may close idle connections."""
    load = Load(port, model, body)
    threads = [threading.Thread(target=load.client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: load.count(200) > 20, "requests are answered")
        yield load
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a request hangs"
    assert stops or not load.hung_up, "kept connections are closed"


@pytest.fixture
def gateway(mortal: tuple[Program, str], tmp_path: Path) -> Iterator[Running]:
    with gateway_before(tmp_path, {"cpu": [mortal[1]]}) as running:
        for model in ("digits-fp32", "digits-int8"):
            wait_until(partial(is_served, running, model), f"{model} is routed to")
        yield running


def is_served(gateway: Running, model: str) -> bool:
    return gateway.infer(SAMPLE, model).status == 200


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def server_of(triton: Program) -> int:
    return int(wait_until(lambda: next((c.pid for c in children_of(triton.pid) if c.is_alive), None), "a server"))


def test_a_killed_triton_gives_honest_503s_and_then_answers_again(
    mortal: tuple[Program, str], gateway: Running
) -> None:
    with load_on(gateway.port) as load:
        os.kill(server_of(mortal[0]), signal.SIGKILL)
        wait_until(lambda: load.count(503), "a 503")
        assert gateway.ask("/health/ready").status == 200  # latched: the truth of the moment is at /v2
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 20, "answers again")
    assert load.statuses() == {200, 503}
    assert not load.lost
    assert {(word, retry) for status, word, retry in load.answers if status == 503} <= {
        ("upstream_lost", "1"),
        ("not_ready", "1"),
    }


def test_a_request_that_no_server_has_seen_is_told_that_none_is_ready_and_not_that_it_was_lost(
    mortal: tuple[Program, str], gateway: Running
) -> None:
    assert gateway.infer(SAMPLE).status == 200
    os.kill(server_of(mortal[0]), signal.SIGKILL)
    wait_until(lambda: not listens(*address(mortal[1])), "it is gone")  # with all its threads
    kept, *others = [
        gateway.infer(SAMPLE) for _ in range(3)
    ]  # the first may go out on the connection before its end is seen
    assert (kept.status, kept.headers["tandem-error"]) in {(503, "not_ready"), (503, "upstream_lost")}
    assert {(answer.status, answer.headers["tandem-error"]) for answer in others} == {(503, "not_ready")}
    wait_until(lambda: gateway.infer(SAMPLE).status == 200, "answers again")


def test_a_killed_stub_gives_honest_503s_and_then_answers_again(mortal: tuple[Program, str], gateway: Running) -> None:
    with load_on(gateway.port) as load:
        [stub] = [s for s in stubs_of(server_of(mortal[0])) if s.model == "digits-fp32"]
        os.kill(stub.pid, signal.SIGKILL)
        wait_until(lambda: load.count(503), "a 503")
        assert gateway.infer(SAMPLE, "digits-int8").status == 200  # the other model is not touched
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 20, "answers again")
    assert load.statuses() == {200, 503}
    assert not load.lost
    assert {word for status, word, _ in load.answers if status == 503} <= {"upstream_lost", "not_ready"}


def test_a_gateway_told_to_stop_loses_no_request_that_it_took(gateway: Running) -> None:
    with load_on(gateway.port, clients=8, stops=True) as load:
        assert not load.hung_up
        gateway.program.send(signal.SIGTERM)
        assert gateway.program.process.wait(60) == 0
        wait_until(lambda: load.refused, "nobody listens any more")
    assert load.statuses() == {200}
    assert not load.lost


def test_a_second_gateway_serves_on_when_the_first_dies(
    mortal: tuple[Program, str], gateway: Running, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    with gateway_before(tmp_path / "second", {"cpu": [mortal[1]]}) as second, load_on(second.port) as load:
        gateway.program.process.kill()
        gateway.program.process.wait()
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 50, "answers go on")
    assert load.statuses() == {200}


def test_a_pool_of_two_tritons_answers_everything_while_one_dies(
    mortal: tuple[Program, str], digits: str, tmp_path: Path
) -> None:
    with gateway_before(tmp_path, {"cpu": [mortal[1], digits]}) as gateway:
        wait_until(lambda: num_serving(gateway) == 2, "both serve it")
        with load_on(gateway.port) as load:
            os.kill(server_of(mortal[0]), signal.SIGKILL)
            good = load.count(200)
            wait_until(lambda: load.count(200) > good + 200, "answers go on")
        assert load.statuses() == {200}
        assert not load.lost


def num_serving(gateway: Running, model: str = "digits-fp32") -> int:
    """Servers of the pool that serve it."""
    servers = gateway.ask("/admin/status").json()["pools"]["cpu"]["servers"]
    return sum(server["alive"] and model in server["variants"] for server in servers)
