"""HTTP/2 as gRPC's listener speaks it: beside a client's state machine of another library, by tables of what is wrong, and cut anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.protocol import http2
from serving.protocol.http2 import Data, Event, Fault, Http2, Pong, Request, Reset, literal

HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.Service/Method"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
OK = b"\x88" + literal(b"content-type", b"application/grpc")
END = literal(b"grpc-status", b"0")


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


HELLO = http2.PREFACE + frame(http2.SETTINGS, 0, 0)


def block(*more: tuple[str, str], head: list[tuple[str, str]] = HEAD) -> bytes:
    return bytes(hpack.Encoder().encode([*head, *more], huffman=False))


BLOCK = block()


def headers(stream: int = 1, flags: int = http2.END_HEADERS, content: bytes = BLOCK) -> bytes:
    return frame(http2.HEADERS, flags, stream, content)


def greeted() -> Http2:
    server = Http2()
    assert server.receive(HELLO) == []
    return server


def sent(server: Http2) -> bytes:
    return b"".join(server.take(2**30))


def frames(said: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    while said:
        size = int.from_bytes(said[:3])
        yield said[3], said[4], int.from_bytes(said[5:9]), said[9 : 9 + size]
        said = said[9 + size :]


class Client:
    """The state machine of h2, which checks all that a server may do wrong."""

    def __init__(self, server: Http2, window: int = 65_535) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        initial = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=initial)
        self.h2.initiate_connection()
        self.heard: list[h2.events.Event] = []
        self.events: list[Event] = []
        self.talk()

    def talk(self) -> None:
        """Until neither has anything to say."""
        while True:
            going, coming = self.h2.data_to_send(), sent(self.server)
            if not going and not coming:
                return
            if going:
                self.events += self.server.receive(going)
            if coming:
                self.heard += self.h2.receive_data(coming)

    def content(self) -> bytes:
        return b"".join(it.data for it in self.heard if isinstance(it, h2.events.DataReceived))


def test_a_request_and_its_answer() -> None:
    client = Client(Http2())
    client.h2.send_headers(1, HEAD)
    client.h2.send_data(1, b"asked", end_stream=True)
    client.talk()
    [request, data] = client.events
    assert isinstance(request, Request)
    assert (request.head.method, request.head.path, request.head.fields[b"te"]) == (
        b"POST",
        b"/a.Service/Method",
        b"trailers",
    )
    assert data == Data(1, b"asked", 5, True)
    client.server.send_headers(1, OK)
    client.server.send(1, [b"ans", b"wer"])
    client.server.send_trailers(1, END)
    client.talk()
    assert client.content() == b"answer"
    assert [it.headers[0] for it in client.heard if isinstance(it, h2.events.TrailersReceived)] == [
        (b"grpc-status", b"0")
    ]
    assert any(isinstance(it, h2.events.StreamEnded) for it in client.heard)
    assert not client.server.has(1)


def test_what_is_sent_keeps_to_the_windows_of_streams_and_connection_and_all_of_it_comes() -> None:
    client = Client(Http2(), window=1000)
    wanted = {}
    for stream in (1, 3, 5):
        client.h2.send_headers(stream, HEAD, end_stream=True)
        client.talk()
        wanted[stream] = bytes([stream]) * 100_000
        client.server.send_headers(stream, OK)
        client.server.send(stream, [wanted[stream][:70_000], memoryview(wanted[stream])[70_000:]])
        client.server.send_trailers(stream, END)
    came = dict.fromkeys(wanted, b"")
    for _ in range(2000):
        client.talk()  # h2 raises where a window is exceeded
        for event in client.heard:
            if isinstance(event, h2.events.DataReceived):
                came[event.stream_id] += event.data
                client.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        client.heard.clear()
    assert came == wanted
    assert client.server.unsent_bytes == 0
    assert not any(map(client.server.has, wanted))


def test_streams_take_turns() -> None:
    client = Client(Http2(), window=2**20)
    for stream in (1, 3):
        client.h2.send_headers(stream, HEAD, end_stream=True)
    client.talk()
    for stream in (1, 3):
        client.server.send_headers(stream, OK)
        client.server.send(stream, [bytes(60_000)])
    turns = [stream for kind, _, stream, _ in frames(b"".join(client.server.take(10**6))) if kind == http2.DATA]
    assert turns[:4] == [1, 3, 1, 3]


def test_a_window_that_shrinks_below_nothing_is_waited_for() -> None:
    client = Client(Http2(), window=50_000)
    client.h2.send_headers(1, HEAD, end_stream=True)
    client.talk()
    client.server.send_headers(1, OK)
    client.server.send(1, [bytes(40_000)])
    client.talk()
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    client.talk()
    client.server.send(1, [bytes(100)])
    client.talk()
    assert len(client.content()) == 40_000
    client.h2.increment_flow_control_window(50_000, 1)
    client.talk()
    assert len(client.content()) == 40_100


def test_an_answer_that_does_not_wait_for_all_of_a_request_ends_both() -> None:
    client = Client(Http2())
    client.h2.send_headers(1, HEAD)
    client.talk()
    client.server.send_trailers(1, OK + END)
    said = sent(client.server)
    assert [(kind, flags & http2.END_STREAM) for kind, flags, *_ in frames(said)] == [
        (http2.HEADERS, 1),
        (http2.RST_STREAM, 0),
    ]
    client.events.clear()
    on_its_way = (
        frame(http2.DATA, 0, 1, b"late") + frame(http2.WINDOW_UPDATE, 0, 1, (9).to_bytes(4)) + frame(http2.DATA, 1, 1)
    )
    assert client.server.receive(on_its_way) == []


def test_the_same_headers_are_read_once_until_the_table_changes() -> None:
    client = Client(Http2())
    heads = []
    for stream in range(1, 12, 2):
        client.h2.send_headers(stream, HEAD + ([("x-new", "1")] if stream == 9 else []), end_stream=True)
        client.talk()
        heads.append(client.events[-1].head)  # type: ignore[union-attr]
    assert heads[1] is heads[2] is heads[3]
    assert heads[4].fields[b"x-new"] == b"1"
    assert heads[5] is not heads[3]
    assert heads[5].fields == heads[3].fields


def test_the_same_length_twice_is_one_length() -> None:
    server = greeted()
    lengths = ("content-length", "2"), ("content-length", "2")
    came = headers(content=block(("name", "a b"), ("empty", ""), *lengths)) + frame(http2.DATA, 1, 1, b"xy")
    request, data = server.receive(came)
    assert isinstance(request, Request)
    assert isinstance(data, http2.Data)
    assert (request.head.fields[b"name"], request.head.fields[b"empty"], data.content) == (b"a b", b"", b"xy")


def test_a_name_that_comes_twice_is_told() -> None:
    server = greeted()
    [request] = server.receive(headers(content=block(("x-api-key", "a"), ("x-api-key", "b"))))
    assert isinstance(request, Request)
    assert request.head.pairs is not None
    assert [value for name, value in request.head.pairs if name == b"x-api-key"] == [b"a", b"b"]


def test_pings_and_their_answers() -> None:
    server = greeted()
    sent(server)
    assert server.receive(frame(http2.PING, 0, 0, b"whether?")) == []
    assert sent(server) == frame(http2.PING, http2.ACK, 0, b"whether?")
    server.ping(b"goodbye!")
    assert server.receive(frame(http2.PING, http2.ACK, 0, b"goodbye!")) == [Pong(b"goodbye!")]


def test_after_the_last_word_streams_that_begin_are_not_looked_at() -> None:
    server = greeted()
    assert len(server.receive(headers(1))) == 1
    server.go_away(is_last_word=False)
    assert len(server.receive(headers(3))) == 1
    server.go_away(is_last_word=True)
    assert server.receive(headers(5) + frame(http2.DATA, 1, 5, b"x")) == []
    last = [int.from_bytes(content[:4]) for kind, _, _, content in frames(sent(server)) if kind == http2.GOAWAY]
    assert last == [2**31 - 1, 3]
    server.send_trailers(3, OK + END)
    assert not server.has(3)


def test_one_stream_more_than_may_be_is_refused_and_may_be_tried_again() -> None:
    server = greeted()
    for number in range(http2.MAX_STREAMS):
        assert len(server.receive(headers(2 * number + 1))) == 1
    sent(server)
    assert server.receive(headers(2 * http2.MAX_STREAMS + 1)) == []
    assert list(frames(sent(server))) == [
        (http2.RST_STREAM, 0, 2 * http2.MAX_STREAMS + 1, http2.REFUSED_STREAM.to_bytes(4))
    ]


# What ends the connection: what comes after the greeting, and the code.
FAULTS: dict[str, tuple[bytes, int]] = {
    "a frame that is too long": (b"\x00\x40\x01" + bytes((http2.DATA, 0)) + bytes(4), http2.FRAME_SIZE_ERROR),
    "content of no stream": (frame(http2.DATA, 0, 0, b"x"), http2.PROTOCOL_ERROR),
    "content before headers": (frame(http2.DATA, 0, 1, b"x"), http2.PROTOCOL_ERROR),
    "content after the end": (
        headers(1, http2.END_HEADERS | http2.END_STREAM)
        + frame(http2.RST_STREAM, 0, 1, bytes(4))
        + frame(http2.DATA, 0, 1),
        http2.STREAM_CLOSED,
    ),
    "a stream of a server": (headers(2), http2.PROTOCOL_ERROR),
    "a stream that goes back": (
        headers(3) + frame(http2.RST_STREAM, 0, 3, bytes(4)) + headers(1),
        http2.STREAM_CLOSED,
    ),
    "headers that something interrupts": (headers(1, 0) + frame(http2.PING, 0, 0, bytes(8)), http2.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(http2.CONTINUATION, 4, 1, b"x"), http2.PROTOCOL_ERROR),
    "continuations without end": (headers(1, 0) + frame(http2.CONTINUATION, 0, 1) * 9, http2.ENHANCE_YOUR_CALM),
    "headers that cannot be read": (headers(1, content=b"\xff\xff\xff\xff\xff\xff"), http2.COMPRESSION_ERROR),
    "a bomb of headers": (
        headers(1, content=b"\x40\x01x" + b"\x7f\x81\x1e" + b"y" * 4000 + b"\xbe" * 10_000),
        http2.COMPRESSION_ERROR,
    ),
    "padding alone": (headers(1) + frame(http2.DATA, http2.PADDED, 1, b"\x05abcd"), http2.PROTOCOL_ERROR),
    "a window of nothing": (frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)), http2.PROTOCOL_ERROR),
    "a window that is too large": (frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), http2.FLOW_CONTROL_ERROR),
    "settings of a stream": (frame(http2.SETTINGS, 0, 1), http2.PROTOCOL_ERROR),
    "half a setting": (frame(http2.SETTINGS, 0, 0, b"abc"), http2.FRAME_SIZE_ERROR),
    "an initial window that is too large": (frame(http2.SETTINGS, 0, 0, b"\0\4\x80\0\0\0"), http2.FLOW_CONTROL_ERROR),
    "frames that are too small": (frame(http2.SETTINGS, 0, 0, b"\0\5\0\0\0\1"), http2.PROTOCOL_ERROR),
    "a push": (frame(http2.PUSH_PROMISE, 4, 1, bytes(4)), http2.PROTOCOL_ERROR),
    "a reset of what has not begun": (frame(http2.RST_STREAM, 0, 1, bytes(4)), http2.PROTOCOL_ERROR),
    "a short reset": (headers(1) + frame(http2.RST_STREAM, 0, 1, b"x"), http2.FRAME_SIZE_ERROR),
    "a short ping": (frame(http2.PING, 0, 0, b"x"), http2.FRAME_SIZE_ERROR),
    "pings for ever": (frame(http2.PING, 1, 0, bytes(8)) * 10_001, http2.ENHANCE_YOUR_CALM),
    "pings whose answers nobody takes": (frame(http2.PING, 0, 0, bytes(8)) * 4000, http2.ENHANCE_YOUR_CALM),
    "settings for ever": (frame(http2.SETTINGS, 0, 0) * 250, http2.ENHANCE_YOUR_CALM),
    "empty content for ever": (headers(1) + frame(http2.DATA, 0, 1) * 10_001, http2.ENHANCE_YOUR_CALM),
    "priorities for ever": (frame(http2.PRIORITY, 0, 1, b"\0\0\0\2\0") * 10_001, http2.ENHANCE_YOUR_CALM),
    "frames of no kind for ever": (frame(99, 0, 0) * 10_001, http2.ENHANCE_YOUR_CALM),
    "streams that are made to be reset": (
        b"".join(headers(number) + frame(http2.WINDOW_UPDATE, 0, number, bytes(4)) for number in range(1, 9999, 2)),
        http2.ENHANCE_YOUR_CALM,
    ),
    "requests that nobody waits for": (
        b"".join(headers(number) + frame(http2.RST_STREAM, 0, number, bytes(4)) for number in range(1, 9999, 2)),
        http2.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_ends_the_connection_is_told_by_its_code(name: str) -> None:
    came, code = FAULTS[name]
    server = greeted()
    with pytest.raises(Fault) as caught:
        server.receive(came)
    assert caught.value.code == code
    *_, (kind, _, _, content) = frames(sent(server))
    assert (kind, int.from_bytes(content[4:8])) == (http2.GOAWAY, code)
    assert server.receive(headers(2001)) == []


# What ends one stream: headers or what follows them.
STREAM_FAULTS: dict[str, tuple[Callable[[], bytes], int]] = {
    "more than its window": (lambda: headers() + frame(http2.DATA, 0, 1, bytes(16_384)) * 4, http2.FLOW_CONTROL_ERROR),
    "content after its end": (
        lambda: headers(1, http2.END_HEADERS | http2.END_STREAM) + frame(http2.DATA, 0, 1, b"x"),
        http2.STREAM_CLOSED,
    ),
    "a window of nothing": (lambda: headers() + frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)), http2.PROTOCOL_ERROR),
    "a window that is too large": (
        lambda: headers() + frame(http2.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"),
        http2.FLOW_CONTROL_ERROR,
    ),
    "more than its length": (
        lambda: headers(content=block(("content-length", "1"))) + frame(http2.DATA, 0, 1, b"xy"),
        http2.PROTOCOL_ERROR,
    ),
    "less than its length": (
        lambda: headers(content=block(("content-length", "3"))) + frame(http2.DATA, 1, 1, b"xy"),
        http2.PROTOCOL_ERROR,
    ),
    "two lengths": (
        lambda: headers(content=block(("content-length", "1"), ("content-length", "2"))),
        http2.PROTOCOL_ERROR,
    ),
    "space before a value": (lambda: headers(content=block(("name", " x"))), http2.PROTOCOL_ERROR),
    "space behind a value": (lambda: headers(content=block(("name", "x\t"))), http2.PROTOCOL_ERROR),
    "no path": (lambda: headers(content=block(head=[it for it in HEAD if it[0] != ":path"])), http2.PROTOCOL_ERROR),
    "a path twice": (lambda: headers(content=block(head=[*HEAD[:3], *HEAD[2:]])), http2.PROTOCOL_ERROR),
    "a path at the end": (lambda: headers(content=block(head=[*HEAD[:2], *HEAD[3:], HEAD[2]])), http2.PROTOCOL_ERROR),
    "a status": (lambda: headers(content=block(head=[(":status", "200"), *HEAD])), http2.PROTOCOL_ERROR),
    "a capital letter": (lambda: headers(content=block(("Name", "x"))), http2.PROTOCOL_ERROR),
    "a line break": (lambda: headers(content=block(("name", "a\r\nb"))), http2.PROTOCOL_ERROR),
    "a header of HTTP/1": (lambda: headers(content=block(("transfer-encoding", "chunked"))), http2.PROTOCOL_ERROR),
    "trailers without an end": (lambda: headers() + headers(content=block(head=[("a", "b")])), http2.PROTOCOL_ERROR),
    "pseudo headers in trailers": (
        lambda: headers() + headers(1, http2.END_HEADERS | http2.END_STREAM),
        http2.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_what_ends_one_stream_leaves_the_others(name: str) -> None:
    came, code = STREAM_FAULTS[name]
    server = greeted()
    sent(server)
    events = server.receive(came())
    assert (http2.RST_STREAM, 0, 1, code.to_bytes(4)) in list(frames(sent(server)))
    assert events == [] or events[-1] == Reset(1)
    assert not server.has(1)
    assert [type(it) for it in server.receive(headers(3))] == [Request]


def test_headers_that_are_too_many_are_told_to_whoever_answers() -> None:
    server = greeted()
    [request] = server.receive(headers(content=block(("x", "y" * 16_300))))
    assert isinstance(request, Request)
    assert request.head.is_too_large


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", http2.PREFACE + frame(http2.PING, 0, 0, bytes(8))])
def test_who_does_not_greet_is_not_talked_to(hello: bytes) -> None:
    with pytest.raises(Fault):
        Http2().receive(hello)


CONVERSATION = (
    HELLO
    + headers(1)
    + frame(http2.DATA, 0, 1, b"abc")
    + frame(http2.PING, 0, 0, bytes(8))
    + headers(3, 0, block()[:20])
    + frame(http2.CONTINUATION, http2.END_HEADERS, 3, block()[20:])
    + frame(http2.DATA, http2.PADDED | http2.END_STREAM, 1, b"\x03def\0\0\0")
    + frame(http2.RST_STREAM, 0, 3, bytes(4))
)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=20))
def test_it_means_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    def simple(events: list[Event]) -> list[object]:
        return [(it.stream, it.head.path, it.has_ended) if isinstance(it, Request) else it for it in events]

    whole, cut = Http2(), Http2()
    events = []
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    for begin, end in pairwise(edges):
        events += cut.receive(CONVERSATION[begin:end])
    assert simple(events) == simple(whole.receive(CONVERSATION))
    assert sent(cut) == sent(whole)
    assert simple(events)[-2:] == [Data(1, b"def", 7, True), Reset(3)]


FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    st.one_of(
        st.binary(max_size=40), st.just(block()), st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8)
    ),
)


@settings(max_examples=1000 if os.environ.get("THOROUGH") else 100)
@given(st.lists(FRAMES, max_size=12))
def test_whatever_comes_is_an_event_or_a_fault_and_never_another_error(came: list[bytes]) -> None:
    server = greeted()
    try:
        for one in came:
            for event in server.receive(one):
                if isinstance(event, Request):
                    server.send_headers(event.stream, OK)
                    server.send(event.stream, [b"answer"])
                    server.send_trailers(event.stream, END)
            list(frames(sent(server)))
    except Fault:
        assert sent(server)
    assert server.unsent_bytes >= 0
