"""What a soak sends: every surface that its repository has models for, over HTTP and gRPC, and clients that misbehave.

Every body is another one, or a request that was there when two servers died would be refused as the one that killed them. Over gRPC the
outcome of each call becomes a `Shot` with the status that HTTP has for it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import numpy as np
import orjson
from PIL import Image
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

from loadtest.bench.surfaces.grpc_ends import METHOD, SERVICE
from loadtest.processes import ROOT
from loadtest.sending.bodies import encode, signature
from loadtest.sending.inputs import bodies, digits
from loadtest.sending.link import Request
from loadtest.sending.sender import TIME_LIMIT_S, Load, event_loop
from loadtest.sending.sent_request import Shot
from serving.errors import HTTP
from serving.http_client import address, request_bytes
from serving.repository import Repository
from serving.repository.preprocessing import TextPreprocessing, from_json

MODEL = "digits"
DEADLINE_MS = 5000  # of the mix: clients that wait, so that a second try has time
FLOOD_DEADLINE_MS = 1000
EACH = 300  # different bodies of a kind
JSON_PARTS, BINARY_PARTS = 4, 3  # of the mix, where each other surface is one
LARGE_ROWS = 32
SENTENCES = ROOT / "loadtest" / "payloads" / "sentences.txt"
GRPC_STATUS = {name: status for status, name in HTTP.values()}


def surfaces(url: str, metadata: dict[str, object], repository: Path) -> dict[str, list[Request]]:
    """Requests by surface, of digits and of a text model where the repository has one."""
    takes = signature(metadata)
    given = digits(takes)
    deadline = {"Tandem-Deadline-Ms": str(DEADLINE_MS)}
    found = {}
    for encoding in ("json", "binary"):
        made = bodies(takes, given, encoding, 1)[:EACH]
        found[encoding] = [
            _request(url, f"/v2/models/{MODEL}/infer", body.data, body.headers | deadline) for body in made
        ]
    json_headers = {"Content-Type": "application/json", **deadline}
    pixels = next(iter(given.arrays.values()))[:EACH]
    found["classify"] = [
        _request(
            url, f"/v1/classify/{MODEL}", orjson.dumps({"images": [base64.b64encode(_png(one)).decode()]}), json_headers
        )
        for one in pixels
    ]
    if embedder := text_model(repository):
        lines = [line for line in SENTENCES.read_text().splitlines() if line]
        texts = [
            orjson.dumps({"model": embedder, "input": [line, other], "truncate": True})
            for line, other in itertools.pairwise(lines)
        ]
        found["embeddings"] = [_request(url, "/v1/embeddings", text, json_headers) for text in texts]
    return found


def mixed(found: dict[str, list[Request]], num: int = 4 * EACH) -> list[Request]:
    """One row of requests in which each surface has its part."""
    parts = {"json": JSON_PARTS, "binary": BINARY_PARTS}
    turns = {name: itertools.cycle(requests) for name, requests in found.items()}
    turn = [name for name in found for _ in range(parts.get(name, 1))]
    return [next(turns[name]) for name in itertools.islice(itertools.cycle(turn), num)]


def flood(url: str, metadata: dict[str, object]) -> list[Request]:
    """Digits that the mix does not send."""
    takes = signature(metadata)
    given = digits(takes)
    headers = {"Tandem-Deadline-Ms": str(FLOOD_DEADLINE_MS)}
    made = bodies(takes, given, "json", 1)
    return [_request(url, f"/v2/models/{MODEL}/infer", body.data, body.headers | headers) for body in made[::-1][:EACH]]


def _request(url: str, path: str, body: bytes, headers: dict[str, str]) -> Request:
    return Request(address(url), request_bytes("POST", url, path, headers, body))


def _png(digit: np.ndarray) -> bytes:
    """float32 [1, 8, 8] in 0..1."""
    output = io.BytesIO()
    Image.fromarray((digit.reshape(8, 8) * 255).astype(np.uint8), "L").save(output, "PNG")
    return output.getvalue()


def text_model(repository: Path) -> str | None:
    for variant in Repository(repository).readable()[0]:
        if variant.record.preprocessing is not None:
            found = from_json((variant.directory / variant.record.preprocessing).read_text())
            if isinstance(found, TextPreprocessing) and found.pooling != "none":
                return variant.record.model
    return None


# -- gRPC ---------------------------------------------------------------------------------------------------------------


def messages(metadata: dict[str, object]) -> list[bytes]:
    given = digits(signature(metadata))
    ((name, pixels),) = given.arrays.items()
    found = []
    for one in pixels[EACH : 2 * EACH]:
        message = service_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[one.astype("<f4").tobytes()])
        message.inputs.add(name=name, datatype="FP32", shape=[1, *one.shape])
        found.append(message.SerializeToString())
    return found


@contextmanager
def calls(authority: str, requests: Sequence[bytes], arrivals: Iterable[float]) -> Iterator[Load]:
    """`open_load` over gRPC: beside the block, one channel; leaving the block waits for the last arrival and the last answer."""
    load = Load(began_s=time.monotonic())
    with event_loop(lambda: _send_calls(authority, requests, arrivals, load), load.is_over):
        yield load


async def _send_calls(authority: str, requests: Sequence[bytes], arrivals: Iterable[float], load: Load) -> None:
    options = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
    async with grpc.aio.insecure_channel(authority, options=options) as channel:
        infer = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        under_way = set[asyncio.Task[None]]()
        for number, at_s in enumerate(arrivals):
            due_s = load.began_s + at_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.ensure_future(_call(infer, requests[number % len(requests)], due_s, load))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)


async def _call(infer: grpc.aio.UnaryUnaryMultiCallable, request: bytes, due_s: float, load: Load) -> None:
    sent_s, metadata = time.monotonic(), (("tandem-deadline-ms", str(DEADLINE_MS)),)
    try:
        await infer(request, metadata=metadata, timeout=TIME_LIMIT_S)
    except grpc.aio.AioRpcError as error:
        told = dict(error.trailing_metadata() or ())
        kind, details = str(told.get("tandem-error", "")), str(error.details())
        retry = told.get("retry-after")
        is_sent = bool(kind) or "failed to connect" not in details.lower()
        shot = Shot(
            due_s,
            sent_s,
            time.monotonic(),
            GRPC_STATUS.get(kind),
            tandem_error=kind,
            retry_after=str(retry) if retry is not None else None,
            error=f"gRPC {error.code().name}: {details[:120]}",
            is_sent=is_sent,
        )
    else:
        shot = Shot(due_s, sent_s, time.monotonic(), 200)
    load.shots.append(shot)


# -- slow clients -------------------------------------------------------------------------------------------------------


def large(metadata: dict[str, object]) -> bytes:
    """A request of as many digits as the model takes at once."""
    takes = signature(metadata)
    given = digits(takes)
    batch = {name: values[:LARGE_ROWS] for name, values in given.arrays.items()}
    return encode(takes, batch, (), "json").data


def read_slowly(url: str, body: bytes, lasting_s: float, num_requests: int = 400) -> int:
    """Asks for much at once and takes the answers a byte at a time, with the smallest of windows. The bytes that came."""
    request = request_bytes("POST", url, f"/v2/models/{MODEL}/infer", {"Content-Type": "application/json"}, body)
    end_s, num_bytes = time.monotonic() + lasting_s, 0
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.settimeout(0.5)
        with suppress(OSError):
            client.connect(address(url))
            asking = threading.Thread(target=_ask, args=(client, request * num_requests), daemon=True)
            asking.start()
            while time.monotonic() < end_s:
                with suppress(TimeoutError):
                    if not client.recv(1):
                        break
                    num_bytes += 1
                time.sleep(0.02)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
    return num_bytes


def _ask(client: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        client.sendall(data)


def write_slowly(url: str, body: bytes, lasting_s: float) -> bool:
    """Sends a body a byte at a time. Whether the gateway said something before it was whole."""
    request = request_bytes("POST", url, f"/v2/models/{MODEL}/infer", {"Content-Type": "application/json"}, body)
    end_s = time.monotonic() + lasting_s
    with suppress(OSError), socket.create_connection(address(url), timeout=5.0) as client:
        head = request.index(b"\r\n\r\n") + 4
        client.sendall(request[:head])
        client.settimeout(0.05)
        for number in range(head, len(request)):
            client.sendall(request[number : number + 1])
            with suppress(TimeoutError):
                return bool(client.recv(1))
            if time.monotonic() > end_s:
                return False
    return True
