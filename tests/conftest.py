"""For all tests: a home of their own (`home.py`), and what they start can be interrupted.

Files that tests make have the same modes whoever runs them. A shell without job control lets what it starts with `&` ignore SIGINT, and children inherit that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
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
settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("thorough" if os.environ.get("THOROUGH") else "quick")

HERE = Path(__file__).parent
LONGEST = ("test_package.py", "test_campaign_runs.py")  # begin first: at the end, one would run alone

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


def pytest_collection_finish() -> None:
    """Modules and items stay until the end: no later collection of garbage has to look at a million objects again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
