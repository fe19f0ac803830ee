"""Runs a program of ours as a process, reads what it says, and looks at what it leaves behind.

Waiting is for an event (a line, an answer, an end), always with a limit; nothing sleeps as proof.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton_http

from serving.errors import UserError
from serving.local.launch import region_prefix_of
from serving.local.processes import Stub, children_of, stat, stubs_of
from serving.ports import free_ports, require_free
from tests.local.forks import VERBS, Fork

ROOT = Path(__file__).parents[2]
TANDEM = [sys.executable, "-m", "serving"]
SERVE = Path(__file__).with_name("serve.py")
LIMIT_S = 150.0  # for whatever must happen; the machine may be busy
NUM_LAST = 40  # lines of a log that a failure tells


def wait_until(
    happened: Callable[[], Any],
    what: str,
    limit_s: float = LIMIT_S,
    seen: Callable[[], str] = str,
    every_s: float = 0.01,
) -> Any:
    """The first true answer. `seen` is told where none comes in time. `every_s`: longer where a question costs a server milliseconds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if answer := happened():
            return answer
        time.sleep(every_s)
    raise AssertionError(f"not within {limit_s} s: {what}\n{seen()}")


def final_count(count: Callable[[], int]) -> int:
    """Of what Triton counts a moment after it has answered, which nothing tells: once no look of half a second finds more."""
    number, since_s = count(), time.monotonic()
    while time.monotonic() - since_s < 0.5:
        time.sleep(0.05)
        if (now := count()) != number:
            number, since_s = now, time.monotonic()
    return number


PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


@contextlib.contextmanager
def black_hole() -> Iterator[tuple[dict[str, str], Callable[[], int]]]:
    """A proxy that takes connections and never answers: the variables that name it in every way, and how many have called it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        callers: list[socket.socket] = []

        def num_callers() -> int:
            with contextlib.suppress(BlockingIOError):
                while True:
                    callers.append(listener.accept()[0])
            return len(callers)

        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        named = {name: proxy for lower in PROXIES for name in (lower, lower.upper())}
        yield {**named, "no_proxy": "", "NO_PROXY": ""}, num_callers
        for caller in callers:
            caller.close()


def undisturbed(took_s: Callable[[], float], limit_s: float) -> float:
    """The shortest so far as soon as one is within the limit: what else the machine does only ever adds."""
    took: list[float] = []

    def is_within() -> bool:
        took.append(took_s())
        return took[-1] <= limit_s

    wait_until(is_within, f"it takes {limit_s:.4f} s where nothing else runs")
    return min(took)


class Program:
    """A child process whose lines are kept."""

    def __init__(
        self, command: list[str], log: Path, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        self.log = log
        everything = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | Fork
        with log.open("wb") as output:
            if command[:3] == TANDEM and {*command[3:4]} & VERBS and "PYTHONPATH" not in (environment or {}):
                self.process = Fork("serving.__main__", command[3:], output.fileno(), cwd, everything)
            elif command[1:2] == [str(SERVE)]:
                self.process = Fork("tests.local.serve", command[2:], output.fileno(), cwd, everything)
            else:
                self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd, env=everything)

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def says(self, part: str) -> bool:
        return any(part in line for line in self.lines())

    @property
    def account(self) -> str:
        """Whether it runs, and what it said last."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        lines = self.lines()[-NUM_LAST:] if self.log.exists() else ["(its log is gone)"]
        return "\n".join([f"{self.log} of process {self.pid}, which {state}:", *lines])

    def wait_for(self, part: str, limit_s: float = LIMIT_S) -> str:
        """The first line that holds this. Fails with all lines when the process ends before."""

        def found() -> str | None:
            over = self.process.poll() is not None
            line = next((line for line in self.lines() if part in line), None)
            assert line or not over, f"ended with {self.process.returncode} before '{part}':\n" + "\n".join(
                self.lines()
            )
            return line

        return str(wait_until(found, f"a line with '{part}' in {self.log}", limit_s))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, limit_s: float = LIMIT_S) -> int:
        """Its exit code after this signal."""
        if self.process.poll() is None:
            self.send(number)
        return self.process.wait(limit_s)

    def hurry(self) -> None:
        """Ends it by a second signal: nobody is left for whom it would linger."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.end(limit_s=0.05)
        self.end()

    def family(self) -> dict[int, int]:
        return self.family_of(self.pid)

    @staticmethod
    def family_of(pid: int) -> dict[int, int]:
        """{process: start time} of it and everything below it."""
        found, new = {}, [pid]
        while new:
            pid = new.pop()
            if (seen := stat(pid)) is not None and seen.is_alive:
                found[pid] = seen.started_ticks
                new += [child.pid for child in children_of(pid)]
        return found


def still_there(family: Mapping[int, int]) -> list[int]:
    """Those of a family that still run, wherever they have been moved to."""
    seen = {pid: stat(pid) for pid in family}
    return [pid for pid, now in seen.items() if now and now.is_alive and now.started_ticks == family[pid]]


def segments(family: Mapping[int, int]) -> list[str]:
    """Shared memory of the servers that a family supervised; other tests may have servers of their own."""
    prefixes = tuple(region_prefix_of(pid) for pid in family)
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(prefixes)]


@dataclass
class Served:
    """A supervised Triton that serves test models. `start`: it, anew, on the same ports."""

    program: Program
    ports: tuple[int, int, int]
    repository: Path
    start: Callable[[], Program] | None = None

    def __post_init__(self) -> None:
        self._local = threading.local()  # tritonclient.http must not be shared by threads
        self._clients: list[triton_http.InferenceServerClient] = []

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def http(self) -> triton_http.InferenceServerClient:
        if not hasattr(self._local, "client"):
            self._local.client = triton_http.InferenceServerClient(self.url, network_timeout=LIMIT_S)
            self._clients.append(self._local.client)
        return self._local.client

    def close(self) -> None:
        """Leaves no idle connection: it would hold Triton's stop up for the whole exit timeout."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._local = threading.local()

    @property
    def server(self) -> int:
        """The number of the tritonserver process that runs now."""
        return int(
            wait_until(lambda: next((c.pid for c in children_of(self.program.pid) if c.is_alive), None), "a server")
        )

    def stubs(self, model: str) -> list[Stub]:
        return sorted((stub for stub in stubs_of(self.server) if stub.model == model), key=lambda stub: stub.pid)

    def infer(
        self, model: str, feed: Mapping[str, np.ndarray[Any, Any]], outputs: list[str] | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        inputs = []
        for name, value in feed.items():
            tensor = triton_http.InferInput(name, list(value.shape), triton_type(value))
            tensor.set_data_from_numpy(value)
            inputs.append(tensor)
        wanted = [triton_http.InferRequestedOutput(name) for name in outputs] if outputs else None
        result = self.http.infer(model, inputs, outputs=wanted)
        return {o["name"]: result.as_numpy(o["name"]) for o in result.get_response()["outputs"]}

    def answers(self, model: str) -> bool:
        """Whether a model that doubles rows of four does so now."""
        with contextlib.suppress(Exception):
            return bool((self.infer(model, {"x": np.ones((1, 4), np.float32)})["y"] == 2).all())
        return False


def triton_type(value: np.ndarray[Any, Any]) -> str:
    from tritonclient.utils import np_to_triton_dtype

    return str(np_to_triton_dtype(value.dtype))


@contextlib.contextmanager
def served(
    folder: Path,
    configs: Mapping[str, Any],
    pool: str = "cpu",
    exit_timeout_s: int = 10,
    openvino: Path | None = None,
) -> Iterator[Served]:
    """Serves the models of `folder` as configured, and afterwards fails if anything is left behind."""
    ports = free_ports(3)
    spec = folder / "spec.json"
    spec.write_text(
        json.dumps(
            {
                "repository": str(folder),
                "pool": pool,
                "ports": ports,
                "exit_timeout_s": exit_timeout_s,
                "openvino": str(openvino) if openvino else None,
                "configs": configs,
            }
        )
    )
    programs: list[Program] = []

    def are_free() -> bool:
        with contextlib.suppress(UserError):
            for port in ports:
                require_free("127.0.0.1", port, "")
            return True
        return False

    def start() -> Program:
        wait_until(are_free, "a server before has ended")
        log = folder / f"log{len(programs) or ''}"
        programs.append(Program([sys.executable, str(SERVE), str(spec)], log))
        programs[-1].wait_for("ready:")
        return programs[-1]

    try:
        with contextlib.closing(Served(start(), (ports[0], ports[1], ports[2]), folder, start)) as running:
            yield running
    finally:
        for program in programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.hurry()
            program.process.kill()
            program.process.wait()
