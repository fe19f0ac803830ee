"""Frameworks that weigh gigabytes live in an environment of their own, made once, with the user's yes.

Answers: which packages does an extra of this project need and lack here, where is an environment that has them, and how does
a command go on in it? The project itself is not installed there: it comes by PYTHONPATH, because no index has it. How it is
made is `venvs.py`'s.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

import serving
from serving.errors import EnvironmentFault, UserError
from serving.installation import PROJECT, how_to_add
from serving.local import environments, venvs
from serving.local.folders import cache_dir
from serving.local.processes import hand_over
from serving.local.venvs import Say, Venv

# Installed, in MB, summed over the files of all packages with Python 3.11 and torch 2.15 from PyPI, which brings CUDA.
SIZES_MB = {
    "onnx": 590,
    "quickstart": 720,
    "xgboost": 610,
    "catboost": 1010,
    "tensorflow": 1940,
    "export": 6200,
    "keras": 6300,
}
# To download, in MB: the wheels for Python 3.11 on x86_64, counted with `pip download` (2026-11-22).
DOWNLOADS_MB = {"onnx": 146, "xgboost": 152, "export": 3160, "keras": 3168}
_SHOWN = ("Downloading ", "Using cached ", "Installing collected packages")  # of pip's words, while the user waits

_SIZE = re.compile(r"\((\d+(?:\.\d+)?) (B|kB|MB|GB)\)\s*$")
_KNOWN_RATIO = 0.02  # of the download: before that its speed says nothing (guess)


@dataclass(frozen=True, slots=True)
class Frameworks:
    """What an environment holds: requirements as pip reads them, markers included. `constraints`: a file's text."""

    name: str
    requirements: tuple[str, ...]
    constraints: str = ""
    size_mb: int | None = None
    download_mb: int | None = None
    is_extra: bool = True  # of this project, which one could install by oneself

    @property
    def folder(self) -> Path:
        version = ".".join(map(str, sys.version_info[:2]))
        return venvs.place(self.name, self.requirements, self.constraints, sys.base_prefix, version, platform.machine())

    @property
    def venv(self) -> Venv:
        return Venv(f"an environment with [{self.name}]", self.folder, self.size_mb)

    @property
    def is_complete(self) -> bool:
        return self.venv.marker.is_file() and self.venv.python.exists()

    @property
    def size(self) -> str:
        if self.size_mb is None:
            return "size unknown"
        download = f", {_told(self.download_mb)} to download" if self.download_mb else ""
        return f"{_told(self.size_mb)}{download}"

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that this Python lacks. Those whose marker says that they are for another system count too."""
        return tuple(name for name in map(_name, self.requirements) if not _is_installed(name))


# What converts a program of PaddlePaddle, by its ending, without anything of ours: paddle2onnx wants ONNX 1.17 at most, and `packaging`
# without saying so. 2.1 writes wrong files of programs of PaddlePaddle 2, and 1.3 reads no others.
PADDLE = {
    ending: Frameworks(
        name,
        ("paddlepaddle==3.3.1", f"paddle2onnx=={version}", "onnx==1.17.0", "packaging", "setuptools<81"),
        size_mb=960,
        download_mb=246,
        is_extra=False,
    )
    for ending, name, version in ((".pdmodel", "paddle2", "1.3.1"), (".json", "paddle3", "2.1.0"))
}


def _told(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


class Downloads:
    """How far pip is, by its own words: it names each file and its size when it begins with it."""

    def __init__(self, total_mb: int | None) -> None:
        self._total_mb = total_mb
        self._begun_mb = self._done_mb = 0.0

    def progress(self, line: str, elapsed_s: float) -> str:
        """What is said behind the line: '' where nothing is known yet."""
        size = _SIZE.search(line) if line.startswith("Downloading ") else None
        if size is None:
            return ""
        self._done_mb = self._begun_mb
        self._begun_mb += float(size[1]) * {"B": 1e-6, "kB": 1e-3, "MB": 1, "GB": 1e3}[size[2]]
        if not self._total_mb:
            return ""
        left_mb = max(0.0, self._total_mb - self._done_mb)
        if self._done_mb < _KNOWN_RATIO * self._total_mb:
            return f", {_told(self._done_mb)} of {_told(self._total_mb)} done"
        left_s = round(elapsed_s * left_mb / self._done_mb)
        return f", {_told(self._done_mb)} of {_told(self._total_mb)} done, about {left_s} s left"


# -- which packages ---------------------------------------------------------------------------------------------------


def frameworks(extra: str) -> Frameworks:
    """What the extra needs, with the project's own needs, as its installed metadata say."""
    try:
        said = metadata.requires(PROJECT) or []
    except metadata.PackageNotFoundError:
        raise EnvironmentFault(
            f"this Tandem is not installed, so nothing says what [{extra}] needs: {how_to_add(extra)}"
        ) from None
    return Frameworks(extra, requirements(extra, said), _constraints(), SIZES_MB.get(extra), DOWNLOADS_MB.get(extra))


def requirements(extra: str, said: Sequence[str]) -> tuple[str, ...]:
    """The lines of `said` (as importlib.metadata gives them) that the project and the extra need, without `extra == …`."""
    wanted, read, found = ["", extra], set(), dict[str, None]()
    while wanted:
        one = wanted.pop(0)
        if one in read:
            continue
        read.add(one)
        lines = [_without_extra(line) for line in said if _extra_of(line) == one]
        if one and not lines:
            raise UserError(f"{PROJECT} has no extra {one!r}")
        for line in lines:
            if _name(line) == PROJECT:  # one extra that names others
                wanted += re.findall(r"[\w-]+", line.partition("[")[2].partition("]")[0])
            else:
                found[line] = None
    return tuple(found)


_EXTRA = re.compile(r"""\s*(?:\band\s+)?\bextra\s*==\s*['"]([\w.-]+)['"]""")


def _extra_of(line: str) -> str:
    match = _EXTRA.search(line)
    return match[1] if match else ""


def _without_extra(line: str) -> str:
    """`a>=1; python_version < '3.12' and extra == 'x'` -> `a>=1; python_version < '3.12'`."""
    return _EXTRA.sub("", line).strip().rstrip(";").strip()


def _name(requirement: str) -> str:
    """Normalised, as indexes compare names."""
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _root() -> Path:
    """The folder that holds the package `serving`: a checkout, or site-packages."""
    return Path(serving.__file__).resolve().parents[1]


def _is_checkout() -> bool:
    return (_root() / "pyproject.toml").is_file()


def _constraints() -> str:
    """The versions that a checkout was tested with; none for an installed Tandem."""
    file = _root() / "constraints.txt"
    return file.read_text() if _is_checkout() and file.is_file() else ""


# -- the environment --------------------------------------------------------------------------------------------------


def ensure(extra: str, *, is_yes: bool, say: Say) -> Path:
    """The Python of an environment that has the extra's packages; made if need be, after a yes.

    Raises UserError where nobody can be asked or the answer is no, EnvironmentFault where it cannot be made.
    """
    return made(frameworks(extra), is_yes=is_yes, say=say)


def made(wanted: Frameworks, *, is_yes: bool, say: Say) -> Path:
    if Path(sys.prefix).resolve() == wanted.folder.resolve():  # a command that went on here must not do so for ever
        raise EnvironmentFault(f"the environment in {wanted.folder} lost packages: delete it and run this again")
    if not wanted.is_complete:
        if not is_yes:
            _ask(wanted)
        _make_alone(wanted, say)
    return wanted.venv.python


def _ask(wanted: Frameworks) -> None:
    lacks = (", ".join(wanted.missing[:4]) if wanted.is_extra else "") or wanted.name
    needs = f"this needs {lacks}, not installed here"
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"{needs}. Make an environment of its own for it, {wanted.size}, in {wanted.folder.parent}?"
        if click.confirm(question, default=False, err=True):
            return
    by_hand = f"{how_to_add(wanted.name)}, or " if wanted.is_extra else ""
    raise UserError(f"{needs}: {by_hand}say --yes and Tandem makes an environment of its own ({wanted.size})")


def _make_alone(wanted: Frameworks, say: Say) -> None:
    if not environments.this_host().has_venv:
        raise EnvironmentFault("this Python lacks the venv module: apt-get install python3-venv")
    venvs.make_once(wanted.venv, lambda: wanted if wanted.is_complete else None, lambda: _make(wanted, say), say)


def _make(wanted: Frameworks, say: Say) -> Frameworks:
    free_mb = shutil.disk_usage(wanted.folder.parent).free // 10**6
    if free_mb < (wanted.size_mb or 0):
        raise EnvironmentFault(
            f"{wanted.folder.parent} has {free_mb / 1000:.1f} GB left, {wanted.venv.what} takes "
            f"{wanted.size}: free some or set TANDEM_CACHE to another folder"
        )
    say(f"making {wanted.venv.what} ({wanted.size}, once) in {wanted.folder}")
    downloads, began_s = Downloads(wanted.download_mb), time.monotonic()

    def hear(line: str) -> None:
        if line.startswith(_SHOWN):
            say(f"  {line[:100]}{downloads.progress(line, time.monotonic() - began_s)}")

    files = {"requirements.txt": "\n".join(wanted.requirements), "constraints.txt": wanted.constraints}
    options = [
        word for letter, name in zip("rc", files, strict=True) for word in (f"-{letter}", str(wanted.folder / name))
    ]
    venvs.build(wanted.venv, ["--progress-bar", "off", *options], files, hear)
    venvs.mark(wanted.venv, {"requirements": wanted.requirements})
    return wanted


# -- going on in it ---------------------------------------------------------------------------------------------------


def run_there(python: Path, arguments: Sequence[str]) -> int:
    """Runs `tandem ARGUMENTS…` by that Python, in this terminal and folder; gives its exit code.

    Signals reach it; 128 + n where it died of signal n, as shells say it.
    """
    inside = {k: v for k, v in os.environ.items() if k != "PYTHONHOME"}
    inside["PYTHONPATH"] = os.pathsep.join([str(_importable()), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        str(python),
        "-P",
        "-m",
        "serving",
        *arguments,
    ]  # -P: a folder `serving` where the user stands is not ours
    return hand_over(command, inside)


def _importable() -> Path:
    """A folder that holds the project and nothing else: site-packages would bring its neighbours along."""
    root = _root()
    if _is_checkout():
        return root
    folder = cache_dir() / "project" / hashlib.sha256(str(root).encode()).hexdigest()[:12]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "serving").is_symlink():
            (folder / "serving").symlink_to(root / "serving")
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write to {folder}: {error.strerror}; set TANDEM_CACHE to another folder"
        ) from None
    return folder
