"""`scripts/setup.sh` before pip downloads anything: where there is no room for PyTorch it says so, and nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.harness import ROOT

# The environment's Python, without packages; what pip is asked for goes into a file, and fails where there is no such file.
PYTHON = """#!/bin/sh
case "$*" in
  *"import pip"*) exit 0 ;;
  *"-m pip"*) [ -e {log} ] && echo "$*" >> {log} ;;
  *) exec {python} -S "$@" ;;
esac
"""


def set_up(environment: Path, log: Path, extras: str, **more: str) -> tuple[int, str]:
    """Its exit code, and what it said is wrong."""
    python = environment / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON.format(log=log, python=sys.executable))
    python.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "setup.sh", environment, extras],
        env={**os.environ, "PYTHON": sys.executable, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("extras", "more", "is_installed"),
    [
        ("export,dev", {}, False),
        ("export", {"TMPDIR": "/nowhere"}, False),
        ("export,dev", {"ROOM": "enough"}, True),
        ("quickstart", {}, True),
    ],
)
def test_a_disk_without_room_for_pytorch_is_told_before_anything_is_downloaded(
    small_disk: Path, tmp_path: Path, extras: str, more: dict[str, str], is_installed: bool
) -> None:
    (log := tmp_path / "asked").touch()
    code, said = set_up(small_disk, log, extras, **more)
    asked = log.read_text()
    assert (f".[{extras}]" in asked) is is_installed
    if is_installed:
        assert (code, said) == (0, "")
    else:
        assert (code, asked, len(said.splitlines())) == (3, "", 1)
        assert str(small_disk) in said
        assert "7 GB" in said


def test_a_pip_that_fails_for_want_of_room_is_followed_by_what_is_needed_and_where(tmp_path: Path) -> None:
    (environment := tmp_path / "environment").mkdir()
    code, said = set_up(environment, tmp_path / "none", "export", ROOM="enough")
    assert code == 3
    assert f"7 GB in {environment}" in said
