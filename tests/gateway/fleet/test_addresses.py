"""A pool given by a name: each address behind it is a server, and servers come and go while requests are answered."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.gateway.fleet import membership
from serving.gateway.fleet.addresses import NoAddress, is_literal, look_up, one_family, split, url_of
from serving.gateway.serve import server_of
from serving.ports import free_ports
from serving.settings import GatewaySettings
from tests.gateway.conftest import SAMPLE, Running
from tests.gateway.fleet.test_faults import load_on
from tests.gateway.request.test_admission import Asked
from tests.local.harness import wait_until

V4, V6 = socket.AF_INET, socket.AF_INET6
NAME = "tritons.example"
MODEL = "digits-fp32"


# -- what a name means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        ([(V4, "127.0.0.1")], ["127.0.0.1"]),
        ([(V6, "::1"), (V4, "127.0.0.1")], ["127.0.0.1"]),
        ([(V6, "fd00::2"), (V6, "fd00::1")], ["fd00::1", "fd00::2"]),
        ([(V4, "10.0.0.10"), (V4, "10.0.0.9"), (V4, "10.0.0.10")], ["10.0.0.9", "10.0.0.10"]),
        ([(V6, "fe80::1%eth1"), (V6, "fe80::1%eth0")], ["fe80::1%eth0", "fe80::1%eth1"]),
        ([], []),
    ],
)
def test_each_address_of_one_family_is_a_server_and_ipv4_goes_first(
    found: list[tuple[int, str]], addresses: list[str]
) -> None:
    assert one_family(found) == addresses


def test_localhost_is_one_server_by_the_real_resolver() -> None:
    assert asyncio.run(look_up("localhost", 8000)) == ["127.0.0.1"]


def test_a_name_that_nobody_has_is_an_error_that_the_catalogue_expects() -> None:
    with pytest.raises((NoAddress, socket.gaierror)):  # the latter without a network: it cannot be told
        asyncio.run(look_up("nobody.invalid", 8000))


@pytest.mark.parametrize(
    ("url", "host", "port", "literal"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("http://[::1]:9", "::1", 9, True),
        ("http://triton-cpu:8000", "triton-cpu", 8000, False),
        ("http://localhost:8000", "localhost", 8000, False),
    ],
)
def test_an_address_is_told_from_a_name(url: str, host: str, port: int, literal: bool) -> None:
    assert split(url) == (host, port)
    assert is_literal(host) is literal
    assert url_of(host, port) == url


# -- a pool behind a name ---------------------------------------------------------------------------------------------


class Relay:
    """A server at an address of its own: passes connections on to a Triton. `passes`, cleared, keeps answers to inferences back; polls are
    answered on, or the server would be taken for silent and sent nothing. `holds_all`: whatever answers come are kept back then."""

    def __init__(self, address: str, port: int, server: tuple[str, int], *, holds_all: bool = False) -> None:
        self._listener = socket.create_server((address, port))
        self._server = server
        self._holds_all = holds_all
        self.url = f"http://{address}:{port}"
        self.passes = threading.Event()
        self.passes.set()
        self.requests = 0  # inferences that came
        self.inferences: list[bytes] = []  # the beginning of each that came
        self.open = 0
        self._counts = threading.Lock()
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            self.open += 1
            self._clients.append(client)
            infers = threading.Event()
            back = threading.Thread(target=self._pass_answers, args=(server, client, infers), daemon=True)
            back.start()
            with suppress(OSError):
                while chunk := client.recv(65536):
                    if b"/infer HTTP" in chunk:
                        infers.set()
                        with self._counts:
                            self.requests += 1
                            self.inferences.append(chunk)
                    elif chunk.startswith((b"GET ", b"POST ")):
                        infers.clear()
                    server.sendall(chunk)
            self.open -= 1
            shut(server)
            back.join()

    def _pass_answers(self, server: socket.socket, client: socket.socket, infers: threading.Event) -> None:
        with suppress(OSError):
            while chunk := server.recv(65536):
                if self._holds_all or infers.is_set():
                    self.passes.wait(300)
                client.sendall(chunk)
        shut(client)

    def leave(self) -> None:
        """As Triton after SIGTERM: who is connected is answered, and nobody else comes in."""
        shut(self._listener)

    def close(self) -> None:
        self.passes.set()
        for end in (self._listener, *self._clients):
            shut(end)
        self._listener.close()


def shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@dataclass
class Names:
    """The resolver: what the name means, or what it fails with."""

    port: int
    means: list[str] = field(default_factory=list)
    fails: OSError | None = None
    asked: int = 0

    async def look_up(self, host: str, port: int) -> list[str]:
        assert (host, port) == (NAME, self.port)
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return list(self.means)

    def wait_asked(self) -> None:
        """Until what it says now has been heard."""
        seen = self.asked
        wait_until(lambda: self.asked >= seen + 2, "the name is looked up again")


class InThread(Running):
    """A gateway of this process, whose resolver is ours."""

    def __init__(self, port: int) -> None:
        self.port = port

    def pool(self) -> Any:
        return self.ask("/admin/status").json()["pools"]["cpu"]

    def servers(self) -> dict[str, bool]:
        return {server["url"]: server["alive"] for server in self.pool()["servers"]}


@contextmanager
def gateway_with(names: Names) -> Iterator[InThread]:
    pools = {"cpu": {"urls": [f"http://{NAME}:{names.port}"], "device": "cpu"}}
    settings = GatewaySettings.model_validate({"version": 1, "pools": pools})
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    async def serve() -> None:
        gateway = Gateway(settings, admin_here=True, look_up=names.look_up)
        server = server_of(gateway, settings)
        gateway.start()
        serving = asyncio.create_task(server.serve([listener]))
        await asyncio.to_thread(stop.wait)
        server.stop()
        await serving
        await gateway.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield InThread(listener.getsockname()[1])
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


@dataclass
class Stack:
    names: Names
    gateway: InThread
    relays: dict[str, Relay]

    def means(self, *addresses: str) -> None:
        """From now on; returns when all of them answer and no other is left."""
        self.names.means, self.names.fails = list(addresses), None
        wanted = {self.relays[address].url: True for address in addresses}
        wait_until(lambda: self.gateway.servers() == wanted, f"the servers are {addresses}")

    def url(self, address: str) -> str:
        return self.relays[address].url


ONE, TWO, THREE = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture
def stack(digits: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setattr(membership, "LOOK_S", 0.1)
    triton, port = split(digits), free_ports(1)[0]
    relays = {address: Relay(address, port, triton) for address in (ONE, TWO, THREE)}
    names = Names(port, [ONE, TWO])
    with gateway_with(names) as gateway:
        made = Stack(names, gateway, relays)
        made.means(ONE, TWO)
        yield made
    for relay in relays.values():
        relay.close()


@pytest.mark.slow
@pytest.mark.triton
def test_every_address_of_a_name_gets_requests(stack: Stack) -> None:
    with load_on(stack.gateway.port, clients=8) as load:
        wait_until(lambda: stack.relays[ONE].requests > 5 and stack.relays[TWO].requests > 5, "both work")
    assert load.statuses() == {200}
    assert stack.relays[THREE].open == 0


@pytest.mark.slow
@pytest.mark.triton
def test_servers_come_and_go_under_load_and_no_request_is_lost(stack: Stack) -> None:
    with load_on(stack.gateway.port, clients=4) as load:
        stack.means(TWO, THREE)
        wait_until(lambda: stack.relays[THREE].requests > 5, "the new one works")
        wait_until(lambda: stack.relays[ONE].open == 0, "the connections of the old one are closed")
        stack.means(THREE)
        wait_until(lambda: stack.relays[TWO].open == 0, "what was on its way there is answered")
        before = stack.relays[TWO].requests
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 20, "answers go on")
        assert stack.relays[TWO].requests == before
    assert load.statuses() == {200}
    assert not load.lost


@pytest.mark.slow
@pytest.mark.triton
def test_what_a_server_works_on_ends_before_its_connections_are_closed(stack: Stack) -> None:
    stack.means(TWO)
    wait_until(lambda: stack.gateway.infer(SAMPLE, MODEL).status == 200, "it serves")
    relay = stack.relays[TWO]
    relay.passes.clear()
    slow = Asked(stack.gateway, json.dumps({"id": "kept back", **json.loads(SAMPLE)}).encode(), {})
    wait_until(lambda: any(b"kept back" in one for one in relay.inferences), "it is sent")
    stack.means(ONE)
    assert stack.gateway.infer(SAMPLE, MODEL).status == 200
    assert slow.thread.is_alive()
    assert relay.open >= 1
    relay.passes.set()
    assert slow.done().status == 200
    wait_until(lambda: relay.open == 0, "its connections are closed")


@pytest.mark.slow
@pytest.mark.triton
def test_a_resolver_that_fails_changes_nothing(stack: Stack) -> None:
    stack.names.fails = OSError(socket.EAI_AGAIN, "try again")
    stack.names.wait_asked()
    stack.relays[ONE].close()
    wait_until(lambda: not stack.gateway.servers()[stack.url(ONE)], "its death is noticed")
    stack.names.wait_asked()
    assert stack.gateway.servers() == {stack.url(ONE): False, stack.url(TWO): True}
    assert stack.gateway.infer(SAMPLE, MODEL).status == 200
    assert list(stack.gateway.pool()["unresolved"].values()) == ["try again"]
    stack.means(TWO)
    assert stack.gateway.pool()["unresolved"] == {}


@pytest.mark.slow
@pytest.mark.triton
def test_where_a_name_has_no_address_any_more_only_what_answers_stays(stack: Stack) -> None:
    stack.names.fails = NoAddress(socket.EAI_NONAME, "no such name")
    stack.names.wait_asked()
    assert stack.gateway.servers() == {stack.url(ONE): True, stack.url(TWO): True}
    stack.relays[ONE].close()
    wait_until(lambda: stack.gateway.servers() == {stack.url(TWO): True}, "what is dead is forgotten")
    assert stack.gateway.infer(SAMPLE, MODEL).status == 200


@pytest.mark.slow
@pytest.mark.triton
def test_a_server_without_an_address_that_lets_nobody_in_any_more_is_let_go_and_no_request_is_lost(
    stack: Stack,
) -> None:
    with load_on(stack.gateway.port, clients=4) as load:
        wait_until(lambda: stack.relays[ONE].requests > 5, "it works")
        stack.names.fails = NoAddress(socket.EAI_NONAME, "no such name")
        stack.names.wait_asked()
        stack.relays[ONE].leave()
        wait_until(lambda: stack.gateway.servers() == {stack.url(TWO): True}, "it is let go")
        wait_until(lambda: stack.relays[ONE].open == 0, "its connections are closed, for which it would wait")
    assert load.statuses() == {200}
    assert not load.lost


@pytest.mark.slow
@pytest.mark.triton
def test_a_server_that_left_may_come_back(stack: Stack) -> None:
    stack.means(ONE)
    stack.means(ONE, TWO)
    before = stack.relays[TWO].requests
    with load_on(stack.gateway.port, clients=8) as load:
        wait_until(lambda: stack.relays[TWO].requests > before, "it works again")
    assert load.statuses() == {200}


def test_a_name_that_was_never_resolved_is_a_pool_that_is_not_ready() -> None:
    names = Names(8000, fails=OSError(socket.EAI_AGAIN, "try again"))
    with gateway_with(names) as gateway:

        def live() -> Any:
            try:
                return gateway.ask("/health/live").status == 200
            except OSError:
                return False

        wait_until(live, "it is live")
        reply = gateway.infer(SAMPLE)
        assert (reply.status, reply.headers["Tandem-Error"]) == (503, "not_ready")
        assert gateway.servers() == {}
