"""Requests that two readers could read differently: each is refused in our form, its connection ends, and nothing of it reaches Triton.

What must go on working is here too: clients that are slow, split heads anywhere, or ask for an upgrade that they do not need.
"""

from __future__ import annotations

import asyncio
import json

import pytest
import uvloop

from tests.gateway.odd_triton import BODY
from tests.gateway.wire import CLOSING, HOST, INFER, Answer, answers_in, request, say_all, wire

CHUNKED = INFER + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
SECOND = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def with_line(line: bytes, rest: bytes = b"") -> bytes:
    return INFER + HOST + line + b"\r\n\r\n" + rest


def to(target: bytes, version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return method + b" " + target + b" " + version + b"\r\n" + HOST + b"\r\n"


LENGTHS = {
    "two": with_line(b"Content-Length: 3\r\nContent-Length: 3", b"abc"),
    "two that differ": with_line(b"Content-Length: 0\r\nContent-Length: %d" % len(SECOND), SECOND),
    "a list": with_line(b"Content-Length: 3, 3", b"abc"),
    "plus": with_line(b"Content-Length: +3", b"abc"),
    "minus": with_line(b"Content-Length: -3", b"abc"),
    "hexadecimal": with_line(b"Content-Length: 0x3", b"abc"),
    "a space within": with_line(b"Content-Length: 1 3", b"abc"),
    "a space before the colon": with_line(b"Content-Length : 3", b"abc"),
    "nothing": with_line(b"Content-Length:", b"abc"),
    "a word": with_line(b"Content-Length: three", b"abc"),
    "an underscore": with_line(b"Content-Length: 1_0", b"abc"),
    "other digits": with_line("Content-Length: ٣".encode(), b"abc"),
    "over 64 bits": with_line(b"Content-Length: 99999999999999999999999", b"abc"),
    "beside chunked": with_line(b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"0\r\n\r\n" + SECOND),
    "after chunked": with_line(b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"0\r\n\r\n" + SECOND),
}
CHUNKS = {
    "plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "minus": b"-3\r\nabc\r\n0\r\n\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "a space after": b"3 \r\nabc\r\n0\r\n\r\n",
    "over 64 bits": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "no CR after the size": b"3\nabc\r\n0\r\n\r\n",
    "no CR after the data": b"3\r\nabc\n0\r\n\r\n",
    "more data than said": b"3\r\nabcdef\r\n0\r\n\r\n",
    "a line break in an extension": b'3;x="a\r\nb"\r\nabc\r\n0\r\n\r\n',
    "NUL in an extension": b"3;\x00\r\nabc\r\n0\r\n\r\n",
    "a bare LF in an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "a length as trailer": b"0\r\nContent-Length: 5\r\n\r\n",
    "no name in a trailer": b"0\r\n: x\r\n\r\n",
    "a folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
}
HEADERS = {
    "folded": with_line(b"A: b\r\n c"),
    "bare CR": with_line(b"A: b\rc"),
    "bare LF": INFER + HOST + b"A: b\nContent-Length: 0\r\n\r\n",
    "NUL in a value": with_line(b"A: b\x00c"),
    "a control character": with_line(b"A: b\x01c"),
    "DEL": with_line(b"A: b\x7fc"),
    "NUL in a name": with_line(b"A\x00: b"),
    "a space in a name": with_line(b"A b: c"),
    "a byte over 127 in a name": with_line(b"\x80: c"),
    "no name": with_line(b": c"),
    "no colon": with_line(b"Abc"),
    "lines end in LF": b"POST /v2/models/m/infer HTTP/1.1\nHost: localhost\n\n",
    "a space before the first line": b" " + CLOSING,
    "a space before the first header": INFER + b" " + HOST + b"\r\n",
    "a tab after the method": b"POST\t/v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a space after the version": b"POST /v2/models/m/infer HTTP/1.1 \r\nHost: localhost\r\n\r\n",
    "two spaces before the target": b"POST  /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two spaces after the target": b"POST /v2/models/m/infer  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "RTSP": b"POST /v2/models/m/infer RTSP/1.0\r\nHost: localhost\r\n\r\n",
    "ICE": b"SOURCE /v2/models/m/infer ICE/1.0\r\nHost: localhost\r\n\r\n",
    "small letters": b"post /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "no host": INFER + b"\r\n",
    "two hosts": INFER + HOST + HOST + b"\r\n",
    "two hosts that differ": INFER + HOST + b"Host: y\r\n\r\n",
    "a host with a path": INFER + b"Host: localhost/y\r\n\r\n",
    "a host with a user": INFER + b"Host: a@x\r\n\r\n",
    "a host with a list": INFER + b"Host: localhost, y\r\n\r\n",
    "a host with a long port": INFER + b"Host: localhost:123456\r\n\r\n",
    "two encodings": with_line(b"Content-Encoding: gzip\r\nContent-Encoding: identity"),
    "HTTP/1.0, chunked": b"POST /v2/models/m/infer HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": with_line(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "chunked, chunked": with_line(b"Transfer-Encoding: chunked, chunked", b"0\r\n\r\n"),
    "chunked, identity": with_line(b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
    "vertical tab": with_line(b"Transfer-Encoding:\x0bchunked", b"0\r\n\r\n"),
    "an empty encoding": with_line(b"Transfer-Encoding:", b"0\r\n\r\n"),
}
TARGETS = {
    "absolute": to(b"http://x/v2"),
    "absolute without a path": to(b"http://x"),
    "an authority": to(b"x:80"),
    "a star": to(b"*", method=b"OPTIONS"),
    "a fragment": to(b"/v2#x"),
    "a backslash": to(b"\\v2"),
    "NUL": to(b"/v2\x00"),
    "a byte over 127": to(b"/v2/models/\xff"),
    "encoded NUL": to(b"/v2/models/%00/ready"),
    "encoded line break": to(b"/v2/models/m%0d%0aX:%20y/ready"),
    "encoded slash": to(b"/v2%2fmodels%2Fm/ready"),
    "encoded backslash": to(b"/v2/models/%5c/ready"),
    "encoded percent": to(b"/v2/models/%252e%252e/ready"),
    "encoded dots": to(b"/v2/models/%2e%2E/health/live"),
    "dots": to(b"/v2/../health/live"),
    "a dot": to(b"/./health/live"),
    "not UTF-8": to(b"/v2/models/%ff%fe/ready"),
    "overlong UTF-8": to(b"/v2/models/%c0%ae/ready"),
    "half an escape": to(b"/v2/models/%2/ready"),
    "no escape": to(b"/v2/models/%zz/ready"),
}
OTHERS = [
    (with_line(b"Transfer-Encoding: identity", b"abc"), 501),
    (with_line(b"Transfer-Encoding: xchunked", b"0\r\n\r\n"), 501),
    (with_line(b'Transfer-Encoding: "chunked"', b"0\r\n\r\n"), 501),
    (with_line(b"Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"), 501),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SECOND, 501),
    (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + SECOND, 501),
    (b"GET /v2\r\n\r\n", 505),
    (to(b"/v2", b"HTTP/0.9"), 505),
    (to(b"/v2", b"HTTP/2.0"), 505),
    (to(b"/v2", b"HTTP/1.2"), 505),
    (to(b"/v2", b"HTTP/3.0"), 505),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (request(BODY, b"Expect: 200-ok"), 417),
    (request(BODY, b"Expect: 100-continue, x"), 417),
    (to(b"/" + b"a" * 9000), 414),
    (to(b"/v2?" + b"a" * 9000), 414),
    (to(b"/" + b"a" * 40_000), 414),
    (with_line(b"A: " + b"a" * 40_000), 431),
    (INFER + HOST + b"A: b\r\n" * 101 + b"\r\n", 431),
    (INFER + HOST + b"A" * 300_000, 431),
    (INFER + b"A: " + b"a" * 300_000, 431),
    (request(b"", first=INFER + HOST + b"Content-Length: 99999999999\r\n")[: -len(b"Content-Length: 0\r\n\r\n")] + b"\r\n", 413),
]  # fmt: skip
WORDS = {413: "too_large", 414: "too_large", 431: "too_large", 501: "unsupported", 505: "unsupported"}
BAD = [
    *((f"length: {name}", one, 400) for name, one in LENGTHS.items()),
    *((f"chunk: {name}", CHUNKED + one, 400) for name, one in CHUNKS.items()),
    *((f"head: {name}", one, 400) for name, one in HEADERS.items()),
    *((f"target: {name}", one, 400) for name, one in TARGETS.items()),
    *((f"{status}: {one[:60]!r}", one, status) for one, status in OTHERS),
]


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[list[Answer], list[bytes]]]:
    """Each of BAD with a good request behind it, as whoever smuggles would send it."""

    async def run() -> dict[str, tuple[list[Answer], list[bytes]]]:
        found = {}
        async with wire() as here:
            for name, one, _ in BAD:
                here.reached.clear()
                found[name] = (await here.say(one + SECOND), list(here.reached))
            assert await here.say(CLOSING), "it goes on serving"
        return found

    return uvloop.run(run())


@pytest.mark.protocol(
    "hostile input", "requests that two readers could read differently", "refused: framing is rebuilt", item=48
)
@pytest.mark.parametrize(
    ("name", "status"), [(name, status) for name, _, status in BAD], ids=[name for name, _, _ in BAD]
)
def test_what_can_be_read_in_two_ways_is_refused_once_and_nothing_behind_it_is_answered(
    told: dict[str, tuple[list[Answer], list[bytes]]], name: str, status: int
) -> None:
    answers, reached = told[name]
    assert [answer.status for answer in answers] == [status], answers
    assert answers[0].error
    assert answers[0].headers["tandem-error"] == WORDS.get(status, "bad_request")
    assert answers[0].headers["connection"] == "close"
    assert reached == []


def test_a_first_line_with_two_spaces_is_refused_however_it_comes() -> None:
    bad = CLOSING.replace(b"POST /", b"POST  /")

    async def run() -> None:
        async with wire() as here:
            for pieces in ([b"\r\n" + bad], [bad[:5], bad[5:]], [bad[:40], bad[40:90], bad[90:]]):
                assert [one.status for one in await here.say(*pieces, pause_s=0.05)] == [400]
            assert [one.status for one in await here.say(SECOND + bad)] == [200, 400]
            assert here.reached == [BODY]

    uvloop.run(run())


def test_what_was_asked_before_something_malformed_is_answered_first() -> None:
    for bad in (b"junk\r\n\r\n", to(b"*"), b"GET / HTTP/1.1\r\n\r\n"):
        [answers], reached = say_all([SECOND + SECOND + bad + SECOND])
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert len(reached) == 2


@pytest.mark.parametrize(
    "good",
    [
        request(BODY, b"Connection: close", b"Expect: 100-continue", b"Accept: */*")[: -len(BODY)] + BODY,
        b"\r\n" + CLOSING,
        INFER + b"Host: [::1]:8080\r\nConnection: close\r\nContent-Length: %d \r\n\r\n" % len(BODY) + BODY,
        INFER + b"Host:\r\nConnection: close\r\nContent-Length: 000%d\r\n\r\n" % len(BODY) + BODY,
        b"POST /v2/models/%6D/infer HTTP/1.0\r\nContent-Length: " + b"%d\r\n\r\n" % len(BODY) + BODY,
        INFER + HOST + b"Connection: close\r\nTransfer-Encoding: Chunked\r\n\r\n%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY),
        INFER + HOST + b"Connection: close\r\nX-Name: gr\xc3\xbc\xc3\x9fe\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    ],
    ids=["expect", "an empty line first", "IPv6", "zeros", "HTTP/1.0", "chunks", "UTF-8 in a header"],
)  # fmt: skip
def test_what_is_unusual_and_means_one_thing_is_answered(good: bytes) -> None:
    [answers], reached = say_all([good]) if b"Expect" not in good else _after_continue(good)
    assert [answer.status for answer in answers] == [200]
    assert reached == [BODY]


def _after_continue(good: bytes) -> tuple[list[list[Answer]], list[bytes]]:
    async def run() -> tuple[list[list[Answer]], list[bytes]]:
        async with wire() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(good[: -len(BODY)])
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            data = await reader.read()
            writer.close()
            return [answers_in(data)], here.reached

    return uvloop.run(run())


def test_a_refusal_at_a_path_of_openai_has_openais_body() -> None:
    first = b"POST /v1/embeddings HTTP/1.1\r\n"
    for bad in (first + HOST + HOST + b"\r\n", CHUNKED.replace(INFER, first) + b"zz\r\n"):
        [[answer]], _ = say_all([bad])
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


def test_a_trailer_is_no_header() -> None:
    """Else whoever cannot set a header, behind a proxy that checks them, could set it there."""
    chunks = b"%x\r\n%b\r\n0\r\nTandem-Pool: none\r\nTandem-Priority: 9\r\n\r\n" % (len(BODY), BODY)
    [answers], _ = say_all([INFER + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks])
    assert [answer.status for answer in answers] == [200]


def test_a_method_that_is_not_for_a_path_is_405_there() -> None:
    methods = (b"TRACE", b"PROPFIND", b"QUERY", b"PURGE")
    paths = (b"/v2", b"/v2/models/m/infer", b"/v1/embeddings", b"/v1/classify/m", b"/metrics")
    end = b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    told, reached = say_all(method + b" " + path + end for method in methods for path in paths)
    assert [[answer.status for answer in answers] for answers in told] == [[405]] * len(methods) * len(paths)
    assert {answer.headers["tandem-error"] for answers in told for answer in answers} == {"bad_request"}
    assert reached == []


@pytest.mark.protocol("v2 HTTP", "an offer of HTTP/2 (h2c) beside a request, as Java's client makes", "supported")
def test_an_offer_to_go_on_in_http_2_is_left_unanswered_and_the_request_is_not() -> None:
    """Java's client makes one with its first request; what follows it is HTTP/1.1 as well."""
    offer = (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    )
    [answers], reached = say_all([request(BODY, *offer) + CLOSING])
    assert [answer.status for answer in answers] == [200, 200]
    assert reached == [BODY, BODY]


def test_a_head_may_be_split_anywhere() -> None:
    async def run() -> None:
        async with wire() as here:
            ends = range(1, len(CLOSING))
            for answers in await asyncio.gather(*(here.say(CLOSING[:n], CLOSING[n:], pause_s=0.01) for n in ends)):
                assert [answer.status for answer in answers] == [200]
            whole = [CLOSING[n : n + 1] for n in range(len(CLOSING))]
            assert [answer.status for answer in await here.say(*whole, pause_s=0.001)] == [200]
            assert here.reached == [BODY] * len(CLOSING)

    uvloop.run(run())


@pytest.mark.protocol("hostile input", "heads over `limits.max_head_bytes` or `limits.max_headers`", "refused: 431")
def test_the_limits_of_a_head_are_settings() -> None:
    long, many = with_line(b"A: " + b"a" * 1500), INFER + HOST + b"A: b\r\n" * 4 + b"\r\n"
    answers, _ = say_all([long + SECOND, many + SECOND], max_head_bytes=1024, max_headers=4)
    assert [[one.status for one in each] for each in answers] == [[431], [431]]
    answers, _ = say_all([CLOSING], max_head_bytes=1024, max_headers=4)
    assert answers[0][0].status == 200
