"""What address has a Service's name? A small DNS server that answers from EndpointSlices, in the place of CoreDNS.

CoreDNS itself is a Go program of its own that would have to be compiled on every new machine, for its answers to two kinds of questions.
Like its plugin `kubernetes` this answers a headless Service with the addresses that are ready, TTL 5 s, and a name without any with
NXDOMAIN; like its plugin `cache` it repeats an answer, NXDOMAIN too, until the TTL has passed, so that a client hears of a change up to
5 s late. Only A over UDP; no Service with an address of its own, because nothing here forwards packets (`load` has its clients).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.bed.api import Object
from tests.cluster.hybrid.alone import NAMESERVER

TTL_S = 5  # CoreDNS's own for names of a cluster; a cache on the node may keep an answer for 30
ZONE = ".svc.cluster.local"
A, AAAA, INTERNET = 1, 28, 1
NO_ERROR, NOT_IMPLEMENTED, NO_NAME = 0, 4, 3
HEADER = struct.Struct("!6H")
IS_ANSWER = 0x8400  # answer, authoritative
WANTS_RECURSION, RECURSION = 0x0100, 0x0080
MOST_ADDRESSES = 25  # of one answer in 512 bytes with a name of 80

Addresses = Callable[[str, str], list[str]]  # namespace, service -> addresses


@dataclass(frozen=True, slots=True)
class Question:
    number: int
    flags: int
    name: str
    kind: int
    raw: bytes


def ready_addresses(slices: list[Object], namespace: str, service: str, port: str = "") -> list[str]:
    """Of one Service; `ready` unsaid is ready. With the name of a port `address:port`."""
    found: set[str] = set()
    for it in slices:
        about = it["metadata"]
        if (about["namespace"], about.get("labels", {}).get("kubernetes.io/service-name")) != (namespace, service):
            continue
        ports = {of.get("name", ""): of["port"] for of in it.get("ports") or ()}
        for of in it.get("endpoints") or ():
            if of.get("conditions", {}).get("ready", True):
                found.update(f"{one}:{ports[port]}" if port else one for one in of["addresses"])
    return sorted(found)


def read(message: bytes) -> Question:
    """Raises ValueError for what is no single question."""
    number, flags, questions, *_ = HEADER.unpack_from(message)
    if questions != 1 or flags & 0x8000:
        raise ValueError("not one question")
    at, labels = HEADER.size, []
    while length := message[at]:
        if length > 63:
            raise ValueError("a question has no pointers")
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    kind, _ = struct.unpack_from("!2H", message, at + 1)
    return Question(number, flags, ".".join(labels).lower(), kind, message[HEADER.size : at + 5])


def answer(question: Question, addresses: list[str] | None) -> bytes:
    """None: there is no such name."""
    code = NO_NAME if addresses is None else NO_ERROR
    told = (addresses or [])[:MOST_ADDRESSES] if question.kind == A else []
    flags = IS_ANSWER | (question.flags & WANTS_RECURSION) | RECURSION | code
    pointer = struct.pack("!3HIH", 0xC000 | HEADER.size, A, INTERNET, TTL_S, 4)
    records = b"".join(pointer + socket.inet_aton(address) for address in told)
    return HEADER.pack(question.number, flags, 1, len(told), 0, 0) + question.raw + records


class Names:
    """Answers until the process ends."""

    def __init__(self, addresses: Addresses, ttl_s: float = TTL_S) -> None:
        self._addresses, self._ttl_s = addresses, ttl_s
        self._kept: dict[str, tuple[float, list[str] | None]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((NAMESERVER, 53))
        threading.Thread(target=self._serve, name="names", daemon=True).start()

    def _serve(self) -> None:
        while True:
            message, client = self._socket.recvfrom(512)
            try:
                question = read(message)
            except (ValueError, IndexError, struct.error):
                continue
            self._socket.sendto(answer(question, self._known(question.name)), client)

    def _known(self, name: str) -> list[str] | None:
        now = time.monotonic()
        until, kept = self._kept.get(name, (0.0, None))
        if until <= now:
            service, _, namespace = name.removesuffix(ZONE).partition(".")
            is_ours = name.endswith(ZONE) and namespace != "" and "." not in namespace
            kept = (self._addresses(namespace, service) or None) if is_ours else None
            self._kept[name] = now + self._ttl_s, kept
        return kept
