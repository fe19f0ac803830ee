"""Messages that do not end, and connections that are too many: what they hold is bounded and ends, and other clients do not notice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import grpc  # type: ignore[import-untyped]
import pytest

from tests.gateway.conftest import wait_for_model
from tests.gateway.grpc.conftest import Speaking, double, refused, speaking_before
from tests.gateway.grpc.http2 import Connection
from tests.gateway.http.test_bounds import MIB, peak_bytes
from tests.gateway.request.test_admission import metric
from tests.local.harness import Served, wait_until

pytestmark = pytest.mark.triton

SERVICE = "/inference.GRPCInferenceService/"
BUDGET_BYTES, MESSAGE_BYTES, NUM_CLIENTS = 48 * MIB, 16 * MIB, 24
PAUSE_S = 1.5
MAX_CONNECTIONS = 2 * NUM_CLIENTS


@pytest.fixture(scope="module")
def short(kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    """With little room and little patience."""
    limits = {
        "max_body_bytes": MESSAGE_BYTES,
        "max_buffered_bytes": BUDGET_BYTES,
        "body_pause_s": PAUSE_S,
        "body_timeout_s": 2 * PAUSE_S,
        "max_connections_per_client": MAX_CONNECTIONS,
    }
    with speaking_before(tmp_path_factory.mktemp("short"), {"kinds": [f"http://{kinds.url}"]}, limits=limits) as both:
        wait_for_model(both.running, kinds)
        yield both


@pytest.fixture(scope="module")
def small(kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    """With little room, and the patience of every gateway."""
    limits = {"max_body_bytes": MESSAGE_BYTES, "max_buffered_bytes": BUDGET_BYTES}
    with speaking_before(tmp_path_factory.mktemp("small"), {"kinds": [f"http://{kinds.url}"]}, limits=limits) as both:
        wait_for_model(both.running, kinds)
        yield both


@contextlib.contextmanager
def half_sent(both: Speaking, method: str, num_bytes: int) -> Iterator[tuple[Connection, int]]:
    """A message of `num_bytes`, all but its last."""
    with Connection(both.port) as connection:
        stream = connection.begin(SERVICE + method)
        connection.send(stream, b"\0" + num_bytes.to_bytes(4) + bytes(num_bytes - 1))
        yield connection, stream


def is_ended(connection: Connection, stream: int) -> bool:
    connection.read(0.05)
    return stream in connection.ended or not connection.is_open


def held_bytes(both: Speaking) -> float:
    return metric(both.running, "tandem_buffered_bytes")


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.thorough), NUM_CLIENTS])
def test_whole_messages_that_are_refused_hold_no_more_than_the_budget(small: Speaking, at_once: int) -> None:
    before = peak_bytes(small.running)
    named_at_length = double("a" * (MESSAGE_BYTES - MIB))

    def status(_: int) -> str:
        with small.stub(max_send_message_length=-1, use_local_subchannel_pool=1) as stub:
            return str(refused(stub.ModelInfer, named_at_length)[0].name)

    with ThreadPoolExecutor(at_once) as senders:
        statuses = set(senders.map(status, range(NUM_CLIENTS)))
    others = {"UNAVAILABLE", "DEADLINE_EXCEEDED"} if at_once > 1 else set()  # no room, or on a busy machine no time
    assert {"RESOURCE_EXHAUSTED"} <= statuses <= {"RESOURCE_EXHAUSTED"} | others
    assert peak_bytes(small.running) - before < BUDGET_BYTES + 6 * MESSAGE_BYTES < NUM_CLIENTS * MESSAGE_BYTES / 2
    wait_until(lambda: held_bytes(small) == 0, "all of it is given back")


@pytest.mark.protocol(
    "hostile input",
    "messages beyond `limits.max_buffered_bytes` that do not end, over gRPC",
    "refused: UNAVAILABLE with Retry-After; others go on",
)
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_unfinished_messages_hold_no_more_than_the_budget_and_small_requests_go_on(
    short: Speaking, method: str
) -> None:
    before = peak_bytes(short.running)
    is_over, outcomes = threading.Event(), Queue[bool]()

    def send_and_wait() -> None:
        with half_sent(short, method, MESSAGE_BYTES) as (connection, stream):
            while not is_over.is_set() and not is_ended(connection, stream):
                pass
            outcomes.put(stream in connection.ended)

    clients = [threading.Thread(target=send_and_wait) for _ in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    try:
        wait_until(
            lambda: outcomes.qsize() >= NUM_CLIENTS - BUDGET_BYTES // MESSAGE_BYTES,
            "those beyond the budget are refused",
        )
        with short.stub() as stub:
            assert stub.ModelInfer(double(), timeout=30).model_name == "double.any"
        wait_until(lambda: outcomes.qsize() == NUM_CLIENTS, "none is waited for longer than it may take")
    finally:
        is_over.set()
        for client in clients:
            client.join()
    assert all(outcomes.get() for _ in clients)
    # What comes between two looks is not counted, and on a busy machine they are far apart.
    assert peak_bytes(short.running) - before < NUM_CLIENTS * MESSAGE_BYTES / 2
    wait_until(lambda: held_bytes(short) == 0, "all of it is given back")


def test_a_message_that_is_wrong_and_as_large_as_may_be_is_read_and_refused(small: Speaking) -> None:
    whole = double(raw_input_contents=[bytes(MESSAGE_BYTES // 2)])
    with small.stub(max_send_message_length=-1) as stub:
        code, _, metadata = refused(stub.ModelInfer, whole)
    assert (code, metadata["tandem-error"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")


@pytest.mark.protocol(
    "hostile input", "messages that come too slowly, over gRPC", "refused: DEADLINE_EXCEEDED; an idle stream is none"
)
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_message_that_comes_byte_by_byte_ends_in_time(short: Speaking, method: str) -> None:
    with half_sent(short, method, MIB) as (connection, stream):
        connection.send(stream, b"")
        other = connection.begin(SERVICE + method)
        connection.send(other, b"\0" + MIB.to_bytes(4) + bytes(MIB // 2))
        wait_until(
            lambda: connection.send(other, b"\0", 0.1) == 0 or is_ended(connection, other), "it is not waited for"
        )
        assert connection.is_open


def test_a_stream_may_wait_for_its_next_message_as_long_as_it_likes(short: Speaking) -> None:
    messages: Queue[object] = Queue()
    with short.stub() as stub, half_sent(short, "ModelInfer", MIB) as (connection, slow):
        answers = stub.ModelStreamInfer(iter(messages.get, None))
        for _ in range(2):
            messages.put(double())
            assert next(answers).infer_response.model_name == "double.any"
            wait_until(lambda: is_ended(connection, slow), "a slow message of somebody else has ended meanwhile")
        messages.put(None)
        assert list(answers) == []


@pytest.mark.protocol(
    "hostile input",
    "more connections than `limits.max_connections_per_client` from one address, over gRPC",
    "refused: closed, counted in `tandem_connection_refusals_total`",
)
def test_connections_of_one_address_are_bounded(short: Speaking) -> None:
    def counted() -> float:
        return metric(short.running, "tandem_connections", listener="grpc")

    wait_until(lambda: counted() == 0, "clients of other tests have gone")
    with contextlib.ExitStack() as opened:
        some = [opened.enter_context(Connection(short.port)) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: counted() == MAX_CONNECTIONS, "they are counted")
        more = [opened.enter_context(Connection(short.port)) for _ in range(3)]

        def are_closed() -> bool:
            for one in more:
                one.read(0.05)
            return not any(one.is_open for one in more)

        wait_until(are_closed, "those that are too many are closed")
        for one in some:
            one.read(0.05)
        assert all(one.is_open for one in some)
        assert metric(short.running, "tandem_connection_refusals_total", listener="grpc", limit="client") >= 3
    wait_until(lambda: counted() == 0, "they are no longer counted")


def test_a_message_that_no_model_takes_is_not_waited_for(digits: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with speaking_before(tmp_path_factory.mktemp("digits"), {"cpu": [digits]}) as both:
        with half_sent(both, "ModelInfer", MIB) as small, half_sent(both, "ModelInfer", 16 * MIB) as large:
            wait_until(lambda: is_ended(*large), "the large one is refused")
            assert not is_ended(*small)
        with both.stub(max_send_message_length=-1) as stub:
            code, text, metadata = refused(stub.ModelInfer, double("digits", raw_input_contents=[bytes(16 * MIB)]))
        assert (code, metadata["tandem-error"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
        assert "at most" in text or "no model" in text
        with grpc.insecure_channel(both.url) as channel:
            infer = channel.unary_unary(f"{SERVICE}ModelInfer")
            code, text, metadata = refused(infer, bytes(16 * MIB), compression=grpc.Compression.Gzip)
        assert (code, metadata["tandem-error"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
        assert f"{4 * MIB}" in text
