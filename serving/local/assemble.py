"""The backend directory that tritonserver loads from: the wheel's Python backend, this Python's stub, our `onnxruntime`.

Real copies, because Triton refuses a library whose real path lies outside the directory, and it changes the stub's mode at
every load, so the stub must belong to us on a writable file system. Each file is put in place by a rename: a stub that
runs cannot be written over ("Text file busy"), but its name can be given to another file.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local.environments import Environment

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
        **{f"{name}/model.py": file for name, file in backends.items()},
    }
    for file in files.values():
        if not file.is_file():
            raise EnvironmentFault(f"{file} is missing: delete Triton's environment around it and start again")
    return files


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
        content = b"".join(file.read_bytes() for _, file in sorted(backends.items()))
        target = folder / f"backends-{hashlib.sha256(content).hexdigest()[:12]}"
    assemble(environment.triton, target, backends)
    return target
