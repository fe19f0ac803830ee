"""Folders for files of other Pythons: gone afterwards, also where a killed process left one, and never from under a living one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.errors import EnvironmentFault
from serving.export.scratch import PREFIX, scratch, writing_into

from .conftest import ROOT

HOLDER = """
import sys
from serving.export.scratch import scratch
with scratch("held") as folder:
    (folder / "file").write_text("mine")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def holder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process in the middle of its work, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_there_as_long_as_its_block_runs(place: Path) -> None:
    with scratch("test") as folder:
        (folder / "file").write_text("")
        assert folder.parent == place
    assert list(place.iterdir()) == []


def test_a_block_that_fails_leaves_nothing(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch("test"):
        raise KeyboardInterrupt
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(place: Path) -> None:
    process, left = holder(place)
    with process:
        process.send_signal(signal.SIGKILL)
    assert (left / "file").read_text() == "mine"
    with scratch("test") as folder:
        assert list(place.iterdir()) == [folder]


def test_the_folder_of_a_living_process_stays(place: Path) -> None:
    process, theirs = holder(place)
    with process, scratch("test"):
        assert (theirs / "file").read_text() == "mine"
        process.communicate("")
    assert process.returncode == 0
    assert list(place.iterdir()) == []


def test_two_folders_of_one_process_leave_each_other_alone() -> None:
    with scratch("test") as first, scratch("test") as second:
        assert first != second
        assert first.is_dir()
        assert second.is_dir()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Path.mkdir, "tandem-backends-1"),
        (Path.mkdir, "scratch-1"),
        (Path.touch, f"{PREFIX}file"),
        (lambda path: path.symlink_to(path.parent / "precious"), f"{PREFIX}link"),
    ],
    ids=["another part's folder", "somebody else's folder", "a file", "a link to a folder"],
)
def test_what_is_no_such_folder_stays(place: Path, make: Callable[[Path], object], name: str) -> None:
    (place / "precious").mkdir()
    (place / "precious" / "file").write_text("")
    make(place / name)
    with scratch("test"):
        pass
    assert (place / name).exists()
    assert (place / "precious" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_stays(place: Path) -> None:
    theirs = place / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, os.geteuid() + 1, -1)
    with scratch("test"):
        pass
    assert theirs.is_dir()


@pytest.mark.parametrize("is_gone", [True, False], ids=["removed", "about to be removed"])
def test_a_folder_that_another_process_takes_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    mkdir, taken, locks = os.mkdir, [], []

    def taking(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if not taken:
            locks.append(os.open(path, os.O_RDONLY))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
            if is_gone:
                shutil.rmtree(path)
        taken.append(Path(path))

    monkeypatch.setattr(os, "mkdir", taking)
    with scratch("test") as folder:
        assert folder.is_dir()
        assert folder == taken[1]
    os.close(locks[0])


def test_a_disk_without_room_for_what_is_timed_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"cannot write into .*: No space left on device; set TMPDIR to a disk with room"
    with scratch("test") as folder, pytest.raises(EnvironmentFault, match=message), writing_into(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentFault, match=r"TMPDIR.*disk"), scratch("test"):
        pass
