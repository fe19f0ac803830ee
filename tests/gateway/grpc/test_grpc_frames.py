"""Clients of HTTP/2 that mean harm, on the wire: each ends its own connection, holds little, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hpack
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.ports import free_ports
from serving.protocol import http2
from tests.gateway.grpc.conftest import Speaking, speaking_before
from tests.gateway.grpc.http2 import Connection
from tests.gateway.http.test_bounds import MIB, peak_bytes
from tests.gateway.request.test_admission import metric
from tests.local.harness import wait_until
from tests.protocol.test_http2 import HEAD, HELLO, frame

LIVE = [*HEAD[:2], (":path", "/inference.GRPCInferenceService/ServerLive"), *HEAD[3:]]
LIVE_BLOCK = bytes(hpack.Encoder().encode(LIVE, huffman=False))
HEAD_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    """A gateway without a Triton."""
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    limits = {"head_timeout_s": HEAD_TIMEOUT_S}
    folder = tmp_path_factory.mktemp("alone")
    with speaking_before(folder, {"cpu": [nowhere]}, ready=False, limits=limits) as both, both.stub() as stub:
        assert stub.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=30).live
        yield both


def asked(stream: int, flags: int = http2.END_HEADERS) -> bytes:
    return frame(http2.HEADERS, flags, stream, LIVE_BLOCK)


def resets() -> bytes:
    return b"".join(asked(number) + frame(http2.RST_STREAM, 0, number, bytes(4)) for number in range(1, 20_001, 2))


FLOODS: dict[str, Callable[[], bytes]] = {
    "requests that are reset at once": resets,
    "headers without end": lambda: asked(1, 0) + frame(http2.CONTINUATION, 0, 1, b"\0\1x\1y" * 3000) * 500,
    "empty continuations": lambda: asked(1, 0) + frame(http2.CONTINUATION, 0, 1) * 100_000,
    "a small block of large headers": lambda: frame(
        http2.HEADERS, 4, 1, b"\x40\x01x" + b"\x7f\x81\x1e" + b"y" * 4000 + b"\xbe" * 12_000
    ),
    "settings": lambda: frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 2000) * 500,
    "pings": lambda: frame(http2.PING, 0, 0, bytes(8)) * 100_000,
    "windows": lambda: frame(http2.WINDOW_UPDATE, 0, 0, (1).to_bytes(4)) * 100_000,
    "empty content": lambda: asked(1) + frame(http2.DATA, 0, 1) * 100_000,
}


def said_after(port: int, came: bytes) -> bytes:
    """Until the server closes."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.settimeout(0.05)
        rest = memoryview(HELLO + came)
        while True:
            with contextlib.suppress(TimeoutError):
                if rest:
                    try:
                        rest = rest[client.send(rest[:65_536]) :]
                    except ConnectionError:
                        rest = rest[:0]
                try:
                    piece = client.recv(65_536)
                except ConnectionError:
                    return said
                if not piece:
                    return said
                said += piece


@pytest.mark.protocol(
    "hostile input", "floods of HTTP/2 frames, and bombs of headers", "refused: the connection ends; others go on"
)
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_its_own_connection_and_nobody_elses(alone: Speaking, name: str) -> None:
    before = peak_bytes(alone.running)
    with alone.stub() as stub:
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=30).live
        said_after(alone.port, FLOODS[name]())
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=30).live
    assert peak_bytes(alone.running) - before < 16 * MIB


def test_what_is_slow_to_greet_or_to_say_what_it_wants_is_not_waited_for(alone: Speaking) -> None:
    def number() -> float:
        return metric(alone.running, "tandem_connections", listener="grpc")

    with contextlib.ExitStack() as clients:
        waiting = []
        for begun in (b"", http2.PREFACE[:10], HELLO[:-3], HELLO + asked(1)[:20], HELLO + asked(1, 0)):
            waiting.append(clients.enter_context(socket.create_connection(("127.0.0.1", alone.port), timeout=60)))
            waiting[-1].sendall(begun)
        for client in waiting:
            while client.recv(65_536):
                pass
    wait_until(lambda: number() == 0, "none of them counts any more")


@pytest.mark.parametrize("begun", [HELLO[:-20], HELLO + asked(1, 0)], ids=["greeting", "headers"])
def test_a_head_that_trickles_in_is_not_waited_for(alone: Speaking, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", alone.port), timeout=0.1) as client:
        client.sendall(begun)
        said, end = b"x", time.monotonic() + 8  # LOOK_S twice and HEAD_TIMEOUT_S, with room; its age ends it later
        rest = iter(frame(http2.CONTINUATION, 0, 1, bytes(1000)) if begun[-1:] != b"S" else bytes(1000))
        while said and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                try:
                    client.sendall(bytes([next(rest)]))
                    said = client.recv(65_536)
                except ConnectionError:
                    said = b""
        assert not said


def test_answers_that_nobody_takes_are_not_made_for_ever(alone: Speaking) -> None:
    """A client whose window is shut asks a thousand times at once, and again: nothing is held but what it asked."""
    before = peak_bytes(alone.running)
    with socket.create_connection(("127.0.0.1", alone.port), timeout=60) as client:
        client.sendall(HELLO + frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\0"))
        message = frame(http2.DATA, 1, 0, bytes(5))
        for number in range(1, 4 * http2.MAX_STREAMS, 2):
            client.sendall(asked(number) + message[:5] + number.to_bytes(4) + message[9:])
        with alone.stub() as stub:
            assert stub.ServerLive(pb.ServerLiveRequest(), timeout=30).live
    assert peak_bytes(alone.running) - before < 32 * MIB


def test_who_does_not_speak_grpc_is_told_so_by_http(alone: Speaking) -> None:
    for head, status in (
        ([(":method", "GET"), *HEAD[1:]], "405"),
        ([*HEAD[:4], ("content-type", "application/json")], "415"),
    ):
        with Connection(alone.port) as connection:
            block = bytes(hpack.Encoder().encode(head, huffman=False))
            said = connection.ask(frame(http2.HEADERS, 5, 1, block))
            assert dict(hpack.Decoder().decode(said))[":status"] == status


def test_a_deadline_that_is_none_is_the_clients_mistake(alone: Speaking, tmp_path: Path) -> None:
    with Connection(alone.port) as connection:
        block = bytes(hpack.Encoder().encode([*LIVE, ("grpc-timeout", "soon")], huffman=False))
        said = dict(hpack.Decoder().decode(connection.ask(frame(http2.HEADERS, 4, 1, block))))
    assert (said["grpc-status"], said["tandem-error"]) == ("3", "bad_request")


def test_a_call_that_ends_without_its_message_is_the_clients_mistake(alone: Speaking) -> None:
    for ending in (
        frame(http2.DATA, 1, 1),
        frame(http2.DATA, 1, 1, b"\0\0\0\0\x09ab"),
        frame(http2.DATA, 0, 1, b"\x07\0\0\0\0"),
    ):
        with Connection(alone.port) as connection:
            said = dict(hpack.Decoder().decode(connection.ask(asked(1) + ending)))
        assert (said["grpc-status"], said["tandem-error"]) == ("3", "bad_request")
