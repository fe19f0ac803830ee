"""Listening sockets: binds them with a clear error, and closes them without cutting off clients that are connecting."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import resource
import socket
import struct
from math import inf

from serving.errors import UserError

BACKLOG = 2048
SO_ATTACH_FILTER = 26  # Linux; the socket module does not name it


def raise_file_limit(num_files: int) -> float:
    """As many descriptors, or as many as can be had, for this process and its children; how many there are then, or inf."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return inf if soft == resource.RLIM_INFINITY else soft


def listen_all(host: str, port: int, option: str = "--port", *, is_shared: bool = False) -> list[socket.socket]:
    """A listening socket for each address of `host`: `localhost` has two, `::` takes IPv4 as well. Arguments and errors as of `listen`.

    An address that this machine has not is left out where it has another: IPv6 may be switched off.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"{host} is no address to listen on ({error.strerror or error})") from None
    addresses = list(dict.fromkeys(str(it[4][0]) for it in found))
    if "::" in addresses:
        addresses = ["::"]
    here = [address for address in addresses if _is_here(address)]
    return [listen(address, port, option, is_shared=is_shared) for address in here or addresses[:1]]


def _is_here(address: str) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(host: str, port: int, option: str = "--port", *, is_shared: bool = False) -> socket.socket:
    """A listening socket. `is_shared`: beside others of this user that share the port too; it is only bound yet, because from `begin` on
    the kernel gives it its part of the connections. Raises UserError where the address is taken or not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as failed:
            listener = failed.enter_context(socket.socket(family, kind, proto))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
            if is_shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            if not is_shared:
                listener.listen(BACKLOG)
            failed.pop_all()
    except OSError as error:
        raise _refused(host, port, option, error) from None
    listener.setblocking(False)
    return listener


def begin(listener: socket.socket, option: str = "--port") -> None:
    """Of one that is only bound. Raises UserError where somebody else has taken the port meanwhile."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port, *_ = listener.getsockname()
        raise _refused(host, port, option, error) from None


def _refused(host: str, port: int, option: str, error: OSError) -> UserError:
    why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror or error})"
    return UserError(f"port {port} on {host} {why}; choose another with {option}")


def let_nobody_in(listener: socket.socket) -> None:
    """Drops new connections before the socket is closed.

    Closing alone resets those that the kernel has taken and the event loop has not, and their clients have sent a request by
    then. A filter that drops SYN makes clients try again a second later and be refused; handshakes that have begun are finished,
    and established connections have sockets of their own. Where the system has no such filter, nothing is done.
    """
    instructions = (  # code, jump if true, jump if false, operand; the data begin at the TCP header
        (0x30, 0, 0, 13),  # load the byte of flags
        (0x45, 0, 1, 0x02),  # is SYN set?
        (0x06, 0, 0, 0),  # return 0: drop
        (0x06, 0, 0, 0xFFFFFFFF),  # return all: keep
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    program = struct.pack("HL", len(instructions), ctypes.addressof(code))
    with contextlib.suppress(OSError, AttributeError):
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
