"""Listening sockets as the gateway closes them. Nothing here needs a Triton."""

from __future__ import annotations

import resource
import socket

import pytest

from serving.errors import UserError
from serving.gateway.listeners import begin, let_nobody_in, listen, raise_file_limit


def test_as_many_descriptors_are_asked_for_as_can_be_had_and_never_fewer_than_before() -> None:
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        assert [raise_file_limit(num_files) for num_files in (200, 400, 300)] == [300, 400, 400]
        assert raise_file_limit(2**40 if hard != resource.RLIM_INFINITY else 500) in (hard, 500)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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


def test_a_shared_port_is_for_those_that_say_so_and_gets_nobody_before_one_listens() -> None:
    with listen("127.0.0.1", 0, is_shared=True) as one:
        host, port = one.getsockname()
        with listen(host, port, is_shared=True) as other:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port), timeout=5)
            with listen(host, port), pytest.raises(UserError):  # of a stranger, who was quicker
                begin(other)
            begin(other)
            with pytest.raises(UserError):
                listen(host, port)
            with socket.create_connection((host, port), timeout=5) as client:
                other.setblocking(True)
                taken, address = other.accept()
                taken.close()
                assert address == client.getsockname()
