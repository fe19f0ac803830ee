"""Inference through a real gateway to a real Triton, with plain HTTP."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import zlib
from typing import Any

import pytest

from serving.repository import Repository
from tests.gateway.conftest import SAMPLE, Reply, Running
from tests.local.harness import ROOT

pytestmark = pytest.mark.triton


def tensor(**entry: Any) -> bytes:
    return json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **entry}]}
    ).encode()


def binary(values: list[float], **more: Any) -> tuple[bytes, dict[str, str]]:
    blob = struct.pack(f"<{len(values)}f", *values)
    entry = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"inputs": [entry], **more}).encode()
    return head + blob, {"Inference-Header-Content-Length": str(len(head))}


def refused(reply: Reply, status: int, word: str, said: str = "") -> None:
    assert (reply.status, reply.headers["Tandem-Error"]) == (status, word), reply.body
    body = reply.json()
    assert list(body) == ["error"]
    assert said in body["error"]


def test_a_held_out_digit_is_recognised_and_the_receipt_says_by_what(gateway: Running) -> None:
    record = Repository(ROOT / "model_repo").variant("digits-fp32")
    reply = gateway.infer(SAMPLE)
    assert reply.status == 200
    answer = reply.json()
    assert (answer["model_name"], answer["model_version"]) == ("digits", "1")
    scores = answer["outputs"][0]["data"]
    assert record.record.sample is not None
    assert scores.index(max(scores)) == int(record.record.sample.label)
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Tandem-Pool"] == "cpu"
    assert re.fullmatch(r'cpu; name="[^"]+"', reply.headers["Tandem-Device"])
    assert reply.headers["Tandem-Variant"] in ("fp32", "int8")
    assert reply.headers["Tandem-Engine"] == "cpu"
    assert reply.headers["Tandem-Gate"] in ("passed", "not_useful")
    assert reply.headers["Tandem-Reason"] == "only_pool"
    assert re.fullmatch(r"queue;dur=[\d.]+, backend;dur=[\d.]+, total;dur=[\d.]+", reply.headers["Server-Timing"])


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_the_digest_in_the_receipt_is_that_of_the_file(gateway: Running, variant: str) -> None:
    digest = Repository(ROOT / "model_repo").variant(f"digits-{variant}").digest
    reply = gateway.infer(SAMPLE, f"digits-{variant}")
    assert reply.json()["model_name"] == f"digits-{variant}"
    assert reply.headers["Tandem-Model-Digest"] == f"sha256:{digest}"
    assert (reply.headers["Tandem-Variant"], reply.headers["Tandem-Reason"]) == (variant, "pinned")


def test_pins_in_headers_choose_pool_and_variant(gateway: Running) -> None:
    reply = gateway.infer(SAMPLE, headers={"Tandem-Pool": "cpu", "Tandem-Variant": "int8"})
    assert (reply.headers["Tandem-Variant"], reply.headers["Tandem-Reason"]) == ("int8", "pinned")
    assert reply.json()["model_name"] == "digits"


def test_an_explicit_version_works_and_another_is_not_found(gateway: Running) -> None:
    assert gateway.ask("/v2/models/digits/versions/1/infer", SAMPLE).status == 200
    refused(gateway.ask("/v2/models/digits/versions/9/infer", SAMPLE), 404, "not_found", "has no version 9")
    refused(gateway.ask("/v2/models/digits/versions/x/infer", SAMPLE), 404, "not_found")


def test_a_binary_answer_to_a_public_name_keeps_its_length_header_true(gateway: Running) -> None:
    body, headers = binary([1, 2, 3, 4], parameters={"binary_data_output": True})
    reply = gateway.infer(body, "double.any", headers)
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert json.loads(reply.body[:length])["model_name"] == "double.any"
    assert struct.unpack("<4f", reply.body[length:]) == (2, 4, 6, 8)
    assert reply.headers["Content-Type"] == "application/octet-stream"


def test_raw_binary_is_carried(gateway: Running) -> None:
    raw = struct.pack("<4f", 1, 2, 3, 4)
    reply = gateway.infer(raw, "double.any", {"Inference-Header-Content-Length": "0"})
    assert reply.status == 200
    assert reply.body.endswith(struct.pack("<4f", 2, 4, 6, 8))


@pytest.mark.parametrize("rows", [1, 5000, 40_000])
def test_large_bodies_come_back_whole_in_both_directions(gateway: Running, rows: int) -> None:
    values = [float(i % 1000) for i in range(rows * 4)]
    blob = struct.pack(f"<{len(values)}f", *values)
    entry = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    reply = gateway.infer(head + blob, "unbatched.any", {"Inference-Header-Content-Length": str(len(head))})
    assert reply.status == 200, reply.body[:200]
    answer = reply.body[int(reply.headers["Inference-Header-Content-Length"]) :]
    assert struct.unpack(f"<{len(values)}f", answer)[:rows] == tuple(values[::4])


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_requests_are_read(gateway: Running, encoding: str, pack: Any) -> None:
    assert gateway.infer(pack(SAMPLE), headers={"Content-Encoding": encoding}).status == 200


@pytest.mark.parametrize("encoding", ["", " ", "identity", "Identity", ",", "identity, ,identity"])
def test_an_encoding_that_says_nothing_is_none(gateway: Running, encoding: str) -> None:
    assert gateway.infer(SAMPLE, headers={"Content-Encoding": encoding}).status == 200


@pytest.mark.parametrize("encoding", ["GZIP", "identity, gzip", "gzip,", ", gzip"])
def test_a_list_with_one_encoding_is_that_encoding(gateway: Running, encoding: str) -> None:
    assert gateway.infer(gzip.compress(SAMPLE), headers={"Content-Encoding": encoding}).status == 200
    twice = gateway.infer(gzip.compress(gzip.compress(SAMPLE)), headers={"Content-Encoding": "gzip, gzip"})
    refused(twice, 501, "unsupported")


def test_compression_that_is_not_whole_or_not_known_is_refused(gateway: Running) -> None:
    packed = gzip.compress(SAMPLE)
    refused(gateway.infer(packed[:-9], headers={"Content-Encoding": "gzip"}), 400, "bad_request", "gzip")
    refused(gateway.infer(SAMPLE, headers={"Content-Encoding": "gzip"}), 400, "bad_request", "gzip")
    refused(gateway.infer(packed + packed, headers={"Content-Encoding": "gzip"}), 400, "bad_request", "one whole")
    refused(gateway.infer(SAMPLE, headers={"Content-Encoding": "br"}), 501, "unsupported")


def test_a_decompression_bomb_is_refused(gateway: Running) -> None:
    refused(gateway.infer(gzip.compress(b" " * (65 * 2**20)), headers={"Content-Encoding": "gzip"}), 413, "too_large")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(gateway: Running) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        s.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        answer = b""
        while chunk := s.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"tandem-error: too_large" in answer


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"not json", "not valid JSON"),
        (b"", "no body"),
        (b"{}", "lacks 'inputs'"),
        (b"[]", "an array"),
        (tensor(data=[1.0]), "holds 4 elements but 'data' has 1"),
        (tensor(data=["a", 1, 2, 3]), "an element is a string"),
        (tensor(shape=[-1, 4]), "'shape'"),
        (tensor(name="nope"), "nope"),
        (tensor(shape=[1, 3], data=[1, 2, 3]), "shape"),
        (tensor(datatype="FP64"), "FP64"),
        (tensor(datatype="float32"), "'float32'"),
        (tensor(datatype="FP16"), "FP16"),
        (tensor(parameters={"classification": "x"}), "classification"),
        (
            b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{"shared_memory_region":"r"},"parameters":{}}]}',
            "twice",
        ),
        (tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 16}), "shared memory"),
        (b"[" * 60_000 + b"]" * 60_000, ""),
        (b'{"inputs":' + b"[" * 1000 + b"]" * 1000 + b"}", "nesting"),
        (tensor(shape=[17, 4], data=[1] * 68), "batch"),
    ],
)
def test_a_clients_mistake_is_400_and_says_what(gateway: Running, body: bytes, said: str) -> None:
    refused(gateway.infer(body, "double.any"), 400, "bad_request", said)
    assert gateway.infer(SAMPLE).status == 200  # and nobody else is worse off


def test_messages_name_the_model_that_was_asked_for_and_no_path(gateway: Running) -> None:
    text = gateway.infer(tensor(shape=[1, 3], data=[1, 2, 3]), "digits").json()["error"]
    assert "digits-" not in text
    assert "/" not in text


@pytest.mark.parametrize("length", ["abc", "", "123x", "-1", "1e1", "99999999", "123, 123"])
def test_a_bad_length_header_is_400(gateway: Running, length: str) -> None:
    refused(gateway.infer(SAMPLE, headers={"Inference-Header-Content-Length": length}), 400, "bad_request")


def test_two_length_headers_are_400(gateway: Running) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        twice = b"Inference-Header-Content-Length: 2\r\nInference-Header-Content-Length: 3\r\n"
        s.sendall(
            b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            + twice
            + b"Content-Length: 4\r\n\r\n{}{}"
        )
        assert s.recv(4096).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Tandem-Pool": "tpu"}, "cpu, kinds"),
        ({"Tandem-Variant": "bf16"}, "fp32, int8"),
        ({"Tandem-Pool": "kinds"}, "by: cpu"),
        ({"Tandem-Deadline-Ms": "soon"}, "milliseconds"),
        ({"Tandem-Deadline-Ms": "0"}, "more than 0"),
        ({"Tandem-Deadline-Ms": "nan"}, "more than 0"),
    ],
)
def test_headers_that_make_no_sense_are_400(gateway: Running, headers: dict[str, str], said: str) -> None:
    refused(gateway.infer(SAMPLE, headers=headers), 400, "bad_request", said)


def test_a_pin_that_contradicts_the_name_is_400(gateway: Running) -> None:
    refused(gateway.infer(SAMPLE, "digits-int8", {"Tandem-Variant": "fp32"}), 400, "bad_request", "contradict")


def test_an_unknown_model_is_404_and_another_method_405(gateway: Running) -> None:
    refused(gateway.infer(SAMPLE, "digit"), 404, "not_found", "did you mean 'digits'?")
    refused(gateway.ask("/v2/models/digit"), 404, "not_found", "did you mean 'digits'?")
    assert "did you mean" not in gateway.infer(SAMPLE, "zebra").json()["error"]
    for method in ("GET", "PUT", "DELETE"):
        reply = gateway.ask("/v2/models/digits/infer", method=method)
        refused(reply, 405, "bad_request", "POST it")
        assert reply.headers["Allow"] == "POST"


def test_a_model_without_a_gate_record_or_with_a_refusal_gets_no_request(gateway: Running) -> None:
    for name in ("ungated", "refused", "refused.any"):
        refused(gateway.infer(tensor(), name), 404, "not_found")
    [server] = gateway.ask("/admin/status").json()["pools"]["kinds"]["servers"]
    assert "no gate record" in server["refused"]["ungated"]
    assert "refused" in server["refused"]["refused"]


def test_a_deadline_that_has_passed_is_504(gateway: Running) -> None:
    refused(gateway.infer(SAMPLE, headers={"Tandem-Deadline-Ms": "0.001"}), 504, "deadline_expired")
    late = json.loads(SAMPLE) | {"parameters": {"timeout": 1}}
    refused(gateway.infer(json.dumps(late).encode()), 504, "deadline_expired")
    assert gateway.infer(SAMPLE, headers={"Tandem-Deadline-Ms": "60000"}).status == 200


def test_a_request_in_small_pieces_is_put_together(gateway: Running) -> None:
    head = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(SAMPLE)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = head + SAMPLE
        for start in range(0, len(whole), 97):
            s.sendall(whole[start : start + 97])
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.count(b"connection: close") == 1


def test_pipelined_requests_are_answered_in_order(gateway: Running) -> None:
    names = ["digits", "digits-fp32", "digits-int8", "digits"]
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        for name in names:
            s.sendall(
                f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(SAMPLE)}\r\n\r\n".encode()
                + SAMPLE
            )
        answer = b""
        while answer.count(b'"model_name"') < len(names):
            answer += s.recv(65536)
    assert [found.decode() for found in re.findall(rb'"model_name":"([^"]+)"', answer)] == names


def test_a_client_that_leaves_early_hurts_nobody(gateway: Running) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
            s.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
            s.sendall(
                f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(SAMPLE)}\r\n\r\n".encode()
                + SAMPLE
            )
    assert gateway.infer(SAMPLE).status == 200


def test_http_1_0_without_keep_alive_is_answered_and_closed(gateway: Running) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as s:
        s.sendall(f"POST /v2/models/digits/infer HTTP/1.0\r\nContent-Length: {len(SAMPLE)}\r\n\r\n".encode() + SAMPLE)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
    assert b" 200 OK" in answer.split(b"\r\n")[0]
