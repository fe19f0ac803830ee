"""Every surface × every outcome: the same counting, status, headers and receipt, and nothing is left in flight.

A real gateway on HTTP and gRPC, before a server that does to an inference what the row says.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2 as pb

from loadtest.bench.made_models import BESIDE, PREPROCESSING, SIZE
from serving import errors
from serving.gateway.app import Gateway
from serving.gateway.classify.classifiers import Classifier
from serving.gateway.fleet.upstream import Lost
from serving.gateway.grpc.server import GrpcServer
from serving.gateway.listeners import listen
from serving.gateway.openai.embedders import Embedder
from serving.gateway.request import route
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.serve import server_of
from serving.ports import free_ports
from serving.preprocessing.texts import TextTokenizer
from serving.scheduling.bridge import Demand
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.usage.ledger import BYTES, DEVICE_S, DOLLARS, REQUESTS, Limit, Quotas
from tests.gateway.classify.conftest import COLOURS, png
from tests.gateway.odd_triton import BODY, GOOD, OddTriton, gateway_of, until

USED_BYTES = 10**6
EMBEDDER = Embedder(
    TextTokenizer(BESIDE["tokenizer.json"], PREPROCESSING), PREPROCESSING, np.int64, None, "vector", SIZE
)
CLASSIFIER = Classifier(COLOURS, "scores", 3, None, True, COLOURS.shape)
PIXELS = np.zeros(COLOURS.shape[1:] + COLOURS.shape[:1], np.uint8)
IMAGE = json.dumps({"images": [base64.b64encode(png(PIXELS)).decode()]}).encode()
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
HEAD = json.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": 16}}]}).encode()
LENGTH = {"inference-header-content-length": str(len(HEAD))}
RECEIPT = {
    "tandem-pool",
    "tandem-device",
    "tandem-variant",
    "tandem-engine",
    "tandem-dtype",
    "tandem-model-digest",
    "tandem-gate",
} | {
    "tandem-reason",
    "server-timing",
    "tandem-request-id",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a client is told: the HTTP status, or what stands for it in gRPC; headers, trailing metadata or parameters; all in all."""

    status: int
    headers: dict[str, str]


@dataclass
class Stand:
    gateway: Gateway
    triton: OddTriton
    http_port: int
    channel: Any

    def outcomes(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for series in self.gateway.metrics._series.values():
            series.settle()
            counted.update(series.outcomes)
        return +counted

    @property
    def is_idle(self) -> bool:
        queue = self.gateway.candidates.queues["cpu"]
        return not (
            queue.num_waiting
            or self.gateway.catalogue.in_flight("cpu")
            or any(replica.num_in_flight for replica in queue.replicas)
        )


Ask = Callable[[Stand, str, dict[str, str], bool], Awaitable[Told]]  # model, headers, whether the request is in order


async def http(stand: Stand, path: str, body: bytes, headers: dict[str, str]) -> Told:
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.http_port)
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        told = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
        await reader.readexactly(int(told["content-length"]))
        return Told(int(first.split(" ")[1]), told)
    finally:
        writer.transport.abort()


async def v2_json(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    return await http(stand, f"/v2/models/{model}/infer", BODY if is_good else b"[]", headers)


async def v2_binary(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    body = HEAD + bytes(16) if is_good else b""
    return await http(stand, f"/v2/models/{model}/infer", body, headers | LENGTH)


async def embeddings(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    body = {"model": model, "input": "a harbour"} | ({} if is_good else {"dimensions": SIZE + 1})
    return await http(stand, "/v1/embeddings", json.dumps(body).encode(), headers)


async def classify(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    body = IMAGE if is_good else b"{}"
    return await http(stand, f"/v1/classify/{model}", body, headers | {"content-type": "application/json"})


def message(model: str, is_good: bool) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(16 if is_good else 3)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return request


STATUS_OF = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


async def grpc_unary(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    method = stand.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    call = method(message(model, is_good), metadata=tuple(headers.items()))
    try:
        code = await call.code()
        return Told(STATUS_OF[code], dict(await call.trailing_metadata() or ()))
    except asyncio.CancelledError:
        call.cancel()
        raise


async def grpc_stream(stand: Stand, model: str, headers: dict[str, str], is_good: bool) -> Told:
    method = stand.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
    call = method(metadata=tuple(headers.items()))
    await call.write(message(model, is_good))
    try:
        answer = await call.read()
    except asyncio.CancelledError:
        call.cancel()
        raise
    await call.done_writing()
    said = {name: value.string_param for name, value in answer.infer_response.parameters.items()}
    kind = said.get("tandem-error", "")
    return Told(200 if not answer.error_message else STATUS_OF_KIND[kind], said)


STATUS_OF_KIND = {
    "bad_request": 400,
    "not_found": 404,
    "quota_exceeded": 429,
    "internal": 500,
    "upstream_lost": 503,
    "overloaded": 503,
    "deadline_expired": 504,
}
SURFACES: list[Ask] = [v2_json, v2_binary, embeddings, classify, grpc_unary, grpc_stream]


def good(body: bytes) -> tuple[int, Any]:
    """As each surface wants it."""
    for output, size in ((b'"vector"', SIZE), (b'"scores"', 3)):
        if output in body:
            tensor = {"name": output.decode().strip('"'), "datatype": "FP32", "shape": [1, size]}
            tensor["parameters"] = {"binary_data_size": 4 * size}
            return 200, ({"model_name": "m-fp32", "outputs": [tensor]}, np.ones(size, np.float32).tobytes())
    return 200, GOOD


@asynccontextmanager
async def stand(infer: Callable[[bytes], Awaitable[tuple[int, Any]]], **more: Any) -> AsyncIterator[Stand]:
    measured = False

    async def answer(body: bytes) -> tuple[int, Any]:
        return await infer(body) if measured else (200, GOOD)  # the gateway measures each model once

    triton = OddTriton(answer)
    listener, grpc_port = listen("127.0.0.1", 0), free_ports(1)[0]
    async with gateway_of({"cpu": [triton]}, **more) as gateway:
        measured = True

        async def embedder(*_: object) -> Embedder:
            return EMBEDDER

        async def classifier(*_: object) -> Classifier:
            return CLASSIFIER

        gateway.embeddings._embedders.of = embedder  # type: ignore[method-assign]
        gateway.classify._classifiers.of = classifier  # type: ignore[method-assign]
        server = server_of(gateway, gateway._settings)
        serving = asyncio.create_task(server.serve([listener]))
        grpc_server = GrpcServer(gateway, gateway._settings, [listen("127.0.0.1", grpc_port)], admin_here=True)
        await grpc_server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                yield Stand(gateway, triton, listener.getsockname()[1], channel)
        finally:
            await grpc_server.stop(0)
            server.stop()
            await serving


async def answered(body: bytes) -> tuple[int, Any]:
    return good(body)


async def fails(body: bytes) -> tuple[int, Any]:
    return 500, {"error": "out of memory"}


async def dies(body: bytes) -> tuple[int, Any]:
    raise ConnectionError


async def held(release: asyncio.Event, body: bytes) -> tuple[int, Any]:
    await release.wait()
    return good(body)


@dataclass(frozen=True, slots=True)
class Row:
    """What is asked of which server, and what every surface must say and count."""

    name: str
    status: int
    kind: str  # of Tandem-Error
    outcome: str
    infer: Callable[[bytes], Awaitable[tuple[int, Any]]] = answered
    model: str = "m"
    is_held: bool = False  # until everything is asserted
    is_good: bool = True
    deadline_ms: float | None = None
    has_receipt: bool = False
    takes_s: float | None = None  # as far as the gateway knows
    num_before: int = 0  # that the server works on meanwhile
    grpc_status: int | None = None  # where gRPC has another word


ROWS = [
    Row("success", 200, "", "ok", has_receipt=True),
    Row("bad request", 400, "bad_request", "client_error", is_good=False),
    Row("unknown model", 404, "not_found", "client_error", model="nobody"),
    Row("never in time", 503, "overloaded", "shed", deadline_ms=5000, takes_s=60.0, grpc_status=504),
    Row("too much to do", 503, "overloaded", "shed", is_held=True, deadline_ms=15000, takes_s=10.0, num_before=2),
    Row("deadline passed", 504, "deadline_expired", "expired", is_held=True, deadline_ms=150, takes_s=0.001),
    Row("server died", 503, "upstream_lost", "backend_error", dies),
    pytest.param(
        Row("server died before a deadline", 503, "upstream_lost", "backend_error", dies, deadline_ms=15000),
        marks=pytest.mark.thorough,
    ),
    Row("Triton's error", 500, "internal", "backend_error", fails, has_receipt=True),
]


def on_every_surface(scene: Callable[[Any], Awaitable[None]], given: Sequence[Any] = SURFACES) -> None:
    """One scene after another, each for one of `given`."""

    async def scenes() -> None:
        for of in given:
            try:
                await scene(of)
            except AssertionError as error:
                error.add_note(f"surface: {of}")
                raise

    uvloop.run(scenes())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_surface_counts_answers_and_releases_alike(row: Row) -> None:
    async def scene(surfaces: Sequence[Ask]) -> None:
        release = asyncio.Event()
        async with stand(partial(held, release) if row.is_held else row.infer) as here:
            for ask in surfaces:
                await asked(here, ask, release)

    async def asked(here: Stand, ask: Ask, release: asyncio.Event) -> None:
        if row.takes_s is not None:
            here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, row.takes_s),))))
        queue = here.gateway.candidates.queues["cpu"]
        others = [asyncio.create_task(v2_json(here, "m", {}, True)) for _ in range(row.num_before)]
        await until(lambda: queue.in_flight == row.num_before, "the server is busy")
        before = here.outcomes()
        headers = {} if row.deadline_ms is None else {"tandem-deadline-ms": str(row.deadline_ms)}
        told = await ask(here, row.model, headers, row.is_good)
        expected = row.grpc_status if row.grpc_status and ask is grpc_unary else row.status
        assert (told.status, told.headers.get("tandem-error", "")) == (expected, row.kind), ask.__name__
        assert (told.headers.keys() & RECEIPT == RECEIPT) is row.has_receipt, ask.__name__
        assert ("retry-after" in told.headers) is (row.name == "too much to do" or row.infer is dies), ask.__name__
        await until(lambda: here.outcomes() - before, "it is counted")
        assert here.outcomes() - before == Counter([row.outcome]), ask.__name__
        release.set()
        assert [told.status for told in await asyncio.gather(*others)] == [200] * row.num_before
        await until(lambda: here.is_idle, "all is released")

    gc.collect()
    gc.disable()
    try:
        # What a server does late, or not, is learnt: each surface has a gateway that has seen nothing.
        learns = row.is_held or row.takes_s is not None or row.infer is dies
        on_every_surface(scene, [[ask] for ask in SURFACES] if learns else [SURFACES])
        kept = [one for one in gc.get_objects(generation=0) if isinstance(one, (errors.RequestError, Lost, ClientLeft))]
        assert [one for one in kept if one.__traceback__ is not None] == []  # whose frames hold bodies
    finally:
        gc.enable()


TIMES = {
    "date",
    "retry-after",
    "retry-after-ms",
    "grpc-retry-pushback-ms",
}  # headers whose values differ from time to time


@pytest.mark.parametrize(
    ("deadline_ms", "takes_s", "num_before"),
    [(15000, 10.0, 2), pytest.param(5000, 60.0, 0, marks=pytest.mark.thorough)],
    ids=["overloaded", "never in time"],
)
def test_who_is_refused_before_anything_is_read_hears_and_counts_what_others_do(
    deadline_ms: int, takes_s: float, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is refused once all is read; those after it find the model congested."""
    monkeypatch.setattr(route, "CONGESTED_S", 3600.0)
    noted: list[float] = []
    note = Demand.note

    def noting(demand: Demand, now: float, cost_s: float) -> None:
        noted.append(round(cost_s, 9))
        note(demand, now, cost_s)

    async def scene(ask: Ask) -> None:
        release = asyncio.Event()
        async with stand(partial(held, release)) as here:
            here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, takes_s),))))
            queue = here.gateway.candidates.queues["cpu"]
            others = [asyncio.create_task(v2_json(here, "m", {}, True)) for _ in range(num_before)]
            await until(lambda: queue.in_flight == num_before, "the server is busy")
            headers, told = {"tandem-deadline-ms": str(deadline_ms)}, []
            ids: set[str] = set()
            for _ in range(3):
                noted.clear()
                before, held_before = here.outcomes(), here.gateway.memory.held
                monkeypatch.setattr(Demand, "note", noting)
                one = await ask(here, "m", headers, True)
                await until(lambda: here.outcomes() - before, "it is counted")  # noqa: B023
                monkeypatch.setattr(Demand, "note", note)
                same = {name: value for name, value in one.headers.items() if name not in {*TIMES, "tandem-request-id"}}
                ids.add(one.headers["tandem-request-id"])
                told.append((one.status, same, one.headers.keys(), list(noted)))
                assert here.outcomes() - before == Counter(["shed"])
                assert here.gateway.memory.held == held_before
            assert told == [told[0]] * 3
            assert len(ids) == 3
            assert told[0][1]["tandem-error"] == "overloaded"
            assert (await ask(here, "nobody", headers, True)).status == 404
            release.set()
            assert [one.status for one in await asyncio.gather(*others)] == [200] * num_before
            if num_before:
                assert (await ask(here, "m", headers, True)).status == 200  # as soon as there is room
            await until(lambda: here.is_idle, "all is released")

    on_every_surface(scene)


@pytest.mark.parametrize(
    "quotas",
    [
        pytest.param(Quotas((Limit(REQUESTS, "month", 0),)), marks=pytest.mark.thorough),
        pytest.param(Quotas((Limit(DOLLARS, "hour", 0),)), marks=pytest.mark.thorough),
        Quotas((Limit(BYTES, "month", USED_BYTES),)),
        Quotas(concurrent=0),
    ],
    ids=["requests", "dollars", "bytes", "concurrent"],
)
def test_who_is_over_a_quota_hears_so_before_the_body_is_looked_at(quotas: Quotas, tmp_path: Path) -> None:
    """Whatever is in it; the first goes to its surface, those after it are refused by their heads alone."""
    passes = quotas.concurrent is None and all(limit.most > 0 for limit in quotas.limits)

    async def scene(ask: Ask) -> None:
        usage = {"place": str(tmp_path / f"{ask.__name__}.db")}
        async with stand(answered, usage=usage) as here:
            ledger = here.gateway.inference.usage.ledger
            ledger.quotas = {"": Quotas((Limit(BYTES, "month", inf),))}
            assert (await ask(here, "m", {}, True)).status == 200
            ledger.begin(time.time(), "", USED_BYTES)
            ledger.left("")
            ledger.quotas = {"": quotas}
            ratios = [ratio for *_, ratio in ledger.quota_ratios(time.time())]
            assert ratios == ([pytest.approx(1.0, rel=0.01)] if passes else [])
            told, asked = [], here.triton.asked
            for is_good in (False, True, False):
                before = here.outcomes()
                one = await ask(here, "m", {}, is_good)
                told.append((one.status, one.headers.get("tandem-error"), one.headers.keys()))
                assert ask is grpc_stream or ("retry-after" in one.headers) == passes
                await until(lambda: here.outcomes() - before, "it is counted")  # noqa: B023
                assert here.outcomes() - before == Counter(["rate_limited"])
            assert told == [told[0]] * 3
            assert ledger.num_refused == {("", "rate_limited"): 3}
            assert told[0][:2] == (429, "quota_exceeded")
            assert here.triton.asked == asked
            assert here.gateway.memory.held == 0
            ledger.quotas = {}
            assert (await ask(here, "m", {}, True)).status == 200

    on_every_surface(scene)


def test_what_is_computed_too_late_costs_its_tenant_seconds_and_is_no_request(tmp_path: Path) -> None:
    async def scene(ask: Ask) -> None:
        usage = {"place": str(tmp_path / f"{ask.__name__}.db")}
        release = asyncio.Event()
        async with stand(partial(held, release), usage=usage) as here:
            ledger = here.gateway.inference.usage.ledger
            ledger.quotas = {"": Quotas((Limit(DEVICE_S, "month", 1e-9),))}
            here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 0.001),))))
            late = asyncio.create_task(ask(here, "m", {"tandem-deadline-ms": "1000"}, True))
            await until(lambda: here.gateway.candidates.queues["cpu"].in_flight or late.done(), "it is sent on")
            assert (await late).status == 504
            assert not ledger.sums, "nothing is known yet"
            release.set()
            await until(lambda: here.is_idle and ledger.sums, "the server is done with it")
            [(names, amounts)] = ledger.sums.items()
            assert names == ("", "m", "cpu")
            assert amounts[REQUESTS] == amounts[BYTES] == 0
            service = here.gateway.candidates.of("cpu", "m-fp32").service
            assert amounts[DEVICE_S] == pytest.approx(service.curve.seconds(1))  # as predicted before it was late
            assert (await ask(here, "m", {}, True)).status == 429, "it counts in quotas of seconds"

    on_every_surface(scene)


def test_a_client_that_leaves_the_queue_is_counted_and_takes_no_room() -> None:
    async def scenes() -> None:
        release = asyncio.Event()
        async with stand(partial(held, release)) as here:
            queue = here.gateway.candidates.queues["cpu"]
            for ask in SURFACES:
                release.clear()
                working = []
                while queue.num_waiting == 0:  # until nobody is sent on any more
                    working.append(asyncio.create_task(v2_json(here, "m", {}, True)))
                    await until(lambda: queue.num_waiting + queue.in_flight == len(working), "it is let in")  # noqa: B023
                before, waiting = here.outcomes(), queue.num_waiting
                leaving = asyncio.create_task(ask(here, "m", {}, True))
                await until(lambda: queue.num_waiting > waiting, f"{ask.__name__} waits")  # noqa: B023
                leaving.cancel()
                await until(lambda: queue.num_waiting == waiting, f"{ask.__name__} has left")  # noqa: B023
                await until(lambda: here.outcomes() - before == Counter(["cancelled"]), ask.__name__)  # noqa: B023
                release.set()
                assert {told.status for told in await asyncio.gather(*working)} == {200}
                await until(lambda: here.is_idle, "all is released")

    uvloop.run(scenes())
