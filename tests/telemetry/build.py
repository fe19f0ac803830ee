"""Where are OpenTelemetry's collector and Jaeger? Built once for each state of their sources, into a cache outside the clone.

`python -m tests.telemetry.build otelcol jaeger` builds those that lack; tests never wait for a compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "otelcol": ".",
    "jaeger": "github.com/jaegertracing/jaeger/cmd/all-in-one",
}  # without the pages of Jaeger's UI
WAY_OUT = "make test-cluster builds it, or python -m tests.telemetry.build {} (Go 1.26 or newer)"


def program(name: str) -> Path:
    """Raises FileNotFoundError with the way out."""
    if not (found := _place(name)).is_file():
        raise FileNotFoundError(f"{name} is not built: {WAY_OUT.format(name)}")
    return found


def _place(name: str) -> Path:
    digest = hashlib.sha256()
    for source in ("main.go", "go.mod", "go.sum"):
        if (file := HERE / name / source).exists():
            digest.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tandem" / name / digest.hexdigest()[:16]


def main(names: Sequence[str]) -> int:
    lacking = {name: place for name in names if not (place := _place(name)).is_file()}
    if lacking and shutil.which("go") is None:
        way_out = WAY_OUT.format(" ".join(lacking))
        print(f"there is no Go here, which is needed to compile {', '.join(lacking)}: {way_out}", file=sys.stderr)
        return 3
    for name, place in lacking.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        print(f"building {name} into {place}; minutes from an empty Go cache", flush=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / name
            command = [
                "go",
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
                "-s -w",
                "-o",
                str(made),
                PACKAGES[name],
            ]
            if subprocess.run(command, cwd=HERE / name).returncode:
                return 3
            made.rename(place)  # of two that are built at once either will do
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PACKAGES)))
