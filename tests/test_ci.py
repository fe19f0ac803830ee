"""What CI says of the time it took: its own script, with programs that do nothing in place of those that it calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
NOTHING = ("make", "wrk", "rclone", "chromium", "promtool", "ip", "go", "buildah", "debootstrap", "apt-get")


def test_every_stage_and_all_of_them_together_print_their_seconds(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in NOTHING:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    script = tmp_path / "clone" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run([script], env=os.environ | path, capture_output=True, text=True, check=True)
    begun = re.findall(r"^== (\S+) \(budget", done.stdout, re.MULTILINE)
    took = re.findall(r"^(\S+) +\d+ s of +(\d+) s$", done.stdout, re.MULTILINE)
    assert len(begun) >= 10
    assert [name for name, _ in took] == [*begun, "all"]
    assert took[-1][1] == str(65 * 60)
