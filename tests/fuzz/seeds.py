"""Where fuzzers begin: requests that are in order, one of each kind, and words that mean something in them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from tests.fuzz.targets import TARGETS

ENTRY: dict[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, -3e-3, 4]}
WORDS = [
    b'"inputs"', b'"outputs"', b'"parameters"', b'"shape"', b'"datatype"', b'"data"', b'"name"', b'"id"', b'"timeout":1', b"null", b"true",
    b"\\u0073hared_memory_region", b'"shared_memory_region":"r"', b'"SHARED_MEMORY_offset":0', b'"binary_data_size":16',
    b'"binary_data":true', b'"classification":3', b'"sequence_id":1', b'"priority":1', b"NaN", b"-Infinity", b"1e999", b"-0", b"2.5",
    b"18446744073709551616", b"-9223372036854775809", b"[[[[", b"{}", b"]", b"}", b",", b":", b'"', b"\\", b"\x00", b"\xff", b"\xef\xbb\xbf",
    b"INT8", b"UINT64", b"BYTES", b"BOOL", b"FP16", b"4294967297", b"\xc3\x28", b"\\ud800", b'"images"', b'"top_k":2', b'"model"',
    b'"input"', b'"dimensions":8', b'"encoding_format":"base64"', b"\r\n", b"--b", b"--b--", b"%2f", b"%", b"..", b"/", b"?", b"#", b" ",
    b"chunked", b"transfer-encoding:chunked", b"host:x", b"expect:100-continue", b"content-length:3", b"\n",
]  # fmt: skip


def seeds(target: str) -> list[bytes]:
    return SEEDS[target]


def _requests() -> list[bytes]:
    bodies: list[dict[str, Any]] = [
        {"inputs": [ENTRY]},
        {"id": "1", "inputs": [ENTRY], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        {"inputs": [{**ENTRY, "data": [[1, 2, 3, 4]]}], "parameters": {"timeout": 1000, "priority": 2}},
        {"inputs": [{**ENTRY, "datatype": "INT8", "data": [-128, 0, 1, 127]}]},
        {"inputs": [{**ENTRY, "datatype": "UINT64", "data": [0, 1, 2**63, 2**64 - 1]}]},
        {"inputs": [{**ENTRY, "datatype": "BYTES", "data": ["a", "ü", "", "\u0000"]}]},
        {"inputs": [{**ENTRY, "datatype": "BOOL", "data": [True, False, 1, 0]}]},
        {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP16", "parameters": {"binary_data_size": 8}}]},
        {"inputs": [ENTRY, {**ENTRY, "name": "z"}], "parameters": {"binary_data_output": True, "mine": "yes"}},
        {"inputs": [{"name": "x", "shape": [], "datatype": "FP64", "data": [1]}], "outputs": []},
    ]
    odd = b'{"inputs":[{"name":"x","shape":[1],"shape":[2],"datatype":"FP32","data":[1,2],"parameters":{"a":1,"a":2}}]}'
    return [json.dumps(body).encode() for body in bodies] + [odd]


def _embeddings() -> list[bytes]:
    inputs: list[Any] = ["a text", ["a", "b"], [1, 2, 3], [[1, 2], [3]]]
    more: list[dict[str, Any]] = [{}, {"encoding_format": "base64"}, {"dimensions": 8, "user": "u"}, {"truncate": True}]
    return [json.dumps({"model": "m", "input": one, **extra}).encode() for one in inputs for extra in more]


def _classify() -> list[bytes]:
    image = base64.b64encode(b"\x89PNG\r\n\x1a\n0000").decode()
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n'
    top_k = b'--b\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n3\r\n'
    return [
        b"application/json\n\n" + json.dumps({"images": [image, image], "top_k": 2}).encode(),
        b"application/json\ntop_k=3\n" + json.dumps({"images": ["data:image/png;base64," + image, 5]}).encode(),
        b"multipart/form-data; boundary=b\n\n" + part + part + top_k + b"--b--\r\n",
        b"multipart/form-data; boundary=b\ntop_k=3\n" + part + b"--b--",
        b"image/png\n\n\x89PNG\r\n\x1a\n",
        b"\n\n\xff\xd8\xff\xe0",
    ]


def _grpc_requests() -> list[bytes]:
    made = []
    for raw in (True, False):
        request = pb.ModelInferRequest(model_name="m", model_version="1", id="i")
        request.parameters["timeout"].int64_param = 100
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        tensor.parameters["a"].string_param = "b"
        request.outputs.add(name="y").parameters["classification"].int64_param = 2
        if raw:
            request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
        else:
            tensor.contents.fp32_contents.extend([1, 2, 3, 4])
        made.append(request.SerializeToString())
    for datatype, name, values in (
        ("INT8", "int_contents", [1, -128]),
        ("UINT8", "uint_contents", [1, 255]),
        ("INT64", "int64_contents", [1, -1]),
        ("UINT64", "uint64_contents", [1, 2**64 - 1]),
        ("BOOL", "bool_contents", [True, False]),
        ("BYTES", "bytes_contents", [b"a", b"\xff"]),
        ("FP64", "fp64_contents", [1.5, -2]),
    ):
        request = pb.ModelInferRequest(model_name="m")
        tensor = request.inputs.add(name="x", datatype=datatype, shape=[2])
        getattr(tensor.contents, name).extend(values)
        made.append(request.SerializeToString())
    return made


def _grpc_answers() -> list[bytes]:
    output = {"name": "y", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
    body = json.dumps(
        {"model_name": "m", "model_version": "1", "id": "i", "parameters": {"a": 1.5, "b": True}, "outputs": [output]}
    )
    return [len(body).to_bytes(2, "little") + body.encode() + b"\0\0\0\0", (2).to_bytes(2, "little") + b"{}"]


def _heads() -> list[bytes]:
    return [
        b"POST /v2/models/m/infer 1.1\nHost:x\nContent-Length:3\nContent-Type:application/json",
        b"GET /v2/models/%6d?a=b 1.1\nhost:[::1]:8080\nExpect:100-continue",
        b"POST /v1/embeddings 1.0\nTransfer-Encoding:chunked",
    ]


SEEDS: dict[str, list[bytes]] = {
    "v2_head": _requests(),
    "v2_explain": _requests(),
    "v2_json_tensors": _requests(),
    "openai_embeddings": _embeddings(),
    "classify_body": _classify(),
    "grpc_request": _grpc_requests(),
    "grpc_answer": _grpc_answers(),
    "http_request_head": _heads(),
    "header_values": [b"100", b"1", b"0.5", b"1e3", b"inf", b"nan", b"-1", b"5", b"99"],
}
assert SEEDS.keys() == TARGETS.keys()
