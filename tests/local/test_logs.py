"""Logs of children: bounded, lines that repeat counted, and a full disk costs nothing but lines."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serving.local import logs
from serving.local.logs import FEW, NUM_OLDER, REPEAT_S, LogFile, Output, Repeats, run_folder
from tests.local.harness import wait_until

STAMPED = ("2026-11-23T03:59:55Z E 19816 http.cc:1] ", "2026-11-23T03:59:56Z E 19816 http.cc:1] ")


def test_a_line_that_repeats_is_counted_and_what_comes_between_is_written() -> None:
    repeats, written = Repeats(), []
    for number in range(10):
        written += repeats.take(STAMPED[number % 2] + "bad", float(number))
        written += repeats.take(f"tandem: {number}", float(number))
    assert sum("bad" in line for line in written) == FEW
    assert [line for line in written if "bad" not in line] == [f"tandem: {number}" for number in range(10)]
    told = repeats.due(REPEAT_S)
    assert [line.endswith(f"bad (came {10 - FEW} times more)") for line in told if "bad" in line] == [True]
    assert repeats.take(STAMPED[0] + "bad", REPEAT_S) == [STAMPED[0] + "bad"], "a new minute"


def test_lines_of_different_tracebacks_stay_whole() -> None:
    traceback = ["Traceback (most recent call last):", '  File "a", line 1', "ValueError"]
    repeats = Repeats()
    assert [line for _ in range(9) for part in traceback for line in repeats.take(part, 0.0)] == traceback * 9
    assert repeats.rest() == []


def test_what_is_marked_is_told_beside_the_log_with_the_name_of_who_said_it(tmp_path: Path) -> None:
    told: list[str] = []
    with closing(Output.into(tmp_path / "log", told.append, name="cpu pool", marks=["it is full"])) as output:
        os.write(output.end, f"{STAMPED[0]}it is full: 9 of 8\n{STAMPED[0]}it is well\n".encode())
    assert told == ["cpu pool: it is full: 9 of 8"]
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_many_different_lines_need_little_memory() -> None:
    repeats = Repeats()
    for number in range(10_000):
        assert repeats.take(f"tandem: {number}", 0.0) == [f"tandem: {number}"]
    assert len(repeats._known) <= logs.MAX_REPEATING


def test_a_log_rotates_by_size_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 1000)
    with closing(Output.into(tmp_path / "log", print)) as output:
        subprocess.run([sys.executable, "-c", "for n in range(1000): print('line', n)"], stdout=output.end, check=True)
        wait_until(lambda: output.last()[-1:] == ["line 999"], "all is read")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", *(f"log.{n}" for n in range(1, NUM_OLDER + 1))]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert files[0].read_text().endswith("line 999\n")


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    with closing(Output.into(tmp_path / "log", print)) as output:
        os.write(output.end, b"x" * 50_000)
    assert max(map(len, (tmp_path / "log").read_text().split())) <= logs.MAX_LINE_BYTES + 65_536
    assert (tmp_path / "log").read_text().count("x") == 50_000


def test_what_was_said_before_is_known_at_once(tmp_path: Path) -> None:
    with closing(Output.into(tmp_path / "log", print)) as output:
        for number in range(100):
            os.write(output.end, f"{number}\n".encode())
            assert output.last()[-1] == str(number)
        output.forget()
        assert output.last() == []


def test_a_full_disk_is_told_once_with_the_path_and_its_end_too(small_disk: Path) -> None:
    filler, said = small_disk / "filler", []
    log = LogFile(small_disk / "log", said.append)
    log.write("before")
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True)
    for number in range(2000):
        log.write(f"{number} {'x' * 100}")
    [told] = said
    assert str(small_disk / "log") in told
    assert "No space left on device" in told
    filler.unlink()
    log.write("after")
    assert len(said) == 2
    assert "written again" in said[1]
    log.close()
    assert (small_disk / "log").read_text().splitlines()[-1] == "after"


def test_older_runs_are_bounded_in_number_and_bytes_but_for_those_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.setattr(logs, "MAX_KEPT_BYTES", 5000)
    going_on = tmp_path / "runs" / f"20190101-000000-{os.getppid()}"
    for folder in (going_on, *(tmp_path / "runs" / f"20200101-00000{number}-999999999" for number in range(9))):
        folder.mkdir(parents=True)
        (folder / "gateway.log").write_bytes(bytes(1000))
    newest = run_folder()
    kept = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert kept == [going_on.name, *(f"20200101-00000{number}-999999999" for number in range(4, 9)), newest.name]
    assert wait_until(newest.is_dir, "it is there")
