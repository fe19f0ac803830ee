"""What is compiled runs only where it was compiled from these sources, for this interpreter, and is wanted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import serving
from serving.compiled import folder

PACKAGE = Path(serving.__file__).parent / "scheduling"
ASK = "import sys; sys.prefix = sys.argv[1]; import serving.scheduling; print(serving.scheduling.__path__[0])"


def first(prefix: Path, sources: Path, compiled: str = "1") -> Path:
    """Where Python looks first for what schedules."""
    environment = {**os.environ, "TANDEM_COMPILED": compiled, "PYTHONPATH": str(sources)}
    command = [sys.executable, "-c", ASK, str(prefix)]
    done = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_it_is_taken_while_the_sources_are_those_that_were_compiled(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(PACKAGE.parent, sources / "serving", ignore=shutil.ignore_patterns("__pycache__"))
    package = sources / "serving" / "scheduling"
    assert first(tmp_path, sources) == package
    compiled = folder(package, tmp_path)
    (compiled / "serving" / "scheduling").mkdir(parents=True)
    assert first(tmp_path, sources) == compiled / "serving" / "scheduling"
    assert first(tmp_path, sources, compiled="0") == package
    with (package / "line.py").open("a") as line:
        line.write("\n")
    assert first(tmp_path, sources) == package
