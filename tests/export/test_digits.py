"""The whole way from training to three published variants. Needs torch: `make test-models`.

Which variant wins depends on the processor, and digests on the machine: neither is asserted.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from serving.export.data import Dataset, digits, read_npz
from serving.export.inventory import verify
from serving.export.proof import SpeedRun
from serving.export.sources import export_digits
from serving.repository import MODEL_FILE, Variant

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Variant]]:
    folder = tmp_path_factory.mktemp("export")
    run = SpeedRun(seconds=0.1, keep_slow=True)
    return folder, export_digits(folder / "model_repo", speed_run=run, payload=folder / "payloads" / "digits.npz")


@pytest.fixture(scope="module")
def judge() -> Dataset:
    return digits()[1]


def test_three_whole_variants_come_out(exported: tuple[Path, list[Variant]]) -> None:
    folder, variants = exported
    assert [variant.name for variant in variants] == ["digits-fp32", "digits-fp16", "digits-int8"]
    assert verify(folder / "model_repo").is_whole


@pytest.mark.parametrize("which", [0, 1, 2], ids=["fp32", "fp16", "int8"])
def test_a_variant_in_onnx_runtime_is_as_good_as_its_record_says(
    exported: tuple[Path, list[Variant]], judge: Dataset, which: int
) -> None:
    variant = exported[1][which]
    session = ort.InferenceSession(variant.directory / MODEL_FILE, providers=["CPUExecutionProvider"])
    [answers] = session.run(None, dict(judge.inputs))
    right = float((answers.argmax(axis=1) == judge.labels).mean())
    assert right == pytest.approx(variant.record.gate.value, abs=1e-6)
    assert right > 0.96
    assert np.allclose(answers.sum(axis=1), 1, atol=1e-3)


def test_fp32_answers_what_torch_answers(exported: tuple[Path, list[Variant]]) -> None:
    assert exported[1][0].record.gate.max_probability_difference < 1e-4


def test_fp32_is_the_measure_of_speed_and_so_has_ratio_one(exported: tuple[Path, list[Variant]]) -> None:
    speeds = exported[1][0].record.speed
    assert [speed.batch_size for speed in speeds] == [1, 8, 32]
    assert {speed.ratio for speed in speeds} == {1.0}


def test_the_sample_is_answered_with_its_label(exported: tuple[Path, list[Variant]]) -> None:
    for variant in exported[1]:
        sample = variant.record.sample
        assert sample is not None
        [tensor] = json.loads((variant.directory / sample.file).read_text())["inputs"]
        image = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        session = ort.InferenceSession(variant.directory / MODEL_FILE, providers=["CPUExecutionProvider"])
        assert session.run(None, {tensor["name"]: image})[0].argmax() == sample.index


def test_the_payload_is_the_held_out_part(exported: tuple[Path, list[Variant]], judge: Dataset) -> None:
    payload = read_npz(exported[0] / "payloads" / "digits.npz", exported[1][0].record.inputs, 10)
    assert payload.digest == judge.digest
