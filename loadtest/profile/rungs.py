"""The rungs of the ladder as ways to ask: the engine in a process of its own, Triton by gRPC and by HTTP, the gateway before it.

Each asks one request at a time and says how long each took, from the first byte sent to the last one read. Requests are made beforehand
and answers are read whole but not decoded, so that rungs differ by the way and not by the client's own work. Rule: an answer that is not
a good one ends the measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
import numpy as np
import orjson
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

from loadtest.errors import CannotMeasure
from loadtest.sending.bodies import Arrays, Body, Signature, encode_binary
from serving.decisions.profile import Rung
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefused
from serving.http_client import Connection, request_bytes
from serving.measure.rounds import times

ANSWER_TIMEOUT_S = 60.0
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Way(Protocol):
    """One rung for one variant and batch size. `num_bytes` of a request, None in process."""

    @property
    def rung(self) -> Rung: ...

    @property
    def num_bytes(self) -> int | None: ...

    def times(self, slice_s: float) -> list[float]:
        """Seconds of every request in about so long. Raises CannotMeasure."""
        ...


@dataclass(frozen=True, slots=True)
class Calling:
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


def over_http(rung: Rung, url: str, name: str, body: Body, pins: dict[str, str]) -> tuple[Calling, Connection]:
    """The connection is the caller's to close."""
    connection = Connection(url, ANSWER_TIMEOUT_S)
    request = request_bytes("POST", url, f"/v2/models/{name}/infer", {**body.headers, **pins}, body.data)

    def ask() -> None:
        answer = connection.send(request)
        if answer.status != 200:
            said = answer.body[:200].decode("utf-8", "replace")
            raise OSError(f"{url} answered {answer.status}: {said}")

    return Calling(rung, len(body.data), ask), connection


def over_grpc(channel: grpc.Channel, name: str, model: Signature, batch: Arrays) -> Calling:
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

    return Calling("triton_grpc", len(message), ask)


def grpc_channel(authority: str) -> grpc.Channel:
    return grpc.insecure_channel(authority, NO_LIMIT)


class InProcess:
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
        return asked(self._worker, do, **how)


def asked(worker: WorkerProcess, do: str, **how: Any) -> dict[str, Any]:
    try:
        return worker.ask(ANSWER_TIMEOUT_S * 2, do, **how)
    except (WorkerLost, WorkerRefused) as failure:
        raise CannotMeasure(f"the engine did not run in process: {failure}") from None


def opened(
    worker: WorkerProcess, name: str, file: Path, inputs: Path, *, engine: str, precision: str, **how: Any
) -> None:
    """Opens a file as a session of the worker under this name. Raises CannotMeasure."""
    asked(worker, "open", name=name, file=str(file), engine=engine, precision=precision, inputs=str(inputs), **how)


def write_rows(file: Path, rows: Arrays) -> Path:
    """For the worker."""
    given: dict[str, Any] = dict(rows)
    np.savez(file, **given)
    return file
