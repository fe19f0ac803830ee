"""Frames what comes on one connection: bytes in; heads, pieces of bodies and their ends out, and nothing that can be read in two ways.

Sans-I/O, as h11 is: no socket, no clock, no app. llhttp (strict) takes a head apart, `head.py` says what it may mean; here is what neither
can see: how many bytes there are, and whether the first line stands as it was read. Rules: nothing is repaired; after an error nothing
more is read; a body of more than COPIED_BYTES whose length is told is never copied.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import httptools

from serving import errors
from serving.gateway.http import head as checks
from serving.gateway.http.origin import OriginPolicy
from serving.gateway.request.request_headers import Headers
from serving.settings import LimitSettings

if TYPE_CHECKING:
    from serving.gateway.http.endpoint import Endpoint

log = logging.getLogger(__name__)
# Bytes of framing (chunk sizes, extensions, trailers) beside the body: 16 KiB as Node.js allows, and 8 for each byte of the body, since
# a chunk of one byte has 5.
MAX_FRAMING_BYTES = 16 * 1024
MAX_FRAMING_RATIO = 8
H2C = frozenset({b"h2c"})  # what Java's client offers first; RFC 9110, 7.8: an upgrade may be ignored
OF_AN_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})
HEAD_END = b"\r\n\r\n"
COPIED_BYTES = 64 * 1024  # of a body that comes with its head: more goes past the parser, which copies


class Head:
    """What stands before a body; it may be shared by all requests that have it. `headers` have their names in small letters.

    `body_bytes` is None where the body comes in chunks. `memo` is for who reads it: what was found out about it stays found out.
    """

    __slots__ = (
        "body_bytes",
        "by_name",
        "endpoint",
        "expects_continue",
        "has_doubles",
        "headers",
        "keep_alive",
        "memo",
        "method",
        "path",
        "query",
        "target",
        "version",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        version: str,
        headers: Headers,
        by_name: dict[bytes, bytes],
        *,
        keep_alive: bool,
    ) -> None:
        path, _, self.query = target.partition(b"?")
        self.method = method
        self.target = target
        self.path = unquote(path.decode()) if b"%" in path else path.decode()
        self.version = version
        self.headers = headers
        self.by_name = by_name
        self.has_doubles = len(by_name) < len(headers)
        self.keep_alive = keep_alive and version != "1.0"
        self.body_bytes = None if b"transfer-encoding" in by_name else int(by_name.get(b"content-length", b"0"))
        self.expects_continue = b"expect" in by_name
        self.endpoint: Endpoint | None = None  # who answers it directly
        self.memo: object = None


class Mark(Enum):
    END = "end"  # of a request


END: Final = Mark.END
Event = Head | bytes | memoryview | Mark | errors.RequestError


class Framing:
    """`address`: the one that the client connected to. `origin`: asked about each head."""

    __slots__ = (
        "_address",
        "_body_bytes",
        "_body_size",
        "_events",
        "_head_size",
        "_headers",
        "_is_line_next",
        "_is_new_body",
        "_is_split",
        "_keep_alive",
        "_limits",
        "_next",
        "_origin",
        "_parser",
        "_read",
        "_read_size",
        "_target",
        "_wire_size",
        "has_begun",
        "is_in_body",
        "is_over",
        "left",
    )

    def __init__(self, limits: LimitSettings, origin: OriginPolicy | None, address: str) -> None:
        self._limits = limits
        self._origin = origin
        self._address = address
        self._parser: httptools.HttpRequestParser | None = None  # made when it is needed: who idles has none
        self._events: list[Event] = []
        self.has_begun = False  # a head, by more than empty lines
        self.is_in_body = False
        self.is_over = False  # nothing more is read
        self._target = b""
        self._headers: Headers = []
        self._keep_alive = True
        self._head_size = 0  # bytes of reads that brought nothing but a part of a head, or empty lines
        self._is_split = False  # this read goes on with a head
        self._read_size = 0
        self._body_bytes: int | None = None
        self._is_new_body = False  # its head came in this read
        self.left = 0  # of a body that goes past the parser
        self._body_size = 0
        self._wire_size = 0  # the same with its framing
        self._read = b""  # what has come of a head, and before it in the same read
        self._next = 0  # where in `_read` the next first line can be, at the earliest
        self._is_line_next = True  # whether it is there, but for empty lines

    @property
    def is_between(self) -> bool:
        """Whether nothing of the next request has come, empty lines included."""
        return not (self.has_begun or self.is_in_body or self._head_size)

    @property
    def target(self) -> bytes:
        """Of the head that has begun, as far as it has come."""
        return self._target if self.has_begun else b""

    def feed(self, data: bytes) -> list[Event]:
        """What it has in it; an error is the last."""
        if len(data) > COPIED_BYTES and not self.is_in_body:
            self._take_long(data)
        else:
            self._take(data)
        events, self._events = self._events, []  # what has come is not held by a connection that waits for more
        return events

    def end(self) -> None:
        """Nothing more will be fed. The parser knows us, so that neither would be gone before garbage is looked for."""
        self._parser = None

    def _take_long(self, data: bytes) -> None:
        """As if its head had come in a read of its own."""
        begins = data.find(HEAD_END) + len(HEAD_END)
        self._take(data[:begins])
        if self.is_over:
            return
        rest = self._pass_by(memoryview(data)[begins:]) if self.left else memoryview(data)[begins:]
        if rest:
            self._take(bytes(rest))

    def _take(self, data: bytes) -> None:
        events = self._events
        if self.left and not (data := bytes(self._pass_by(data))):
            return
        self._read_size = len(data)
        self._is_split = self.has_begun or self._head_size > 0
        if self._is_split:
            self._read += data
        else:
            self._read, self._next, self._is_line_next = data, 0, not self.is_in_body
        self._parse(data)
        if self.is_over:
            return
        if self.is_in_body:
            self._count_body(len(data))
        elif self.has_begun or not events:
            self._head_size += 0 if events else len(data)
            if self._head_size > self._limits.max_head_bytes:
                self._refuse(self._too_large())
            return
        self._read = b""

    # -- bodies that have not ended -----------------------------------------------------------------------------------

    def _pass_by(self, data: bytes | memoryview) -> bytes | memoryview:
        """What is behind the body whose length is known."""
        left = self.left
        if len(data) < left:
            self._events.append(data)
            self.left -= len(data)
            self._body_size += len(data)
            self._check_body()
            return b""
        self._events += [data if len(data) == left else data[:left], END]
        self.left = 0
        self._parser = None  # it still waits for that body
        self.is_in_body, self.is_over = False, not self._keep_alive
        return b"" if self.is_over else data[left:]

    def _count_body(self, size: int) -> None:
        self._wire_size = self._body_size if self._is_new_body else self._wire_size + size
        self._is_new_body = False
        if self._body_bytes is not None:
            self.left = self._body_bytes - self._body_size
        self._check_body()

    def _check_body(self) -> None:
        most = self._limits.max_body_bytes
        if self._body_size > most:
            self._refuse(errors.TooLarge(f"the body has more than {most} bytes, the most that is taken here"))
        elif self._wire_size > MAX_FRAMING_BYTES + (1 + MAX_FRAMING_RATIO) * self._body_size:
            self._refuse(errors.BadRequest("the body has more framing of chunks than bytes"))

    # -- the parser ---------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        while True:
            parser = self._parser
            if parser is None:
                parser = self._parser = httptools.HttpRequestParser(self)
            try:
                parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(parser, data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                if not self.is_over:
                    self._refuse(_refusal(error))
                return

    def _without_upgrade(self, parser: httptools.HttpRequestParser, rest: bytes) -> bytes:
        """The parser leaves off after a head that asks for an upgrade: it reads the same head again, which does not."""
        lines = [b"%b: %b\r\n" % line for line in self._headers if line[0] not in OF_AN_UPGRADE]
        options = b",".join(value for name, value in self._headers if name == b"connection").lower().split(b",")
        if b"close" in [option.strip() for option in options]:
            lines.append(b"connection: close\r\n")
        data = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (parser.get_method(), self._target, b"".join(lines), rest)
        self._parser = None
        self._head_size = 0
        self._read, self._next, self._is_line_next = data, 0, True
        return data

    def on_message_begin(self) -> None:
        self.has_begun = True
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        limits, parser, target, headers = self._limits, self._parser, self._target, self._headers
        if self.is_over or parser is None:
            return
        if (
            self._read_size > limits.max_head_bytes
            or self._is_split
            or len(headers) > limits.max_headers
            or len(target) > checks.MAX_TARGET_BYTES
        ):
            self._check_size()
        method, version = parser.get_method(), parser.get_http_version()
        is_exact = self._is_line_exact(b"%b %b HTTP/" % (method, target))
        by_name = checks.check(version, method, target, headers)
        if self._origin is not None:
            self._origin.check(by_name, self._address, method, target)
        if not is_exact:
            raise errors.BadRequest("the first line must be METHOD PATH HTTP/1.1, with one space between each")
        if parser.should_upgrade():
            upgrade = by_name.get(b"upgrade", b"")
            if upgrade.lower() not in H2C:
                raise errors.Unsupported(f"an upgrade to {upgrade[:40].decode('latin-1')!r} is not offered")
            return
        head = Head(method, target, version, headers, by_name, keep_alive=parser.should_keep_alive())
        self.has_begun, self.is_in_body, self._is_new_body = False, True, True
        self._head_size = self._body_size = 0
        self._body_bytes, self._keep_alive = head.body_bytes, head.keep_alive
        self._headers = []  # what comes after the body as a trailer is no header
        self._events.append(head)

    def on_body(self, body: bytes) -> None:
        if self.is_in_body:
            self._body_size += len(body)
            self._events.append(body)

    def on_message_complete(self) -> None:
        if self.is_in_body:  # or else its upgrade is ignored, and the same head comes again
            self.is_in_body, self.is_over = False, not self._keep_alive
            self._events.append(END)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _is_line_exact(self, line: bytes) -> bool:
        """The parser skips spaces, takes RTSP/1.0, and does not say where a line is: of the first in a read we know."""
        at = self._read.find(line, self._next)
        if at < 0 or (self._is_line_next and at > 0 and self._read[:at].strip(b"\r\n")):
            return False
        self._next, self._is_line_next = at + len(line), False
        return True

    def _check_size(self) -> None:
        """Raises TargetTooLong or HeadTooLarge."""
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._limits.max_head_bytes or len(self._target) > checks.MAX_TARGET_BYTES:
            raise self._too_large()
        if len(self._headers) > self._limits.max_headers:
            raise errors.HeadTooLarge(f"the request has more than {self._limits.max_headers} headers")

    def _too_large(self) -> errors.RequestError:
        if len(self.target) > checks.MAX_TARGET_BYTES:
            return errors.TargetTooLong(f"the path and query have more than {checks.MAX_TARGET_BYTES} bytes")
        return errors.HeadTooLarge(f"the head of the request has more than {self._limits.max_head_bytes} bytes")

    def _refuse(self, error: errors.RequestError) -> None:
        self.is_over = True
        self._events.append(errors.without_frames(error))


def _refusal(error: httptools.HttpParserError) -> errors.RequestError:
    cause = error.__context__
    if isinstance(cause, errors.RequestError):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("a request could not be taken", exc_info=cause or error)
        return errors.BadRequest("the request could not be understood")
    if str(error).startswith(("Pause on PRI", "Invalid HTTP version")):
        return errors.VersionNotSupported(checks.OTHER_PROTOCOLS)
    return errors.BadRequest(f"this is not HTTP as it must be: {error}")
