"""Checks that the head of an HTTP request means one thing only: version, method, target and the headers that frame its body.

Sans-I/O. The parser (llhttp, strict) has refused what is malformed; this refuses what it lets pass and two readers could read differently.
Rule: nothing here is repaired; a head is taken as it came, or refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from serving import errors
from serving.gateway.request.request_headers import join_lists

# RFC 9110, 4.1: at least 8000 octets are to be taken. Apache's LimitRequestLine.
MAX_TARGET_BYTES = 8190
VERSIONS = frozenset({"1.1", "1.0"})
# Of two that differ each reader would believe another (Content-Length, of which the parser takes one only, is not among them).
FRAMING = (b"host", b"transfer-encoding", b"expect", b"content-type", b"content-encoding", b"origin", b"sec-fetch-site")
HOST = re.compile(rb"(?:[A-Za-z0-9._~%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})?")
NEVER_ENCODED = frozenset(b"/\\%\x7f") | frozenset(
    range(0x20)
)  # what a second decoding, or another reader, would make a path of
# Lines and hosts that were found good: clients repeat theirs, and a look-up takes 0.1 µs where the check takes 3. At most 4 MB of them.
REMEMBERED = 256
OTHER_PROTOCOLS = "this server speaks HTTP/1.1"

Headers = list[tuple[bytes, bytes]]


def check(version: str, method: bytes, target: bytes, headers: Headers) -> dict[bytes, bytes]:
    """`headers` have their names in small letters; returned by name. Raises BadRequest or what fits better."""
    _check_line(version, method, target)
    by_name = dict(headers)
    if len(by_name) < len(headers):
        _require_once(headers)
        join_lists(by_name, headers)
    host = by_name.get(b"host")
    if host is not None:
        _check_host(host)
    elif version == "1.1":
        raise errors.BadRequest("a request in HTTP/1.1 needs the header Host")
    encoding = by_name.get(b"transfer-encoding")
    if encoding is not None:
        _check_transfer_encoding(encoding, version)
    expect = by_name.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise errors.ExpectationFailed("of Expect, 100-continue alone is understood")
    return by_name


@lru_cache(maxsize=REMEMBERED)
def _check_line(version: str, method: bytes, target: bytes) -> None:
    if method == b"CONNECT":  # of all others the app says at which path they are allowed
        raise errors.Unsupported("this is no proxy: CONNECT is not offered")
    if version not in VERSIONS:
        raise errors.VersionNotSupported(f"HTTP/{version} is not spoken here; {OTHER_PROTOCOLS}")
    if len(target) > MAX_TARGET_BYTES:
        raise errors.TargetTooLong(f"the path and query have more than {MAX_TARGET_BYTES} bytes")
    check_target(target)


@lru_cache(maxsize=REMEMBERED)
def _check_host(host: bytes) -> None:
    """It may be empty: RFC 9112, 3.2."""
    if host and HOST.fullmatch(host) is None:
        raise errors.BadRequest("Host is not a name or an address with a port")


def _require_once(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name in FRAMING:
        if names.count(name) > 1:
            raise errors.BadRequest(f"{name.decode().title()} came more than once")


def _check_transfer_encoding(encoding: bytes, version: str) -> None:
    if version == "1.0":
        raise errors.BadRequest("HTTP/1.0 has no Transfer-Encoding; send Content-Length")
    if encoding.strip().lower() != b"chunked":
        raise errors.Unsupported("of Transfer-Encoding, chunked alone is offered; compress with Content-Encoding")


def check_target(target: bytes) -> None:
    """A path that begins with `/`, and a query. Raises BadRequest."""
    if target[:1] != b"/":
        raise errors.BadRequest("the target must be a path that begins with /; this is no proxy")
    if not target.isascii():
        raise errors.BadRequest("the target has bytes that are not ASCII; encode them with %")
    if target.find(b"#") >= 0:
        raise errors.BadRequest("a target has no fragment; # is written %23 in a query")
    path = target.partition(b"?")[0]
    if path.find(b"%") >= 0:
        _check_encoded(path)
    if path.find(b"/.") >= 0 and {b".", b".."} & set(path.split(b"/")):
        raise errors.BadRequest("the path has . or .. as a segment; send it as it is meant")


def _check_encoded(path: bytes) -> None:
    for found in ENCODED.finditer(path):
        if found[1] is None:
            raise errors.BadRequest("the path has a % that two hexadecimal digits do not follow")
        if int(found[1], 16) in NEVER_ENCODED:
            raise errors.BadRequest(f"the path has {found[0].decode()}, which can be read in two ways")
    plain = ENCODED.sub(lambda found: bytes([int(found[1], 16)]), path)
    try:
        plain.decode()
    except UnicodeDecodeError:
        raise errors.BadRequest("the path is not UTF-8 once its % are decoded") from None
    if {b".", b".."} & set(plain.split(b"/")):
        raise errors.BadRequest("the path has . or .. as a segment; send it as it is meant")
