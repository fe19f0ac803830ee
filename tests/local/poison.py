"""Requests that a Triton works on for minutes, and clients that leave without waiting for the answer. They talk to Triton itself, past every limit of a gateway.

The models: `loop` and `double` of `models.py`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc

from tests.local.harness import Served

FOREVER = 10**9  # rounds of the loop: about an hour
ROW = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


def rounds(number: int) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [number]}]}).encode()


def with_parameters(number: int) -> bytes:
    return json.dumps({"inputs": [ROW], "parameters": {f"p{i}": i for i in range(number)}}).encode()


def with_inputs(number: int) -> bytes:
    return json.dumps({"inputs": [ROW | {"name": f"x{i}"} for i in range(number)]}).encode()


def send(url: str, model: str, body: bytes, headers: Mapping[str, str] | None = None) -> socket.socket:
    """A connection on which an answer is to come."""
    host, _, port = url.rpartition(":")
    client = socket.create_connection((host, int(port)))
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {url}\r\nContent-Length: {len(body)}\r\n"
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    client.sendall(f"{head}{more}\r\n".encode() + body)
    return client


def answer(url: str, model: str, body: bytes, headers: Mapping[str, str] | None = None, limit_s: float = 200.0) -> int:
    """The status, however long it takes."""
    with contextlib.closing(send(url, model, body, headers)) as client:
        client.settimeout(limit_s)
        return int(client.recv(65536).split()[1])


def is_ready(url: str, model: str) -> bool:
    with contextlib.suppress(OSError), contextlib.closing(HTTPConnection(url, timeout=10.0)) as client:
        client.request("GET", f"/v2/models/{model}/ready")
        return client.getresponse().status == 200
    return False


def _leaving(model: str, body: Callable[[int], bytes], size: int, times: int = 1) -> Callable[[Served], None]:
    def poison(served: Served) -> None:
        made = body(size)
        clients = [send(served.url, model, made) for _ in range(times)]
        for client in clients:
            client.close()

    return poison


def _grpc(served: Served) -> None:
    with triton_grpc.InferenceServerClient(served.grpc_url) as client:
        x: Any = triton_grpc.InferInput("x", [1], "INT64")
        x.set_data_from_numpy(np.array([FOREVER]))
        client.async_infer("loop", [x], callback=lambda result, error: None)
        client.get_server_metadata()  # behind it on the same connection


WAYS: dict[str, Callable[[Served], None]] = {
    "a loop of a model": _leaving("loop", rounds, FOREVER),
    "parameters": _leaving("double", with_parameters, 100_000),
    "inputs": _leaving("double", with_inputs, 400_000),
    "many at once": _leaving("double", with_parameters, 60_000, times=16),
    "gRPC": _grpc,
}
