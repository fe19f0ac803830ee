"""What is compiled runs only where it was compiled from these sources, for this interpreter, and is wanted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import serving
from scripts import compile as script
from serving.compiled import folder

PACKAGE = Path(serving.__file__).parent / "scheduling"
ASK = "import sys; sys.prefix = sys.argv[1]; import serving.scheduling; print(serving.scheduling.__path__[0])"


def first(prefix: Path, sources: Path, compiled: str = "1") -> Path:
    """Where Python looks first for what schedules."""
    environment = {**os.environ, "TANDEM_COMPILED": compiled, "PYTHONPATH": str(sources)}
    command = [sys.executable, "-c", ASK, str(prefix)]
    done = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_make_up_compiles_what_a_pull_has_changed_before_it_serves() -> None:
    # `-o`: also where the environment is newer than what it is made from.
    command = ["make", "-n", "-o", ".venv/.local", "up", "ARGS=--port 9000"]
    # As by a user: what `make test` hands down makes a `make` say in which directory it is.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=PACKAGE.parents[1], env=environment, capture_output=True, text=True, check=True)
    assert [line.split(" && ") for line in done.stdout.splitlines() if line] == [
        [".venv/bin/python scripts/compile.py", "exec .venv/bin/tandem up --port 9000"]
    ]


def test_where_it_cannot_be_written_that_is_told_and_keeps_nobody_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "prefix"
    prefix.touch()  # no folder
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["compile.py", "--prefix", str(prefix)])
    monkeypatch.setattr(script, "_missing", str)
    monkeypatch.setattr(script, "_compile", lambda *_: tmp_path)  # which takes 15 s
    assert script.main() == 0
    assert str(prefix) in capsys.readouterr().err


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
