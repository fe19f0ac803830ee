"""Does a tritonserver work on for clients who have all hung up? Triton cancels nothing that it has begun; only a new start frees it.

A client that waits no more closes its connection, and Triton, which reads nothing from a connection while it works on a request of it, does
not notice: the connection stays half closed (CLOSE_WAIT) until the work is done. What all clients wait for is therefore to be seen from
beside it, in the kernel's list of sockets, whoever they are. What follows is done in `supervisor.py`.
Rule: whoever may still wait for an answer to what Triton has begun keeps the server as it is, however long its work takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from serving.local.launch import Ports
from serving.local.processes import PROC, children_of, stat

LOOK_S = 1.0  # a look costs about five milliseconds of processor time, more beside 1,000 connections or processes
PATIENCE_LOOKS = 3  # that it works on for nobody: what was nearly done may end; a guess, not measured
LONGEST_LOOKS = 600  # ten minutes, for one that answers nothing between two of its restarts
BUSY_CORES = 0.5  # beyond what polls cost; a guess, not measured
ESTABLISHED, CLOSE_WAIT = 1, 8  # the kernel's numbers
READABLE = 1  # EPOLLIN
# sock_diag(7): how the kernel lists sockets.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, NLMSG_ERROR, NLMSG_DONE = 4, 20, 0x301, 2, 3
_HEADER = struct.Struct("=IHHII")  # of a message: bytes, kind, flags, number, port
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states; any addresses
_PORTS, PORTS_AT = struct.Struct(">HH"), 4  # of struct inet_diag_msg: own, the client's
_QUEUES, QUEUES_AT = struct.Struct("=II4xI"), 56  # bytes unread, unsent; inode
STATE_AT = 1
ANSWER_S = 1.0
DATAGRAM_BYTES = 256 * 1024
REQUEST_BYTES = 18  # the shortest; fewer that were not read may end a request before them


@dataclass(frozen=True, slots=True)
class Clients:
    """`num_waiting`: connections on which somebody may wait. `left`: sockets of clients who hung up before Triton was done, by inode.

    `unread`: sockets with a request that Triton has not read, and its bytes so far. Whether its client has left is not always to be
    seen, and polls of gateways are among these. Who sends a second request before the first is answered looks the same.
    """

    num_waiting: int
    left: frozenset[int] = frozenset()
    unread: frozenset[tuple[int, int]] = frozenset()


class Containment:
    """Follows one server from look to look, and counts how often it was restarted for what it did for nobody."""

    def __init__(self) -> None:
        self.num_restarts = 0
        self._patience_looks = PATIENCE_LOOKS
        self.forget()

    def forget(self) -> None:
        """It is another process, or has a reason to be busy."""
        self._left: dict[int, int] = {}  # looks at which each was there
        self._unread: frozenset[tuple[int, int]] = frozenset()
        self._num_busy = 0  # looks in a row
        self._num_answered: int | None = None  # when it was last asked
        self.others: set[int] = set()  # processes that are not the server's
        self._busiest: int | None = None  # the process that computed most between the last two looks
        self._before: tuple[float, Mapping[int, float]] | None = None  # time and processor times of the last look

    def started(self, took_s: float) -> None:
        """With its models. To wait for what is done in vain costs no more than that for as long as another start takes."""
        self._patience_looks = max(self._patience_looks, min(LONGEST_LOOKS, ceil(took_s / LOOK_S)))

    def is_stuck(self, now_s: float, clients: Clients, cpu_s: Mapping[int, float]) -> bool:
        """By what is seen now; `cpu_s` of each of its processes. Looks are counted and not time, because this process may stall, too."""
        before_s, before_cpu_s = self._before or (now_s, cpu_s)
        self._before = now_s, cpu_s
        worked_s = {process: used_s - before_cpu_s.get(process, used_s) for process, used_s in cpu_s.items()}
        self._busiest = max(worked_s, key=worked_s.__getitem__, default=None)
        is_busy = sum(worked_s.values()) > BUSY_CORES * (now_s - before_s)
        self._left = {socket: self._left.get(socket, 0) + 1 for socket in clients.left}
        is_needed = self.is_needed(clients)
        self._unread = clients.unread
        self._num_busy = self._num_busy + 1 if is_busy and not is_needed else 0
        return not is_needed and (self._num_busy >= self._patience_looks or self._works_for_one_who_left())

    def is_needed(self, clients: Clients) -> bool:
        """Whether somebody waits, or sends what Triton reads. What it has not read since the last look it has not begun."""
        return clients.num_waiting > 0 or not clients.unread <= self._unread

    def is_of_use(self, num_answered: int) -> bool:
        """Of one that looks stuck: whether it has answered since this was asked last. Then it computes for clients who wait between two
        looks, and is watched for as long again. What it does for one who left is no use, whatever it does beside that.
        """
        before, self._num_answered = self._num_answered, num_answered
        if num_answered == before or self._works_for_one_who_left():
            return False
        self._num_busy = 0
        return True

    def restarts(self, answered: Mapping[str, int], models: Mapping[int, str]) -> None:
        """Where the model that computes has answered nothing since it was loaded it may only be slow at first, and gets twice the time.

        `answered`: requests of each model; `models` by their processes. Of a Triton that computes itself, or not at all, any model counts.
        """
        self.num_restarts += 1
        model = models.get(self._busiest or 0)
        has_answered = not answered or any(answered.values() if model is None else [answered.get(model, 0)])
        longer = min(LONGEST_LOOKS, 2 * self._patience_looks)
        self._patience_looks = PATIENCE_LOOKS if has_answered else longer
        self.forget()

    def _works_for_one_who_left(self) -> bool:
        return max(self._left.values(), default=0) >= self._patience_looks


class Connection(NamedTuple):
    """`unsent` and `unread` are bytes in the kernel."""

    port: int
    remote_port: int
    state: int
    unsent: int
    unread: int
    inode: int


def clients_of(server: int, ports: Ports, proc: Path = PROC, among: Iterable[Connection] | None = None) -> Clients:
    """All of its clients but this process, in whose network namespace it is. Raises OSError where it may not be looked at, or is gone.

    `among`: the system's connections, where they are known already.
    """
    connections = list(_connections(ports) if among is None else among)
    files = dict(_files(proc / str(server)))
    own = _sockets(files.values())  # others may listen on the same port of another address
    left = frozenset(c.inode for c in connections if c.port == ports.http and c.state == CLOSE_WAIT and c.inode in own)
    reads = _reads(proc / str(server), files)
    unread = [c for c in connections if c.port == ports.http and c.state == ESTABLISHED and c.unread >= REQUEST_BYTES]
    num_waiting = sum(c.port == ports.http and c not in unread and _may_wait(c, reads) for c in connections)
    # gRPC's connections carry many requests, and no look tells whether one of them waits.
    ours = _sockets(link for _, link in _files(proc / "self"))
    own_ports = {c.port for c in connections if c.remote_port == ports.grpc and c.inode in ours}
    num_waiting += sum(
        c.port == ports.grpc and c.state == ESTABLISHED and c.remote_port not in own_ports for c in connections
    )
    return Clients(num_waiting, left, frozenset((c.inode, c.unread) for c in unread))


def _may_wait(connection: Connection, reads: Mapping[int, int]) -> bool:
    """Triton reads on where it has no request; what it has not read, or not sent off, somebody waits for."""
    if connection.state != ESTABLISHED:
        return False
    is_read = not connection.inode or reads.get(connection.inode, 0) & READABLE
    return not is_read or connection.unread > 0 or connection.unsent > 0


def cpu_s(server: int, others: set[int] | None = None) -> dict[int, float]:
    """Processor time of it and of each process of its models, seconds since they began. `others` as in `children_of`."""
    processes = [stat(server), *children_of(server, others=others)]
    return {process.pid: process.cpu_ticks / os.sysconf("SC_CLK_TCK") for process in processes if process}


def _connections(ports: Ports) -> Iterator[Connection]:
    """Those of these ports, either side, asked of the kernel. /proc/net/tcp has them too, for 10 to 15 ms of processor time beside
    1,400 connections of others; this takes one. Raises OSError where the kernel does not tell.
    """
    wanted = {ports.http, ports.grpc}
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _HEADER.pack(_HEADER.size + _REQUEST.size, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 0, 0)
        request += _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << ESTABLISHED | 1 << CLOSE_WAIT)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(ANSWER_S)
            kernel.send(request)
            for message in _messages(kernel):
                port, remote_port = _PORTS.unpack_from(message, PORTS_AT)
                if port in wanted or remote_port in wanted:
                    unread, unsent, inode = _QUEUES.unpack_from(message, QUEUES_AT)
                    yield Connection(port, remote_port, message[STATE_AT], unsent, unread, inode)


def _messages(kernel: socket.socket) -> Iterator[bytes]:
    """What the kernel dumps, without headers. Raises OSError."""
    while True:
        try:
            datagram = memoryview(kernel.recv(DATAGRAM_BYTES))
        except TimeoutError:  # which has no words
            raise OSError(errno.ETIMEDOUT, "the kernel does not list its connections") from None
        while datagram:
            size, kind, *_ = _HEADER.unpack_from(datagram)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                (error,) = struct.unpack_from("=i", datagram, _HEADER.size)
                raise OSError(-error, os.strerror(-error))
            yield bytes(datagram[_HEADER.size : size])
            datagram = datagram[(size + 3) & ~3 :]


def _sockets(links: Iterable[str]) -> set[int]:
    """The inodes of the sockets among open files."""
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def _reads(process: Path, files: Mapping[str, str]) -> dict[int, int]:
    """Inode -> what its event loops wait for there: lines `tfd: 19 events: 19 data: 13 pos:0 ino:10c1b sdev:8`, in hexadecimal."""
    waits: dict[int, int] = {}
    for number, link in files.items():
        if link != "anon_inode:[eventpoll]":
            continue
        for line in (process / "fdinfo" / number).read_text().splitlines():
            words = line.replace(":", " ").split()
            if words[:1] == ["tfd"] and "ino" in words:  # Linux 4.13
                said = dict(zip(words[::2], words[1::2], strict=True))
                waits[int(said["ino"], 16)] = int(said["events"], 16)
    return waits


def _files(process: Path) -> Iterator[tuple[str, str]]:
    folder = f"{process}/fd"
    for number in os.listdir(folder):  # noqa: PTH208 - many, and often
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield number, os.readlink(f"{folder}/{number}")  # noqa: PTH115
