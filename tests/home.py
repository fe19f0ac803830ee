"""A home of its own for every file of tests, so that none sees what the user's home or another file left behind.

Environments of frameworks, measured speeds, an engine that somebody once installed, a kubeconfig, variables named TANDEM_…: each changes what
some command does. Kept is what takes minutes or a network to make and is named by its content, and how pip, git and Go are set up. Of the
engines a home has Triton's CPU environment where tests are marked `triton`, and no other: who wants OpenVINO names it, `in_users_cache`.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.local.environments import ENGINES, Engine, Environment, ensure
from serving.local.folders import cache_dir

KEPT = (
    ".cache/go-build",
    ".cache/pip",
    ".config/git",
    ".config/go",
    ".config/pip",
    ".gitconfig",
    ".pip",
    ".pyenv",
    "go",
)
KEPT_OF_TANDEM = ("cluster-bed", "image-base", "jaeger", "otelcol", "packages", "peers", "prometheus")
READ_INSTEAD_OF_HOME = ("HF_HOME", "KUBECONFIG", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
# Set by the first process for those that it starts. Not TANDEM_…, of which an unknown one is an error.
USERS_HOME, USERS_CACHE = "TESTS_USERS_HOME", "TESTS_USERS_CACHE"


def leave_the_users() -> None:
    """From now on this process and what it starts have an empty home, and no variable that leads back."""
    os.environ.setdefault(USERS_HOME, str(Path.home()))
    os.environ.setdefault(USERS_CACHE, str(cache_dir()))
    for name in [*os.environ]:
        if name in READ_INSTEAD_OF_HOME or (name.startswith("TANDEM_") and name != "TANDEM_WHEELS"):
            del os.environ[name]
    move_in("", has_triton=False)


def move_in(file: str, *, has_triton: bool) -> None:
    """Makes HOME that of a file of tests; Triton's environment is made in the user's cache if need be."""
    os.environ["HOME"] = str(_home(file, has_triton))


def in_users_cache(engine: Engine) -> Environment:
    """The engine's environment, made once for a user, as hundreds of MB are."""
    with _cache(os.environ[USERS_CACHE]):
        return ensure(engine)


def link(environment: Environment, cache: Path) -> None:
    """`cache` has this environment too."""
    place = cache / "environments" / environment.folder.name
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(environment.folder)


@functools.cache
def _home(file: str, has_triton: bool) -> Path:
    home, cache = Path(tempfile.mkdtemp(dir=_folder())), Path(".cache", "tandem")
    users = [(Path(name), Path(os.environ[USERS_HOME], name)) for name in KEPT]
    users += [(cache / name, Path(os.environ[USERS_CACHE], name)) for name in KEPT_OF_TANDEM]
    for name, target in users:
        if name.parent == cache:
            target.mkdir(parents=True, exist_ok=True)  # what is made once is made there
        if target.exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(target)
    if has_triton:
        link(in_users_cache(ENGINES["cpu"]), home / cache)
    return home


@functools.cache
def _folder() -> Path:
    """Of all homes of this process, which go with it: servers outlive the file that started them."""
    folder, made_by = Path(tempfile.mkdtemp(prefix="tandem-homes-")), os.getpid()

    def remove() -> None:
        if os.getpid() == made_by:  # a forked child is not the owner
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@contextmanager
def _cache(folder: str) -> Iterator[None]:
    before = os.environ.get("TANDEM_CACHE")
    os.environ["TANDEM_CACHE"] = folder
    try:
        yield
    finally:
        del os.environ["TANDEM_CACHE"]
        if before is not None:
            os.environ["TANDEM_CACHE"] = before
