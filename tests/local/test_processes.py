"""Processes as Linux shows them, on a made-up /proc and on real children; and what computes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.children import held
from serving.errors import UserError
from serving.local import devices
from serving.local.processes import (
    KilledForMemory,
    Nursery,
    Stub,
    children_of,
    exit_text,
    is_alive,
    leashed,
    memory_kills,
    stat,
    stubs_of,
)
from tests.local.harness import Program, wait_until

STUB = "/b/python/triton_python_backend_stub"


def process(
    proc: Path, pid: int, *, parent: int, state: str = "S", started: int = 7, words: list[str] | None = None
) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = [state, str(parent), *(["0"] * 17), str(started)]
    (folder / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}\n")
    (folder / "cmdline").write_text("\0".join(words or []) + "\0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 10, parent=1)
    process(tmp_path, 11, parent=10, words=[STUB, "/repo/digits-int8/1/model.onnx", "region-a", "1048576"])
    process(tmp_path, 12, parent=10, state="Z")
    process(tmp_path, 13, parent=10, words=["/bin/bash", "-c", "something"])
    process(tmp_path, 14, parent=1, words=[STUB, "/repo/other/1/model.onnx", "region-b"])
    (tmp_path / "self").mkdir()
    return tmp_path


def test_a_name_with_brackets_and_spaces_does_not_confuse_the_fields(proc: Path) -> None:
    found = stat(11, proc)
    assert found is not None
    assert (found.state, found.parent, found.started_ticks) == ("S", 10, 7)


def test_only_living_stubs_of_that_server_are_its_stubs(proc: Path) -> None:
    assert stubs_of(10, proc) == {Stub(11, 7, model="digits-int8", region="region-a")}


def test_zombies_are_children_but_do_not_live(proc: Path) -> None:
    assert {child.pid: child.is_alive for child in children_of(10, proc)} == {11: True, 12: False, 13: True}


@pytest.mark.parametrize(
    ("stub", "lives"),
    [
        (Stub(11, 7, "m", "r"), True),
        (Stub(12, 7, "m", "r"), False),
        (Stub(99, 7, "m", "r"), False),
        (Stub(11, 6, "m", "r"), False),
    ],
    ids=["as it was", "a zombie", "gone", "its number was given to another"],
)
def test_whether_a_stub_lives(proc: Path, stub: Stub, lives: bool) -> None:
    assert is_alive(stub, proc) == lives


def test_a_system_without_proc_shows_no_children(tmp_path: Path) -> None:
    assert children_of(1, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-250, "exit code -250")]
)
def test_an_end_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text


# -- real children ----------------------------------------------------------------------------------------------------


def test_a_leashed_child_leaves_when_its_parent_is_killed(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    parent = f"import subprocess, time; from serving.local.processes import leashed; subprocess.Popen(leashed({sleeper!r})); time.sleep(600)"
    program = Program([sys.executable, "-c", parent], tmp_path / "log")
    program.wait_for("up")
    child = next(c for c in children_of(program.pid) if c.is_alive)
    program.end(signal.SIGKILL)
    wait_until(
        lambda: not ((now := stat(child.pid)) and now.is_alive and now.started_ticks == child.started_ticks),
        "the child gone",
    )


def test_a_leash_on_a_parent_that_has_gone_starts_nothing() -> None:
    command = leashed(["/bin/echo", "started"])
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "parent has gone" in done.stderr


def is_up(log: Path) -> bool:
    return log.exists() and "up" in log.read_text()


def in_nursery(command: list[str], log: Path, number: signal.Signals | None = None) -> int:
    async def run() -> int:
        with Nursery() as nursery:
            with log.open("wb") as output:
                child = nursery.start(command, os.environ, folder=Path("/"), output=output.fileno())
            if number is not None:
                while not is_up(log):
                    await asyncio.sleep(0.01)
                child.send(number)
            code = await child.wait(30)
            assert child.exit_code == code
            child.send(signal.SIGKILL)  # harmless once it has ended
            return code

    return asyncio.run(run())


@pytest.mark.parametrize("code", [0, 3])
def test_a_child_tells_how_it_ended_and_where_it_wrote(tmp_path: Path, code: int) -> None:
    assert (
        in_nursery([sys.executable, "-c", f"import os; print(os.getcwd()); os._exit({code})"], tmp_path / "log") == code
    )


def test_a_child_that_was_killed_tells_the_signal(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    assert in_nursery(sleeper, tmp_path / "log", signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / "log").read_text() == "up\n"


@pytest.mark.parametrize(
    ("group", "file", "how"),
    [
        ("0::/user/one", "user/one/memory.events", KilledForMemory.HERE),
        ("0::/kubepods/pod1", "memory.events", KilledForMemory.HERE),  # in a container, whose own group is on top
        ("4:cpu,memory:/a\n0::/", "memory/a/memory.oom_control", KilledForMemory.HERE),
        ("0::/", None, KilledForMemory.SOMEWHERE),
        ("nonsense", None, KilledForMemory.SOMEWHERE),
    ],
    ids=["version 2", "container", "version 1", "no group", "nonsense"],
)
def test_kills_for_memory_are_counted_where_this_process_belongs_and_else_on_the_machine(
    tmp_path: Path, proc: Path, group: str, file: str | None, how: KilledForMemory
) -> None:
    (proc / "self" / "cgroup").write_text(f"{group}\n")
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    if file is not None:
        place = tmp_path / "groups" / file
        place.parent.mkdir(parents=True)
        place.write_text("low 0\noom 9\noom_kill 3\n")
    assert memory_kills(proc, tmp_path / "groups") == (how, 7 if file is None else 3)


def test_the_children_of_a_dead_child_are_ended_and_reaped(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom serving.local.processes import Nursery, children_of\n"
        "async def run():\n"
        "    with Nursery() as nursery:\n"
        "        child = nursery.start(['/bin/sh', '-c', 'sleep 600 & sleep 600 & exit 0'], os.environ, folder=Path('/'))\n"
        "        await child.wait(30)\n"
        "        print(len(children_of(os.getpid())))\n"
        "        await nursery.end_orphans()\n"
        "        print(len(children_of(os.getpid())))\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["2", "0"]


def test_children_that_were_there_before_are_left_alone() -> None:
    code = (
        "import asyncio, subprocess\nfrom serving.local.processes import Nursery\n"
        "async def run():\n"
        "    other = subprocess.Popen(['/bin/sleep', '600'])\n"
        "    with Nursery() as nursery:\n"
        "        await nursery.end_orphans()\n"
        "        print(other.poll())\n"
        "    other.kill()\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["None"]


def test_what_a_thread_waits_for_tells_that_thread_how_it_ended() -> None:
    code = (
        "import asyncio, os\nfrom pathlib import Path\nfrom serving.children import OwnChild\n"
        "from serving.local.processes import Nursery\n"
        "def waited():\n"
        "    child = OwnChild(['/bin/sh', '-c', 'exit 3'])\n"
        "    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "    return child\n"
        "async def run():\n"
        "    with Nursery() as nursery:\n"
        "        child = waited()\n"
        "        sleeps = OwnChild(['/bin/sleep', '600'])\n"
        "        own = nursery.start(['/bin/sh', '-c', 'exit 4'], dict(os.environ), folder=Path('/'))\n"
        "        print(await own.wait(30))\n"
        "        await nursery.end_orphans()\n"
        "        print(sleeps.poll(), child.wait(30))\n"
        "        sleeps.kill()\n"
        "        print(sleeps.wait(30))\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["4", "None", "3", "-9"]


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9R45\n", "AMD EPYC 9R45"),
        ("Model\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("CPU implementer : 0x41\n", "unnamed processor"),
    ],
)
def test_the_processors_name(tmp_path: Path, cpuinfo: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert devices.processor_name(tmp_path / "cpuinfo") == name


def test_a_machine_that_tells_no_processor_has_one_without_a_name(tmp_path: Path) -> None:
    assert devices.processor_name(tmp_path / "none") == "unnamed processor"


def test_a_card_is_named_by_its_driver(tmp_path: Path) -> None:
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 11\n")
    assert devices.gpu_name(tmp_path) == "NVIDIA H200"


def test_a_gpu_pool_without_a_card_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_name", lambda: None)
    with pytest.raises(UserError, match=r"NVIDIA.*machine.*--pool gpu=http://HOST:8000"):
        devices.require_gpu()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_block_that_is_held_is_handled_at_its_end_and_the_handlers_are_as_before(
    number: signal.Signals,
) -> None:
    said: list[str] = []

    def handler(_: int, __: object) -> None:
        said.append("handled")
        raise KeyboardInterrupt

    before = signal.signal(number, handler)
    try:
        with contextlib.suppress(KeyboardInterrupt), held():
            signal.raise_signal(number)
            said.append("started")
        assert said == ["started", "handled"]
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_each_signal_that_came_in_a_block_is_handled_once_and_where_none_did_nothing_happens() -> None:
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        with held():
            pass
        assert came == []
        with held():
            for number in reversed(numbers):
                signal.raise_signal(number)
            assert came == []
        assert sorted(came) == sorted(numbers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_interrupts_the_end_of_a_held_block_leaves_every_handler_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came: list[int] = []
    really, num_calls = signal.signal, 0

    def interrupted(number: int, handler: Any) -> Any:
        nonlocal num_calls
        found, num_calls = really(number, handler), num_calls + 1
        if num_calls == 3:  # the first that is put back
            signal.raise_signal(signal.SIGINT)
        return found

    before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        really(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(signal, "signal", interrupted)
        with contextlib.suppress(KeyboardInterrupt), held():
            pass
        monkeypatch.undo()
        assert num_calls == 3
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}
    finally:
        really(signal.SIGINT, before[0])
        really(signal.SIGTERM, before[1])
