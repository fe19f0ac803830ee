"""Starts and asks a worker process of one engine, and says what it means when it does not answer.

`running` has it answer batches for gates, because a file that is right on one engine may be wrong on another; timing is `contest`'s.
`worker.py` runs in the engine's own Python, which has another ONNX Runtime than ours or none of ours. Rule: whatever happens
in it, a crash of a native library or a run without end, is an exception here, and no process is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.decisions.engines import EnginePython
from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays, Run
from serving.export.large_model import write_model
from serving.export.scratch import scratch, writing_into
from serving.export.speed.kernels import Kernel, kernels

EXIT_TIMEOUT_S = 10.0  # from its last word to its end: a core dump is written in between (guess, not measured)
SCRIPT = Path(__file__).with_name("worker.py")


class WorkerRefusal(Exception):
    """The worker is well and says why it cannot."""


class WorkerLost(Exception):
    """The worker died or took too long, and is gone."""


class WorkerProcess:
    """Answers one command at a time."""

    def __init__(self, engine: EnginePython, script: Path = SCRIPT) -> None:
        """`script`: another worker that answers lines of JSON."""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            self._process = subprocess.Popen(
                [str(engine.python), "-I", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env={"ORT_DISABLE_TELEMETRY": "1", **variables},
            )
        except OSError as error:
            self._words.close()
            raise WorkerLost(f"{engine.python} does not start: {error.strerror}") from None
        self._unread = b""

    def ask(self, timeout_s: float, do: str, **command: Any) -> dict[str, Any]:
        """Sends one command. Raises WorkerRefusal with the worker's reason, WorkerLost where no answer came in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **command}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(time.monotonic() + timeout_s)
        except OSError:
            line = None
        if line is None:
            raise WorkerLost(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerRefusal(answer["error"])
        return answer

    def _line(self, deadline_s: float) -> bytes | None:
        """Reads a line; None when the worker has ended. Kills it and raises WorkerLost when the time is up."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        waiting = select.poll()  # unlike select, it takes descriptors of any number
        waiting.register(pipe, select.POLLIN)
        while b"\n" not in self._unread:
            wait_s = deadline_s - time.monotonic()
            if wait_s <= 0 or not waiting.poll(wait_s * 1e3):
                self._process.kill()
                raise WorkerLost("took too long")
            read = os.read(pipe, 65536)
            if not read:
                return None
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        """Its last words, or the signal that killed it."""
        try:
            code = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._words.seek(0)
        lines = [line.strip() for line in self._words.read().decode(errors="replace").splitlines() if line.strip()]
        if code < 0 and code != -signal.SIGKILL:
            return f"crashed ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            return "was killed, perhaps for want of memory"
        return f"ended: {lines[-1][:300] if lines else f'exit code {code}'}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was written to a dead one cannot be flushed
                    pipe.close()


TIMEOUT_S = 600.0  # of one batch: loading a large file included (guess, not measured)


@contextmanager
def running(engine: EnginePython, model: bytes, precision: str, num_threads: int = 1) -> Iterator[Run]:
    """Gives the block a function from one batch of inputs to all outputs."""
    with scratch("answers") as folder, _worker(engine) as worker:
        file, inputs, outputs = (Path(folder, name) for name in ("model.onnx", "in.npz", "out.npz"))
        with writing_into(folder):
            write_model(file, model)
        how = {"engine": engine.engine, "precision": precision, "num_threads": num_threads, "allow_spinning": False}
        _ask(worker, how, "open", name="model", file=str(file), inputs=None, **how)

        def run(batch: Arrays) -> list[NDArray[Any]]:
            arrays: Any = {name: _plain(values) for name, values in batch.items()}
            with writing_into(folder):
                np.savez(inputs, **arrays)
            _ask(worker, how, "run", name="model", inputs=str(inputs), outputs=str(outputs))
            with np.load(outputs) as found:
                return [found[str(place)] for place in range(len(found.files))]

        yield run


def profiled(engine: EnginePython, model: bytes, precision: str, inputs: Arrays) -> tuple[Kernel, ...]:
    """Every node of one run over all rows of `inputs`: where and in which types it computed. Raises as `running` does."""
    with scratch("profile") as folder, _worker(engine) as worker:
        file, rows = Path(folder, "model.onnx"), Path(folder, "in.npz")
        with writing_into(folder):
            write_model(file, model)
            arrays: Any = {name: _plain(values) for name, values in inputs.items()}
            np.savez(rows, **arrays)
        how = {"engine": engine.engine, "precision": precision}
        batch_size = len(next(iter(inputs.values())))
        return kernels(
            _ask(worker, how, "profile", file=str(file), batch_size=batch_size, inputs=str(rows), **how)["events"]
        )


@contextmanager
def _worker(engine: EnginePython) -> Iterator[WorkerProcess]:
    try:
        worker = WorkerProcess(engine)
    except WorkerLost as loss:
        raise EnvironmentFault(str(loss)) from None
    try:
        yield worker
    finally:
        worker.end()


def _ask(worker: WorkerProcess, how: Mapping[str, object], do: str, **command: object) -> dict[str, Any]:
    try:
        return worker.ask(TIMEOUT_S, do, **command)
    except WorkerRefusal as refusal:
        raise UserError(f"{how['engine']} does not run {how['precision']}: {refusal}") from None
    except WorkerLost as loss:
        raise EnvironmentFault(f"{how['engine']} running {how['precision']} {loss}") from None


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Turns objects into text, which needs no pickles."""
    return values.astype(str) if values.dtype.kind == "O" else values
