"""Makes a Python environment of its own with venv and pip: by one process at a time, with a log, and one line for what went wrong.

The engines' environments (`environments.py`) and those of frameworks (`frameworks.py`) are made so. pip keeps its own configuration
(indexes, proxies, certificates). Keep: an environment without its marker does not exist, and the marker is written last, so an
interrupted making is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import filelock

from serving.errors import EnvironmentFault, UserError
from serving.local.folders import cache_dir
from serving.local.processes import leashed

MAKING_S = 3600.0  # 6 GB by a slow line (guess, not measured)
Say = Callable[[str], None]
Made = TypeVar("Made")


def place(name: str, *content: object) -> Path:
    """Where an environment lies: named by all that decides its content, such as its pins and this Python."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    return cache_dir() / "environments" / f"{name}-python{'.'.join(map(str, sys.version_info[:2]))}-{digest}"


@dataclass(frozen=True, slots=True)
class Venv:
    """An environment, made or not. `what` it is in messages; `size_mb`: what it takes on the disk, None where nobody knows."""

    what: str
    folder: Path
    size_mb: int | None = None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python3"

    @property
    def marker(self) -> Path:
        return self.folder / "complete.json"

    @property
    def log(self) -> Path:
        return Path(f"{self.folder}.log")


def can_import(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def make_once(venv: Venv, find: Callable[[], Made | None], make: Callable[[], Made], say: Say) -> Made:
    """What `find` finds, else what `make` makes. One maker at a time; the others wait and then find it made."""
    try:
        venv.folder.parent.mkdir(parents=True, exist_ok=True)
        with only_maker(venv.folder, say):
            return found if (found := find()) is not None else make()
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvironmentFault(
            f"cannot write {venv.what} to {venv.folder}: {why}; set TANDEM_CACHE to another folder"
        ) from None


def only_maker(folder: Path, say: Say) -> AbstractContextManager[object]:
    """Waits for another process that makes it. Raises EnvironmentFault where that takes too long."""
    lock = filelock.FileLock(f"{folder}.lock")
    with contextlib.suppress(filelock.Timeout):
        return lock.acquire(timeout=1.0)
    say(f"waiting for another process that makes {folder}")
    try:
        return lock.acquire(timeout=MAKING_S)
    except filelock.Timeout:
        raise EnvironmentFault(
            f"another process has held {folder}.lock for {MAKING_S / 60:.0f} minutes: end it, or set TANDEM_CACHE to another folder"
        ) from None


def _silent(_: str) -> None:
    pass


def build(
    venv: Venv, options: Sequence[str], files: Mapping[str, str] | None = None, hear: Callable[[str], None] = _silent
) -> None:
    """Makes it from nothing and installs what the options of `pip install` name. `files`: texts that these name, in its folder.

    `hear` gets each line of pip's while it works. Raises EnvironmentFault.
    """
    wheels = _wheels()
    venv.marker.unlink(missing_ok=True)  # before anything else, so that a half removed environment is not found either
    if venv.folder.exists():
        shutil.rmtree(venv.folder)
    venv.log.write_text("")
    begin, pip = [sys.executable, "-m", "venv"], [str(venv.python), "-m", "pip"]
    if can_import("pip"):  # ours, which saves seconds
        begin, pip = [*begin, "--without-pip"], [sys.executable, "-m", "pip", "--python", str(venv.python)]
    run([*begin, str(venv.folder)], venv, hear)
    for name, text in (files or {}).items():
        (venv.folder / name).write_text(f"{text}\n")
    run([*pip, "install", "--no-input", "--disable-pip-version-check", *wheels, *options], venv, hear)


def mark(venv: Venv, facts: Mapping[str, object]) -> None:
    """From now on it is complete."""
    marker = venv.marker
    marker.with_suffix(".new").write_text(json.dumps({"version": 1, **facts}, indent=1))
    marker.with_suffix(".new").replace(marker)


def _wheels() -> list[str]:
    """pip's arguments for a machine without a network: TANDEM_WHEELS names a folder that holds every wheel."""
    folder = os.environ.get("TANDEM_WHEELS")
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise UserError(f"TANDEM_WHEELS is {folder}, which is no folder")
    return ["--no-index", "--find-links", folder]


def run(command: list[str], venv: Venv, hear: Callable[[str], None] = _silent) -> str:
    """Runs a step of the making; its words go to the log, and a failure becomes one line."""
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    outside["ORT_DISABLE_TELEMETRY"] = "1"
    words: list[str] = []
    with (
        venv.log.open("a") as output,
        subprocess.Popen(
            leashed(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=outside
        ) as process,
    ):
        output.write(f"$ {' '.join(command)}\n")
        try:
            for line in process.stdout or ():
                words.append(line)
                output.write(line)
                hear(line.strip())
        except BaseException:  # Ctrl-C: it has a session of its own and would go on
            process.terminate()
            raise
    if process.returncode:
        raise explain("".join(words), venv)
    return "".join(words)


# What venv or pip say -> what it means. The first match counts: pip says "no matching distribution" also without a network.
_MEANINGS = (
    (("No space left on device", "Disk quota exceeded"), "disk"),
    (("CERTIFICATE_VERIFY_FAILED", "SSLError"), "certificate"),
    (
        (
            "Temporary failure in name resolution",
            "Name or service not known",
            "Network is unreachable",
            "Connection refused",
            "ConnectTimeout",
            "Read timed out",
            "Connection timed out",
            "ConnectionResetError",
            "ProxyError",
            "Max retries exceeded",
        ),
        "network",
    ),
    (("No matching distribution found", "Could not find a version", "is not a supported wheel"), "wheel"),
    (("ensurepip is not available",), "venv"),
)


def explain(words: str, venv: Venv) -> EnvironmentFault:
    """One line for what went wrong while an environment was made."""
    kind = next((kind for signs, kind in _MEANINGS if any(sign in words for sign in signs)), "other")
    if kind == "disk":
        size = "" if venv.size_mb is None else f" ({venv.size_mb} MB)"
        text = f"no space left in {venv.folder.parent} for {venv.what}{size}; free some or set TANDEM_CACHE"
    elif kind == "certificate":
        text = "pip does not trust the package index's certificate: set its CA with 'pip config set global.cert FILE'"
    elif kind == "network":
        text = (
            f"no network to fetch the wheels of {venv.what}: connect, set pip's proxy or index (pip config), "
            "or set TANDEM_WHEELS to a folder that holds them"
        )
    elif kind == "wheel":
        source = os.environ.get("TANDEM_WHEELS")
        where = f"in {source}" if source else "on pip's index"
        named = re.search(r"No matching distribution found for ([^\s(]+)", words)
        missing = named[1] if named else "a wheel"
        text = (
            f"{missing} is not {where} for Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
        )
    elif kind == "venv":
        text = "this Python lacks ensurepip: apt-get install python3-venv"
    else:
        last = [line.strip() for line in words.splitlines() if line.strip()]
        text = f"could not make {venv.what}: {last[-1] if last else 'no words'}"
    return EnvironmentFault(f"{text} (log: {venv.log})")
