"""Processes as Linux shows them: Triton's stubs, children that are reaped, children that die with us, a command that takes our place.

Answers: which stubs does a tritonserver have, does a process still live, and how did a child end? Not here: what to do
about it (`watch.py`). Keep: a process is known by number and start time together, because numbers are used again; and
while a `Nursery` is open nothing else in this process may wait for children, but for `serving.children.OwnChild`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType

from serving import children
from serving.errors import EnvironmentFault

PROC = Path("/proc")
LEASH = Path(__file__).with_name("leash.py")
PR_SET_CHILD_SUBREAPER = 36
END_S = 5.0  # for orphans that were killed to be gone


def leashed(command: Sequence[str], number: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command, made to get a signal when this process dies. Start it from the main thread: the leash is that thread's."""
    return [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(number)), *command]


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says that matters here."""

    pid: int
    state: str
    parent: int
    started_ticks: int
    cpu_ticks: int = 0  # of the processor, for itself and the kernel

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZXx"


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """None where there is no such process."""
    try:
        with open(f"{proc}/{pid}/stat", errors="replace") as file:  # noqa: PTH123 - many, and often
            text = file.read()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    cpu_ticks = int(fields[11]) + int(fields[12])
    return Stat(pid, state=fields[0], parent=int(fields[1]), started_ticks=int(fields[19]), cpu_ticks=cpu_ticks)


def children_of(parent: int, proc: Path = PROC, others: set[int] | None = None) -> list[Stat]:
    """Zombies included. Empty where there is no /proc.

    `others`: processes that are known to be none of them, kept from look to look, so that only new ones are read: of 150 processes
    reading all takes 10 ms of processor time.
    """
    try:
        processes = {int(name) for name in os.listdir(proc) if name.isdigit()}  # noqa: PTH208
    except OSError:
        return []
    others = set() if others is None else others
    others &= processes
    children = []
    for pid in sorted(processes - others):
        found = stat(pid, proc)
        if found is not None and found.parent == parent:
            children.append(found)
        else:
            others.add(pid)
    return children


@dataclass(frozen=True, slots=True)
class Stub:
    """The process of one model instance: `…stub REPOSITORY/MODEL/VERSION/FILE REGION …` on its command line."""

    pid: int
    started_ticks: int
    model: str
    region: str


def stubs_of(server: int, proc: Path = PROC) -> frozenset[Stub]:
    """The living stubs of a tritonserver. A dead one no longer shows its command line."""
    stubs = (_as_stub(child, proc) for child in children_of(server, proc) if child.is_alive)
    return frozenset(stub for stub in stubs if stub is not None)


def _as_stub(process: Stat, proc: Path) -> Stub | None:
    try:
        words = (proc / str(process.pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if len(words) < 3 or not words[0].endswith("triton_python_backend_stub"):
        return None
    return Stub(process.pid, process.started_ticks, model=Path(words[1]).parent.parent.name, region=words[2])


def is_alive(stub: Stub, proc: Path = PROC) -> bool:
    now = stat(stub.pid, proc)
    return now is not None and now.is_alive and now.started_ticks == stub.started_ticks


def exit_text(status: int) -> str:
    """How a process ended, in words, from its exit code (negative: a signal's number)."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit code {status}"


class KilledForMemory(Enum):
    """How it is known that the kernel killed a process because memory was all used."""

    HERE = auto()  # by the count of this process's control group, in which its children are as well
    SOMEWHERE = auto()  # by the count of the whole machine: it may have been another


def memory_kills(proc: Path = PROC, groups: Path = Path("/sys/fs/cgroup")) -> tuple[KilledForMemory, int]:
    """How many processes the kernel killed because memory, or what a container may use of it, was all used."""
    for file in _group_files(proc, groups):
        if (count := _count_of_kills(file)) is not None:
            return KilledForMemory.HERE, count
    return KilledForMemory.SOMEWHERE, _count_of_kills(proc / "vmstat") or 0


def _group_files(proc: Path, groups: Path) -> Iterator[Path]:
    """Version 2 first; in a container the path is that of the host, and its own group lies on top."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                place, name = ("memory", "memory.oom_control") if kinds else ("", "memory.events")
                yield groups / place / path.lstrip("/") / name
                yield groups / place / name


def _count_of_kills(file: Path) -> int | None:
    """None where it does not say."""
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return next((int(value) for name, value in rows if name == "oom_kill"), None)
    except (OSError, ValueError):
        return None


class Nursery:
    """The children of this process, and every orphan below it: all are reaped, the known ones report how they ended.

    Works as PID 1 of a container too. One per process, open while its event loop runs.
    """

    def __init__(self) -> None:
        self._ends: dict[int, asyncio.Future[int]] = {}
        # Of whoever else works in this process; they are not ours to end.
        self._others = {(child.pid, child.started_ticks) for child in children_of(os.getpid())}

    def __enter__(self) -> Nursery:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._reap()

    def start(self, command: Sequence[str], environment: Mapping[str, str], *, folder: Path, output: int = 2) -> Child:
        """Starts a leashed child in `folder` that writes to this descriptor, which is our standard error unless another is given.

        Raises OSError where there is no memory or number left for a process, or no such folder.
        """
        # Ours may have no name any more, because somebody removed it, and need not be ours to read.
        before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
        actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        ]
        try:
            os.chdir(folder)
            argv = leashed(command)
            pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions)
        finally:
            os.fchdir(before)
            os.close(before)
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[pid] = end
        return Child(pid, end)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError), children.STARTING:  # the former where no child is left
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in children.own():  # its thread takes it; an orphan behind it waits for the next end
                    for pid in [*self._ends]:
                        self._take(pid)
                    return
                self._take(found.si_pid)

    def _take(self, pid: int) -> None:
        """Its end, if it has ended."""
        taken, status = os.waitpid(pid, os.WNOHANG)
        if taken and (end := self._ends.pop(pid, None)) is not None and not end.done():
            end.set_result(os.waitstatus_to_exitcode(status))

    def orphans(self) -> list[Stat]:
        """What dead children left behind: their children are ours now."""
        found = children_of(os.getpid())
        with children.STARTING:
            known = children.own() | self._ends.keys()
        return [it for it in found if it.pid not in known and (it.pid, it.started_ticks) not in self._others]

    async def end_orphans(self) -> None:
        """Kills them and waits until none is left."""
        deadline = asyncio.get_running_loop().time() + END_S
        while orphans := self.orphans():
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan.pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.01)
            self._reap()


class Child:
    """A started process whose end can be awaited."""

    def __init__(self, pid: int, end: asyncio.Future[int]) -> None:
        self.pid = pid
        self._end = end
        self._kills_before = memory_kills()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._end.result() if self._end.done() else None

    @property
    def killed_for_memory(self) -> KilledForMemory | None:
        """By the kernel, as far as can be told: it killed some process meanwhile, and this one ended so."""
        if self.exit_code != -signal.SIGKILL:
            return None
        now, before = memory_kills(), self._kills_before
        return now[0] if now[0] is before[0] and now[1] > before[1] else None

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises TimeoutError when it still runs after that long."""
        return await asyncio.wait_for(asyncio.shield(self._end), timeout_s)

    async def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL for one that does not leave in time."""
        self.send(signal.SIGTERM)
        try:
            return await self.wait(timeout_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await self.wait()


# Ctrl-C and Ctrl-\ in a terminal go to its whole foreground group, so that the other process has them already.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Its exit code, 128 + n where signal n ended it. Call it from the main thread: signals are that thread's."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is None:  # a terminal may not have met it, either
            early.append(number)
        elif not (number in _FROM_TERMINAL and _is_in_foreground()):
            process.send_signal(number)

    numbers = (*_PASSED_ON, *_FROM_TERMINAL)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]  # the command inherits this
    before = {number: signal.signal(number, pass_on) for number in numbers if number not in ignored}
    try:
        process = subprocess.Popen(command, env=environment)
        before.update({number: signal.signal(number, pass_on) for number in ignored})
        for number in early:
            process.send_signal(number)
        # Not process.wait(): a signal that comes just before it would be handled only when the command has ended.
        while (status := process.poll()) is None:
            time.sleep(0.02)
    except OSError as error:
        raise EnvironmentFault(f"cannot run {command[0]}: {error.strerror}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no terminal: whoever sent it sent it to this process alone
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
