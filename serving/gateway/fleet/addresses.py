"""Resolves the host name of a URL in tandem.yaml to addresses, one server each.

That is what a headless Service of Kubernetes answers with. Where a name has addresses of both families only IPv4 counts, or `localhost`
would be two servers. Looking again while the gateway runs is `membership.py`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

LOOK_S = 2.0  # names in a cluster are answered from a cache of 5 to 30 s, so that looking sooner would show nothing
NOT_THERE = (socket.EAI_NONAME, socket.EAI_NODATA)  # an answer, unlike a resolver that has none to give

LookUp = Callable[[str, int], Awaitable[list[str]]]  # host, port -> addresses; raises OSError


class NoAddress(OSError):
    """The resolver answered: this name has no address."""


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, sorted. Raises NoAddress where it has none, and another OSError where nobody could tell."""
    loop = asyncio.get_running_loop()
    with _resolving():
        return _addresses(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def look_up_now(host: str, port: int) -> list[str]:
    """The same, for a thread that may wait."""
    with _resolving():
        return _addresses(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


@contextmanager
def _resolving() -> Iterator[None]:
    """Turns the resolver's "no such name" into NoAddress."""
    try:
        yield
    except socket.gaierror as error:
        if error.errno in NOT_THERE:
            raise NoAddress(error.errno, error.strerror) from None
        raise
    except UnicodeError as error:  # `triton..svc`, or a label of more than 63 characters
        raise NoAddress(socket.EAI_NONAME, f"no host can have this name ({error})") from None


def _addresses(found: Iterable[tuple[Any, ...]]) -> list[str]:
    return one_family((family, str(address[0])) for family, _, _, _, address in found)


def one_family(found: Iterable[tuple[int, str]]) -> list[str]:
    """Of (family, address) each address once: those of IPv4 where there are any, else those of IPv6."""
    pairs = set(found)
    family = socket.AF_INET if any(f == socket.AF_INET for f, _ in pairs) else socket.AF_INET6
    return sorted((address for f, address in pairs if f == family), key=_by_number)


def split(url: str) -> tuple[str, int]:
    """Host and port of a URL of the settings, which always has both."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def is_literal(host: str) -> bool:
    """Whether it is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def url_of(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _by_number(address: str) -> tuple[int, str]:
    """10.0.0.9 before 10.0.0.10. An IPv6 address may name its interface (`%eth0`)."""
    plain, _, interface = address.partition("%")
    return int(ipaddress.ip_address(plain)), interface
