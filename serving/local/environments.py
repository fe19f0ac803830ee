"""The engines' own Python environments: which there are, what is in them, and how one is made, once per user and machine.

Triton's stub reads arrays of NumPy 1 only and every build of ONNX Runtime is the same Python module, so each build has an
environment apart from this project's. Two of them hold a Triton; the third only lends its ONNX Runtime to Triton's stubs. Made
with venv and pip, under pip's own configuration (indexes, proxies, certificates).
Keep: an environment without its marker does not exist; the marker is written last, so an interrupted making is done again.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local import venvs
from serving.local.venvs import Say, Venv

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
IS_CUDA_HERE = (
    os.environ.get("TANDEM_SYSTEM_CUDA") == "1"
)  # then the loader finds its libraries, and their wheels are left out
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

    @property
    def venv(self) -> Venv:
        return Venv(self.what, folder_of(self), self.installed_mb)


ENGINES = {
    "cpu": Engine("cpu", (*TRITON_PINS, "onnxruntime==1.31.1"), "CPUExecutionProvider", installed_mb=290),
    "gpu": Engine(
        "gpu",
        (*TRITON_PINS, "onnxruntime-gpu==1.31.1", *(() if IS_CUDA_HERE else CUDA_PINS)),
        "CUDAExecutionProvider",
        installed_mb=600 if IS_CUDA_HERE else 2600,
    ),
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
        has_venv=venvs.can_import("venv") and (venvs.can_import("pip") or venvs.can_import("ensurepip")),
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
        # Built in a folder that is closed to us, as in another user's home, it has been moved since.
        if place and os.access(Path(place, name), os.R_OK):
            return Path(place, name)
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    return Path(name)


# -- where an environment is, and whether it is complete --------------------------------------------------------------


def folder_of(engine: Engine) -> Path:
    """Another pin or another Python is another environment."""
    return venvs.place(engine.name, engine.pins, sys.base_prefix, sys.version_info[:2], platform.machine())


def find(engine: Engine) -> Environment | None:
    """The complete environment of an engine; None where it is missing, half made, or has lost its interpreter."""
    venv = engine.venv
    try:
        marker = json.loads(venv.marker.read_text())
        environment = Environment(
            folder=venv.folder,
            python=venv.python,
            site=venv.folder / marker["site_packages"],
            engine_version=marker["engine_version"],
        )
    except (OSError, ValueError, LookupError, TypeError):  # none, or somebody else's
        return None
    needed = environment.server if engine.has_triton else environment.site / "onnxruntime"
    return environment if environment.python.exists() and needed.exists() else None


# -- making one -------------------------------------------------------------------------------------------------------


def ensure(engine: Engine, say: Say = print) -> Environment:
    """The engine's environment, made if need be."""
    if found := find(engine):
        return found
    check_host(this_host())
    return venvs.make_once(engine.venv, lambda: find(engine), lambda: _make(engine, say), say)


def _make(engine: Engine, say: Say) -> Environment:
    venv, whose = engine.venv, f" for {engine.name}" if engine.has_triton else ""
    say(f"making {engine.what}{whose} ({engine.installed_mb} MB, once) in {venv.folder}")
    venvs.build(venv, ["--no-deps", *engine.pins])
    said = venvs.run([str(venv.python), "-I", "-c", _REPORT, engine.provider], venv)
    facts = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    if engine.provider not in facts.pop("providers"):
        raise EnvironmentFault(f"the ONNX Runtime in {venv.folder} lacks {engine.provider}; see {venv.log}")
    facts["site_packages"] = str(Path(facts["site_packages"]).relative_to(venv.folder.resolve()))
    venvs.mark(venv, {"pins": engine.pins, **facts})
    environment = find(engine)
    if environment is None:
        missing = "tritonserver" if engine.has_triton else "ONNX Runtime"
        raise EnvironmentFault(f"{engine.what} in {venv.folder} has no {missing}; see {venv.log}")
    return environment


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
