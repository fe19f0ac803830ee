"""The table model x variant x engine: what is timed beside what, what is left out and why, and how it reads."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serving.export.speed_nets import __main__ as writing
from serving.export.speed_nets import mlp
from serving.export.speed_nets.compare import Comparison, Host, Omission, SpeedRow, main
from serving.repository import Speed

SHORT = ["--seconds", "0.05", "--rounds", "3", "--threads", "1", "--batch-size", "1", "--batch-size", "3"]
CPU = f"cpu={sys.executable}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrained") / "models"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp, "HIDDEN", (64,))  # the same in seconds
        assert writing.main([str(folder), "--net", "mlp", "--max-batch-size", "8"]) == 0
    return folder


@pytest.mark.slow
def test_every_variant_is_timed_beside_fp32_on_the_same_device(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    assert main([str(repository), *SHORT, "--output", str(out)]) == 0
    told = json.loads(out.read_text())
    assert [(row["variant"], row["engine"], row["batch_size"]) for row in told["rows"]] == [
        ("fp32", "cpu", 1),
        ("fp32", "cpu", 3),
        ("int8", "cpu", 1),
        ("int8", "cpu", 3),
    ]
    for row in told["rows"]:
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["rate_per_s"] == pytest.approx(row["batch_size"] / row["latency_s"], rel=0.01)
        assert row["size_bytes"] == (repository / f"mlp-{row['variant']}" / "1" / "model.onnx").stat().st_size
    assert (told["num_threads"], told["seconds"], told["num_rounds"]) == (1, 0.05, 3)
    assert told["machine"]["processor"]
    table = out.with_suffix(".md").read_text()
    assert "| mlp | int8 | cpu" in table
    assert "untrained" in table.lower()
    assert str(tmp_path) not in table + out.read_text()


@pytest.mark.slow
def test_what_an_engine_cannot_run_is_named_with_the_reason(repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such device' >&2; exit 4\n")
    broken.chmod(0o755)
    out = tmp_path / "table.json"
    engines = ["--python", CPU, "--python", f"cuda={sys.executable}", "--python", f"openvino={broken}"]
    assert main([str(repository), *SHORT, *engines, "--output", str(out)]) == 0
    told = json.loads(out.read_text())
    assert {row["engine"] for row in told["rows"]} == {"cpu"}
    reasons = {(out["variant"], out["engine"]): out["reason"] for out in told["left_out"]}
    assert "no CUDAExecutionProvider" in reasons["fp32", "cuda"]
    assert "no CUDAExecutionProvider" in reasons["fp16", "cuda"]
    assert "no such device" in reasons["fp32", "openvino"]
    assert ("bf16", "openvino") in reasons
    assert ("int8", "cuda") not in reasons  # not tried: no kernels for it
    assert "Not timed:" in out.with_suffix(".md").read_text()


@pytest.mark.slow
def test_where_nothing_could_be_timed_the_exit_code_is_1(repository: Path) -> None:
    assert main([str(repository), *SHORT, "--python", f"cuda={sys.executable}"]) == 1


@pytest.mark.slow
def test_a_batch_is_never_larger_than_the_model_takes(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    sizes = ["--batch-size", "32", "--batch-size", "64"]
    assert main([str(repository), "--seconds", "0.05", "--threads", "1", *sizes, "--output", str(out)]) == 0
    assert {row["batch_size"] for row in json.loads(out.read_text())["rows"]} == {8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--python", "tpu=/bin/true"], "want ENGINE=PYTHON with one of cpu, openvino, cuda"),
        (["--python", sys.executable], "want ENGINE=PYTHON"),
        (["--python", "cpu=/nowhere/python3"], "there is no program /nowhere/python3"),
        (["--batch-size", "0"], "batch sizes and threads are 1 or more"),
        (["--threads", "0"], "batch sizes and threads are 1 or more"),
        (["--rounds", "0"], "batch sizes and threads are 1 or more"),
        (["--seconds", "0"], "seconds more than 0"),
        (["--seconds", "nan"], "seconds more than 0"),
    ],
)
def test_wrong_use_is_a_line_and_exit_code_2(
    repository: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(repository), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_repositories_that_cannot_be_compared_are_refused(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no model repository" in capsys.readouterr().err
    shutil.copytree(repository / "mlp-int8", tmp_path / "without" / "mlp-int8")
    assert main([str(tmp_path / "without")]) == 2
    assert "FP32" in capsys.readouterr().err
    assert main([str(repository), str(repository)]) == 2
    assert "repositories" in capsys.readouterr().err


@pytest.mark.slow
def test_a_result_that_cannot_be_written_is_the_environments_fault(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(repository), *SHORT, "--output", "/proc/table.json"]) == 3
    assert "cannot write /proc/table.json" in capsys.readouterr().err


SPEED = Speed("x", "cpu", "1.31.1", "cpu", 8, 2, 2.0, 1.8, 2.2, 0.01, 0.02, "2026-11-21")
MACHINE = Host("A Processor", "x86_64-avx512_vnni", 2, "A Card, 580.1")


@pytest.mark.parametrize(
    ("variant", "speed", "verdict", "told"),
    [
        ("int8", SPEED, "faster", "2.00 (1.80..2.20)"),
        ("int8", replace(SPEED, ratio=0.5, ratio_low=0.4, ratio_high=0.9), "slower", "0.50 (0.40..0.90)"),
        ("int8", replace(SPEED, ratio=1.1, ratio_low=0.9), "no clear gain", "1.10 (0.90..2.20)"),
        ("fp32", replace(SPEED, ratio=1, ratio_low=1, ratio_high=1), "FP32", "| 1 |"),
        ("fp32", replace(SPEED, engine="openvino"), "faster", "2.00 (1.80..2.20)"),
    ],
)
def test_a_row_says_who_won_by_its_interval(variant: str, speed: Speed, verdict: str, told: str) -> None:
    row = SpeedRow.of("mlp", variant, 25_400_000, speed)
    assert row.verdict == verdict
    assert row.rate_per_s == 800
    table = Comparison(MACHINE, "2026-11-21", "python -m …", 2, 1.0, 5, (row,), (), ()).to_markdown()
    (line,) = (line for line in table.splitlines() if line.startswith("| mlp"))
    assert told in line
    assert line.endswith(f"| {verdict} |")
    assert "| 8 | 25 | 800 |" in line


def test_what_the_numbers_depend_on_stands_above_them_and_what_is_missing_below() -> None:
    left_out = (Omission("mlp", "bf16", "openvino", "BF16 needs a processor with amx_bf16"),)
    table = Comparison(MACHINE, "2026-11-21", "python -m …", 2, 1.0, 5, (), left_out, ("batch 8: few",)).to_markdown()
    first = table.splitlines()[0]
    for part in ("A Processor", "x86_64-avx512_vnni", "2 threads", "A Card, 580.1", "2026-11-21", "`python -m …`"):
        assert part in first
    assert "- mlp bf16 on openvino: BF16 needs" in table
    assert "- batch 8: few" in table
    assert "Card: none" in Comparison(replace(MACHINE, card=None), "", "", 1, 1, 1, (), (), ()).to_markdown()
