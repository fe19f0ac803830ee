"""Runs ONNX files in one engine's own Python and says how long it takes: the stopwatch that `contest.py` holds.

    PYTHON worker.py     answers lines of JSON on standard input with lines of JSON on standard output, until its end

An answer is an object; one with "error" in it is a refusal, and the worker goes on. Commands, by "do": hello, open (a file
as a session), prepare (a batch size: inputs and warm-up), turn (some runs of it, timed), times (each run's own time), run (one batch,
answered), profile (a file's nodes: where and in which types they computed), close.
Rule: standard library, NumPy (1.26 or 2) and ONNX Runtime only, because it runs in environments that have nothing else; and, by its
path, the files of our Triton backend that run batches in buffers, so that what is timed so is what is served so, and that say what a
machine lacks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "openvino": (OPENVINO, "CPUExecutionProvider"),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": (TENSORRT, "CUDAExecutionProvider", "CPUExecutionProvider"),
}
LIBRARIES = {"cuda": "libonnxruntime_providers_cuda.so", "tensorrt": "libonnxruntime_providers_tensorrt.so"}
TYPED = ("fp16", "int8")  # variants whose files have their precision in their own types
BF16_FLAGS = {"amx_bf16", "avx512_bf16"}  # of /proc/cpuinfo; without one OpenVINO computes in FP32 and does not say so
DYNAMIC_LENGTH = 32  # of a dimension that is not the batch, in made-up inputs: a sentence (guess, not measured)
NUM_WARMUP_RUNS = 3  # arenas grow, caches fill
SLOW_RUN_S = 0.1  # a run this long is timed by its first one: more would cost more than they tell

KINDS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class Refusal(Exception):
    """What was asked for cannot be had; the message says why."""


NO_BUFFERS = "inputs whose open dimensions differ in length have no buffers"
BACKEND = Path(__file__).parents[2] / "local" / "backends" / "onnxruntime"


class Session:
    """One file on one engine, and what it is fed with. `has_buffers`: batches run in buffers that stay where they are."""

    def __init__(
        self,
        file: str,
        engine: str,
        precision: str,
        num_threads: int,
        allow_spinning: bool,
        inputs: str | None,
        cuda: Mapping[str, str] | None = None,
        has_buffers: bool = False,
    ) -> None:
        self._captures = (cuda or {}).get("enable_cuda_graph") == "1"
        if cuda and engine not in ("cuda", "tensorrt"):
            raise Refusal(f"options of the CUDA provider do nothing on {engine}")
        if self._captures and not has_buffers:
            raise Refusal("enable_cuda_graph needs buffers, because a graph replays batches of one size")
        self._session = open_session(file, engine, precision, num_threads, allow_spinning, cuda=cuda)
        self._inputs = inputs
        self._is_on_card = engine in ("cuda", "tensorrt")
        self._buffers = backend_file("bindings") if has_buffers else None
        self._in_buffers: dict[int, Any] = {}  # batch size -> its buffers
        self._feed: dict[str, Any] = {}
        self._feeds: dict[int, dict[str, Any]] = {}  # of `times`, by batch size

    def prepare(self, batch_size: int) -> float:
        """Seconds per run, roughly."""
        self._feed = feed(self._session.get_inputs(), batch_size, self._inputs)
        self._run = self._runner(batch_size)
        first_s = self.turn(1)
        # on a card the first run chooses algorithms or builds an engine
        if first_s > SLOW_RUN_S and not self._is_on_card:
            return first_s
        self.turn(NUM_WARMUP_RUNS if first_s < SLOW_RUN_S else 1)
        return self.turn(NUM_WARMUP_RUNS)

    def _runner(self, batch_size: int) -> Callable[[], object]:
        """Runs what is fed, answers on the host included."""
        session, given = self._session, self._feed
        if self._buffers is None:
            return lambda: session.run(None, given)
        buckets, names = self._buckets(batch_size, given), [node.name for node in session.get_outputs()]
        if buckets.run([given], names) is None:
            raise Refusal(NO_BUFFERS)
        return lambda: buckets.run([given], names)

    def _buckets(self, batch_size: int, given: Mapping[str, Any]) -> Any:
        """Buffers of one size of batch, for inputs of the lengths that `given` has."""
        session = self._session
        assert self._buffers is not None
        if batch_size not in self._in_buffers:
            nodes = session.get_inputs()
            lengths = {
                length
                for node in nodes
                for size, length in zip(node.shape[1:], given[node.name].shape[1:], strict=True)
                if not isinstance(size, int)
            }
            memory = self._buffers.CardMemory(0) if self._is_on_card else self._buffers.PlainMemory()
            graph = 1 + len(self._in_buffers) * self._buffers.MAX_BUCKETS
            how = {"captures": self._captures, "first_graph": graph}
            self._in_buffers[batch_size] = self._buffers.Buckets(
                session, ort, memory, [batch_size], sorted(lengths), **how
            )
        return self._in_buffers[batch_size]

    def answer(self, inputs: str, outputs: str, batch_size: int) -> None:
        """With buffers, in those of `batch_size`, to which the rows are padded."""
        with np.load(inputs) as given:
            fed = {
                name: values.astype(object) if values.dtype.kind == "U" else values for name, values in given.items()
            }
        if self._buffers is None:
            found = self._session.run(None, fed)
        else:
            names = [node.name for node in self._session.get_outputs()]
            by_name = self._buckets(batch_size, fed).run([fed], names)
            if by_name is None:
                raise Refusal(NO_BUFFERS)
            found = [by_name[name] for name in names]
        np.savez(outputs, **{str(place): values for place, values in enumerate(found)})

    def turn(self, num_runs: int) -> float:
        """Seconds per run. Of many runs one more goes first, untimed: others had the caches and the cores since."""
        run = self._run
        if num_runs > NUM_WARMUP_RUNS:
            run()
        start = time.perf_counter()
        for _ in range(num_runs):
            run()
        return (time.perf_counter() - start) / num_runs

    def times(self, batch_size: int, num_runs: int) -> list[float]:
        """Seconds of each run, after one that does not count."""
        if batch_size not in self._feeds:
            self._feeds[batch_size] = feed(self._session.get_inputs(), batch_size, self._inputs)
        run, given, clock = self._session.run, self._feeds[batch_size], time.perf_counter
        run(None, given)
        taken = []
        for _ in range(num_runs):
            start = clock()
            run(None, given)
            taken.append(clock() - start)
        return taken


def open_session(
    file: str,
    engine: str,
    precision: str,
    num_threads: int,
    allow_spinning: bool,
    profile: str | None = None,
    cuda: Mapping[str, str] | None = None,
) -> Any:
    """A session that computes on the engine asked for. Raises Refusal where ONNX Runtime would quietly take another.

    `profile`: how the name of the file begins that its nodes are written to.
    """
    providers = PROVIDERS[engine]
    built = ort.get_available_providers()
    if providers[0] not in built:
        raise Refusal(f"ONNX Runtime {ort.__version__} has no {providers[0]}, only {', '.join(built)}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only: what is wrong becomes our own message
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if allow_spinning else "0")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if engine == "openvino":
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    libraries = backend_file("cuda_libraries") if engine in LIBRARIES else None
    if libraries:
        libraries.preload(ort)
    configured = [(name, engine_options(name, precision, num_threads)) for name in providers]
    configured = [(name, {**own, **(cuda or {})} if name == PROVIDERS["cuda"][0] else own) for name, own in configured]
    try:
        session = ort.InferenceSession(file, options, providers=configured, enable_fallback=0)
    except Exception as error:
        if libraries and (why := libraries.why_failed(ort, str(error))):
            raise Refusal(f"{providers[0]} did not start: {why}") from None
        raise
    if session.get_providers()[0] != providers[0]:
        why = libraries and (libraries.no_driver(ort) or libraries.why_not_started(ort, provider_library(engine)))
        told = f": {why}" if why else ""
        raise Refusal(f"{providers[0]} did not start{told}; it would have run on {session.get_providers()[0]}")
    if engine == "openvino" and not any(p.ep_name == OPENVINO for p in session.get_provider_graph_assignment_info()):
        raise Refusal("OpenVINO computes no node of this model")
    return session


def provider_library(engine: str) -> Path:
    return Path(ort.__file__).parent / "capi" / LIBRARIES[engine]


def backend_file(name: str) -> Any:
    """A module of the backend, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"tandem_{name}", BACKEND / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def engine_options(provider: str, precision: str, num_threads: int) -> dict[str, str]:
    """As our Triton backend sets them for the generated configurations."""
    if provider == OPENVINO:
        if precision == "bf16" and not BF16_FLAGS & processor_flags():
            raise Refusal("BF16 needs a processor with amx_bf16 or avx512_bf16")
        cpu = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32"}
        if num_threads:
            cpu["INFERENCE_NUM_THREADS"] = str(num_threads)
        return {"device_type": "CPU", "load_config": json.dumps({"CPU": cpu})}
    if provider == "CUDAExecutionProvider":
        return {
            "use_tf32": "1" if precision == "tf32" else "0"
        }  # unless told, FP32 would be TF32 on cards that have it
    if provider == TENSORRT:
        return tensorrt_options(precision, provider_library("tensorrt"))
    return {}


def reason_of(error: Exception) -> str:
    """In one line. Of OpenVINO the cause stands last, behind the places in C++ that it went through."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "[OpenVINO-EP]" not in str(error):
        return lines[0][:300]
    return f"OpenVINO cannot run it: {lines[-1].rpartition('[OpenVINO-EP] ')[2].removeprefix('Unexpected: ')}"[:300]


def tensorrt_options(precision: str, library: Path) -> dict[str, str]:
    """As the version of TensorRT that the provider is linked with takes them. Raises Refusal where it would compute in FP32."""
    libraries = backend_file("cuda_libraries")
    try:
        flag = libraries.tensorrt_flag(precision.upper(), libraries.tensorrt_version(library), precision in TYPED)
    except ValueError as error:
        raise Refusal(str(error)) from None
    return {flag: "1"} if flag else {}


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.is_file() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


# -- inputs -----------------------------------------------------------------------------------------------------------


def feed(nodes: list[Any], batch_size: int, inputs: str | None) -> dict[str, Any]:
    """Rows of the .npz file `inputs` (arrays by name), repeated to fill the batch; made-up ones for what it lacks."""
    made: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    with np.load(inputs) if inputs else _Nothing() as given:
        for node in nodes:
            first = node.shape[0] if node.shape and isinstance(node.shape[0], int) else batch_size
            if node.name in given:
                values = given[node.name]
                is_whole = values.ndim == len(node.shape) + 1  # a row is a whole input of a graph without batches
                made[node.name] = np.asarray(values[0]) if is_whole else np.resize(values, (first, *values.shape[1:]))
            else:
                made[node.name] = made_up(rng, node, first)
    return made


def made_up(rng: np.random.Generator, node: Any, num_rows: int) -> Any:
    """Random numbers in 0..1; ones for whole numbers, because 1 is a valid token id and a mask that hides nothing."""
    if node.type not in KINDS:
        raise Refusal(f"input {node.name!r} is {node.type}, for which there are no made-up numbers")
    rest = [size if isinstance(size, int) else DYNAMIC_LENGTH for size in node.shape[1:]]
    shape = [num_rows, *rest] if node.shape else []
    kind = KINDS[node.type]
    if node.type in ("tensor(float)", "tensor(float16)", "tensor(double)"):
        return rng.random(shape).astype(kind)
    return np.ones(shape, kind)


class _Nothing(dict[str, Any]):
    """No file of inputs."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


# -- commands ---------------------------------------------------------------------------------------------------------


class Worker:
    """Holds sessions by the names that they are given."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.commands: Mapping[str, Callable[..., dict[str, Any]]] = {
            "hello": self.hello,
            "open": self.open,
            "prepare": self.prepare,
            "turn": self.turn,
            "times": self.times,
            "run": self.run,
            "profile": self.profile,
            "close": self.close,
        }

    def hello(self) -> dict[str, Any]:
        return {"onnxruntime": ort.__version__, "numpy": np.__version__}

    def open(self, name: str, **how: Any) -> dict[str, Any]:
        self._sessions[name] = Session(**how)
        return {}

    def prepare(self, name: str, batch_size: int) -> dict[str, Any]:
        return {"seconds": self._sessions[name].prepare(batch_size)}

    def turn(self, name: str, num_runs: int) -> dict[str, Any]:
        return {"seconds": self._sessions[name].turn(num_runs)}

    def times(self, name: str, batch_size: int, num_runs: int) -> dict[str, Any]:
        return {"seconds": self._sessions[name].times(batch_size, num_runs)}

    def run(self, name: str, inputs: str, outputs: str, batch_size: int = 0) -> dict[str, Any]:
        """One batch out of an .npz file, and all outputs, in the model's order, into another: "0", "1", … `batch_size`: of its buffers."""
        self._sessions[name].answer(inputs, outputs, batch_size)
        return {}

    def profile(self, file: str, engine: str, precision: str, batch_size: int, inputs: str | None) -> dict[str, Any]:
        """The events of all nodes of one run, as ONNX Runtime's profile has them but for what nobody reads."""
        with tempfile.TemporaryDirectory(prefix="tandem-profile-") as folder:
            session = open_session(file, engine, precision, 1, allow_spinning=False, profile=f"{folder}/run")
            session.run(None, feed(session.get_inputs(), batch_size, inputs))
            events = json.loads(Path(session.end_profiling()).read_text())
        kept = ("op_name", "provider", "input_type_shape", "output_type_shape")
        return {
            "events": [
                {"cat": "Node", "name": event["name"], "args": {key: event["args"].get(key) for key in kept}}
                for event in events
                if event.get("cat") == "Node" and "provider" in event.get("args", {})
            ]
        }

    def close(self, name: str) -> dict[str, Any]:
        self._sessions.pop(name, None)
        return {}

    def answer(self, line: str) -> dict[str, Any]:
        """Every failure is an answer: what ONNX Runtime raises has no root of its own."""
        command = json.loads(line)
        try:
            return self.commands[command.pop("do")](**command)
        except Exception as error:
            return {"error": reason_of(error)}


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this; then standard input ends
    answers = own_stdout()
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.answer(line)), file=answers, flush=True)
    return 0


def own_stdout() -> TextIO:
    """Standard output for answers alone: what the engines' libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    sys.exit(main())
