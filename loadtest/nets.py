"""How many requests per second does a published net answer: served through gateway and Triton, and in process? Both sides of a comparison.

Served: a closed loop, binary tensors, the client on the same cores. In process: a new session in the engine's own Python. Whoever compares
takes both in turns, in one round (`serving/measure/rounds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.sending.bodies import encode_binary, signature
from loadtest.sending.inputs import named
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop
from loadtest.stack import Server
from loadtest.target import Gateway
from serving.decisions.engines import EnginePython
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal
from serving.http_client import Connection, address, request_bytes

RECEIPT = b"tandem-device"
ANSWER_TIMEOUT_S = 120.0  # a first run on a card chooses algorithms (guess, not measured)


@dataclass(frozen=True, slots=True)
class Net:
    """A published model and what is sent to it. `data`: digits, random, or the .npz file with what both sides are given."""

    model: str
    repository: Path
    data: str
    batch_size: int
    variant: str = "fp32"

    @property
    def served_name(self) -> str:
        return f"{self.model}-{self.variant}"

    @property
    def file(self) -> Path:
        return self.repository / self.served_name / "1" / "model.onnx"


def request_to(net: Net, gateway: Server, headers: Mapping[str, str] | None = None) -> bytes:
    """Raises CannotMeasure."""
    metadata = Gateway(gateway.url).metadata(net.served_name)
    if metadata is None:
        raise CannotMeasure(f"the gateway does not serve {net.served_name}")
    given = signature(metadata)
    some = named(net.data, given, "binary", 0)
    repeats = -(-net.batch_size // some.num_inputs)
    batch = {name: values.repeat(repeats, axis=0)[: net.batch_size] for name, values in some.arrays.items()}
    body = encode_binary(given, batch, ())
    return request_bytes(
        "POST", gateway.url, f"/v2/models/{net.served_name}/infer", {**body.headers, **(headers or {})}, body.data
    )


def device_of(request: bytes, gateway: Server) -> str:
    """The kind of device that answered, by the receipt; empty where there is none. Raises CannotMeasure."""
    connection = Connection(gateway.url, ANSWER_TIMEOUT_S, frozenset({RECEIPT}))
    try:
        answer = connection.send(request)
    except OSError as error:
        raise CannotMeasure(f"the gateway did not answer: {error}") from None
    finally:
        connection.close()
    return answer.headers.get(RECEIPT, "").partition(";")[0]


def served_rps(request: bytes, gateway: Server, round_s: float, num_outstanding: int) -> float:
    """Requests per second between the first completion and the last. Raises CannotMeasure."""
    return served(request, gateway, round_s, num_outstanding)[1]


def served(request: bytes, gateway: Server, round_s: float, num_outstanding: int) -> tuple[int, float]:
    """How many were answered, and the same rate. Raises CannotMeasure."""
    asked = Request(address(gateway.url), request)
    load = closed_loop(
        [asked], num_outstanding, round_s, in_turn=True, time_limit_s=ANSWER_TIMEOUT_S, min_shots=1 + num_outstanding
    )
    for shot in load.shots:
        if not shot.is_answered:
            raise CannotMeasure(f"a request to the served net failed: {shot}")
    completed = sorted(shot.ended_s for shot in load.shots)
    return len(completed), (len(completed) - 1) / (completed[-1] - completed[0])


def in_process_rps(
    net: Net, engine: EnginePython, round_s: float, *, num_threads: int, allow_spinning: bool = False
) -> tuple[str, float]:
    """The version of its ONNX Runtime, and requests per second of a new session. Raises CannotMeasure."""
    limit_s = ANSWER_TIMEOUT_S + round_s
    how = {
        "num_threads": num_threads,
        "allow_spinning": allow_spinning,
        "inputs": net.data if net.data.endswith(".npz") else None,
    }
    try:
        worker = WorkerProcess(engine)
        try:
            version = worker.ask(limit_s, "hello")["onnxruntime"]
            worker.ask(
                limit_s, "open", name="net", file=str(net.file), engine=engine.engine, precision=net.variant, **how
            )
            per_run_s = worker.ask(limit_s, "prepare", name="net", batch_size=net.batch_size)["seconds"]
            num_runs = max(1, round(round_s / per_run_s))
            per_run_s = worker.ask(limit_s, "turn", name="net", num_runs=num_runs)["seconds"]
        finally:
            worker.end()
    except (WorkerLost, WorkerRefusal) as failure:
        raise CannotMeasure(f"{net.served_name} did not run in process: {failure}") from None
    return str(version), 1 / per_run_s
