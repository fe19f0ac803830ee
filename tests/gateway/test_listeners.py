"""Listening sockets as the gateway closes them, also those that gRPC made. Nothing here needs a Triton."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from serving.gateway.listeners import held, let_nobody_in, listen, stop_listening


def open_descriptors() -> set[str]:
    return {it.name for it in Path("/proc/self/fd").iterdir()}


def test_looking_for_the_sockets_of_a_port_leaves_no_descriptor_open() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        before = open_descriptors()
        for _ in range(3):
            assert [(it.descriptor, it.is_listening) for it in held(port)] == [(listener.fileno(), True)]
        assert open_descriptors() == before


def test_who_is_connected_is_found_beside_who_listens() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5) as client:
            listener.setblocking(True)
            server, _ = listener.accept()
            with server:
                found = {it.descriptor: it.is_listening for it in held(address[1])}
                assert found == {listener.fileno(): True, server.fileno(): False}
            assert {it.descriptor for it in held(client.getsockname()[1])} == {client.fileno()}


def test_a_port_that_is_not_listened_on_any_more_refuses_and_its_owner_still_has_something_to_close() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        stop_listening(address[1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        assert listener.fileno() >= 0
        listener.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)


def test_once_nobody_gets_in_who_was_in_still_is_and_a_new_connection_is_dropped() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5) as client:
            let_nobody_in(listener)
            listener.setblocking(True)
            server, _ = listener.accept()
            with server:
                client.sendall(b"x")
                assert server.recv(1) == b"x"
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.3)
