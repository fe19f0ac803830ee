"""What `tandem up` starts again, and what it gives up: with children that die as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.local import services as services_module
from serving.local.causes import why_ended
from serving.local.logs import Output
from serving.local.processes import Nursery
from serving.local.services import MAX_FIRST_STARTS, Service, Services
from serving.local.watch import POLL_S

LIMIT_S = 150.0
# Says that it serves, unless a file forbids it; then it ends with the exit code and the words in that file.
CHILD = """
import pathlib, sys, time
ready, orders = map(pathlib.Path, sys.argv[1:])
if orders.exists():
    code, words = orders.read_text().split(" ", 1)
    sys.stderr.write(words + "\\n")
    sys.exit(int(code))
ready.touch()
time.sleep(600)
"""

# Serves, and has no room for the file that says so.
UNTOLD = """
import pathlib, sys, time
from serving.gateway import ready_file
ready_file.write(pathlib.Path(sys.argv[1]), "model", lambda line: print(line, flush=True))
time.sleep(600)
"""


class Run:
    def __init__(self, services: Services, folder: Path, said: list[str]) -> None:
        self.services, self.folder, self.said = services, folder, said
        self.keeping: asyncio.Task[None] | None = None

    def add(self, name: str, orders: str | None = None, child: str = CHILD, disk: Path | None = None) -> Service:
        self.order(name, orders)
        ready = (disk or self.folder) / f"{name}.ready"
        command = [sys.executable, "-c", child, str(ready), str(self.folder / name)]
        output = Output.into(self.folder / f"{name}.log", self.said.append)
        service = Service(name, command, os.environ, self.folder / f"{name}.log", output, ready, is_pool=True)
        self.services.start(service)
        return service

    def order(self, name: str, orders: str | None) -> None:
        (self.folder / name).unlink(missing_ok=True)
        if orders is not None:
            (self.folder / name).write_text(orders)

    def keep(self) -> asyncio.Task[None]:
        self.keeping = asyncio.create_task(self.services.keep())
        return self.keeping

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not happened():
                if self.keeping is not None and self.keeping.done():
                    self.keeping.result()
                await asyncio.sleep(POLL_S / 10)


@asynccontextmanager
async def running(folder: Path, inside: Path | None = None) -> AsyncIterator[Run]:
    said: list[str] = []
    with Nursery() as nursery:
        run = Run(Services(nursery, inside or folder, said.append, is_served_elsewhere=False), folder, said)
        try:
            yield run
        finally:
            if run.keeping is not None:
                run.keeping.cancel()
            await run.services.stop(LIMIT_S, asyncio.Event())


def play(folder: Path, story: Callable[[Run], Awaitable[None]], inside: Path | None = None) -> None:
    async def whole() -> None:
        async with running(folder, inside) as run:
            await story(run)

    asyncio.run(whole())


def pid(service: Service) -> int:
    assert service.child is not None
    return service.child.pid


def test_what_was_killed_is_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    async def story(run: Run) -> None:
        one, other = run.add("one"), run.add("other")
        run.keep()
        await run.until(lambda: one.is_up and other.is_up)
        before = pid(one), pid(other)
        os.kill(pid(one), signal.SIGKILL)
        await run.until(lambda: pid(one) != before[0] and one.is_up)
        assert pid(other) == before[1]
        assert any("one " in line and "SIGKILL" in line for line in run.said)
        assert any("one " in line and "up again" in line for line in run.said)

    play(tmp_path, story)


def test_what_is_refused_at_its_first_start_is_given_up_at_once_with_its_words(tmp_path: Path) -> None:
    async def story(run: Run) -> None:
        run.add("one", "2 tandem: port 5 is taken")
        with pytest.raises(UserError, match=r"port.*5"):
            await run.keep()
        assert run.said == []

    play(tmp_path, story)


def test_what_has_no_room_to_say_that_it_serves_is_given_up_at_once_with_the_path(
    tmp_path: Path, small_disk: Path
) -> None:
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))

    async def story(run: Run) -> None:
        one = run.add("one", child=UNTOLD, disk=small_disk)
        with pytest.raises(EnvironmentFault, match=f"{one.ready_file}: No space left on device"):
            await run.keep()
        assert run.said == []

    play(tmp_path, story)


CAUSES = [
    (
        "server: error while loading shared libraries: libx.so.3: cannot open shared object file",
        "library libx.so.3 is missing",
    ),
    ("what():  std::bad_alloc", "memory"),
    ("accept: Too many open files", "ulimit -n"),
    ("cp: No space left on device: /models/x", "/models/x"),
]


@pytest.mark.parametrize(("words", "cause"), CAUSES)
def test_what_it_said_last_tells_the_cause(words: str, cause: str) -> None:
    child: Any = SimpleNamespace(exit_code=127, killed_for_memory=None)
    assert cause in why_ended(child, [words])


@pytest.mark.parametrize(
    ("words", "cause"), [CAUSES[0], *(pytest.param(*it, marks=pytest.mark.thorough) for it in CAUSES[1:])]
)
def test_what_dies_at_every_start_is_given_up_with_the_cause(tmp_path: Path, words: str, cause: str) -> None:
    async def story(run: Run) -> None:
        run.add("one", f"127 {words}")
        with pytest.raises(EnvironmentFault, match=cause):
            await run.keep()
        assert sum("starting it again" in line for line in run.said) == MAX_FIRST_STARTS - 1

    play(tmp_path, story)


def test_what_somebody_killed_did_not_die_of_what_it_said_before(tmp_path: Path) -> None:
    async def story(run: Run) -> None:
        one = run.add("one")
        run.keep()
        await run.until(lambda: one.is_up)
        os.write(one.output.end, b"accept: Too many open files\n")
        os.kill(pid(one), signal.SIGKILL)
        await run.until(lambda: bool(run.said))
        assert "(killed by SIGKILL)" in run.said[0]

    play(tmp_path, story)


@pytest.mark.parametrize("has_other", [False, True])
def test_what_has_served_and_dies_at_every_start_ends_the_run_only_where_nothing_else_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_other: bool
) -> None:
    monkeypatch.setattr(services_module, "MAX_STARTS", 2)

    async def story(run: Run) -> None:
        one = run.add("one")
        others = [run.add("other")] if has_other else []
        run.keep()
        await run.until(lambda: all(service.is_up for service in (one, *others)))
        run.order("one", "2 tandem: port 5 is taken")
        os.kill(pid(one), signal.SIGKILL)
        if not has_other:
            with pytest.raises(UserError, match="2 starts"):
                await run.until(lambda: False)
            return
        await run.until(lambda: one.num_failed > 2)
        run.order("one", None)
        await run.until(lambda: one.is_up)

    play(tmp_path, story)


def test_the_folder_in_which_it_was_begun_may_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(run: Run) -> None:
        one = run.add("one")
        run.keep()
        await run.until(lambda: one.is_up)
        begun_in.rmdir()
        before = pid(one)
        os.kill(before, signal.SIGKILL)
        await run.until(lambda: pid(one) != before and one.is_up)

    (begun_in := tmp_path / "begun").mkdir()
    monkeypatch.chdir(begun_in)
    play(tmp_path, story, inside=Path())
    monkeypatch.chdir(tmp_path)


def test_what_cannot_be_started_for_a_while_is_tried_again(tmp_path: Path) -> None:
    async def story(run: Run) -> None:
        one = run.add("one")
        run.keep()
        await run.until(lambda: one.is_up)
        inside.rename(elsewhere)
        os.kill(pid(one), signal.SIGKILL)
        await run.until(lambda: one.num_failed > 1)
        elsewhere.rename(inside)
        await run.until(lambda: one.is_up)
        assert any("cannot be started" in line for line in run.said)

    (inside := tmp_path / "inside").mkdir()
    elsewhere = tmp_path / "elsewhere"
    play(tmp_path, story, inside=inside)
