"""The engines' own Python environments: which there are, what is in them, and how one is made, once per user and machine.

Triton's stub reads arrays of NumPy 1 only and every build of ONNX Runtime is the same Python module, so each build has an
environment apart from this project's. Two of them hold a Triton; the third only lends its ONNX Runtime to Triton's stubs. Made
with venv and pip, under pip's own configuration (indexes, proxies, certificates).
Keep: an environment without its marker does not exist; the marker is written last, so an interrupted making is done again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import filelock

from serving.errors import EnvironmentFault, UserError
from serving.local.folders import cache_dir
from serving.local.processes import leashed

# The newest wheel with a tritonserver in it (2.51), the last NumPy its stub reads, and an ONNX Runtime for Python 3.11 and
# 3.12. Installed without dependencies: the wheels' own requirements are for parts that are not used here.
NUMPY_PIN = "numpy==1.26.4"
TRITON_PINS = ("nvidia-pytriton==0.7.0", NUMPY_PIN)
# It carries OpenVINO 2025.4.1 itself, and finds it beside itself: the wheel `openvino` is not needed.
OPENVINO_PINS = (NUMPY_PIN, "onnxruntime-openvino==1.24.1")
CUDA_PINS = (  # what onnxruntime-gpu 1.31.1 asks for as [cuda,cudnn], with what those ask for
    "nvidia-cublas==13.4.1.3",
    "nvidia-cuda-nvrtc==13.2.86",
    "nvidia-cuda-runtime==13.2.86",
    "nvidia-cudnn-cu13==9.26.0.51",
    "nvidia-cufft==12.2.0.57",
    "nvidia-curand==10.4.2.51",
    "nvidia-nvjitlink==13.5.37",
)
MAKING_S = 3600.0  # 6 GB by a slow line (guess, not measured)
GLIBC = (2, 35)  # the Triton wheel's tag
PYTHONS = ((3, 11), (3, 12))  # ONNX Runtime 1.31 starts at 3.11, NumPy 1.26 ends at 3.12
ELSEWHERE = (
    "Use a Triton that runs elsewhere: tandem up --pool cpu=http://HOST:8000, for instance "
    "docker run -p 8000:8000 -v $PWD/model_repo:/models nvcr.io/nvidia/tritonserver:26.08-py3 tritonserver "
    "--model-repository=/models --model-config-name=cpu"
)


@dataclass(frozen=True, slots=True)
class Engine:
    """One build of ONNX Runtime, with Triton beside it or without."""

    name: str
    pins: tuple[str, ...]
    provider: str  # must be among what ONNX Runtime offers
    installed_mb: int  # measured with du; told before a long download and when the disk is full
    has_triton: bool = True  # False: the stubs of another environment's Triton import its ONNX Runtime

    @property
    def what(self) -> str:
        """Its environment, in messages."""
        return "Triton's environment" if self.has_triton else f"the environment of the engine {self.name}"


ENGINES = {
    "cpu": Engine("cpu", (*TRITON_PINS, "onnxruntime==1.31.1"), "CPUExecutionProvider", installed_mb=290),
    "gpu": Engine("gpu", (*TRITON_PINS, "onnxruntime-gpu==1.31.1", *CUDA_PINS), "CUDAExecutionProvider", 2600),
    "openvino": Engine("openvino", OPENVINO_PINS, "OpenVINOExecutionProvider", 340, has_triton=False),
}


@dataclass(frozen=True, slots=True)
class Environment:
    """A complete environment: `python` runs in it, `site` is where its packages lie."""

    folder: Path
    python: Path
    site: Path
    engine_version: str  # ONNX Runtime's

    @property
    def triton(self) -> Path:
        """The folder with tritonserver's files; only where the engine has Triton beside it."""
        return self.site / "pytriton" / "tritonserver"

    @property
    def libraries(self) -> Path:
        """What tritonserver is linked with."""
        return self.site / "nvidia_pytriton.libs"

    @property
    def server(self) -> Path:
        return self.triton / "bin" / "tritonserver"


@dataclass(frozen=True, slots=True)
class Host:
    """What decides whether Triton's wheel can run here."""

    system: str
    machine: str
    glibc: tuple[int, int] | None
    python: tuple[int, int]
    has_libpython: bool
    has_venv: bool


def this_host() -> Host:
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        glibc=_glibc(),
        python=sys.version_info[:2],
        has_libpython=_libpython() is not None,
        has_venv=_can_import("venv") and (_can_import("pip") or _can_import("ensurepip")),
    )


def check_host(host: Host) -> None:
    """Raises EnvironmentFault, with the way out, where Triton's wheel cannot run."""
    version = ".".join(map(str, host.python))
    if host.system != "Linux" or host.machine not in ("x86_64", "aarch64"):
        raise EnvironmentFault(
            f"Triton runs here on Linux x86_64 and aarch64 only, this is {host.system} {host.machine}. {ELSEWHERE}"
        )
    if host.glibc is None or host.glibc < GLIBC:
        found = "no glibc" if host.glibc is None else f"glibc {host.glibc[0]}.{host.glibc[1]}"
        raise EnvironmentFault(
            f"Triton's wheel needs glibc {GLIBC[0]}.{GLIBC[1]} or newer (Debian 12, Ubuntu 22.04), "
            f"this system has {found}. {ELSEWHERE}"
        )
    if host.python not in PYTHONS:
        raise EnvironmentFault(
            f"Triton's environment needs Python 3.11 or 3.12, this is {version}: install one of them"
        )
    if not host.has_venv:
        raise EnvironmentFault(f"Python {version} lacks the venv module: apt-get install python3-venv")
    if not host.has_libpython:
        raise EnvironmentFault(
            f"Python {version} has no shared library libpython{version}.so.1.0, which Triton's stub loads: "
            f"apt-get install libpython{version} (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)"
        )


def _glibc() -> tuple[int, int] | None:
    """None on musl."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (ValueError, OSError):
        return None


def library_folder() -> Path | None:
    """Where this Python's shared library lies when the loader does not find it by itself."""
    found = _libpython()
    return found.parent if found and found.parent != Path() else None


def _libpython() -> Path | None:
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    for place in (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix, "lib")):
        if place and Path(place, name).exists():
            return Path(place, name)
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    return Path(name)


def _can_import(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# -- where an environment is, and whether it is complete --------------------------------------------------------------


def folder_of(engine: Engine) -> Path:
    """Named by all that decides its content: another pin or another Python is another environment."""
    content = json.dumps([engine.pins, sys.base_prefix, sys.version_info[:2], platform.machine()])
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    version = ".".join(map(str, sys.version_info[:2]))
    return cache_dir() / "environments" / f"{engine.name}-python{version}-{digest}"


def find(engine: Engine) -> Environment | None:
    """The complete environment of an engine; None where it is missing, half made, or has lost its interpreter."""
    folder = folder_of(engine)
    try:
        marker = json.loads((folder / "complete.json").read_text())
        environment = Environment(
            folder=folder,
            python=folder / "bin" / "python3",
            site=folder / marker["site_packages"],
            engine_version=marker["engine_version"],
        )
    except (OSError, ValueError, LookupError, TypeError):  # none, or somebody else's
        return None
    needed = environment.server if engine.has_triton else environment.site / "onnxruntime"
    return environment if environment.python.exists() and needed.exists() else None


# -- making one -------------------------------------------------------------------------------------------------------

Say = Callable[[str], None]


def ensure(engine: Engine, say: Say = print) -> Environment:
    """The engine's environment, made if need be. One maker at a time; the others wait and then find it made."""
    if found := find(engine):
        return found
    check_host(this_host())
    folder = folder_of(engine)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_maker(folder, say):
            if found := find(engine):
                return found
            whose = f" for {engine.name}" if engine.has_triton else ""
            say(f"making {engine.what}{whose} ({engine.installed_mb} MB, once) in {folder}")
            return _make(engine, folder)
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvironmentFault(
            f"cannot write {engine.what} to {folder}: {why}; set TANDEM_CACHE to another folder"
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


def _make(engine: Engine, folder: Path) -> Environment:
    wheels = _wheels()
    _clear(folder)
    log = Path(f"{folder}.log")
    with log.open("w") as output:
        python = folder / "bin" / "python3"
        venv, pip = _tools(folder, python)
        _run(venv, output, engine, log)
        options = ["--no-deps", "--no-input", "--disable-pip-version-check", *wheels]
        _run([*pip, "install", *options, *engine.pins], output, engine, log)
        report = _run([str(python), "-I", "-c", _REPORT, engine.provider], output, engine, log)
    facts = json.loads(report)
    if engine.provider not in facts.pop("providers"):
        raise EnvironmentFault(f"the ONNX Runtime in {folder} lacks {engine.provider}; see {log}")
    facts["site_packages"] = str(Path(facts["site_packages"]).relative_to(folder.resolve()))
    marker = folder / "complete.json"
    marker.with_suffix(".new").write_text(json.dumps({"version": 1, "pins": engine.pins, **facts}, indent=1))
    marker.with_suffix(".new").replace(marker)
    environment = find(engine)
    if environment is None:
        missing = "tritonserver" if engine.has_triton else "ONNX Runtime"
        raise EnvironmentFault(f"{engine.what} in {folder} has no {missing}; see {log}")
    return environment


def _tools(folder: Path, python: Path) -> tuple[list[str], list[str]]:
    """The commands that make the environment and that run pip for it: ours where there is one, which saves seconds."""
    venv = [sys.executable, "-m", "venv"]
    if _can_import("pip"):
        return [*venv, "--without-pip", str(folder)], [sys.executable, "-m", "pip", "--python", str(python)]
    return [*venv, str(folder)], [str(python), "-m", "pip"]


# Run by the new environment's Python: proof that what was installed can be imported and runs a graph of one addition, and where
# it lies. CUDA is not tried: an image for machines with a card is built on one without.
_REPORT = """
import json, pathlib, sys, numpy, onnxruntime
providers = onnxruntime.get_available_providers()
if sys.argv[1] in providers and sys.argv[1] != "CUDAExecutionProvider":
    addition = bytes.fromhex("080812003a350a0e0a01780a017812017922034164641201675a0f0a0178120a0a08080112040a02080162"
                             "0f0a0179120a0a08080112040a02080142040a00100d")
    session = onnxruntime.InferenceSession(addition, providers=[sys.argv[1]])
    if session.get_providers()[0] != sys.argv[1] or session.run(None, {"x": numpy.ones(1, "float32")})[0] != [2]:
        sys.exit(f"{sys.argv[1]} does not start")
print(json.dumps({"engine_version": onnxruntime.__version__, "numpy": numpy.__version__, "providers": providers,
    "site_packages": str(pathlib.Path(numpy.__file__).resolve().parent.parent)}))
"""


def _clear(folder: Path) -> None:
    """Takes the marker away before anything else, so that a half removed environment is not found either."""
    (folder / "complete.json").unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _wheels() -> list[str]:
    """pip's arguments for a machine without a network: TANDEM_WHEELS names a folder that holds every wheel."""
    folder = os.environ.get("TANDEM_WHEELS")
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise UserError(f"TANDEM_WHEELS is {folder}, which is no folder")
    return ["--no-index", "--find-links", folder]


def _run(command: list[str], output: TextIO, engine: Engine, log: Path) -> str:
    """Runs a step of the making; its words go to the log, and a failure becomes one line."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment["ORT_DISABLE_TELEMETRY"] = "1"
    done = subprocess.run(leashed(command), capture_output=True, text=True, env=environment, check=False)
    output.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        raise explain(done.stdout + done.stderr, engine, log)
    return done.stdout


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


def explain(words: str, engine: Engine, log: Path) -> EnvironmentFault:
    """One line for what went wrong while an environment was made."""
    kind = next((kind for signs, kind in _MEANINGS if any(sign in words for sign in signs)), "other")
    place = log.parent
    if kind == "disk":
        text = f"no space left in {place} for {engine.what} ({engine.installed_mb} MB); free some or set TANDEM_CACHE"
    elif kind == "certificate":
        text = "pip does not trust the package index's certificate: set its CA with 'pip config set global.cert FILE'"
    elif kind == "network":
        text = (
            f"no network to fetch the wheels of {engine.what}: connect, set pip's proxy or index (pip config), "
            "or set TANDEM_WHEELS to a folder that holds them"
        )
    elif kind == "wheel":
        source = os.environ.get("TANDEM_WHEELS")
        where = f"in {source}" if source else "on pip's index"
        missing = next((pin for pin in engine.pins if f"No matching distribution found for {pin}" in words), "a wheel")
        text = (
            f"{missing} is not {where} for Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
        )
    elif kind == "venv":
        text = "this Python lacks ensurepip: apt-get install python3-venv"
    else:
        last = [line.strip() for line in words.splitlines() if line.strip()]
        text = f"could not make {engine.what}: {last[-1] if last else 'no words'}"
    return EnvironmentFault(f"{text} (log: {log})")
