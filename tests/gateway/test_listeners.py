"""Listening sockets as the gateway closes them. Nothing here needs a Triton."""

from __future__ import annotations

import socket

import pytest

from serving.gateway.listeners import let_nobody_in, listen


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
