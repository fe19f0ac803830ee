"""What bytes mean as requests, without a socket: the same events however they are cut, and one error that ends them."""

from __future__ import annotations

import pytest

from serving import errors
from serving.gateway.http import framing
from serving.gateway.http.framing import END, Event, Framing, Head
from serving.settings import LimitSettings

GET = b"GET /v2?x=%20y HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v2/models/m%6D/infer HTTP/1.1\r\nHost: a\r\nX-Name: b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n"
)
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
OLD = b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
H2C = b"GET /h2c HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"


def fed(*pieces: bytes, **limits: float) -> list[Event]:
    it = Framing(LimitSettings.model_validate(limits), None, "")
    return [event for piece in pieces if not it.is_over for event in it.feed(piece)]


def told(events: list[Event]) -> list[object]:
    """Paths, bodies put together, ends, and the types of errors."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Head):
            found += [event.path, b""]
        elif isinstance(event, bytes | memoryview):
            found[-1] = found[-1] + event  # type: ignore[operator]
        else:
            found.append(event if event is END else type(event))
    return found


WHOLE = [
    (GET, ["/v2", b"", END]),
    (POST, ["/v2/models/mm/infer", b"hello", END]),
    (CHUNKED, ["/", b"hello", END]),
    (b"\r\n\r\n" + GET + POST + GET, ["/v2", b"", END, "/v2/models/mm/infer", b"hello", END, "/v2", b"", END]),
    (POST + CHUNKED + b"\r\n" + POST, [*2 * ["/v2/models/mm/infer", b"hello", END]]),
    (LAST + GET, ["/last", b"", END]),
    (OLD + GET, ["/old", b"", END]),
    (H2C.replace(b": Upgrade,", b": Upgrade, Close,") + GET, ["/h2c", b"", END]),
    (H2C + GET, ["/h2c", b"", END, "/v2", b"", END]),
    (GET + b"junk\r\n\r\n" + GET, ["/v2", b"", END, errors.BadRequest]),
    (POST + GET.replace(b" /", b"  /"), ["/v2/models/mm/infer", b"hello", END, errors.BadRequest]),
    (CHUNKED.replace(b"3;x", b"z;x"), ["/", b"he", errors.BadRequest]),
]
WHOLE[4] = (POST + CHUNKED + b"\r\n" + POST, ["/v2/models/mm/infer", b"hello", END, "/", b"hello", END, *WHOLE[1][1]])


@pytest.mark.parametrize("copied", [framing.COPIED_BYTES, 0], ids=["all past the parser", "bodies beside it"])
@pytest.mark.parametrize(("sent", "means"), WHOLE)
def test_bytes_mean_the_same_however_they_are_cut(
    sent: bytes, means: list[object], copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "COPIED_BYTES", copied)
    assert told(fed(sent)) == means
    for cut in range(1, len(sent)):
        assert told(fed(sent[:cut], sent[cut:])) == means, cut
    assert told(fed(*(sent[at : at + 1] for at in range(len(sent))))) == means


def test_a_long_body_that_comes_with_its_head_is_not_copied() -> None:
    size = 2 * framing.COPIED_BYTES
    sent = POST.replace(b" 5", b" %d" % size).replace(b"hello", bytes(size))
    head, piece, end, *more = fed(sent + GET)
    assert isinstance(head, Head)
    assert isinstance(piece, memoryview)
    assert (piece.nbytes, piece.obj[-len(GET) :], end) == (size, GET, END)  # type: ignore[index]
    assert told(more) == WHOLE[0][1]


def test_a_long_body_is_handed_on_in_the_very_pieces_that_came() -> None:
    head = POST[: -len(b"hello")].replace(b" 5\r", b" 300000\r")
    pieces = [bytes(100_000) for _ in range(3)]
    events = fed(head, *pieces)
    assert [type(event) for event in events] == [Head, bytes, bytes, bytes, type(END)]
    assert all(event is piece for event, piece in zip(events[1:], pieces, strict=False))
    assert told(fed(head, *pieces[:2], pieces[2] + GET))[3:] == ["/v2", b"", END]


def test_a_head_says_what_stands_in_it() -> None:
    head, body, end = fed(POST)
    assert isinstance(head, Head)
    assert (head.method, head.path, head.version, head.keep_alive) == (b"POST", "/v2/models/mm/infer", "1.1", True)
    assert head.headers == [(b"host", b"a"), (b"x-name", b"b"), (b"content-length", b"5")]
    assert (head.body_bytes, body, end) == (5, b"hello", END)
    query, _ = fed(GET)
    assert isinstance(query, Head)
    assert (query.query, query.body_bytes) == (b"x=%20y", 0)
    chunked, *_ = fed(CHUNKED)
    assert isinstance(chunked, Head)
    assert chunked.body_bytes is None
    assert len(chunked.headers) == 2, "a trailer is no header"


@pytest.mark.parametrize(
    ("pieces", "limits", "error"),
    [
        ([b"GET / HTTP/1.1\r\n", *[b"A: " + b"b" * 400 + b"\r\n"] * 3], {"max_head_bytes": 1024}, errors.HeadTooLarge),
        ([b"\r\n" * 300, b"\r\n" * 300], {"max_head_bytes": 1024}, errors.HeadTooLarge),
        ([b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 3 + b"\r\n"], {"max_headers": 3}, errors.HeadTooLarge),
        ([b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"], {}, errors.TargetTooLong),
        ([CHUNKED[:60], *[b"5;" + b"a" * 5000 + b"\r\nhello\r\n"] * 9], {}, errors.BadRequest),
        ([POST[:-5].replace(b" 5\r", b" 9000\r"), *[b"a" * 500] * 9], {"max_body_bytes": 1024}, errors.TooLarge),
    ],
)
def test_what_is_too_much_ends_in_one_error(
    pieces: list[bytes], limits: dict[str, float], error: type[errors.RequestError]
) -> None:
    events = fed(*pieces, **limits)
    assert type(events[-1]) is error
    assert not any(isinstance(event, errors.RequestError) for event in events[:-1])
