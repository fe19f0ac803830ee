"""HTTP/2 by hand, for what no client library of gRPC sends: a message that stops in the middle, or one byte now and then."""

from __future__ import annotations

import select
import socket
import struct
import time
from types import TracebackType

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS, WINDOW_SIZE = 1, 1, 4, 4
FRAME_BYTES, WINDOW_BYTES = 16 * 1024, 65_535  # the least that every peer takes


class Connection:
    """`ended`: streams that the server has ended. `is_open`: as far as was read. One thread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))
        self._socket.setblocking(False)
        self._came, self._going = bytearray(), bytearray()
        self._next = 1
        self._window, self._initial = WINDOW_BYTES, WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self.ended: set[int] = set()
        self.headers = b""  # the last block
        self.is_open = True

    def begin(self, path: str, **metadata: str) -> int:
        """The stream of a new RPC."""
        stream, self._next = self._next, self._next + 2
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"content-type": "application/grpc", "te": "trailers", **metadata}
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._windows[stream] = self._initial
        self._send(_frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, content: bytes, patience_s: float = 10.0) -> int:
        """As DATA, as fast as the server's windows let; how much went before the stream ended or patience did."""
        at, until = 0, time.monotonic() + patience_s
        while at < len(content) and self.is_open and stream not in self.ended and time.monotonic() < until:
            room = min(self._window, self._windows[stream], FRAME_BYTES, len(content) - at)
            if room <= 0:
                self.read(0.05)
                continue
            self._send(_frame(DATA, 0, stream, content[at : at + room]))
            self._window -= room
            self._windows[stream] -= room
            at += room
            self.read(0)
        return at

    def ask(self, frames: bytes) -> bytes:
        """The first block of headers that answers these."""
        self._send(frames)
        while not self.headers and self.is_open:
            self.read(10)
        return self.headers

    def read(self, patience_s: float) -> None:
        """What came within that time, or until something has."""
        if not select.select([self._socket], [], [], patience_s)[0]:
            return
        try:
            came = self._socket.recv(2**18)
        except ConnectionError:
            came = b""
        self.is_open = bool(came)
        self._came += came
        while len(self._came) >= 9:
            length, kind, flags, stream = (
                int.from_bytes(self._came[:3]),
                *struct.unpack_from(">BBI", self._came, 3),
            )
            if len(self._came) < 9 + length:
                return
            content = bytes(self._came[9 : 9 + length])
            del self._came[: 9 + length]
            self._take(kind, flags, stream & 0x7FFFFFFF, content)

    def _take(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(content), 6):
                name, value = struct.unpack_from(">HI", content, at)
                if name == WINDOW_SIZE:
                    self._windows = {one: room + value - self._initial for one, room in self._windows.items()}
                    self._initial = value
            self._send(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._send(_frame(PING, ACK, 0, content))
        elif kind == WINDOW_UPDATE and stream:
            if stream in self._windows:
                self._windows[stream] += int.from_bytes(content)
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(content)
        if kind == HEADERS:
            self.headers = content
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)

    def _send(self, frame: bytes) -> None:
        """Until the system has all of it; what is to be sent meanwhile goes behind it."""
        self._going += frame
        if len(self._going) > len(frame):
            return
        while self._going and self.is_open:
            try:
                del self._going[: self._socket.send(self._going[:FRAME_BYTES])]
            except BlockingIOError:
                select.select([self._socket], [self._socket], [], 10)
                self.read(0)
            except ConnectionError:
                self.is_open = False

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + content


def _text(value: str) -> bytes:
    """HPACK, a literal without Huffman's code; of fewer than 127 bytes."""
    return bytes([len(value)]) + value.encode()
