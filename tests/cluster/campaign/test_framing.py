"""Results through a log and back: whatever is cut, doubled or missing, the very bytes come out or an error that says what lacks."""

from __future__ import annotations

import io
import lzma
import os
import random
import tarfile
from pathlib import Path

import pytest

from serving.cluster.campaign.framing import Frames, Incomplete, unpack
from serving.cluster.campaign.pod_program import LINE_BYTES, MARK, lines


def write(folder: Path, **files: bytes) -> Path:
    for name, content in {"manifest.json": b"{}", "report.html": b"<html>", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {it.relative_to(folder).as_posix(): it.read_bytes() for it in folder.rglob("*") if it.is_file()}


@pytest.fixture
def sent(tmp_path: Path) -> list[str]:
    """A log of several lines: bytes that do not compress."""
    return list(lines(write(tmp_path / "pod", runs__a=os.urandom(4 * LINE_BYTES)), 1))


def taken(found: list[str]) -> Frames:
    frames = Frames()
    for line in found:
        frames.take(line)
    return frames


def test_what_was_written_comes_out_with_the_campaigns_exit_code(tmp_path: Path, sent: list[str]) -> None:
    frames = taken(sent)
    unpack(frames.archive(), tmp_path / "home")
    assert read(tmp_path / "home") == read(tmp_path / "pod")
    assert frames.head is not None
    assert (frames.head.code, frames.head.left_out) == (1, ())
    assert all(len(line) < 16 * 2**10 for line in sent)


def test_lines_that_come_twice_in_any_order_and_cut_once_make_the_same(sent: list[str]) -> None:
    twice = [line[: len(line) // 2] for line in sent] + sent + sent
    random.Random(1).shuffle(twice)
    whole = [*twice, *sent]
    assert taken(whole).archive() == taken(sent).archive()


def test_other_lines_are_not_taken_and_lines_of_the_results_are(sent: list[str]) -> None:
    assert not any(Frames().take(line) for line in ("", "run 1/2: fp32 on cpu", f"a {MARK} 0 AAAA", MARK))
    assert all(Frames().take(line) for line in sent)


def test_a_log_without_results_says_so() -> None:
    with pytest.raises(Incomplete, match=r"ends.*results"):
        taken(["run 1/2", "Killed"]).archive()


@pytest.mark.parametrize("missing", [1, 3, -2])
def test_a_line_that_is_missing_is_told(sent: list[str], missing: int) -> None:
    rest = list(sent)
    del rest[missing]
    with pytest.raises(Incomplete, match=rf"{len(sent) - 3}.*{len(sent) - 2}.*lines"):
        taken(rest).archive()


def test_a_first_line_that_is_cut_off_is_no_first_line(sent: list[str]) -> None:
    with pytest.raises(Incomplete, match="lack their beginning"):
        taken([sent[0][:40], *sent[1:]]).archive()


@pytest.mark.parametrize("num_lost", [1, 2, 3])
def test_a_log_that_was_begun_anew_within_the_results_is_told_as_one(sent: list[str], num_lost: int) -> None:
    with pytest.raises(Incomplete, match="containerLogMaxSize"):
        taken(sent[num_lost:]).archive()


def test_a_changed_line_is_found_by_the_digest(sent: list[str]) -> None:
    head, number, text = sent[2].split(" ")
    changed = f"{head} {number} {text[:8]}{'A' if text[8] != 'A' else 'B'}{text[9:]}"
    with pytest.raises(Incomplete, match="another digest"):
        taken([*sent[:2], changed, *sent[3:]]).archive()


def test_nothing_to_send_is_complete(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    frames = taken(list(lines(tmp_path / "empty", 3)))
    assert unpack(frames.archive(), tmp_path) == ()
    assert frames.head is not None
    assert frames.head.code == 3


def test_what_does_not_fit_is_left_out_by_name_and_the_report_last(tmp_path: Path) -> None:
    folder = write(tmp_path / "pod", runs__long=os.urandom(60_000), runs__short=os.urandom(3_000))
    frames = taken(list(lines(folder, 0, max_bytes=20_000)))
    unpack(frames.archive(), tmp_path / "home")
    assert frames.head is not None
    assert frames.head.left_out == ("runs/long",)
    assert set(read(tmp_path / "home")) == {"manifest.json", "report.html", "runs/short"}
    nothing = taken(list(lines(folder, 0, max_bytes=10)))
    assert nothing.archive() == b""
    assert nothing.head is not None
    assert len(nothing.head.left_out) == 4


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return lzma.compress(into.getvalue())


def link(name: str) -> tarfile.TarInfo:
    it = tarfile.TarInfo(name)
    it.type, it.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return it


@pytest.mark.parametrize("member", [tarfile.TarInfo("../out"), tarfile.TarInfo("/out"), link("a")])
def test_no_file_is_written_elsewhere(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(Incomplete, match=r"campaign.*writes"):
        unpack(archive((member, b"")), tmp_path / "home")
    assert read(tmp_path) == {}


@pytest.mark.parametrize("damaged", [b"no archive", archive((tarfile.TarInfo("a"), b"b" * 9000))[:-60]])
def test_what_is_no_archive_is_told(tmp_path: Path, damaged: bytes) -> None:
    with pytest.raises(Incomplete, match="cannot be unpacked"):
        unpack(damaged, tmp_path)
