"""What is written is what is read, and what was spoilt is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import records
from loadtest.errors import ResultsError
from tests.loadtest import rows as make


def test_rows_come_back_to_the_microsecond(tmp_path: Path) -> None:
    written = [
        make.row(1.2345678, 0.0012345),
        make.row(status=503, correct=None, variant="", pool="", device="", error="overloaded"),
        make.row(device='cpu; name="Comma, \\"Quote\\""', correct=0),
    ]
    records.write_rows(tmp_path / "r.csv", written[:1])
    records.write_rows(tmp_path / "r.csv", written[1:])  # appended under one header
    read = records.read_rows(tmp_path / "r.csv")
    assert (read[0].start_s, read[0].latency_s) == (1.234568, 0.001234)
    assert read[1:] == written[1:]


def test_a_last_row_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    records.write_rows(file, [make.row(), make.row()])
    file.write_text(file.read_text()[:-9])
    assert len(records.read_rows(file)) == 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.replace("200", "2x0", 1), "line 2: invalid literal"),
        (lambda t: t.replace(",200,", ",", 1), "line 2: 9 cells instead of 10"),
        (lambda t: t.replace("0.010000", "nan", 1), "line 2: a time that is no number"),
        (lambda t: t.replace("start_s", "start", 1), "first line is not that of version 3"),
    ],
)
def test_a_broken_row_is_an_error_that_names_its_line(tmp_path: Path, spoil: object, message: str) -> None:
    file = tmp_path / "r.csv"
    records.write_rows(file, [make.row(), make.row()])
    assert callable(spoil)
    file.write_text(spoil(file.read_text()))
    with pytest.raises(ResultsError, match=message):
        records.read_rows(file)


def test_rows_that_are_no_text_are_an_error_and_strange_letters_of_a_receipt_are_not(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    strange = [make.row(device='cpu; name="\x85\u2028\x0c"'), make.row()]
    records.write_rows(file, strange)
    assert records.read_rows(file) == strange
    file.write_bytes(file.read_bytes() + b"\xff\xfe")
    with pytest.raises(ResultsError, match=r"Delete.*leave"):
        records.read_rows(file)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    given = make.manifest(
        [make.run(state="failed", reason="it broke"), make.run("int8-cpu", gateway_counted=3)], note="x"
    )
    records.write_manifest(tmp_path, given)
    assert records.read_manifest(tmp_path) == given
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "its version is 2"),
        ({"runs": ["x"]}, r"runs\[0\]: must be a mapping"),
        ({"surplus": 1}, "unknown key 'surplus'"),
        ({"machine": None}, "machine: must be a mapping"),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    records.write_manifest(tmp_path, make.manifest())
    file = tmp_path / records.MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ResultsError, match=message):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize("text", [None, "", "[1]", "{", "\x00"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / records.MANIFEST).write_text(text)
    with pytest.raises(ResultsError):
        records.read_manifest(tmp_path)


@pytest.mark.thorough
def test_all_but_the_locustfile_are_imported_without_locust() -> None:
    modules = "loadtest.campaign, loadtest.report.build, loadtest.report.page, loadtest.sending.generator, loadtest.verdict.command"
    code = f"import sys, {modules}; print([m for m in sys.modules if m in ('locust', 'gevent')])"
    root = Path(__file__).parents[2]
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
