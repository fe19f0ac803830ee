"""Who waits, for how long, and who leaves: deadlines from everywhere, cancelled RPCs, stops and servers that are gone.

Times are known: a full batch takes 0.3 s, and two of these are in flight at most.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from tritonclient.grpc import service_pb2 as pb

from serving.local.environments import Environment
from serving.local.processes import children_of
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.conftest import digits_triton, emulated_triton
from tests.gateway.grpc.conftest import Speaking, refused, speaking_before
from tests.gateway.odd_triton import until
from tests.gateway.request.test_admission import metric, require_worked_on, worked_on
from tests.gateway.request.test_surfaces import Stand, answered, held, message, stand
from tests.local.harness import Program, final_count, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

POOL, MODEL = "emulated-cpu", "digits-fp32"
FULL_S = 0.3
ROWS = 32
LATER = [("tandem-priority", "3")]  # than what says nothing
LIMIT_S = 60.0  # for what takes a second on a machine that is not busy


def digit(model: str = MODEL, rows: int = 1) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(256 * rows)])
    request.inputs.add(name="image", datatype="FP32", shape=[rows, 1, 8, 8])
    return request


@dataclass
class Slow(Speaking):
    """With the address of its Triton."""

    triton: str


@pytest.fixture(scope="module")
def slow(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    with (
        emulated_triton(folder, POOL, [(1, FULL_S / 4), (ROWS, FULL_S)]) as (_, url),
        speaking_before(folder, {POOL: [url]}) as both,
        both.stub() as stub,
    ):
        stub.ModelInfer(digit(rows=ROWS), wait_for_ready=True)
        yield Slow(both.running, both.port, url)


def num_arrived(slow: Slow, done: int) -> float:
    """Since so many were done. What is done now is read first, so that nothing counts twice."""
    done_now = worked_on(slow.running)
    return done_now - done + sum(metric(slow.running, f"tandem_{it}", pool=POOL) for it in ("queued", "in_flight"))


@contextmanager
def busy(slow: Slow, stub: Any, requests: int = 6) -> Iterator[list[Any]]:
    """So many are asked; two are in flight, the others wait."""
    done = worked_on(slow.running)
    calls = [stub.ModelInfer.future(digit(rows=ROWS), metadata=LATER) for _ in range(requests)]
    wait_until(lambda: num_arrived(slow, done) >= requests, "all have arrived", LIMIT_S)
    yield calls
    for call in calls:
        if not call.cancelled():
            assert call.result(LIMIT_S).model_name == MODEL


@pytest.mark.protocol(
    "v2 gRPC", "deadlines: the RPC's own, `timeout`, `tandem-deadline-ms`; the earliest counts", "supported", item=26
)
@pytest.mark.parametrize(
    ("timeout_us", "more"),
    [
        (0, {"metadata": [("tandem-deadline-ms", "5000")]}),
        (0, {"timeout": 5}),
        (5_000_000, {}),
        (5_000_000, {"timeout": 40, "metadata": [("tandem-deadline-ms", "40000")]}),
    ],
)
def test_the_earliest_deadline_counts_and_what_cannot_be_in_time_is_not_waited_for(
    timeout_us: int, more: dict[str, Any]
) -> None:
    """Of what takes ten seconds."""

    async def run() -> None:
        async with stand(answered) as here:
            here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 10.0),))))
            code, text, metadata = await infer(here, timeout_us, **more)
            assert (code, metadata["tandem-error"]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "overloaded")
            assert "however little" in text  # so it is not to be tried again
            assert "retry-after-ms" not in metadata

    uvloop.run(run())


def test_a_refusal_for_load_says_when_to_come_again() -> None:
    async def run() -> None:
        release = asyncio.Event()
        async with stand(partial(held, release)) as here:
            here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 10.0),))))
            others = [asyncio.create_task(infer(here)) for _ in range(2)]
            await until(lambda: here.gateway.candidates.queues["cpu"].in_flight == 2, "the server is busy")
            code, _, metadata = await infer(here, metadata=[("tandem-deadline-ms", "15000")])
            assert (code, metadata["tandem-error"]) == (grpc.StatusCode.UNAVAILABLE, "overloaded")
            assert int(metadata["retry-after-ms"]) > 0
            assert int(metadata["retry-after"]) >= 1
            release.set()
            assert {code for code, *_ in await asyncio.gather(*others)} == {grpc.StatusCode.OK}

    uvloop.run(run())


async def infer(here: Stand, timeout_us: int = 0, **more: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The status of an RPC, its text and its trailing metadata."""
    method = here.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    request = message("m", True)
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    call = method(request, **more)
    return await call.code(), await call.details(), dict(await call.trailing_metadata() or ())


@pytest.mark.protocol(
    "v2 gRPC", "a client that cancels leaves the queue, and nothing is sent to Triton", "supported", item=44
)
def test_who_cancels_leaves_the_queue_and_is_counted(slow: Slow) -> None:
    def cancelled() -> float:
        return metric(slow.running, "tandem_requests_total", outcome="cancelled")

    with slow.stub() as stub:
        before, done = cancelled(), final_count(lambda: worked_on(slow.running))
        with busy(slow, stub, 20) as calls:
            for call in calls[17:]:  # which wait for more than four seconds yet
                call.cancel()
            wait_until(lambda: cancelled() == before + 3, "the three have left", LIMIT_S)
        require_worked_on(slow.running, done + 17)
    assert not slow.running.program.says("never retrieved"), "a client must not be able to fill the log"


def test_who_cancels_what_a_server_works_on_keeps_its_place_there(slow: Slow) -> None:
    """Or the server would get more than it works on at once."""

    def load(name: str) -> float:
        return metric(slow.running, name, pool=POOL)

    most = 0.0
    with slow.stub() as stub:
        for _ in range(6):
            call = stub.ModelInfer.future(digit(rows=ROWS))
            wait_until(lambda: load("tandem_in_flight") + load("tandem_queued") > 0, "it is there", LIMIT_S)
            most = max(most, load("tandem_in_flight"))
            call.cancel()
        assert stub.ModelInfer(digit(rows=ROWS)).model_name == MODEL
    assert 1 <= most <= 2


def test_a_stream_that_is_cancelled_leaves_the_queue(slow: Slow) -> None:
    with slow.stub() as stub:
        before = metric(slow.running, "tandem_requests_total", outcome="cancelled")
        done = final_count(lambda: worked_on(slow.running))
        with busy(slow, stub, 20):
            call = stub.ModelStreamInfer(iter([digit(rows=ROWS)]), metadata=LATER)
            wait_until(lambda: num_arrived(slow, done) >= 21, "it waits behind the others", LIMIT_S)
            call.cancel()
            wait_until(
                lambda: metric(slow.running, "tandem_requests_total", outcome="cancelled") == before + 1, "it has left"
            )


def test_priority_goes_by_metadata(slow: Slow) -> None:
    with slow.stub() as stub, busy(slow, stub, 20) as calls:
        ended: list[str] = []
        for call in calls:
            call.add_done_callback(lambda _: ended.append("usual"))
        stub.ModelInfer(digit(rows=ROWS), metadata=[("tandem-priority", "1")])
        assert len(ended) < 18  # it went before some that came earlier


@pytest.fixture(scope="module")
def mortal(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str]]:
    """A Triton that is halted, and killed by the last test here."""
    with digits_triton(tmp_path_factory.mktemp("mortal")) as running:
        yield running


@contextmanager
def hanging(mortal: tuple[Program, str], folder: Path, drain_s: float) -> Iterator[tuple[Speaking, Any]]:
    """A gateway with one RPC in flight that Triton, halted, will not answer; and that RPC."""
    triton, url = mortal
    with speaking_before(folder, {"cpu": [url]}, limits={"drain_s": drain_s}) as both, both.stub() as stub:
        stub.ModelInfer(digit("digits"), wait_for_ready=True)
        server = next(child.pid for child in children_of(triton.pid) if child.is_alive)
        os.kill(triton.pid, signal.SIGSTOP)  # or it starts a new one where this takes long
        os.kill(server, signal.SIGSTOP)
        try:
            call = stub.ModelInfer.future(digit("digits"))
            wait_until(lambda: in_flight(both) > 0, "the request waits for Triton")
            yield both, call
        finally:
            os.kill(server, signal.SIGCONT)
            os.kill(triton.pid, signal.SIGCONT)


def in_flight(both: Speaking) -> int:
    return int(both.running.ask("/admin/status").json()["pools"]["cpu"]["in_flight"])


@pytest.mark.thorough
@pytest.mark.parametrize("is_hurried", [False, True])
def test_a_stop_ends_what_outlasts_it_and_refuses_what_is_new(
    mortal: tuple[Program, str], tmp_path: Path, is_hurried: bool
) -> None:
    with hanging(mortal, tmp_path, drain_s=100 if is_hurried else 1) as (both, call):
        both.running.program.send(signal.SIGTERM)
        wait_until(lambda: _code(both) is grpc.StatusCode.UNAVAILABLE, "nobody new is taken")
        if is_hurried:
            assert both.running.program.process.poll() is None  # it waits for the one in flight
            both.running.program.send(signal.SIGTERM)
        assert both.running.program.process.wait(LIMIT_S) == 0
        assert call.exception(LIMIT_S).code() is grpc.StatusCode.UNAVAILABLE
    assert not any("Traceback" in line for line in both.running.program.lines())


def _code(both: Speaking) -> grpc.StatusCode | None:
    """Of somebody who was not connected before."""
    try:
        with both.stub() as stub:
            stub.ServerLive(pb.ServerLiveRequest(), timeout=5)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None


def test_a_stop_lets_what_is_in_flight_end(slow: Slow, tmp_path: Path) -> None:
    with speaking_before(tmp_path, {POOL: [slow.triton]}) as both, both.stub() as stub:
        calls = [stub.ModelInfer.future(digit(rows=ROWS), wait_for_ready=True) for _ in range(6)]
        wait_until(lambda: metric(both.running, "tandem_in_flight", pool=POOL) >= 1, "they are in flight", LIMIT_S)
        both.running.program.send(signal.SIGTERM)
        assert {call.result(LIMIT_S).model_name for call in calls} == {MODEL}
        assert both.running.program.process.wait(LIMIT_S) == 0


def test_a_stop_does_not_wait_for_a_stream_that_asks_nothing(slow: Slow, tmp_path: Path) -> None:
    def asked() -> Iterator[pb.ModelInferRequest]:
        yield digit(rows=ROWS)
        over.wait(LIMIT_S)

    over = threading.Event()
    with speaking_before(tmp_path, {POOL: [slow.triton]}, limits={"drain_s": 100}) as both, both.stub() as stub:
        answers = stub.ModelStreamInfer(asked(), wait_for_ready=True)
        assert next(answers).infer_response.model_name == MODEL
        both.running.program.send(signal.SIGTERM)
        assert both.running.program.process.wait(LIMIT_S) == 0
        with pytest.raises(grpc.RpcError):
            next(answers)
        over.set()
    assert answers.code() is grpc.StatusCode.UNAVAILABLE
    assert "stopping" in answers.details()


@pytest.mark.protocol("v2 gRPC", "a Triton that dies under a request", "supported")
def test_a_killed_triton_is_unavailable_and_nothing_hangs(mortal: tuple[Program, str], tmp_path: Path) -> None:
    triton, url = mortal
    with speaking_before(tmp_path, {"cpu": [url]}) as both, both.stub() as stub:
        stub.ModelInfer(digit("digits"), wait_for_ready=True)
        stop = threading.Event()

        def ask() -> set[Any]:
            seen = set()
            while not stop.is_set():
                try:
                    stub.ModelInfer(digit("digits"), timeout=LIMIT_S)
                    seen.add("ok")
                except grpc.RpcError as error:
                    seen.add(error.code())
            return seen

        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(ask) for _ in range(8)]
            try:
                family = triton.family()
                triton.end(signal.SIGKILL)
                for process in family:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                wait_until(lambda: _infer_code(stub) is grpc.StatusCode.UNAVAILABLE, "it is noticed", LIMIT_S)
            finally:
                stop.set()
            seen = set().union(*(one.result(LIMIT_S) for one in asking))
        assert seen <= {"ok", grpc.StatusCode.UNAVAILABLE}
        assert not stub.ModelReady(pb.ModelReadyRequest(name="digits")).ready
        code, _, metadata = refused(stub.ModelInfer, digit("digits"))
        assert (code, metadata["tandem-error"]) == (grpc.StatusCode.UNAVAILABLE, "not_ready")


def _infer_code(stub: Any) -> grpc.StatusCode | None:
    try:
        stub.ModelInfer(digit("digits"), timeout=LIMIT_S)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None
