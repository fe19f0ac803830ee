"""Does every shared library of an environment find what it is linked with? For images that are built where they cannot run.

Asks the loader (ldd) with the folders that serve: Triton's, ONNX Runtime's, NVIDIA's wheels. Only the driver's libraries may be
missing: NVIDIA's container runtime brings them. That a library is found does not prove that it computes.

    python resolve.py ENVIRONMENT       with CUDNN=no in the environment no file of cuDNN may be there
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
# Opened by name at run time, by cuDNN 9.26 and ONNX Runtime 1.31, so that no ldd would miss them: the names that stand in their files.
OPENED = (
    "libcudnn.so.9",
    "libcudnn_adv.so.9",
    "libcudnn_cnn.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
    "libcudnn_engines_tensor_ir.so.9",
    "libcudnn_ext.so.9",
    "libcudnn_graph.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_ops.so.9",
    "libnvrtc.so.13",
    "libonnxruntime_providers_cuda.so",
    "libonnxruntime_providers_shared.so",
)


CUDNN = "libcudnn"


def missing(said: str) -> set[str]:
    """Names that ldd did not find."""
    return {line.split("=>")[0].strip() for line in said.splitlines() if line.rstrip().endswith("=> not found")}


def faults(found: Mapping[str, Iterable[str]], names: Iterable[str], *, has_cudnn: bool = True) -> list[str]:
    """`found`: library -> what it misses. `names`: of all files there are."""
    lacking = [
        f"{library} needs {', '.join(sorted(rest))}"
        for library, misses in sorted(found.items())
        if (rest := set(misses) - DRIVER)
    ]
    there = set(names)
    wanted = [name for name in OPENED if has_cudnn or not name.startswith(CUDNN)]
    left = [] if has_cudnn else [name for name in sorted(there) if name.startswith(CUDNN)]
    return [
        *lacking,
        *(f"{name} is not there" for name in wanted if name not in there),
        *(f"{name} is there, and was to be left out" for name in left),
    ]


def main() -> None:
    (site,) = Path(sys.argv[1]).glob("lib/python3.*/site-packages")
    libraries = sorted(path for path in site.rglob("*.so*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF")
    # Where a library lies whose users name its folder themselves, and which are loaded before.
    folders = sorted({str(path.parent) for path in libraries if re.search(r"/nvidia/|\.libs/", str(path))})
    variables = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
    found = {}
    for library in libraries:
        asked = subprocess.run(["ldd", str(library)], capture_output=True, text=True, env=variables, check=False)
        found[str(library.relative_to(site))] = missing(asked.stdout)
    if wrong := faults(found, (path.name for path in libraries), has_cudnn=os.environ.get("CUDNN") != "no"):
        sys.exit("\n".join(f"tandem: {line}" for line in wrong))
    driver = sorted({name for misses in found.values() for name in misses})
    print(f"tandem: {len(libraries)} libraries find all they need but the driver's: {', '.join(driver) or 'nothing'}")


if __name__ == "__main__":
    main()
