"""A build of the bed says how far it is and what it waits for: another build, the network, a busy machine."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.bed import build
from tests.cluster.bed.build import NotBuilt, Progress


def test_progress_counts_packages_and_keeps_what_is_wrong() -> None:
    progress = Progress()
    progress.read(["go: downloading k8s.io/api v0.36.1\n"])
    assert (progress.num_packages, progress.is_fetching) == (0, True)
    assert "downloading k8s.io/api v0.36.1" in str(progress)
    progress.read(
        ["k8s.io/api/core/v1\n", "internal/cpu\n", "# controlplane\n", "./main.go:3:1: expected declaration\n"]
    )
    assert (progress.num_packages, progress.is_fetching) == (2, False)
    assert progress.words == ["# controlplane", "./main.go:3:1: expected declaration"]
    assert "2 packages" in str(progress)


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (900.0, 900.0, 900.0))
    assert "900 processes want" in str(Progress(1, "a/b"))


def test_how_far_it_is_is_said_while_it_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "TOLD_EVERY_S", 0.2)
    program = "import sys, time; print('a/b', file=sys.stderr, flush=True); time.sleep(1.0); print('made')"
    assert build._timed("it", [sys.executable, "-c", program]) == "made\n"
    assert "last a/b" in capsys.readouterr().out
    with pytest.raises(NotBuilt, match="it is broken"):
        build._timed("it", [sys.executable, "-c", "import sys; sys.exit('it is broken')"])
    monkeypatch.setattr(build, "PATIENCE_S", 0.3)
    with pytest.raises(NotBuilt, match="try again"):
        build._timed("it", [sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_second_build_names_the_first_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "TOLD_EVERY_S", 0.05)
    with (tmp_path / "lock").open("a+") as first, (tmp_path / "lock").open("a+") as second:
        build._wait_for(first)
        waiting = threading.Thread(target=build._wait_for, args=(second,))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        fcntl.flock(first, fcntl.LOCK_UN)
        waiting.join(10)
        assert not waiting.is_alive()
    assert f"process {os.getpid()}" in capsys.readouterr().out
