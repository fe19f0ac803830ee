"""How is tritonserver started: its backend directory, its command line, its environment variables, its ports, its shared memory.

Every flag that decides behaviour is written out, with the reason where it is not plain. The backend directory holds the wheel's Python
backend, this Python's stub and our `onnxruntime`. They are real copies, because Triton refuses a library whose real path lies outside the
directory, and changes the stub's mode at every load, so the stub must belong to us on a writable file system. Each file is put in place by
a rename: a running stub cannot be written over ("Text file busy"), but its name can be given to another file.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local.environments import Environment, library_folder

BACKEND = Path(__file__).parent / "backends" / "onnxruntime" / "model.py"
BACKENDS: Mapping[str, Path] = {"onnxruntime": BACKEND}


def sources(triton: Path, backends: Mapping[str, Path] = BACKENDS) -> dict[str, Path]:
    """{place in the backend directory: file to copy} from a wheel's tritonserver folder, and of our backends by name."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = triton / "backends" / "python"
    files = {
        "python/libtriton_python.so": python / "libtriton_python.so",
        "python/triton_python_backend_utils.py": python / "triton_python_backend_utils.py",
        "python/triton_python_backend_stub": triton / "python_backend_stubs" / version / "triton_python_backend_stub",
        **{f"{name}/{file.name}": file for name, model in backends.items() for file in _files(model)},
    }
    for file in files.values():
        if not file.is_file():
            raise EnvironmentFault(f"{file} is missing: delete Triton's environment around it and start again")
    return files


def _files(model: Path) -> list[Path]:
    """A backend's model.py and what lies beside it. Where there is none, it is told as missing."""
    return sorted({model, *model.parent.glob("*.py")})


def assemble(triton: Path, target: Path, backends: Mapping[str, Path] = BACKENDS) -> None:
    """Lays the backend directory out at `target`, or brings it up to date; files that are the same are left alone."""
    for place, source in sources(triton, backends).items():
        destination = target / place
        if destination.is_file() and filecmp.cmp(source, destination, shallow=False):
            continue
        destination.parent.mkdir(parents=True, exist_ok=True)
        fresh = destination.with_name(f"{destination.name}.{os.getpid()}")
        shutil.copy2(source, fresh)
        fresh.replace(destination)


def backend_directory(environment: Environment, backends: Mapping[str, Path] = BACKENDS) -> Path:
    """An assembled directory: in the environment, named by our backends' content, so that two versions never mix.

    Where the environment belongs to somebody else (one baked into an image), in a temporary directory instead.
    """
    folder = environment.folder
    if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
        target = Path(tempfile.mkdtemp(prefix="tandem-backends-"))
    else:
        content = b"".join(file.read_bytes() for _, model in sorted(backends.items()) for file in _files(model))
        target = folder / f"backends-{hashlib.sha256(content).hexdigest()[:12]}"
    assemble(environment.triton, target, backends)
    return target


SHARED_MEMORY = Path("/dev/shm")
OPENVINO_SITE = "TANDEM_OPENVINO_SITE"  # read by our backend, for models that ask for OpenVINO
REGION_PREFIX = "TANDEM_REGION_PREFIX"  # how names of shared memory begin that a backend makes itself


@dataclass(frozen=True, slots=True)
class Ports:
    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


@dataclass(frozen=True, slots=True)
class Launch:
    """One tritonserver to start. `backends` is the assembled backend directory."""

    environment: Environment
    backends: Path
    model_repository: Path
    pool: str
    host: str
    ports: Ports
    exit_timeout_s: int
    openvino: Path | None = None  # the packages of OpenVINO's environment, where it is installed
    trials: Path | None = None  # a second repository, for what answers its gate's rows before it is served
    otel_endpoint: str | None = None  # the collector that gets spans of the requests whose gateway traces them
    memory_bound_bytes: int | None = None  # of all its processes, past which it wants a new start (`recycling.py`)
    # Unique per server, so that what a killed one leaves in /dev/shm can be told from another's and removed.
    region_prefix: str = field(default_factory=lambda: f"{region_prefix_of(os.getpid())}{secrets.token_hex(4)}-")


def command(launch: Launch) -> list[str]:
    flags = {
        "model-repository": launch.model_repository,
        "backend-directory": launch.backends,
        "cache-directory": launch.environment.triton / "caches",
        "model-control-mode": "explicit",  # models are loaded by name, each with its own override; never "*"
        "model-config-name": launch.pool,  # configs/<pool>.pbtxt
        "strict-readiness": "false",  # true stays unready after one failed load, even when a good one follows
        "exit-on-error": "false",
        "exit-timeout-secs": launch.exit_timeout_s,
        "http-address": launch.host,
        "http-port": launch.ports.http,
        "grpc-address": launch.host,
        "grpc-port": launch.ports.grpc,
        "metrics-address": launch.host,
        "metrics-port": launch.ports.metrics,
        "allow-gpu-metrics": "false",  # DCGM in the wheel prints errors without a card; the gateway reads none of them
        "log-format": "ISO8601",
        **({"pinned-memory-pool-byte-size": 0} if launch.pool != "gpu" else {}),  # for copies to a card
    }
    backend_settings = {
        "shm-region-prefix-name": launch.region_prefix,
        "stub-timeout-seconds": 120,  # a big model on a busy machine; 30 is the default (guess, not measured)
    }
    return [
        str(launch.environment.server),
        "--disable-auto-complete-config",
        *(f"--{name}={value}" for name, value in flags.items()),
        *([f"--model-repository={launch.trials}"] if launch.trials else []),
        *(f"--backend-config=python,{name}={value}" for name, value in backend_settings.items()),
        *(f"--trace-config={setting}" for setting in _tracing(launch)),
    ]


def _tracing(launch: Launch) -> list[str]:
    """With a rate of 0 Triton traces the requests that have a `traceparent` and no others; its flags it does not look at."""
    if launch.otel_endpoint is None:
        return []
    return [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=0",
        f"opentelemetry,url={launch.otel_endpoint}/v1/traces",
        "opentelemetry,resource=service.name=tandem-triton",
        f"opentelemetry,resource=tandem.pool={launch.pool}",
    ]


def variables(launch: Launch, inherited: Mapping[str, str]) -> dict[str, str]:
    """The stub embeds an isolated Python: the first python3 on PATH decides its packages, libpython comes by the loader."""
    kept = {key: value for key, value in inherited.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    folders = [launch.environment.libraries, library_folder(), inherited.get("LD_LIBRARY_PATH")]
    kept["LD_LIBRARY_PATH"] = ":".join(str(folder) for folder in folders if folder)
    kept.setdefault(
        "ORT_DISABLE_TELEMETRY", "1"
    )  # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise
    kept[REGION_PREFIX] = launch.region_prefix
    kept.pop(OPENVINO_SITE, None)
    if launch.openvino is not None:
        kept[OPENVINO_SITE] = str(launch.openvino)
    kept["PATH"] = f"{launch.environment.python.parent}:{inherited.get('PATH', '/usr/bin:/bin')}"
    return kept


@cache
def _region_prefix() -> str:
    """Of servers whose supervisors this process can see: containers may share /dev/shm, and count their processes from 1 each."""
    return f"tandem-triton-{Path('/proc/self/ns/pid').stat().st_ino}-"


def region_prefix_of(supervisor: int) -> str:
    """How the names of shared memory begin of every server that this process started."""
    return f"{_region_prefix()}{supervisor}-"


def remove_shared_memory_of_dead(folder: Path = SHARED_MEMORY, proc: Path = Path("/proc")) -> int:
    """Removes what servers left that were killed together with their supervisors; the number of segments."""
    owners = {
        path.name.removeprefix(_region_prefix()).partition("-")[0] for path in folder.glob(f"{_region_prefix()}*")
    }
    dead = [owner for owner in owners if owner.isdecimal() and not (proc / owner).exists()]
    return sum(remove_shared_memory(region_prefix_of(int(owner)), folder) for owner in dead)


def remove_shared_memory(region_prefix: str, folder: Path = SHARED_MEMORY) -> int:
    """Removes what servers of this prefix left; the number of segments. For servers that have ended only."""
    num_removed = 0
    for segment in folder.glob(f"{region_prefix}*"):
        with contextlib.suppress(OSError):  # of another user, whose process had our process's number, or a folder
            segment.unlink(missing_ok=True)
            num_removed += 1
    return num_removed
