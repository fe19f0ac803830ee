"""How does the gateway compare with another Python model server? LitServe gets the same digit and the same load in the same run.

In an environment of its own in Tandem's cache, made on demand from pinned wheels. No aim. Rule: where it cannot be installed the line
says so, and nothing else is affected.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import wrk
from loadtest.bench.surfaces.part import Part, Setting, family_cpu_s, served
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, Process, family, still_there
from loadtest.processes import running as process_running
from loadtest.stack import START_S, answers
from serving.local.folders import cache_dir
from serving.measure.rounds import rounds
from serving.ports import free_ports

PINS = Path(__file__).with_name("litserve.txt")
SERVER = Path(__file__).with_name("litserve_server.py")
INSTALL_TIMEOUT_S = 300.0  # 30 s on two cores with a near index
NUM_CONNECTIONS = 32  # as in `loadtest.bench.gateway`
VARIANT = "digits-fp32"


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure, also where LitServe cannot be installed."""
    generator, python = wrk.find(), environment()
    sample = (MODEL_REPOSITORY / VARIANT / "sample.json").read_bytes()
    with served(MODEL_REPOSITORY, setting.folder) as ours, _litserve(python, setting.folder) as theirs:
        headers = {"Content-Type": "application/json"}
        targets = {
            "gateway and Triton": (f"{ours.stack.gateway.url}/v2/models/{VARIANT}/infer", ours.key_header, ours.cpu_s),
            "LitServe": (f"http://{theirs.authority}/predict", {}, theirs.cpu_s),
        }
        bursts = {
            name: (wrk.write_script(setting.folder / f"peer{i}.lua", sample, headers | more), url, cpu)
            for i, (name, (url, more, cpu)) in enumerate(targets.items())
        }
        measured: dict[str, wrk.Series] = defaultdict(wrk.Series)
        for order in rounds(list(bursts), setting.plan.num_rounds):
            for name in order:
                script, url, cpu = bursts[name]
                fire = wrk.firing(generator, script, url, busy_s=setting.plan.burst_s)
                measured[name].take_turn(fire, NUM_CONNECTIONS, cpu)
    return _part(measured)


@dataclass(frozen=True, slots=True)
class _Peer:
    authority: str
    pid: int

    def cpu_s(self) -> float:
        return family_cpu_s(self.pid)


@contextmanager
def _litserve(python: Path, folder: Path) -> Iterator[_Peer]:
    (port,) = free_ports(1)
    authority = f"127.0.0.1:{port}"
    command = [str(python), str(SERVER), str(MODEL_REPOSITORY / VARIANT / "1" / "model.onnx"), str(port)]
    variables = {"PYTHONPATH": "", "LITSERVE_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    with process_running(
        command, folder / "litserve.log", lambda: answers(authority, "/health"), START_S, variables
    ) as process:
        try:
            yield _Peer(authority, process.pid)
        finally:
            _kill(family(process.pid))


def _kill(members: Sequence[Process]) -> None:
    """All of them: LitServe 0.2.19 ends on SIGTERM and leaves its workers behind."""
    for member in still_there(members):
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


def environment() -> Path:
    """Its interpreter; made if need be. Raises CannotMeasure."""
    folder = cache_dir() / "peers" / f"litserve-python{sys.version_info[0]}.{sys.version_info[1]}"
    python, made_for = folder / "bin" / "python", folder / "pins.txt"
    pins = PINS.read_text()
    if made_for.is_file() and made_for.read_text() == pins and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making an environment for LitServe in {folder} (150 MB, once)", file=sys.stderr)
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(PINS)],
    )
    for command in commands:
        _install(command)
    made_for.write_text(pins)
    return python


def _install(command: list[str]) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False, env=clean
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"LitServe was not installed after {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CannotMeasure(f"LitServe could not be installed: {last}")


def _part(measured: Mapping[str, wrk.Series]) -> Part:
    rows = [("JSON digit", f"req/s at {NUM_CONNECTIONS}", "p50 ms at 1", "CPU µs/request", "of all that serves")]
    for name, series in measured.items():
        rows.append((name, *series.cells(), ""))
    (version,) = [line for line in PINS.read_text().splitlines() if line.startswith("litserve==")]
    notes = [f"{version}, one worker, one thread, {VARIANT}'s file, the same body; keys on at the gateway"]
    values = {name: series.to_json() for name, series in measured.items()}
    return Part("peer", rows, (), notes, values)
