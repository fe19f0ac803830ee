"""For all tests: a home of their own (`home.py`), and what they start can be interrupted.

Files that tests make have the same modes whoever runs them. A shell without job control lets what it starts with `&` ignore SIGINT, and children inherit that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import home

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.umask(0o022)  # a file of API keys that the group may write is refused

# `kubernetes` imports `kubernetes_validate`, and so jsonschema, which compiles a grammar of IRIs for seconds; no schema of Kubernetes has one.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

collect_ignore = ["clients"]  # outside clients, in an environment of their own: `make test-clients`

# Properties with the library's own number of examples are for `thorough` runs. A deadline of one example would measure the machine.
# The same examples each time: what `make test` says of a commit, it says of it again. `.ci/run --all` looks for new ones.
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("thorough" if os.environ.get("THOROUGH") else "quick")

HERE = Path(__file__).parent
# These begin first: at the end, one would run alone.
LONGEST = (
    "test_package.py",
    "test_campaign_runs.py",
    "test_up.py",
    "test_frameworks.py",
    "test_mirror.py",
    "test_tenants.py",
    "test_supervisor.py",
)

gc.disable()  # until all is collected
home.leave_the_users()  # before test modules are imported, which may look around


def pytest_collection(session: pytest.Session) -> None:
    """Each of several workers imports other files first, so that what one has compiled the others read."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(
        path for folder in config.getini("testpaths") for path in (config.rootpath / folder).rglob("test_*.py")
    )
    own = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    for path in files[own:] + files[:own]:
        if path.relative_to(HERE).parts[0] not in collect_ignore:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # told where the file is collected
                importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    starts_triton = any(
        item.get_closest_marker(name) for name in ("triton", "browser", "cluster", "images", "models", "recipes")
    )
    home.move_in(str(item.path), has_triton=starts_triton)  # before any fixture


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _require_closed(item.path.name)
    return result


_open: set[str] = set()  # sockets, at the end of the last file


def _require_closed(file: str) -> None:
    """A socket left as garbage would fail whichever test runs when garbage is looked for: here, as that is dear, where there are new ones."""
    told = list[str]()
    if _sockets() - _open:
        hook, sys.unraisablehook = sys.unraisablehook, lambda it: told.append(str(it.exc_value))
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
    _open.clear()
    _open.update(_sockets())
    assert not told, f"tests of {file} left open: {told}"


def _sockets() -> set[str]:
    """Of this process and over TCP, by what Linux calls each; elsewhere none."""
    found, folder = set[str](), Path("/proc/self/fd")
    for file in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(OSError):
            if (link := str(file.readlink())).startswith("socket:"):
                one = socket.socket(fileno=int(file.name))
                if one.family != socket.AF_UNIX:
                    found.add(link)
                one.detach()
    return found


def pytest_collection_finish() -> None:
    """Modules and items stay until the end: no later collection of garbage has to look at a million objects again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # of those that are left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for servers are spread evenly among those that compute, so that whoever waits leaves a processor to another."""
    of_file = {item.path: item.get_closest_marker("triton") is not None for item in items}
    place: dict[Path, float] = {}
    for waits in (True, False):
        files = [path for path, it in of_file.items() if it is waits]
        place |= {path: number / len(files) for number, path in enumerate(files)}
    items.sort(key=lambda item: (item.path.name not in LONGEST, place[item.path]))
