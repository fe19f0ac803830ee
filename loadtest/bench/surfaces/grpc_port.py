"""What does the gateway's gRPC port cost beside Triton's own? Raw unary calls of one client process, a real digit in each.

No aim is set: Triton's port is C++ and the client is Python, so their ratio says most of the client. What counts is the CPU time of a
call in the gateway, which is told beside that of the same tensor over HTTP, and of a gRPC server in Python that does nothing at all.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

from loadtest.bench import wrk
from loadtest.bench.surfaces.part import Part, Plan, Served, Setting, served, told
from loadtest.processes import MODEL_REPOSITORY, cpu_s, run_command
from loadtest.processes import running as process_running
from loadtest.sending.bodies import Signature, Tensor, encode_binary
from loadtest.stack import START_S, Server
from serving.measure.rounds import ratio, rounds, spread
from serving.ports import free_ports

MODEL, VARIANT = "digits", "digits-fp32"
NUM_IN_FLIGHT = 16  # enough that the client is never idle
CALL_TIMEOUT_S = 60.0
HTTP, GRPC, DIRECT, BARE = "gateway, HTTP", "gateway, gRPC", "Triton direct, gRPC", "bare grpc.aio, no Triton"


@dataclass(slots=True)
class Series:
    rate_rps: list[float] = field(default_factory=list)
    latency_p50_s: list[float] = field(default_factory=list)  # with one in flight
    cpu_us: list[float] = field(default_factory=list)  # per call, of the gateway or of the bare server


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


def _script(running: Served, folder: Path) -> Path:
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
    plan: Plan, generator: str, script: Path, request: Path, running: Served, bare: Server
) -> Mapping[str, Series]:
    where = {GRPC: [running.grpc, running.key], DIRECT: [running.stack.grpc], BARE: [bare.authority]}
    measured: dict[str, Series] = defaultdict(Series)
    for order in rounds([HTTP, *where], plan.num_rounds):
        for target in order:
            series = measured[target]
            for num_in_flight, latencies in ((NUM_IN_FLIGHT, None), (1, series.latency_p50_s)):
                before_s = _cpu_s(target, running, bare)
                if target == HTTP:
                    count, rate, p50_s = _over_http(plan, generator, script, running, num_in_flight)
                else:
                    count, rate, p50_s = _over_grpc(plan, request, target, where[target], num_in_flight)
                if latencies is not None:
                    latencies.append(p50_s)
                    continue
                series.rate_rps.append(rate)
                series.cpu_us.append((_cpu_s(target, running, bare) - before_s) * 1e6 / count)
    return measured


def _cpu_s(target: str, running: Served, bare: Server) -> float:
    return cpu_s(bare.pid) if target == BARE else running.gateway_cpu_s()


def _over_http(
    plan: Plan, generator: str, script: Path, running: Served, num_in_flight: int
) -> tuple[int, float, float]:
    url = f"{running.stack.gateway.url}/v2/models/{VARIANT}/infer"
    burst = wrk.fire(generator, script, url, num_connections=num_in_flight, duration_s=plan.burst_s)
    return burst.num_requests, burst.rate_rps, burst.latency_p50_s


def _over_grpc(
    plan: Plan, request: Path, target: str, where: Sequence[str], num_in_flight: int
) -> tuple[int, float, float]:
    """`where`: the authority, and a key where one is wanted."""
    command = [sys.executable, "-m", "loadtest.bench.surfaces.grpc_ends", "call", where[0], str(request)]
    command += [str(num_in_flight), str(plan.burst_s), *where[1:]]
    said = run_command(command, f"calls to {target} failed", CALL_TIMEOUT_S)
    calls, took_s, median_s = said.split()
    return int(calls), int(calls) / float(took_s), float(median_s)


def _part(measured: Mapping[str, Series]) -> Part:
    rows = [("gRPC", f"req/s at {NUM_IN_FLIGHT}", "p50 ms at 1", "CPU µs/call there", "generator")]
    for target, series in measured.items():
        cpu = "" if target == DIRECT else told(spread(series.cpu_us))
        generator = "wrk" if target == HTTP else "grpc.aio"
        rows.append(
            (target, told(spread(series.rate_rps), 0), told(spread(series.latency_p50_s), 3, 1000), cpu, generator)
        )
    rate = ratio(measured[GRPC].rate_rps, measured[DIRECT].rate_rps)
    cpu_ratio = ratio(measured[GRPC].cpu_us, measured[HTTP].cpu_us)
    least = ratio(measured[GRPC].cpu_us, measured[BARE].cpu_us)
    notes = [
        f"gateway ÷ direct throughput, gRPC: {told(rate, 2)}; gateway's CPU, gRPC ÷ HTTP: {told(cpu_ratio, 2)}, "
        f"÷ bare grpc.aio: {told(least, 2)}",
        f"{VARIANT}, one real digit as a raw tensor, keys on; no aim: the generator is Python and takes as much as what it asks",
    ]
    values = {
        target: {"rate_rps": s.rate_rps, "latency_p50_s": s.latency_p50_s, "cpu_us": s.cpu_us}
        for target, s in measured.items()
    }
    return Part("gRPC", rows, (), notes, values)
