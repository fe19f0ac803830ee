"""What CI says of the time it took: its own script, with programs that do nothing in place of those that it calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
NOTHING = ("make", "wrk", "rclone", "chromium", "promtool", "ip", "go", "buildah", "debootstrap", "apt-get")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in NOTHING:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    script = tmp_path / "clone" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    return lambda *words: subprocess.run([script, *words], env=os.environ | path, capture_output=True, text=True)


@pytest.mark.parametrize(("words", "budget_min"), [([], 65), (["--all"], 80)])
def test_every_stage_and_all_of_them_together_print_their_seconds(
    run: Callable[..., subprocess.CompletedProcess[str]], words: list[str], budget_min: int
) -> None:
    done = run(*words)
    assert done.returncode == 0
    begun = re.findall(r"^== (\S+) \(budget", done.stdout, re.MULTILINE)
    took = re.findall(r"^(\S+) +\d+ s of +(\d+) s$", done.stdout, re.MULTILINE)
    assert len(begun) >= 10
    assert [name for name, _ in took] == [*begun, "all"]
    assert took[-1][1] == str(budget_min * 60)


def test_the_slow_guards_run_beside_the_others_and_only_when_they_are_asked_for(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    def stages(*words: str) -> list[str]:
        return re.findall(r"^== (\S+) \(budget", run(*words).stdout, re.MULTILINE)

    every_time = stages()
    assert "readme" in every_time
    assert stages("--all") == [*every_time[:7], "older-cpu", "recipes", *every_time[7:]]


def test_another_word_is_an_error_and_runs_nothing(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("--al")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: .ci/run [--all]\n")
