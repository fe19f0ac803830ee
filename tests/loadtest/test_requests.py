"""Bodies of the v2 protocol, what is read out of answers, and a connection that meets bad servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from loadtest.bodies import Signature, bodies, encode_binary, encode_json, images, signature, top1
from loadtest.connection import Connection, request_bytes

DIGITS = Signature("image", (1, 8, 8), "probabilities")
METADATA = {
    "name": "digits",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
}


def test_a_signature_is_read_from_metadata() -> None:
    assert signature(METADATA) == DIGITS


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"inputs": []}, "has 0 inputs"),
        ({"inputs": [METADATA["inputs"][0]] * 2}, "has 2 inputs"),
        ({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]}, "takes BYTES"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]}, "needs fixed dimensions"),
        ({"outputs": []}, "the load test drives models with one"),
    ],
)
def test_a_model_that_cannot_be_driven_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        signature(METADATA | change)


def test_digits_are_real_labelled_and_of_the_models_shape() -> None:
    pixels, labels = images("digits", (1, 8, 8), 1)
    assert labels is not None
    assert pixels.shape == (len(labels), 1, 8, 8)
    assert pixels.dtype == np.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    assert set(labels.tolist()) == set(range(10))
    with pytest.raises(ValueError, match="has 64 values"):
        images("digits", (3, 224, 224), 1)


def test_random_images_are_the_same_for_a_seed_and_have_no_truth() -> None:
    first, labels = images("random", (3, 4), 5)
    assert labels is None
    assert np.array_equal(first, images("random", (3, 4), 5)[0])
    assert not np.array_equal(first, images("random", (3, 4), 6)[0])


def test_json_and_binary_carry_the_same_numbers() -> None:
    batch, _ = images("random", (1, 8, 8), 1)
    text, binary = encode_json(DIGITS, batch, ()), encode_binary(DIGITS, batch, ())
    tensor = json.loads(text.data)["inputs"][0]
    assert binary.header_length is not None
    header = json.loads(binary.data[: binary.header_length])
    blob = np.frombuffer(binary.data[binary.header_length :], "<f4")
    assert np.array_equal(np.array(tensor["data"], np.float32), blob)
    assert tensor["shape"] == header["inputs"][0]["shape"] == [32, 1, 8, 8]
    assert header["inputs"][0]["parameters"]["binary_data_size"] == len(blob) * 4
    assert header["outputs"] == [{"name": "probabilities", "parameters": {"binary_data": True}}]
    assert binary.headers["Inference-Header-Content-Length"] == str(binary.header_length)


def test_batches_are_whole_and_keep_their_labels() -> None:
    pixels, labels = images("digits", (1, 8, 8), 1)
    made = bodies(DIGITS, pixels, labels, "json", 7)
    assert labels is not None
    assert len(made) == len(labels) // 7
    assert made[1].labels == tuple(labels[7:14].tolist())
    with pytest.raises(ValueError, match="450 images are too few for a batch of 451"):
        bodies(DIGITS, pixels, labels, "json", 451)


def answer(**output: object) -> bytes:
    return json.dumps({"outputs": [{"name": "p", "shape": [2, 3], "datatype": "FP32", **output}]}).encode()


def test_the_largest_score_of_each_row_is_the_answer() -> None:
    assert top1(answer(data=[0, 1, 0, 5, 1, 1]), None) == [1, 0]
    header = answer(parameters={"binary_data_size": 24})
    assert top1(header + np.array([0, 0, 1, 0, 7, 0], "<f4").tobytes(), len(header)) == [2, 1]


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"", None),
        (b"{}", None),
        (b"[]", None),
        (b'{"outputs": []}', None),
        (answer(data=[1, 2, 3]), None),  # one row short of what the shape says... and not divisible
        (answer(data=[]), None),
        (answer(shape=[0, 3], data=[]), None),
        (answer(parameters={"binary_data_size": 24}), len(answer(parameters={"binary_data_size": 24}))),
        (answer(parameters={"binary_data_size": 3}) + b"abc", len(answer(parameters={"binary_data_size": 3}))),
        (answer(), None),
    ],
)
def test_an_answer_that_is_none_is_noticed(body: bytes, length: int | None) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        top1(body, length)


# -- a connection, against sockets that behave as told ------------------------------------------------------------------


@contextmanager
def server(*scripts: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts one connection per script."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for script in scripts:
            connection, _ = listener.accept()
            with connection:
                script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(10)
        listener.close()


def says(*answers: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        for text in answers:
            connection.recv(65536)
            connection.sendall(text)

    return script


OK = b"HTTP/1.1 200 OK\r\nTandem-Pool: cpu\r\nX-Other: 1\r\nContent-Length: 2\r\n\r\nhi"


def ask(connection: Connection, url: str) -> object:
    return connection.send(request_bytes("POST", url, "/x", {"A": "b"}, b"body"))


def test_a_connection_is_kept_and_wanted_headers_are_read() -> None:
    with server(says(OK, OK)) as url:
        connection = Connection(url, 5.0, frozenset((b"tandem-pool",)))
        assert [ask(connection, url) for _ in range(2)] == [(200, {b"tandem-pool": "cpu"}, b"hi")] * 2
        connection.close()


def test_a_connection_that_the_server_closes_is_made_anew() -> None:
    closing = OK.replace(b"X-Other: 1", b"Connection: close")
    with server(says(closing), says(closing)) as url:
        connection = Connection(url, 5.0)
        assert [ask(connection, url) for _ in range(2)] == [(200, {}, b"hi")] * 2


@pytest.mark.parametrize("text", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"what is this\r\n\r\n"])
def test_half_an_answer_or_none_is_an_error_and_the_next_request_starts_clean(text: bytes) -> None:
    with server(says(text), says(OK)) as url:
        connection = Connection(url, 5.0)
        with pytest.raises(ConnectionError):
            ask(connection, url)
        assert ask(connection, url) == (200, {}, b"hi")
        connection.close()


def test_a_server_that_is_silent_is_a_timeout() -> None:
    done = threading.Event()
    with server(lambda _: done.wait(10) and None) as url:
        connection = Connection(url, 0.05)
        with pytest.raises(TimeoutError):
            ask(connection, url)
        done.set()


def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            ask(Connection(url, 5.0), url)
