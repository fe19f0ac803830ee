"""What the v2 protocol says, item by item, through a real gateway to a real Triton."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.gateway.conftest import SAMPLE, Reply, Running
from tests.gateway.http.test_infer import binary, refused, tensor
from tests.local.harness import final_count, wait_until
from tests.local.models import TYPES

pytestmark = pytest.mark.triton

BLOB = struct.pack("<4f", 1, 2, 3, 4)
LENGTH = "Inference-Header-Content-Length"


def parts(*entries: dict[str, Any], blobs: bytes = b"", **more: Any) -> tuple[bytes, dict[str, str]]:
    """A binary request: its JSON part and what follows it."""
    head = json.dumps({"inputs": list(entries), **more}, ensure_ascii=False).encode()
    return head + blobs, {LENGTH: str(len(head))}


def every_type(num_rows: int = 1, **given: list[Any]) -> list[dict[str, Any]]:
    """An input of each datatype, [num_rows, 2]; in binary but for `given`, which are JSON."""
    entries = []
    for name, (_, triton, dtype) in TYPES.items():
        datatype = {"TYPE_STRING": "BYTES"}.get(triton, triton.removeprefix("TYPE_"))
        size = num_rows * (10 if name == "bytes" else 2 * np.dtype(dtype).itemsize)
        entry = {"name": name, "shape": [num_rows, 2], "datatype": datatype}
        entries.append(entry | ({"data": given[name]} if name in given else {"parameters": {"binary_data_size": size}}))
    return entries


def blobs_of(entries: list[dict[str, Any]]) -> bytes:
    strings = struct.pack("<I1sI1s", 1, b"a", 1, b"b")
    sizes = [(e["name"], e["parameters"]["binary_data_size"]) for e in entries if "parameters" in e]
    return b"".join(strings * (size // len(strings)) if name == "bytes" else bytes(size) for name, size in sizes)


def outputs_of(reply: Reply) -> dict[str, Any]:
    return {output["name"]: output for output in reply.json()["outputs"]}


# -- where JSON ends ----------------------------------------------------------------------------------------------------


@pytest.mark.protocol(
    "v2 HTTP", "binary is told by Inference-Header-Content-Length alone, whatever the Content-Type", "supported", item=1
)
@pytest.mark.parametrize(
    "kind", ["application/json", "application/octet-stream", "text/plain", "multipart/form-data", ""]
)
def test_the_content_type_says_nothing(gateway: Running, kind: str) -> None:
    assert gateway.infer(SAMPLE, headers={"Content-Type": kind}).status == 200
    body, headers = binary([1, 2, 3, 4])
    assert gateway.infer(body, "double.any", headers | {"Content-Type": kind}).status == 200


@pytest.mark.protocol("v2 HTTP", "the length of the JSON part in bytes, not characters", "supported", item=2)
def test_the_length_counts_bytes(gateway: Running) -> None:
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    body, headers = parts(entry, blobs=BLOB, id="日本é")
    reply = gateway.infer(body, "double.any", headers)
    assert reply.json()["id"] == "日本é"
    characters = str(len(body[: int(headers[LENGTH])].decode()))
    assert gateway.infer(body, "double.any", {LENGTH: characters}).status == 400


@pytest.mark.protocol("v2 HTTP", "raw binary: one input of one possible shape, without JSON", "supported", item=3)
@pytest.mark.parametrize(
    ("model", "body", "status", "said"),
    [
        ("double.any", BLOB, 200, ""),
        ("double.any", BLOB[:-1], 400, "Expected 16, got 15"),
        ("double.any", BLOB * 2, 400, "Expected 16, got 32"),
        ("types.any", BLOB, 400, "13 inputs"),
        ("double.any", b"", 400, "no body"),
    ],
)
def test_raw_binary_has_one_row_or_is_the_clients_mistake(
    gateway: Running, model: str, body: bytes, status: int, said: str
) -> None:
    reply = gateway.infer(body, model, {LENGTH: "0"})
    assert reply.status == status
    assert said.encode() in reply.body
    assert model.removesuffix(".any").encode() + b"'" not in reply.body


@pytest.mark.protocol(
    "v2 HTTP",
    "requests in gzip and deflate (zlib), JSON and binary; the length is that of the unpacked JSON part",
    "supported",
    item=4,
)
@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)]
)
def test_a_compressed_binary_request_has_the_length_of_its_unpacked_json(
    gateway: Running, encoding: str, pack: Any
) -> None:
    body, headers = binary([1, 2, 3, 4], parameters={"binary_data_output": True})
    reply = gateway.infer(pack(body), "double.any", headers | {"Content-Encoding": encoding})
    assert reply.body.endswith(struct.pack("<4f", 2, 4, 6, 8))


@pytest.mark.protocol(
    "v2 HTTP",
    "other codings, and bytes that only say they are compressed",
    "refused: Triton would read them as raw binary",
    item=4,
)
def test_other_codings_are_told_which_there_are(gateway: Running) -> None:
    reply = gateway.infer(SAMPLE, headers={"Content-Encoding": "br"})
    refused(reply, 501, "unsupported", "gzip and deflate")
    assert reply.headers["Accept-Encoding"] == "gzip, deflate"
    for coding in ("gzip", "deflate"):
        refused(
            gateway.infer(BLOB, "double.any", {"Content-Encoding": coding, LENGTH: "0"}),
            400,
            "bad_request",
            "not valid",
        )


@pytest.mark.protocol(
    "v2 HTTP",
    "answers in gzip or deflate, as Accept-Encoding likes, from 16 KiB on where it makes them clearly smaller",
    "supported",
    item=4,
)
@pytest.mark.parametrize(
    ("accept", "coding"),
    [("gzip", "gzip"), ("deflate", "deflate"), ("gzip;q=0.5, deflate", "deflate"), ("*", "gzip"), ("gzip;q=0", None),
     ("identity", None), ("br", None), ("gzip;q=0.1, identity;q=0.5", None), ("", None)],
)  # fmt: skip
@pytest.mark.parametrize("is_binary", [False, True])
def test_answers_are_compressed_as_the_client_likes_it(
    gateway: Running, accept: str, coding: str | None, is_binary: bool
) -> None:
    rows = 3000
    entry = {"name": "x", "shape": [rows, 2], "datatype": "FP32", "data": [7.5] * rows * 2}
    body = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": is_binary}}).encode()
    reply = gateway.infer(body, "unbatched.any", {"Accept-Encoding": accept})
    assert reply.headers["Content-Encoding"] == coding
    plain = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[coding](reply.body)  # type: ignore[index, operator]
    assert (len(plain) > len(reply.body)) == (coding is not None)
    assert int(reply.headers["Content-Length"]) == len(reply.body)
    if coding is not None:
        assert reply.headers["Vary"] == "accept-encoding"
    if is_binary:
        length = int(reply.headers[LENGTH])
        assert json.loads(plain[:length])["model_name"] == "unbatched.any"
        assert plain[length:] == struct.pack("<f", 7.5) * rows * 2
    else:
        assert json.loads(plain)["outputs"][0]["data"] == [7.5] * rows * 2


def test_answers_that_are_small_or_would_stay_large_are_not_compressed(gateway: Running) -> None:
    assert "Content-Encoding" not in gateway.infer(SAMPLE, headers={"Accept-Encoding": "gzip"}).headers
    noise = np.random.default_rng(3).standard_normal(20_000).astype(np.float32)
    entry = {"name": "x", "shape": [5000, 4], "datatype": "FP32", "parameters": {"binary_data_size": noise.nbytes}}
    body, headers = parts(entry, blobs=noise.tobytes(), parameters={"binary_data_output": True})
    reply = gateway.infer(body, "unbatched.any", headers | {"Accept-Encoding": "gzip"})
    assert reply.status == 200
    assert "Content-Encoding" not in reply.headers


@pytest.mark.parametrize("coding", [None, "gzip"])
@pytest.mark.parametrize("is_binary", [False, True])
def test_a_long_answer_is_what_the_model_said(gateway: Running, is_binary: bool, coding: str | None) -> None:
    values = np.arange(200_000, dtype=np.float32)
    entry = {"name": "x", "shape": [100_000, 2], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
    body, headers = parts(entry, blobs=values.tobytes(), parameters={"binary_data_output": is_binary})
    more = {} if coding is None else {"Accept-Encoding": coding}
    reply = gateway.infer(body, "unbatched.any", headers | more)
    assert reply.headers["Content-Encoding"] == coding
    plain = reply.body if coding is None else gzip.decompress(reply.body)
    assert int(reply.headers["Content-Length"]) == len(reply.body)
    expected = values.reshape(100_000, 2).T.ravel()
    length = int(reply.headers[LENGTH]) if is_binary else None
    described = json.loads(plain[:length])
    assert described["model_name"] == "unbatched.any"
    said = np.frombuffer(plain, np.float32, offset=length) if length else np.float32(described["outputs"][0]["data"])
    assert np.array_equal(said, expected)


def test_a_number_that_json_has_not_is_named_at_the_end_of_a_long_answer(gateway: Running) -> None:
    values = np.zeros(200_000, np.float32)
    values[-1] = np.nan
    entry = {"name": "x", "shape": [100_000, 2], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
    body, headers = parts(entry, blobs=values.tobytes())
    reply = gateway.infer(body, "unbatched.any", headers)
    assert reply.status == 400
    assert "output 'y' holds NaN" in json.loads(reply.body)["error"]


def test_a_long_answer_is_written_as_fast_as_its_client_reads_while_others_are_answered(gateway: Running) -> None:
    text = "some text " * 800_000
    entries = every_type(bytes=[text, ""])
    body, headers = parts(*entries, blobs=blobs_of(entries), outputs=[{"name": "bytes_out"}])
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as slow:
        slow.sendall(
            b"POST /v2/models/types.any/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b"
            b"Content-Length: %d\r\n\r\n" % (lines, len(body)) + body
        )
        head = slow.recv(100)
        assert head.startswith(b"HTTP/1.1 200 OK")
        for _ in range(3):
            assert gateway.infer(SAMPLE).status == 200
        with slow.makefile("rb") as rest:
            told = (head + rest.read()).partition(b"\r\n\r\n")[2]
    assert json.loads(told)["outputs"][0]["data"] == [text, ""]


# -- tensors ------------------------------------------------------------------------------------------------------------


@pytest.mark.protocol("v2 HTTP", "inputs in JSON between inputs in binary; tensors of no bytes", "supported", item=5)
def test_json_inputs_between_binary_ones_consume_nothing(gateway: Running) -> None:
    entries = every_type(int64=[5, 6], bytes=["é", ""], bool=[True, False], fp32=[1.5, 2])
    body, headers = parts(
        *entries, blobs=blobs_of(entries), outputs=[{"name": f"{n}_out"} for n in ("int64", "bytes", "fp32")]
    )
    found = outputs_of(gateway.infer(body, "types.any", headers))
    assert [found[f"{n}_out"]["data"] for n in ("int64", "bytes", "fp32")] == [[5, 6], ["é", ""], [1.5, 2.0]]
    nothing = {"name": "x", "shape": [0, 4], "datatype": "FP32", "parameters": {"binary_data_size": 0}}
    reply = gateway.infer(*[parts(nothing)[0], "unbatched.any", parts(nothing)[1]])
    assert reply.json()["outputs"][0]["shape"] == [4, 0]


@pytest.mark.protocol("v2 HTTP", "too many and too few bytes of tensors", "refused: 400 that says so", item=5)
@pytest.mark.parametrize(
    ("blobs", "size", "shape", "said"),
    [
        (BLOB + b"1", 16, [1, 4], "unexpected additional input data"),
        (BLOB[:-1], 16, [1, 4], "unexpected size"),
        (b"", 16, [1, 4], "unexpected size"),
        (BLOB, 16, [1, 3], "shape"),
        (BLOB, 16, [1, 8], "unexpected shape"),
        (BLOB, -1, [1, 4], "binary_data_size must be 0 or more"),
        (BLOB, 2**40, [1, 4], "binary_data_size"),
        (BLOB, 16, [2**32 + 1, 4], "dimension over"),
        (BLOB, 16, [70_000, 70_000], "more than a body of"),
    ],
)
def test_bytes_that_do_not_fit_are_the_clients_mistake(
    gateway: Running, blobs: bytes, size: int, shape: list[int], said: str
) -> None:
    entry = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}}
    body, headers = parts(entry, blobs=blobs)
    refused(gateway.infer(body, "double.any", headers), 400, "bad_request", said)
    assert gateway.infer(tensor(), "double.any").status == 200


@pytest.mark.protocol(
    "v2 HTTP", "data and binary_data_size together, or neither", "refused: each input has one of them", item=6
)
def test_an_input_has_its_data_in_one_place(gateway: Running) -> None:
    both = json.loads(tensor())["inputs"][0] | {"parameters": {"binary_data_size": 16}}
    body, headers = parts(both, blobs=BLOB)
    refused(gateway.infer(body, "double.any", headers), 400, "bad_request", "only one of")
    del both["parameters"], both["data"]
    refused(gateway.infer(json.dumps({"inputs": [both]}).encode(), "double.any"), 400, "bad_request", "data")


@pytest.mark.protocol("v2 HTTP", "shared memory", "refused: a client's memory is not the server's", item=6)
def test_shared_memory_is_refused_everywhere(gateway: Running) -> None:
    for path in ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/register"):
        refused(gateway.ask(path, b"" if "register" in path else None), 501, "unsupported", "shared memory")
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    refused(gateway.infer(tensor(parameters=region), "double.any"), 400, "bad_request", "inputs[0].parameters")
    answer = json.loads(tensor()) | {"outputs": [{"name": "y", "parameters": region}]}
    refused(gateway.infer(json.dumps(answer).encode(), "double.any"), 400, "bad_request", "outputs[0].parameters")


@pytest.mark.protocol(
    "v2 HTTP", "requested outputs; binary_data of each and binary_data_output of all", "supported", item=7
)
@pytest.mark.protocol(
    "v2 HTTP",
    "binary_data_output for outputs that are listed",
    "partly: as in Triton, a listed output is JSON unless it says binary_data itself",
    item=7,
)
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_outputs_come_as_they_were_asked_for(gateway: Running, is_large: bool) -> None:
    """Large JSON goes to Triton in binary, which must not show."""
    rows = 2000 if is_large else 2
    entry = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": [1.5] * rows * 4}

    def ask(**more: Any) -> tuple[list[str], dict[str, Any]]:
        reply = gateway.infer(json.dumps({"id": "seven", "inputs": [entry], **more}).encode(), "optional.any")
        assert reply.status == 200, reply.body
        length = reply.headers[LENGTH]
        answer = json.loads(reply.body if length is None else reply.body[: int(length)])
        assert (answer["id"], answer["model_name"], answer["model_version"]) == ("seven", "optional.any", "1")
        outputs = {o["name"]: o for o in answer["outputs"]}
        return sorted(n for n, o in outputs.items() if "data" not in o), outputs

    in_binary, outputs = ask()
    assert (in_binary, sorted(outputs)) == ([], ["y", "z"])
    assert outputs["z"]["data"] == [-1.5] * rows * 4
    assert ask(outputs=[]) == (in_binary, outputs)
    assert sorted(ask(outputs=[{"name": "z"}])[1]) == ["z"]
    assert ask(outputs=[{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}])[0] == ["y"]
    assert ask(parameters={"binary_data_output": True})[0] == ["y", "z"]
    assert ask(parameters={"binary_data_output": True}, outputs=[{"name": "z"}])[0] == []


@pytest.mark.protocol(
    "v2 HTTP", "an input or an output that is named twice", "refused: 400; Triton would take one of the two in silence"
)
@pytest.mark.parametrize("rows", [1, 1000], ids=["small", "large"])
@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_what_is_named_twice_is_refused(gateway: Running, key: str, rows: int) -> None:
    body = json.loads(tensor(shape=[rows, 4], data=[1.5] * 4 * rows)) | {"outputs": [{"name": "y"}]}
    body[key] *= 2
    refused(gateway.infer(json.dumps(body).encode(), "double.any"), 400, "bad_request", f"{key}[1]")


def test_an_answer_without_a_byte_of_binary_is_plain_json(gateway: Running) -> None:
    """Item 8."""
    nothing = {"name": "x", "shape": [0, 4], "datatype": "FP32", "parameters": {"binary_data_size": 0}}
    body, headers = parts(nothing, parameters={"binary_data_output": True})
    reply = gateway.infer(body, "unbatched.any", headers)
    assert (reply.headers["Content-Type"], reply.headers[LENGTH]) == ("application/json", None)
    assert reply.json()["outputs"][0]["parameters"] == {"binary_data_size": 0}


@pytest.mark.protocol(
    "v2 HTTP", "outputs and inputs that the model does not have", "refused: 400 that names them", item=7
)
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"outputs": [{"name": "nope"}]}, "nope"),
        ({"inputs": []}, "missing required input"),
        ({"inputs": json.loads(tensor())["inputs"] * 2}, "already exists"),
        ({"inputs": json.loads(tensor(name="z"))["inputs"]}, "z"),
        ({"outputs": None}, "'outputs' must be an array"),
        ({"id": 7}, "'id' must be a string"),
        ({"parameters": {"mine": {"a": 1}}}, "mine"),
        ({"parameters": {"priority": -1}}, "priority must be 0 or more"),
        ({"parameters": {"timeout": 2**64}}, "timeout"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 2**40}}]}, "classification"),
    ],
)
def test_what_the_model_does_not_have_is_named(gateway: Running, request_: dict[str, Any], said: str) -> None:
    body = json.dumps(json.loads(tensor()) | request_).encode()
    refused(gateway.infer(body, "double.any"), 400, "bad_request", said)


# -- values -------------------------------------------------------------------------------------------------------------


@pytest.mark.protocol("v2 HTTP", "BYTES in JSON, as UTF-8 text, and in binary", "supported", item=11)
@pytest.mark.parametrize(
    ("blob", "said"),
    [
        (struct.pack("<I", 9) + b"a" * 6, ""),
        (struct.pack("<I", 2**31) + b"a" * 6, ""),
        (b"\1\0\0", ""),
        (struct.pack("<I1s", 1, b"a"), ""),
        (struct.pack("<I1sI1sI1s", 1, b"a", 1, b"b", 1, b"c"), ""),
    ],
)
def test_text_whose_lengths_lie_is_the_clients_mistake(gateway: Running, blob: bytes, said: str) -> None:
    entries = every_type()
    entries[-1]["parameters"]["binary_data_size"] = len(blob)
    body, headers = parts(*entries, blobs=blobs_of(entries[:-1]) + blob)
    refused(gateway.infer(body, "types.any", headers), 400, "bad_request", said)


@pytest.mark.protocol("v2 HTTP", "FP16 and BF16 in binary", "supported", item=14)
@pytest.mark.protocol(
    "v2 HTTP", "FP16 and BF16 in JSON", "refused: Triton has no JSON form of them; 400 before the model runs", item=14
)
@pytest.mark.parametrize("more", [{}, {"outputs": [{"name": "fp16_out"}]}, {"outputs": [{"name": "fp32_out"}, {"name": "fp16_out", "parameters": {"binary_data": False}}]},
                                  {"parameters": {"binary_data_output": True}, "outputs": [{"name": "fp16_out"}]}])  # fmt: skip
def test_half_precision_is_not_told_as_json_and_the_model_is_not_asked(gateway: Running, more: dict[str, Any]) -> None:
    def num_run() -> int:
        """Executions of three rows: with 1, 8 and 16 the gateway measures the model meanwhile."""
        [row] = gateway.ask("/v2/models/types.any/stats").json()["model_stats"]
        return sum(int(it["compute_infer"]["count"]) for it in row["batch_stats"] if it["batch_size"] == 3)

    before = final_count(num_run)
    entries = every_type(3)
    body, headers = parts(*entries, blobs=blobs_of(entries), **more)
    refused(gateway.infer(body, "types.any", headers), 400, "bad_request", "output 'fp16_out' is FP16 or BF16")
    entries = every_type(3, fp16=[1, 2] * 3)
    body, headers = parts(*entries, blobs=blobs_of(entries), parameters={"binary_data_output": True})
    refused(gateway.infer(body, "types.any", headers), 400, "bad_request", "FP16")
    assert final_count(num_run) == before
    entries = every_type(3)
    body, headers = parts(
        *entries, blobs=blobs_of(entries), outputs=[{"name": "fp16_out", "parameters": {"binary_data": True}}]
    )
    assert gateway.infer(body, "types.any", headers).status == 200
    wait_until(lambda: num_run() > before, "Triton has counted it, which it does after it has answered")
    assert num_run() == before + 1


@pytest.mark.protocol(
    "v2 HTTP",
    "NaN and infinity in binary, in requests and answers",
    "supported",
    item=16,
)
@pytest.mark.protocol(
    "v2 HTTP",
    "NaN and infinity in answers as JSON",
    "refused: JSON has neither; 400 names the output and the way to ask for it in binary",
    item=16,
)
@pytest.mark.protocol("v2 HTTP", "NaN and infinity in JSON requests", "refused: JSON has neither; send binary", item=16)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "Inf"])
@pytest.mark.parametrize("rows", [1, 1000])
def test_nan_is_taken_in_binary_only(gateway: Running, word: str, rows: int) -> None:
    body = tensor(shape=[rows, 4], data=[1.25] * rows * 4).replace(b"1.25]", word.encode() + b"]")
    refused(gateway.infer(body, "double.any"), 400, "bad_request", "JSON")
    body, headers = binary([float("nan"), float("inf"), float("-inf"), 1])
    refused(gateway.infer(body, "double.any", headers), 400, "bad_request", "'y'")
    body, headers = binary([float("nan"), float("inf"), float("-inf"), 1], parameters={"binary_data_output": True})
    answer = gateway.infer(body, "double.any", headers)
    values = np.frombuffer(answer.body[int(answer.headers["Inference-Header-Content-Length"]) :], "<f4")
    assert values[1:].tolist() == [float("inf"), float("-inf"), 2.0]
    assert np.isnan(values[0])


@pytest.mark.protocol(
    "v2 HTTP",
    "parameters that Triton does not know go to models whose backend may read them (Python, custom)",
    "partly: 400 that names them for graphs (ONNX Runtime, TensorRT, …), and on inputs and outputs, where nobody reads them",
)
@pytest.mark.parametrize("num_more", [0, 8000])
def test_parameters_that_nobody_reads_are_named(gateway: Running, num_more: int) -> None:
    entry = json.loads(tensor())["inputs"][0]
    for body in (
        {"inputs": [entry], "parameters": {"mine": 1, "priority": 1}, "id": "i" * num_more},
        {"inputs": [{**entry, "parameters": {"mine": 1}}], "id": "i" * num_more},
        {"inputs": [entry], "outputs": [{"name": "y", "parameters": {"mine": 1}}], "id": "i" * num_more},
    ):
        refused(gateway.infer(json.dumps(body).encode(), "double.any"), 400, "bad_request", "'mine'")


@pytest.mark.protocol(
    "v2 HTTP", "integers outside their type in JSON", "refused: Triton would cut them off in silence", item=17
)
@pytest.mark.parametrize("num_more", [0, 4000])
@pytest.mark.parametrize(
    ("name", "bad"), [("uint8", 256), ("uint8", -1), ("int8", 128), ("uint16", 2**16), ("int32", 2**31), ("uint32", -1), ("uint64", 2**64), ("int64", -(2**63) - 1), ("int64", 1.5), ("int32", 1.0), ("int32", 1e30)]
)  # fmt: skip
def test_integers_are_never_cut_off(gateway: Running, name: str, bad: float, num_more: int) -> None:
    shape = [1, num_more + 2]
    entry = {"name": name, "shape": shape, "datatype": name.upper(), "data": [*[1] * num_more, 1, bad]}
    refused(
        gateway.infer(json.dumps({"inputs": [entry]}).encode(), "types.any"), 400, "bad_request", f"inputs[0] '{name}'"
    )


@pytest.mark.protocol("v2 HTTP", "64-bit integers in JSON, exact in both directions", "supported", item=18)
@pytest.mark.parametrize("num_more", [0, 3000])
def test_64_bit_integers_stay_exact(gateway: Running, num_more: int) -> None:
    wide = {"int64": [-(2**63), 2**63 - 1], "uint64": [2**64 - 1, 2**53 + 1]}
    given: dict[str, Any] = {name: [*values, *[1] * num_more] for name, values in wide.items()}
    entries = [{"name": n, "shape": [1, num_more + 2], "datatype": n.upper(), "data": v} for n, v in given.items()]
    others = [
        e | {"shape": [1, num_more + 2], "data": ["a" if e["name"] == "bytes" else 1] * (num_more + 2)}
        for e in every_type()
        if e["name"] not in (*wide, "fp16")
    ]
    for entry in others:
        entry.pop("parameters", None)
        if entry["name"] == "bool":
            entry["data"] = [True] * (num_more + 2)
    half = {
        "name": "fp16",
        "shape": [1, num_more + 2],
        "datatype": "FP16",
        "parameters": {"binary_data_size": 2 * (num_more + 2)},
    }
    body, headers = parts(
        *entries, *others, half, blobs=bytes(2 * (num_more + 2)), outputs=[{"name": f"{n}_out"} for n in wide]
    )
    found = outputs_of(gateway.infer(body, "types.any", headers))
    for name, values in given.items():
        assert found[f"{name}_out"]["data"] == values


@pytest.mark.protocol(
    "v2 HTTP",
    "large JSON tensors of numbers (8 KiB and more), which go to Triton in binary: same answers, faster",
    "supported",
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_large_json_gives_what_the_same_in_binary_gives(gateway: Running, is_nested: bool) -> None:
    values = (np.random.default_rng(2).standard_normal((4000, 4)) * 10.0 ** np.arange(-20, 20, 10)).astype(np.float64)
    entry = {"name": "x", "shape": [4000, 4], "datatype": "FP32"}
    data = values.tolist() if is_nested else values.ravel().tolist()
    body = json.dumps({"inputs": [entry | {"data": data}], "parameters": {"binary_data_output": True}}).encode()
    blob = values.astype(np.float32).tobytes()
    same, headers = parts(
        entry | {"parameters": {"binary_data_size": len(blob)}}, blobs=blob, parameters={"binary_data_output": True}
    )
    found, expected = gateway.infer(body, "unbatched.any"), gateway.infer(same, "unbatched.any", headers)
    assert found.status == expected.status == 200
    assert found.body == expected.body


@pytest.mark.protocol(
    "v2 HTTP",
    "classification: the k best as value:index, JSON and binary, small and large requests",
    "supported",
    item=39,
)
@pytest.mark.parametrize(("id_length", "k"), [(2, 2), (2, 99), (9000, 3)])
def test_classes_come_as_text_best_first(gateway: Running, id_length: int, k: int) -> None:
    entry = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 3, 2, 0, 1, 3, 2, 0]}
    wanted = [{"name": "y", "parameters": {"classification": k}}]
    body = json.dumps({"id": "i" * id_length, "inputs": [entry], "outputs": wanted}).encode()
    [output] = gateway.infer(body, "double.any").json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, min(k, 4)])
    assert [text.split(":")[1] for text in output["data"][: min(k, 4)]] == ["1", "2", "0", "3"][: min(k, 4)]


# -- names, versions, paths --------------------------------------------------------------------------------------------


@pytest.mark.protocol(
    "v2 HTTP",
    'errors are {"error": "<text>"} with Triton\'s statuses, a client\'s mistake never 500',
    "supported",
    item=19,
)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_whatever_is_asked_the_error_is_v2s(gateway: Running, method: str) -> None:
    for path in ("/v2", "/v2/models/digits", "/v2/models/digits/infer", "/v2/repository/index", "/v2/health/ready"):
        refused(gateway.ask(path, method=method), 405, "bad_request", "not taken" if "infer" not in path else "")


@pytest.mark.protocol(
    "v2 HTTP", "metadata, configuration, statistics and readiness by name and by version", "supported", item=32
)
def test_every_path_of_a_model_takes_a_version(gateway: Running) -> None:
    for model in ("digits", "digits-fp32", "double.any"):
        for what in ("", "/config", "/stats", "/ready"):
            plain, versioned = (gateway.ask(f"/v2/models/{model}{v}{what}") for v in ("", "/versions/1"))
            assert plain.status == versioned.status == 200, what
            told = plain.json()
            row = told["model_stats"][0] if what == "/stats" else told
            assert row["name"] == model
            for wrong in ("/versions/7", "/versions/x", "/versions/-1", "/versions/99999999999"):
                refused(gateway.ask(f"/v2/models/{model}{wrong}{what}"), 404, "not_found")
    assert gateway.ask("/v2/models/digits/versions/1").json()["versions"] == ["1"]
    assert gateway.infer(SAMPLE).json()["model_version"] == "1"


@pytest.mark.protocol("v2 HTTP", "HEAD wherever there is GET", "supported")
def test_head_is_get_without_its_body(gateway: Running) -> None:
    for path in ("/v2", "/v2/models/digits", "/v2/health/live", "/health/ready", "/metrics", "/v2/models/stats"):
        reply = gateway.ask(path, method="HEAD")
        assert (reply.status, reply.body) == (200, b""), path
        assert int(reply.headers["Content-Length"]) > 0
    assert gateway.ask("/v2/models/nobody", method="HEAD").status == 404


@pytest.mark.protocol(
    "v2 HTTP",
    "percent-encoded names",
    "partly: they are decoded; an encoded slash is refused, because it can be read in two ways",
    item=50,
)
def test_names_are_decoded_once(gateway: Running) -> None:
    assert gateway.infer(SAMPLE, "d%69gits").json()["model_name"] == "digits"
    assert gateway.ask("/v2/models/d%69gits/ready").status == 200
    for path in ("/v2/models%2Fdigits/infer", "/v2/models/digits%2finfer", "/v2/models/a%2Fb", "/v2/models/d%2569gits"):
        assert gateway.ask(path, SAMPLE).status in (400, 404), path
    for name in ("%E6%97%A5", "*"):
        refused(gateway.infer(SAMPLE, name), 404, "not_found")
    for name in ("", "..", "%FF", "digits%00", "digits%0a", "digits%20"):
        assert gateway.infer(SAMPLE, name).status in (400, 404), name


@pytest.mark.protocol("v2 HTTP", "server metadata: only the extensions that are really carried", "supported", item=33)
def test_the_metadata_promises_what_is_kept(gateway: Running) -> None:
    told = gateway.ask("/v2").json()
    assert gateway.ask("/v2/").json() == told
    assert told["extensions"] == ["binary_tensor_data", "classification", "model_configuration", "model_repository", "parameters", "statistics"]  # fmt: skip


@pytest.mark.protocol(
    "v2 HTTP", "health and readiness, as JSON with the status; known but away is 503, unknown 404", "supported", item=29
)
def test_readiness_tells_away_from_unknown(gateway: Running) -> None:
    assert gateway.ask("/v2/health/ready").json() == {"ready": True}
    assert gateway.ask("/v2/models/double.any/ready").json() == {"name": "double.any", "ready": True}
    refused(gateway.ask("/v2/models/nobody/ready"), 404, "not_found")


@pytest.mark.protocol("v2 HTTP", "repository index: public names, then those that pin a variant", "supported", item=34)
@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready":false}', b'{"ready":true}', b'{"another":1}'])
def test_the_index_is_an_array(gateway: Running, body: bytes) -> None:
    rows = gateway.ask("/v2/repository/index", body).json()
    assert {"name": "digits", "version": "1", "state": "READY"} in rows
    names = [row["name"] for row in rows]
    assert names.index("digits") < names.index("digits-fp32")
    assert b"true" not in body or {row["state"] for row in rows} == {"READY"}


@pytest.mark.protocol("v2 HTTP", "bodies of the index, of load and of unload, in gzip and deflate", "supported")
@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_small_bodies_may_be_compressed(gateway: Running, coding: str, pack: Callable[[bytes], bytes]) -> None:
    index, load, unload = (
        "/v2/repository/index",
        "/v2/repository/models/nobody/load",
        "/v2/repository/models/nobody/unload",
    )
    headers = {"Content-Encoding": coding}
    assert {row["state"] for row in gateway.ask(index, pack(b'{"ready":true}'), headers).json()} == {"READY"}
    assert gateway.ask(index, b"", headers).status == 200
    for path in (index, load, unload):
        refused(gateway.ask(path, b"{}", headers), 400, "bad_request")
        refused(gateway.ask(path, pack(b"[]"), headers), 400, "bad_request")
        refused(gateway.ask(path, pack(b" " * (64 * 1024 + 1)), headers), 413, "too_large")
        reply = gateway.ask(path, b"{}", {"Content-Encoding": "br"})
        refused(reply, 501, "unsupported")
        assert reply.headers["Accept-Encoding"] == "gzip, deflate"
    for path in (load, unload):  # read, and then the model is looked for
        refused(gateway.ask(path, pack(b"{}"), headers), 404, "not_found")


TWICE = b'{"ready":false,"ready":true}'


@pytest.mark.protocol(
    "v2 HTTP", "an index of the models that are ready alone (`ready: true`); anything but a boolean is 400", "supported"
)
@pytest.mark.parametrize(
    "body", [b'{"ready":"true"}', b'{"ready":1}', b'{"ready":null}', b" ", b"[]", b"{", b"\xff", TWICE]
)
def test_the_index_takes_only_one_boolean_for_ready(gateway: Running, body: bytes) -> None:
    refused(gateway.ask("/v2/repository/index", body), 400, "bad_request", "")


@pytest.mark.protocol("v2 HTTP", "trace and logging control", "refused: they are set on Triton itself", item=38)
@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/logging", "/v2/models/digits/trace/setting"])
def test_tracing_and_logging_are_refused_with_a_sentence(gateway: Running, path: str) -> None:
    for body in (None, b"{}"):
        reply = gateway.ask(path, body)
        refused(reply, 501, "unsupported", "set on Triton itself")


@pytest.mark.protocol(
    "v2 HTTP",
    "sequences (sequence_id, sequence_start, sequence_end)",
    "refused: no state is kept between requests",
    item=27,
)
@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
@pytest.mark.parametrize("rows", [1, 1000])
def test_sequences_are_refused_with_a_sentence(gateway: Running, name: str, rows: int) -> None:
    body = json.dumps(json.loads(tensor(shape=[rows, 4], data=[1] * 4 * rows)) | {"parameters": {name: 1}}).encode()
    refused(gateway.infer(body, "double.any"), 501, "unsupported", "sequence")


@pytest.mark.protocol(
    "v2 HTTP",
    "a shape that makes Triton 2.51 ask for more memory than there is",
    "refused: a tensor has at most as many elements as the body has bytes",
    item=45,
)
@pytest.mark.parametrize("shape", [[2**32 + 1, 4], [2**62], [65_536, 65_536], [10_000_000, 4]])
def test_a_shape_that_kills_triton_is_refused(gateway: Running, shape: list[int]) -> None:
    refused(gateway.infer(tensor(shape=shape), "double.any"), 400, "bad_request", "shape")
    assert gateway.infer(tensor(), "double.any").status == 200


@pytest.mark.protocol(
    "v2 HTTP",
    "a byte-order mark, text that is not UTF-8",
    "refused: Triton takes the one and echoes the other, and its answer is no JSON",
    item=52,
)
@pytest.mark.parametrize(
    ("body", "said"), [(b"\xef\xbb\xbf" + tensor(), "byte-order mark"), (tensor()[:-1] + b',"id":"\xff"}', "UTF-8")]
)
def test_what_is_no_utf_8_json_is_refused(gateway: Running, body: bytes, said: str) -> None:
    refused(gateway.infer(body, "double.any"), 400, "bad_request", said)
