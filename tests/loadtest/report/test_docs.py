"""The page of committed reports: it says what they say, and takes in no place of the machine that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest import records
from loadtest.report import build as report
from loadtest.report import docs, page
from tests.loadtest import rows as make


def results(folder: Path, command: str = "tandem campaign run loadtest/campaigns/digits.yaml") -> Path:
    """Of one arm that ran, one that could not, and one with a void run."""
    (folder / "runs").mkdir(parents=True)
    runs = [make.run(repeat=repeat) for repeat in (1, 2, 3)]
    runs += [make.run("int8-cpu", 1, state="failed", reason="no generator")]
    for run in runs[:3]:
        records.write_rows(folder / run.rows, make.rows(0.01))
    records.write_manifest(folder, make.manifest(runs, command=command))
    built = report.build(folder)
    report.write(folder, built)
    page.write(folder, built)
    return folder


def test_a_report_is_taken_in_with_its_numbers_machine_and_command(tmp_path: Path) -> None:
    taken = results(tmp_path / "digits")
    assert docs.main([str(taken)], tmp_path) == 0
    assert {file.name for file in (tmp_path / "reports").iterdir()} == {"digits.html", "digits.json"}
    text = (tmp_path / "reports.md").read_text("utf-8")
    said = json.loads((taken / "report.json").read_text("utf-8"))
    assert said["sentence"] in text
    assert "| 2 | fp32-cpu | 10.0 | – | – | 50.0 | 3, 0 |" in text
    assert "| 2 | int8-cpu | – | – | – | – | 0, 1 |" in text
    assert "fp16-gpu | not run: no GPU on this machine |" in text
    assert "by `tandem campaign run loadtest/campaigns/digits.yaml`" in text
    assert "A Processor, 2 cores, no GPU" in text
    assert "(reports/digits.html)" in text


def test_reports_that_are_there_stay_and_are_told_in_order(tmp_path: Path) -> None:
    assert docs.main([str(results(tmp_path / "b")), str(results(tmp_path / "a"))], tmp_path) == 0
    assert docs.main([], tmp_path) == 0
    text = (tmp_path / "reports.md").read_text("utf-8")
    assert text.index("## a\n") < text.index("## b\n")


@pytest.mark.parametrize(
    "command", ["tandem campaign run /home/me/mine.yaml", "tandem campaign run x.yaml --model-repository ~/models/x"]
)
def test_a_report_that_names_a_place_of_its_machine_is_refused(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docs.main([str(results(tmp_path / "digits", command))], tmp_path) == 2
    assert "run it with paths that count from the checkout" in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


def test_a_url_and_a_path_in_the_checkout_are_no_places(tmp_path: Path) -> None:
    command = "tandem campaign run loadtest/campaigns/digits.yaml --url http://127.0.0.1:8080/ --output results/x/"
    assert docs.main([str(results(tmp_path / "digits", command))], tmp_path) == 0


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main([str(tmp_path)], tmp_path) == 2
    assert "is not there; name a results directory" in capsys.readouterr().err
    assert not (tmp_path / "reports.md").exists()


def test_the_committed_page_is_what_the_committed_reports_say() -> None:
    reports, written = docs.committed(docs.DOCS / "reports"), docs.DOCS / "reports.md"
    assert written.exists() == bool(reports), "run python -m loadtest.report.docs"
    if reports:
        assert written.read_text("utf-8") == docs.render(reports), "run python -m loadtest.report.docs"
        assert all((docs.DOCS / "reports" / f"{name}.html").exists() for name in reports)
