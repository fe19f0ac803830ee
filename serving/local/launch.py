"""How is tritonserver started: its command line, its environment variables, its ports, its shared memory.

Pure but for the look at ports. Every flag that decides behaviour is written out, with the reason where it is not plain.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.local.environments import Environment, library_folder

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
    # Unique per server, so that what a killed one leaves in /dev/shm can be told from another's and removed.
    region_prefix: str = field(default_factory=lambda: f"tandem-{os.getpid()}-{secrets.token_hex(4)}-")


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
        *(f"--backend-config=python,{name}={value}" for name, value in backend_settings.items()),
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


def remove_shared_memory(region_prefix: str, folder: Path = SHARED_MEMORY) -> int:
    """Removes what servers of this prefix left; the number of segments. For servers that have ended only."""
    left = list(folder.glob(f"{region_prefix}*"))
    for segment in left:
        segment.unlink(missing_ok=True)
    return len(left)
