"""`tandem models` and `tandem verify`: rows that are true, and every kind of damage named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.export.inventory import models, verify
from serving.repository import MODEL_FILE, RECORD_FILE

from .conftest import ROOT


def test_every_variant_has_a_row_with_gate_size_digest_pools_and_speed(repository: Path) -> None:
    listed = models(repository)
    assert [row.name for row in listed.variants] == ["digits-fp16", "digits-fp32", "digits-int8"]
    for row in listed.variants:
        assert row.model == "digits"
        assert row.size_bytes == (repository / row.name / MODEL_FILE).stat().st_size
        assert len(row.digest) == 64
        assert row.gate.num_samples == 450
        assert row.pools.keys() == {"cpu", "gpu"}
        assert all(speed.processor == listed.processor for speed in row.speed)
    json.dumps(asdict(listed), allow_nan=False)


def test_speed_of_another_processor_is_not_shown_as_ours(repository: Path) -> None:
    file = repository / "digits-int8" / RECORD_FILE
    data = json.loads(file.read_text())
    for speed in data["speed"]:
        speed["processor"] = "pdp11-base"
    file.write_text(json.dumps(data))
    [row] = [row for row in models(repository).variants if row.variant == "int8"]
    assert row.speed == ()


def test_an_untouched_repository_is_whole(repository: Path) -> None:
    found = verify(repository)
    assert found.is_whole
    assert [(check.name, check.problem) for check in found.checks] == [
        ("digits-fp16", None),
        ("digits-fp32", None),
        ("digits-int8", None),
    ]


def test_one_damaged_variant_is_named_with_its_file_and_the_others_stay_whole(repository: Path) -> None:
    model = repository / "digits-int8" / MODEL_FILE
    content = bytearray(model.read_bytes())
    content[1000] ^= 1
    model.write_bytes(content)
    found = verify(repository)
    assert not found.is_whole
    assert [(check.name, check.problem) for check in found.checks if not check.is_whole] == [
        ("digits-int8", "1/model.onnx changed after its gate")
    ]


def test_a_directory_without_a_record_is_listed_and_is_a_problem(repository: Path) -> None:
    (repository / "digits-int8" / RECORD_FILE).unlink()
    assert models(repository).ungated == ("digits-int8",)
    found = verify(repository)
    assert not found.is_whole
    assert [check.problem for check in found.checks if check.name == "digits-int8"] == [
        "has no tandem.json, so nothing proves it"
    ]


def test_an_empty_repository_has_no_rows_and_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert models(tmp_path).variants == ()
    with pytest.raises(UserError, match="there is no model repository"):
        models(tmp_path / "nowhere")


def test_looking_needs_neither_numpy_nor_onnx(repository: Path) -> None:
    script = (
        "import pathlib, sys\nfrom serving.export.inventory import models, verify\n"
        "models(pathlib.Path(sys.argv[1])), verify(pathlib.Path(sys.argv[1]))\n"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'sklearn', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, repository], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
