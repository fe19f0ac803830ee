from __future__ import annotations

import subprocess
import sys

import pytest

from serving import ports

FIND = """
import sys
from serving import ports
ports.NUM_TRIED = 40
print(*ports.free_ports(20), flush=True)
sys.stdin.read()
"""


def test_two_processes_find_different_ports_although_none_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "NUM_TRIED", 40)
    with subprocess.Popen([sys.executable, "-c", FIND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        theirs = {int(port) for port in it.stdout.readline().split()}
        ours = set(ports.free_ports(20))
        it.stdin.close()
    assert len(theirs) == len(ours) == 20
    assert not theirs & ours


def test_ports_of_long_ago_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "NUM_TRIED", 40)
    monkeypatch.setattr(ports, "NUM_RESERVED", 10)
    below = ports._first_handed_out()
    for _ in range(12):
        assert all(below - 40 <= port < below for port in ports.free_ports(5))


def test_a_port_that_is_held_is_found_by_nobody_and_held_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1)
    assert not ports.hold(port), "it was found"
    ports._reserved.pop().close()
    assert ports.hold(port)
    monkeypatch.setattr(ports.random, "sample", lambda *_, **__: [port])
    assert ports.free_ports(1) != [port], "one of the system's"
