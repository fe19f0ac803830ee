"""The processes that a bench starts, watches and stops: each by its number, none by its name.

Reads /proc, so Linux only. Keep: a process is known by number and start time together, because numbers are used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.target import last_line, leashed, stop
from serving.children import held

ROOT = Path(__file__).resolve().parents[1]
MODEL_REPOSITORY = ROOT / "model_repo"
TANDEM = (sys.executable, "-m", "serving")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
VARIABLES = {"ORT_DISABLE_TELEMETRY": "1", **os.environ}  # as Tandem starts Triton
POLL_S = 0.02  # how late readiness is noticed
STOP_TIMEOUT_S = 30.0  # past every drain of ours; then it is killed


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: a process as it was seen."""

    pid: int
    parent: int
    started_ticks: int
    is_alive: bool
    command: tuple[str, ...]

    @property
    def program(self) -> str:
        return Path(self.command[0]).name if self.command else ""


def look(pid: int) -> Process | None:
    """None where there is no such process."""
    folder = Path("/proc", str(pid))
    try:
        fields = _fields(pid)
        command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0] not in "ZXx", tuple(filter(None, command)))


def family(pid: int) -> list[Process]:
    """The living among a process and everything below it, parents first."""
    everybody = [
        found for entry in Path("/proc").iterdir() if entry.name.isdigit() and (found := look(int(entry.name)))
    ]
    members = [process for process in everybody if process.pid == pid]
    for member in members:  # grows while it is walked
        members += [process for process in everybody if process.parent == member.pid]
    return [member for member in members if member.is_alive]


def still_there(members: Sequence[Process]) -> list[Process]:
    """Those that run on, whoever their parent is now."""
    return [p for p in members if (n := look(p.pid)) and n.is_alive and n.started_ticks == p.started_ticks]


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, all its threads. Raises OSError where there is none."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it, which Python has for threads alone


def worked_s(cores: Iterable[int]) -> float:
    """How long these cores have worked for any process so far; time stolen from the machine counts, interrupts do not."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
    ticks = ([int(word) for word in lines[f"cpu{core}"].split()] for core in cores)
    return sum(user + nice + system + stolen for user, nice, system, _, _, _, _, stolen, *_ in ticks) / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Moment:
    """How long the machine's cores have worked, and how long for this process and children that have ended, since each began."""

    at_s: float
    busy_s: float
    ours_s: float

    @staticmethod
    def now() -> Moment:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        idle, waiting = ticks[3:5]  # guest time, from the ninth on, is contained in user time
        ours = os.times()
        spent_s = ours.user + ours.system + ours.children_user + ours.children_system
        return Moment(time.monotonic(), (sum(ticks[:8]) - idle - waiting) / TICKS_PER_S, spent_s)

    def others_ratio(self, end: Moment, num_cores: float) -> float:
        """The part of the cores that others took between the two, 0..1; time stolen from the machine counts as theirs."""
        others_s = (end.busy_s - self.busy_s) - (end.ours_s - self.ours_s)
        return max(0.0, others_s / (num_cores * (end.at_s - self.at_s)))


def _fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on: the name before it may hold spaces."""
    return Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()


def run_command(command: list[str], failure: str, limit_s: float) -> str:
    """What it printed. Raises CannotMeasure, which begins with `failure`."""
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=True, env=VARIABLES
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["it said nothing"]
        raise CannotMeasure(f"{failure}: {lines[-1]}") from None
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"{failure}: it took longer than {limit_s:.0f} s") from None


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready, until the block ends or this process is killed.

    Raises CannotMeasure with its last words when it does not become so.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as file, held():
            process = subprocess.Popen(
                leashed(list(command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )
        _wait(process, command, is_ready, limit_s, log)
        yield process
    finally:
        if process is not None:
            stop(process, signal.SIGTERM, STOP_TIMEOUT_S)


def _wait(
    process: subprocess.Popen[bytes], command: Sequence[str], is_ready: Callable[[], bool], limit_s: float, log: Path
) -> None:
    deadline = time.monotonic() + limit_s
    while not is_ready():
        if process.poll() is not None:
            raise CannotMeasure(f"{_words(command)} ended with exit code {process.returncode}: {last_line(log)}")
        if time.monotonic() > deadline:
            raise CannotMeasure(f"{_words(command)} was not ready after {limit_s:.0f} s: {last_line(log)}")
        time.sleep(POLL_S)


def _words(command: Sequence[str]) -> str:
    return " ".join(command[1:4])
