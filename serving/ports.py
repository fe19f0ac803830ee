"""Finds free ports on this machine, and says why one that was asked for cannot be had."""

from __future__ import annotations

import atexit
import errno
import random
import socket
import sys
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from serving.errors import UserError

NUM_TRIED = 8000  # ports; a guess, not measured
# At most, by a process, which holds a file for each: more than a worker of `make test` finds, as far as is known. The port of a server
# that is killed and started again is free to be bound meanwhile, and no other worker is to find it.
NUM_RESERVED = 384

_reserved: deque[socket.socket] = deque()


def require_free(host: str, port: int, option: str) -> None:
    """Raises UserError where the port cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise UserError(f"port {port} on {host} needs more rights: choose one above 1023 with {option}") from None
        except OSError as error:
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise UserError(f"port {port} on {host} {why}: choose another with {option}") from None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that are free now, all different, and are found by no other process of Tandem's before a server has begun to listen on them.

    Below those that the system hands out by itself, one of which may be a connection's before a server that starts slowly listens on it.
    """
    below = _first_handed_out()
    candidates = random.sample(range(max(1024, below - NUM_TRIED), below), k=min(NUM_TRIED, below - 1024))
    with ExitStack() as probes:
        ports: list[int] = []
        for port in [*candidates, *[0] * count]:  # the system's, where all of those are taken
            if len(ports) == count:
                break
            with suppress(OSError):
                found = int(probes.enter_context(socket.create_server((host, port))).getsockname()[1])
                _reserve(found)
                ports.append(found)
    return ports


def hold(port: int) -> bool:
    """Keeps it from every free_ports(), as those that were found are kept. False where it is kept already, by whichever process."""
    try:
        _reserve(port)
    except OSError:
        return False
    return True


def _reserve(port: int) -> None:
    """For as long as this process runs, or until it has reserved many more. Raises OSError where another process has it."""
    if sys.platform != "linux":
        return
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0tandem-port-{port}")  # an abstract name: in no file, and gone with the process
    except OSError:
        holder.close()
        raise
    while len(_reserved) >= NUM_RESERVED:
        _reserved.popleft().close()
    _reserved.append(holder)


@atexit.register
def _give_back() -> None:
    """Otherwise Python warns of each at its end, where somebody shows such warnings."""
    while _reserved:
        _reserved.popleft().close()


def _first_handed_out(file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    try:
        return max(2048, int(file.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return 32768  # Linux's own
