"""Every address of a name is a gateway; what cannot be looked up is not known, and nobody waits for it."""

from __future__ import annotations

import socket
import threading

from serving.cluster.scaler.discovery import Addresses, Endpoint, GatewayNames
from serving.gateway.fleet.addresses import LOOK_S, NoAddress
from tests.local.harness import wait_until


class Dns:
    """What it says next; counts how often it was asked."""

    def __init__(self, says: list[str] | OSError) -> None:
        self.says, self.num_asked = says, 0

    def __call__(self, host: str, port: int) -> list[str]:  # noqa: ARG002
        self.num_asked += 1
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


def looked(names: GatewayNames, dns: Dns, now: float) -> Addresses:
    """After the look-up that this look starts, if it starts one."""
    before = dns.num_asked
    names.look(now)
    wait_until(lambda: dns.num_asked > before, "it is asked")
    wait_until(lambda: not any(t.name.startswith("look-up") for t in threading.enumerate()), "it has answered")
    return names.look(now)


GATEWAYS = ["http://gateways.ns.svc:9090"]


def test_every_address_of_every_name_is_one_gateway() -> None:
    dns = Dns(["10.0.0.1", "10.0.0.2"])
    names = GatewayNames([*GATEWAYS, "http://10.9.9.9:9090"], dns)
    found = looked(names, dns, 0.0)
    assert [it.text for it in found.places] == ["10.0.0.1:9090", "10.0.0.2:9090", "10.9.9.9:9090"]
    assert found.are_known


def test_a_literal_address_is_never_looked_up() -> None:
    dns = Dns([])
    assert GatewayNames(["http://127.0.0.1:1", "http://[::1]:2"], dns).look(0.0) == Addresses(
        (Endpoint("127.0.0.1", 1), Endpoint("::1", 2))
    )
    assert dns.num_asked == 0
    assert Endpoint("::1", 2).text == "[::1]:2"


def test_while_nobody_can_tell_what_has_published_stays() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    dns.says = socket.gaierror(socket.EAI_AGAIN, "try again")
    found = looked(names, dns, LOOK_S)
    assert [it.address for it in found.places] == ["10.0.0.1"]
    assert not found.are_known
    assert found.problem == "gateways.ns.svc cannot be looked up (try again)"


def test_a_name_without_an_address_is_known_to_have_none() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    dns.says = NoAddress(socket.EAI_NONAME, "not known")
    assert looked(names, dns, LOOK_S) == Addresses((), "gateways.ns.svc has no address", are_known=True)
    dns.says = ["10.0.0.7"]
    assert looked(names, dns, 2 * LOOK_S) == Addresses((Endpoint("10.0.0.7", 9090),))


def test_a_resolver_that_hangs_is_not_waited_for_and_not_asked_twice() -> None:
    goes_on = threading.Event()
    asked: list[str] = []

    def hang(host: str, port: int) -> list[str]:
        asked.append(host)
        goes_on.wait(60)
        return ["10.0.0.1"]

    names = GatewayNames(GATEWAYS, hang)
    for now in range(100):
        assert names.look(float(now)) == Addresses((), are_known=False)
    assert len(asked) == 1
    goes_on.set()
    wait_until(lambda: names.look(0.0).places, "it has answered")


def test_names_are_asked_no_more_often_than_dns_changes() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    names.look(LOOK_S / 2)
    assert dns.num_asked == 1
