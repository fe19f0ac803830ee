"""The ladder: every way to ask one server for the same batch, one request at a time, in short turns, and what the turns say together.

The rungs are the engine in a process of its own, Triton by gRPC and by HTTP, and the gateway before it. Requests are made beforehand and
answers are read whole but not decoded, so that rungs differ by the way and not by the client's own work. The order changes from round to
round, so that the machine's mood hits all rungs alike. Triton's own times are differences of `/v2/models/NAME/stats`.
Rule: an answer that is not a good one ends the measurement, and an interval is taken over rounds, never over the requests of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
import numpy as np
import orjson
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

from loadtest.errors import CannotMeasure
from loadtest.sending.bodies import Arrays, Body, Signature, encode_binary
from loadtest.target import Gateway
from serving.decisions.profile import RUNGS, Rung, Timing
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal
from serving.http_client import Connection, request_bytes
from serving.measure.intervals import estimate
from serving.measure.percentiles import percentile
from serving.measure.rounds import rounds, times

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class TritonTimes:
    """Requests so far, and seconds of all of them in each of PARTS."""

    num_requests: int = 0
    seconds: tuple[float, ...] = (0.0,) * len(PARTS)

    def __add__(self, other: TritonTimes) -> TritonTimes:
        added = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return TritonTimes(self.num_requests + other.num_requests, added)

    def since(self, before: TritonTimes) -> TritonTimes:
        left = tuple(a - b for a, b in zip(self.seconds, before.seconds, strict=True))
        return TritonTimes(self.num_requests - before.num_requests, left)

    @property
    def means_s(self) -> dict[str, float]:
        """Empty where nothing was counted."""
        if self.num_requests < 1:
            return {}
        return {f"{part}_s": seconds / self.num_requests for part, seconds in zip(PARTS, self.seconds, strict=True)}


def times_reader(url: str, name: str) -> Callable[[], TritonTimes]:
    """Asks a Triton for the times of a model."""
    triton = Gateway(url)

    def count() -> TritonTimes:
        return read_times(triton.get_json(f"/v2/models/{name}/stats"))

    return count


def read_times(answer: Any) -> TritonTimes:
    try:
        models = [model["inference_stats"] for model in answer["model_stats"]]
        num = sum(int(stats["success"]["count"]) for stats in models)
        return TritonTimes(num, tuple(sum(int(stats[part]["ns"]) for stats in models) / 1e9 for part in PARTS))
    except (TypeError, KeyError, ValueError):
        raise CannotMeasure("Triton's statistics of the model cannot be read") from None


ANSWER_TIMEOUT_S = 60.0
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class RungClient(Protocol):
    """One rung for one variant and batch size. `num_bytes` of a request, None in process."""

    @property
    def rung(self) -> Rung: ...

    @property
    def num_bytes(self) -> int | None: ...

    def times(self, slice_s: float) -> list[float]:
        """Seconds of every request in about so long. Raises CannotMeasure."""
        ...


@dataclass(frozen=True, slots=True)
class NetworkRung:
    """A rung where this process is the client."""

    rung: Rung
    num_bytes: int | None
    ask: Callable[[], None]

    def times(self, slice_s: float) -> list[float]:
        try:
            return times(self.ask, slice_s)
        except OSError as error:
            raise CannotMeasure(f"{self.rung}: a request failed: {error}") from None
        except grpc.RpcError as error:
            raise CannotMeasure(f"{self.rung}: a request failed: {error}") from None


def over_http(rung: Rung, url: str, name: str, body: Body, pins: dict[str, str]) -> tuple[NetworkRung, Connection]:
    """The connection is the caller's to close."""
    connection = Connection(url, ANSWER_TIMEOUT_S)
    request = request_bytes("POST", url, f"/v2/models/{name}/infer", {**body.headers, **pins}, body.data)

    def ask() -> None:
        answer = connection.send(request)
        if answer.status != 200:
            said = answer.body[:200].decode("utf-8", "replace")
            raise OSError(f"{url} answered {answer.status}: {said}")

    return NetworkRung(rung, len(body.data), ask), connection


def over_grpc(channel: grpc.Channel, name: str, model: Signature, batch: Arrays) -> NetworkRung:
    body = encode_binary(model, batch, ())
    assert body.header_length is not None
    request = service_pb2.ModelInferRequest(model_name=name)
    at = body.header_length
    for tensor in orjson.loads(body.data[:at])["inputs"]:
        given = request.inputs.add(name=tensor["name"], datatype=tensor["datatype"])
        given.shape.extend(tensor["shape"])
        size = tensor["parameters"]["binary_data_size"]
        request.raw_input_contents.append(body.data[at : at + size])
        at += size
    request.outputs.add(name=model.output_name)
    message = request.SerializeToString()
    call = channel.unary_unary(GRPC_METHOD)  # bytes in, bytes out

    def ask() -> None:
        call(message, timeout=ANSWER_TIMEOUT_S)

    return NetworkRung("triton_grpc", len(message), ask)


def grpc_channel(authority: str) -> grpc.Channel:
    return grpc.insecure_channel(authority, NO_LIMIT)


class EngineRung:
    """The engine alone, in the Python that Triton's own runs in. Raises CannotMeasure."""

    rung: Rung = "in_process"
    num_bytes: int | None = None

    def __init__(self, worker: WorkerProcess, name: str, batch_size: int) -> None:
        self._worker, self._name, self._batch_size = worker, name, batch_size
        self._per_run_s: float | None = None

    def times(self, slice_s: float) -> list[float]:
        if self._per_run_s is None:
            self._per_run_s = self._ask("prepare", name=self._name, batch_size=self._batch_size)["seconds"]
        num_runs = max(1, round(slice_s / self._per_run_s))
        found = self._ask("times", name=self._name, batch_size=self._batch_size, num_runs=num_runs)["seconds"]
        return [float(one) for one in found]

    def _ask(self, do: str, **how: Any) -> dict[str, Any]:
        return ask_worker(self._worker, do, **how)


def ask_worker(worker: WorkerProcess, do: str, **how: Any) -> dict[str, Any]:
    try:
        return worker.ask(ANSWER_TIMEOUT_S * 2, do, **how)
    except (WorkerLost, WorkerRefusal) as failure:
        raise CannotMeasure(f"the engine did not run in process: {failure}") from None


def open_session(
    worker: WorkerProcess, name: str, file: Path, inputs: Path, *, engine: str, precision: str, **how: Any
) -> None:
    """Opens a file as a session of the worker under this name. Raises CannotMeasure."""
    ask_worker(worker, "open", name=name, file=str(file), engine=engine, precision=precision, inputs=str(inputs), **how)


def write_rows(file: Path, rows: Arrays) -> Path:
    """For the worker."""
    given: dict[str, Any] = dict(rows)
    np.savez(file, **given)
    return file


@dataclass(slots=True)
class Step:
    """One rung of one variant at one batch size, and what its turns gave so far. `count` asks Triton for its statistics."""

    server: str
    batch_size: int
    way: RungClient
    count: Callable[[], TritonTimes] | None
    rounds: list[list[float]] = field(default_factory=list)
    counted: TritonTimes = field(default_factory=TritonTimes)

    def take_turn(self, slice_s: float) -> None:
        before = self.count() if self.count else None
        taken = self.way.times(slice_s)
        if self.count and before is not None:
            self.counted += self.count().since(before)
        self.rounds.append(taken)

    @property
    def timing(self) -> Timing | None:
        """None before its first turn."""
        medians = estimate([float(np.median(taken)) for taken in self.rounds])
        if medians is None:
            return None
        everything = np.array([one for taken in self.rounds for one in taken])
        return Timing(
            rung=self.way.rung,
            batch_size=self.batch_size,
            num_requests=len(everything),
            latency_p50_s=medians.median,
            latency_p99_s=percentile(everything, 0.99),
            low_s=medians.low,
            high_s=medians.high,
            num_bytes=self.way.num_bytes,
            **self.counted.means_s,
        )


def in_turns(
    steps: Sequence[Step],
    num_rounds: int,
    slice_s: float,
    limit_s: float,
    tell: Callable[[int], None],
    lost: Callable[[Step, CannotMeasure], None],
) -> None:
    """Each step once a round; of slow nets fewer rounds, but enough for an interval.

    `tell` takes the number that are over, `lost` what fails at once and is left out. Raises CannotMeasure: nothing works, or what worked
    does no more.
    """
    left_out: set[int] = set()
    for number, turn in enumerate(rounds(steps, num_rounds, limit_s)):
        for step in turn:
            if id(step) in left_out:
                continue
            try:
                step.take_turn(slice_s)
            except CannotMeasure as error:
                left_out.add(id(step))
                if number or len(left_out) == len(steps):
                    raise
                lost(step, error)
        tell(number + 1)


def timings(steps: Sequence[Step], server: str, more: Sequence[Timing] = ()) -> tuple[Timing, ...]:
    """By batch size, from the engine alone to the gateway."""
    found = [*more]
    found += [timing for step in steps if step.server == server and (timing := step.timing) is not None]
    return tuple(sorted(found, key=lambda timing: (timing.batch_size, RUNGS.index(timing.rung))))
