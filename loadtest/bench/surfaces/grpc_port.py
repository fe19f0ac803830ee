"""What does the gateway's gRPC port cost beside Triton's own? Raw unary calls of one client process, a real digit in each.

No aim is set: Triton's port is C++ and the client is Python, so their ratio says most of the client. What counts is the CPU time of a
call in the gateway, which is spread_text beside that of the same tensor over HTTP, and of a gRPC server in Python that does nothing at all.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

from loadtest.bench import wrk
from loadtest.bench.surfaces.part import KeyedStack, Part, Plan, Setting, served
from loadtest.bench.verdicts import spread_text
from loadtest.processes import MODEL_REPOSITORY, cpu_s, run_command
from loadtest.processes import running as process_running
from loadtest.sending.bodies import Signature, Tensor, encode_binary
from loadtest.stack import START_S, Server
from serving.measure.rounds import ratio, rounds
from serving.ports import free_ports

MODEL, VARIANT = "digits", "digits-fp32"
NUM_IN_FLIGHT = 16  # enough that the client is never idle
CALL_TIMEOUT_S = 60.0
HTTP, GRPC, DIRECT, BARE = "gateway, HTTP", "gateway, gRPC", "Triton direct, gRPC", "bare grpc.aio, no Triton"


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure."""
    generator = wrk.find()
    with served(MODEL_REPOSITORY, setting.folder) as running, _bare(setting.folder) as bare:
        script = _script(running, setting.folder)
        measured = _measure(setting.plan, generator, script, _write_requests(setting.folder), running, bare)
    return _part(measured)


@contextmanager
def _bare(folder: Path) -> Iterator[Server]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.surfaces.grpc_ends", "serve", str(port)]

    def is_ready() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            return False
        return True

    with process_running(command, folder / "yardstick.log", is_ready, START_S) as process:
        yield Server(BARE, f"127.0.0.1:{port}", process.pid)


def _digit() -> np.ndarray:
    (tensor,) = json.loads((MODEL_REPOSITORY / VARIANT / "sample.json").read_text())["inputs"]
    return np.array(tensor["data"], np.float32).reshape(tensor["shape"])


def _script(running: KeyedStack, folder: Path) -> Path:
    given = Signature((Tensor("image", "FP32", (1, 8, 8)),), "probabilities")
    body = encode_binary(given, {"image": _digit()}, ())
    return wrk.write_script(folder / "http.lua", body.data, body.headers | running.key_header)


def _write_requests(folder: Path) -> Path:
    digit = _digit()
    request = service_pb2.ModelInferRequest(model_name=VARIANT, raw_input_contents=[digit.tobytes()])
    request.inputs.add(name="image", datatype="FP32", shape=digit.shape)
    request.outputs.add(name="probabilities")
    file = folder / "request.pb"
    file.write_bytes(request.SerializeToString())
    return file


def _measure(
    plan: Plan, generator: str, script: Path, request: Path, running: KeyedStack, bare: Server
) -> Mapping[str, wrk.Series]:
    where = {GRPC: [running.grpc, running.key], DIRECT: [running.stack.grpc], BARE: [bare.authority]}
    url = f"{running.stack.gateway.url}/v2/models/{VARIANT}/infer"
    fires: dict[str, Callable[[int], wrk.Burst]] = {
        target: partial(_call, plan, request, target, there) for target, there in where.items()
    }
    fires[HTTP] = wrk.firing(generator, script, url, busy_s=plan.burst_s, lone_s=plan.burst_s)
    measured: dict[str, wrk.Series] = {target: wrk.Series() for target in (HTTP, *where)}
    for order in rounds(list(measured), plan.num_rounds):
        for target in order:
            measured[target].take_turn(fires[target], NUM_IN_FLIGHT, partial(_cpu_s, target, running, bare))
    return measured


def _cpu_s(target: str, running: KeyedStack, bare: Server) -> float:
    return cpu_s(bare.pid) if target == BARE else running.gateway_cpu_s()


def _call(plan: Plan, request: Path, target: str, where: Sequence[str], num_in_flight: int) -> wrk.Burst:
    """`where`: the authority, and a key where one is wanted."""
    command = [sys.executable, "-m", "loadtest.bench.surfaces.grpc_ends", "call", where[0], str(request)]
    command += [str(num_in_flight), str(plan.burst_s), *where[1:]]
    calls, took_s, median_s = run_command(command, f"calls to {target} failed", CALL_TIMEOUT_S).split()
    return wrk.Burst(int(calls), float(took_s), float(median_s))


def _part(measured: Mapping[str, wrk.Series]) -> Part:
    rows = [("gRPC", f"req/s at {NUM_IN_FLIGHT}", "p50 ms at 1", "CPU µs/call there", "generator")]
    for target, series in measured.items():
        rate, latency, cpu = series.cells()
        rows.append((target, rate, latency, "" if target == DIRECT else cpu, "wrk" if target == HTTP else "grpc.aio"))
    rates = ratio(measured[GRPC].rate_rps, measured[DIRECT].rate_rps)
    cpu_ratio = ratio(measured[GRPC].cpu_us, measured[HTTP].cpu_us)
    least = ratio(measured[GRPC].cpu_us, measured[BARE].cpu_us)
    notes = [
        f"gateway ÷ direct throughput, gRPC: {spread_text(rates, 2)}; gateway's CPU, gRPC ÷ HTTP: {spread_text(cpu_ratio, 2)}, "
        f"÷ bare grpc.aio: {spread_text(least, 2)}",
        f"{VARIANT}, one real digit as a raw tensor, keys on; no aim: the generator is Python and takes as much as what it asks",
    ]
    values = {target: series.to_json("cpu_us") for target, series in measured.items()}
    return Part("gRPC", rows, (), notes, values)
