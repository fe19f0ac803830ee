"""Published results: what is taken in, what the pages say of it, and that they are fresh."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import records
from loadtest.claims import values as claims_values
from loadtest.claims.values import EngineTime, Findings, ServingRates
from loadtest.gpu import bands
from loadtest.gpu import page as gpu_page
from loadtest.gpu.ledger import Check, Entry
from loadtest.gpu.ledger import Report as GpuReport
from loadtest.gpu.ledger import Run as GpuRun
from loadtest.report import build as report
from loadtest.report import page
from scripts import published
from serving.measure.machine import Machine
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
    folder = results(tmp_path / "digits")
    assert published.main([str(folder)], tmp_path) == 0
    kept = tmp_path / "published-results" / "digits.json.gz"
    assert gzip.decompress(kept.read_bytes()) == (folder / "report.json").read_bytes()
    assert hashlib.sha256(kept.read_bytes()).hexdigest() in kept.with_name("README.md").read_text("utf-8")
    assert (tmp_path / "docs" / "reports" / "digits.html").read_bytes() == (folder / "report.html").read_bytes()
    text = (tmp_path / "docs" / "reports.md").read_text("utf-8")
    assert json.loads((folder / "report.json").read_text("utf-8"))["sentence"] in text
    assert "| 2 | fp32-cpu | 10.0 | – | – | 50.0 | 3, 0 |" in text
    assert "| 2 | int8-cpu | – | – | – | – | 0, 1 |" in text
    assert re.search(r"fp16-gpu \| not run: .*no GPU", text)
    assert "`tandem campaign run loadtest/campaigns/digits.yaml`" in text
    assert "A Processor, 2 cores" in text
    assert "(reports/digits.html)" in text


def test_what_is_there_stays_in_order_and_so_does_what_a_person_wrote_above_it(tmp_path: Path) -> None:
    assert published.main([str(results(tmp_path / "b")), str(results(tmp_path / "a"))], tmp_path) == 0
    page = tmp_path / "docs" / "reports.md"
    page.write_text(f"# Written by hand\n{page.read_text('utf-8')}", "utf-8")
    assert published.main([], tmp_path) == 0
    text = page.read_text("utf-8")
    assert text.startswith("# Written by hand\n\n## a\n")
    assert text.index("## a\n") < text.index("## b\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("tandem campaign run /home/me/mine.yaml", 2),
        ("tandem campaign run x.yaml --model-repository ~/models/x", 2),
        ("tandem campaign run loadtest/campaigns/digits.yaml --url http://127.0.0.1:8080/ --output results/x/", 0),
    ],
)
def test_a_result_that_names_a_place_of_its_machine_is_refused(tmp_path: Path, command: str, code: int) -> None:
    assert published.main([str(results(tmp_path / "digits", command))], tmp_path) == code
    assert (tmp_path / "published-results").exists() == (code == 0)


ON_A_CARD = GpuRun(
    "NVIDIA H200, driver 580.1, 141 GiB",
    Machine("A Processor", (), 16.0, "Linux", ("NVIDIA H200, driver 580.1, 141 GiB",)),
    {},
    "loadtest/gpu/run.sh",
    "2026-11-23T10:00:00+00:00",
    notes=("The gateway was not compiled.",),
)


def of_a_card(folder: Path, **change: Any) -> Path:
    folder.mkdir()
    speed = EngineTime("resnet50", "fp16", "cuda", 128, 1, (0.0064,) * 3)
    served = ServingRates("resnet50", "fp16", "gpu", 32, (9_000.0,) * 3, (10_000.0,) * 3)
    slower = ServingRates("resnet50", "fp16", "gpu", 8, (900.0,) * 3, (9_000.0,) * 3)
    found = Findings(speeds=(speed,), served=(slower, served))
    band = Check(f"resnet50 fp16 {bands.NAME}", False, "by the band of then")  # the unit failed for it alone
    entry = Entry("table", "resnet50", "failed", "2026-11-23T10:00:00+00:00", 1.0, (band,), found)
    gpu_page.write(folder, GpuReport(replace(ON_A_CARD, **change), (entry,)))
    return folder


def test_what_was_measured_on_a_card_gets_a_page_and_a_table_in_the_readme(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "claims.md").write_text("above\n\n## On a card\n\n## This run\n")
    stored = gzip.decompress((published.ROOT / "published-results" / "claims.json.gz").read_bytes())
    (tmp_path / "published-results").mkdir()
    (tmp_path / "published-results" / "claims.json.gz").write_bytes(gzip.compress(stored, mtime=0))
    (tmp_path / "README.md").write_text(f"above\n{published.BEGIN}\nnothing yet\n{published.END}\nbelow\n")
    assert published.main([str(of_a_card(tmp_path / "NVIDIA-H200"))], tmp_path) == 0
    assert published.main([], tmp_path) == 0
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert readme.startswith("above\n")
    assert readme.endswith("\nbelow\n")
    assert "| resnet50 fp16, batch 128: 20,000 (20,000..20,000) | `loadtest/gpu/run.sh` |" in readme
    assert "90% (90..90)" in readme
    assert "10% (10..10)" not in readme  # by the batch size at which the engine itself does most
    page = (tmp_path / "docs" / "reports" / "NVIDIA-H200.html").read_text("utf-8")
    assert "MLPerf Inference v4.1" in page
    assert "by the band of then" in page
    assert "not compiled" in page
    assert "`loadtest/gpu/run.sh table`" in (tmp_path / "published-results" / "README.md").read_text("utf-8")
    claims = (tmp_path / "docs" / "claims.md").read_text("utf-8")
    answers = claims.partition("## On a card")[2].partition("## This run")[0]
    assert re.search(r"\| The served GPU path .*\*\*holds\*\* \| 90%; resnet50 \(batch 32\) \|", answers)
    assert re.search(r"- gpu-10-to-100-times: fp32 on cuda was not timed", answers)
    assert claims.count("## This run") == 1


def test_a_rate_whose_rounds_lie_far_apart_is_no_headline() -> None:
    near = EngineTime("resnet50", "fp16", "cuda", 128, 1, (0.0064, 0.0064, 0.0065))
    far = EngineTime("mlp", "fp16", "cuda", 128, 1, (0.00018, 0.00017, 0.00027))
    entry = Entry("table", "nets", "done", "2026-11-23T10:00:00+00:00", 1.0, (), Findings(speeds=(near, far)))
    report = GpuReport(ON_A_CARD, (entry,))
    ((_, values, _),) = gpu_page.readme_rows(report)
    assert values.startswith("resnet50 fp16, batch 128: 20,000 (")
    assert "mlp" not in values
    best = gpu_page.best_on_card(report)
    assert best["mlp"].startswith("fp16, batch 128: 711,111 (")
    assert best["mlp"].endswith("; rounds far apart")
    assert best["resnet50"].endswith(")")


def test_a_rehearsal_is_never_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert published.main([str(of_a_card(tmp_path / "stand-in", is_stand_in=True))], tmp_path) == 2
    assert "no measurement" in capsys.readouterr().err


def test_what_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert published.main([str(tmp_path)], tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_a_claim_that_was_not_measured_is_told_as_it_would_be_taken_now_and_one_that_was_as_it_was_taken(
    tmp_path: Path,
) -> None:
    document = json.loads(gzip.decompress((published.ROOT / "published-results" / "claims.json.gz").read_bytes()))
    document["results"] = [{**one, "note": "as it was"} for one in document["results"]]
    file = tmp_path / "claims.json.gz"
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    claims = published.load(file)
    assert isinstance(claims, claims_values.Report)
    told = {one.name: (one.answer, one.note) for one in claims.results}
    answer, note = told["fp16-on-tensor-cores"]
    assert answer == "not measured here"
    assert note is not None
    assert "without TF32" in note
    measured = [note for answer, note in told.values() if answer != "not measured here"]
    assert set(measured) == {"as it was"}


def test_what_is_published_is_what_the_stored_results_say() -> None:
    """Also the digests: whoever changes a stored result must say so."""
    folder = published.ROOT / "published-results"
    stored = {file.name.removesuffix(".json.gz"): published.load(file) for file in sorted(folder.glob("*.json.gz"))}
    assert set(published.EXAMPLES) | {published.CLAIMS} <= set(stored)
    for file, text in published.pages(dict(sorted(stored.items())), published.ROOT / "docs", folder).items():
        assert file.read_text("utf-8") == text, f"{file.name}: run python -m scripts.published"
    claims = stored[published.CLAIMS]
    assert isinstance(claims, claims_values.Report)
    assert not claims.is_quick
    assert not claims.is_partial
