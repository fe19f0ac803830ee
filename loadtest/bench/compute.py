"""What does serving cost where the net itself is the work: images per second served, over images per second inside ONNX Runtime.

Both sides: the same file, ONNX Runtime build (Triton's environment), thread count, spinning and batch size, in alternating rounds on
the same cores. Served: client → gateway → Triton, binary tensors, a fixed number of requests outstanding so that the net never waits;
the client runs on these cores too. The rate is taken between completions, so that neither end of a round counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import CannotMeasure
from loadtest.processes import ROOT, TANDEM
from loadtest.sending.bodies import encode_binary, signature
from loadtest.sending.connection import address, request_bytes
from loadtest.sending.inputs import named
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop
from loadtest.stack import Server, stack
from loadtest.target import Gateway
from serving.decisions.engines import EnginePython
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefused
from serving.measure.rounds import Spread, ratio, spread

NET = "net"  # its name in the worker
NUM_OUTSTANDING = 2  # one computes, one waits; more would only wait, and could be batched together
ANSWER_TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 300.0  # 15 s on two cores
VARIABLES = {"ORT_DISABLE_TELEMETRY": "1", **os.environ}  # as Tandem starts Triton


@dataclass(frozen=True, slots=True)
class Net:
    """A published model and what is sent to it. `pixels`: digits or random."""

    model: str
    repository: Path
    pixels: str
    batch_size: int
    variant: str = "fp32"

    @property
    def served_name(self) -> str:
        return f"{self.model}-{self.variant}"

    @property
    def file(self) -> Path:
        return self.repository / self.served_name / "1" / "model.onnx"


@dataclass(frozen=True, slots=True)
class Settings:
    """How Triton runs the net, so that the other side can run it likewise."""

    num_threads: int
    allow_spinning: bool
    num_instances: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Images per second, round by round."""

    net: Net
    settings: Settings
    engine: str
    served: tuple[float, ...]
    alone: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        return ratio(self.served, self.alone)

    def describe(self) -> str:
        threads = f"{self.settings.num_instances} instance × {self.settings.num_threads} threads"
        spinning = "spinning" if self.settings.allow_spinning else "no spinning"
        served, alone = spread(self.served), spread(self.alone)
        return (
            f"{self.net.served_name}, batch {self.net.batch_size}, {self.engine} on both sides, {threads}, {spinning}: "
            f"served {served.median:.1f} images/s ({served.low:.1f}..{served.high:.1f}) with {NUM_OUTSTANDING} binary requests "
            f"outstanding, in process {alone.median:.1f} ({alone.low:.1f}..{alone.high:.1f})"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "model": self.net.served_name,
            "batch_size": self.net.batch_size,
            "engine": self.engine,
            "num_instances": self.settings.num_instances,
            "num_threads": self.settings.num_threads,
            "allow_spinning": self.settings.allow_spinning,
            "num_outstanding": NUM_OUTSTANDING,
            "served_images_per_s": list(self.served),
            "in_process_images_per_s": list(self.alone),
            "ratio": self.ratio.to_json(),
        }


def resnet50(folder: Path, batch_size: int) -> Net:
    """A ResNet-50 with random weights in a repository of its own. Raises CannotMeasure."""
    command = [sys.executable, "-m", "serving.export.speed_nets", str(folder)]
    command += ["--net", "resnet50", "--variant", "fp32", "--max-batch-size", str(batch_size)]
    run_command(command, "the ResNet-50 could not be made", BUILD_TIMEOUT_S)
    return Net("resnet50", folder, "random", batch_size)


def compare(net: Net, folder: Path, *, num_rounds: int, round_s: float) -> Compute:
    """Alternates the two sides. Raises CannotMeasure."""
    python = _triton_python()
    served: list[float] = []
    alone: list[float] = []
    with stack(net.repository, folder) as running:
        request = request_to(net, running.gateway)
        settings = _settings(Gateway(running.gateway.url).get_json(f"/v2/models/{net.served_name}/config"))
        engine = ""
        for index in range(num_rounds):
            for side in ("served", "alone") if index % 2 == 0 else ("alone", "served"):
                if side == "served":
                    served.append(served_rps(request, running.gateway, round_s) * net.batch_size)
                else:
                    engine, rate = _alone(python, net, settings, round_s)
                    alone.append(rate)
    return Compute(net, settings, engine, tuple(served), tuple(alone))


def request_to(net: Net, gateway: Server) -> bytes:
    metadata = Gateway(gateway.url).metadata(net.served_name)
    if metadata is None:
        raise CannotMeasure(f"the gateway does not serve {net.served_name}")
    given = signature(metadata)
    some = named(net.pixels, given, "binary", 0)
    repeats = -(-net.batch_size // some.num_inputs)
    batch = {name: values.repeat(repeats, axis=0)[: net.batch_size] for name, values in some.arrays.items()}
    body = encode_binary(given, batch, ())
    return request_bytes("POST", gateway.url, f"/v2/models/{net.served_name}/infer", body.headers, body.data)


def _settings(config: Any) -> Settings:
    try:
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        return Settings(
            num_threads=int(parameters["intra_op_thread_count"]),
            allow_spinning=parameters["session.intra_op.allow_spinning"] == "1",
            num_instances=sum(int(group["count"]) for group in config["instance_group"]),
        )
    except (TypeError, KeyError, ValueError):
        raise CannotMeasure("Triton's configuration of the net does not say how it runs") from None


def served_rps(request: bytes, gateway: Server, round_s: float, num_outstanding: int = NUM_OUTSTANDING) -> float:
    """Requests per second between the first completion and the last. Raises CannotMeasure."""
    asked = Request(address(gateway.url), request)
    load = closed_loop(
        [asked], num_outstanding, round_s, in_turn=True, time_limit_s=ANSWER_TIMEOUT_S, min_shots=1 + num_outstanding
    )
    for shot in load.shots:
        if not shot.is_answered:
            raise CannotMeasure(f"a request to the served net failed: {shot}")
    completed = sorted(shot.ended_s for shot in load.shots)
    return (len(completed) - 1) / (completed[-1] - completed[0])


def _alone(python: Path, net: Net, settings: Settings, round_s: float) -> tuple[str, float]:
    """(ONNX Runtime's version, images per second)"""
    try:
        worker = WorkerProcess(EnginePython("cpu", python, ""))
    except WorkerLost as lost:
        raise CannotMeasure(f"the net did not run in process: {lost}") from None
    how = {"num_threads": settings.num_threads, "allow_spinning": settings.allow_spinning, "inputs": None}
    limit_s = ANSWER_TIMEOUT_S + round_s
    try:
        version = worker.ask(ANSWER_TIMEOUT_S, "hello")["onnxruntime"]
        worker.ask(limit_s, "open", name=NET, file=str(net.file), engine="cpu", precision="fp32", **how)
        per_run_s = worker.ask(limit_s, "prepare", name=NET, batch_size=net.batch_size)["seconds"]
        per_run_s = worker.ask(limit_s, "turn", name=NET, num_runs=max(1, round(round_s / per_run_s)))["seconds"]
    except (WorkerLost, WorkerRefused) as failure:
        raise CannotMeasure(f"the net did not run in process: {failure}") from None
    finally:
        worker.end()
    return f"ONNX Runtime {version}", net.batch_size / per_run_s


def _triton_python() -> Path:
    """The interpreter of Triton's environment, where the ONNX Runtime that serves is."""
    said = run_command([*TANDEM, "environment", "cpu"], "Triton's environment could not be made", 900.0)
    folder = Path(said.strip().splitlines()[-1].rpartition(": ")[0])
    return folder / "bin" / "python"


def run_command(command: list[str], failure: str, limit_s: float) -> str:
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=True, env=VARIABLES
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["it said nothing"]
        raise CannotMeasure(f"{failure}: {lines[-1]}") from None
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"{failure}: it took longer than {limit_s:.0f} s") from None
