"""The whole way from training to published variants. Needs torch: `make test-models`.

Which variant wins depends on the processor, and digests on the machine: neither is asserted.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from serving.export import command
from serving.export.command import ExportOptions
from serving.export.data.dataset import Dataset
from serving.export.data.npz import read_npz
from serving.export.data.reading import digits
from serving.local.devices import installed
from serving.repository import Repository, Variant

pytestmark = [pytest.mark.models, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Variant]]:
    folder = tmp_path_factory.mktemp("export")
    payload = folder / "payloads" / "digits.npz"
    options = ExportOptions("digits", folder / "model_repo", seconds=0.1, payload=payload)
    assert command.run(options, installed()) == 0
    return folder, {variant.record.variant: variant for variant in Repository(folder / "model_repo").variants()}


@pytest.fixture(scope="module")
def judge() -> Dataset:
    return digits()[1]


def test_every_precision_that_this_machine_can_prove_comes_out_whole(
    exported: tuple[Path, dict[str, Variant]],
) -> None:
    assert {"fp32", "fp16", "int8"} <= exported[1].keys() <= {"fp32", "bf16", "fp16", "int8"}
    for variant in exported[1].values():
        variant.verify()


@pytest.mark.parametrize("which", ["fp32", "fp16", "int8"])
def test_a_variant_in_onnx_runtime_is_as_good_as_its_record_says(
    exported: tuple[Path, dict[str, Variant]], judge: Dataset, which: str
) -> None:
    variant = exported[1][which]
    session = ort.InferenceSession(variant.model_path, providers=["CPUExecutionProvider"])
    [answers] = session.run(None, dict(judge.inputs))
    right = float((answers.argmax(axis=1) == judge.labels).mean())
    top1 = variant.record.gate.check("top1")
    assert top1 is not None
    assert right == pytest.approx(top1.value, abs=1e-5)
    assert right > 0.96
    assert np.allclose(answers.sum(axis=1), 1, atol=1e-3)


def test_fp32_is_judged_beside_torch(exported: tuple[Path, dict[str, Variant]]) -> None:
    gate = exported[1]["fp32"].record.gate
    moved = gate.check("probability_difference")
    assert gate.reference == "pytorch"
    assert moved is not None
    assert moved.value < 1e-4


def test_the_sample_is_answered_with_its_label(exported: tuple[Path, dict[str, Variant]]) -> None:
    for variant in exported[1].values():
        sample = variant.record.sample
        assert sample is not None
        [tensor] = json.loads((variant.directory / sample.file).read_text())["inputs"]
        image = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        session = ort.InferenceSession(variant.model_path, providers=["CPUExecutionProvider"])
        assert session.run(None, {tensor["name"]: image})[0].argmax() == sample.index


def test_the_payload_is_the_held_out_part(exported: tuple[Path, dict[str, Variant]], judge: Dataset) -> None:
    payload = read_npz(exported[0] / "payloads" / "digits.npz", exported[1]["fp32"].record.inputs, 10)
    assert payload.digest == judge.digest


def test_the_committed_preprocessing_is_the_recipes() -> None:
    from serving.export.recipes.digits import PREPROCESSING
    from serving.repository.preprocessing import to_json

    committed = sorted((Path(__file__).parents[3] / "model_repo").glob("digits-*/preprocessing.json"))
    assert len(committed) == 3
    assert {file.read_text(encoding="utf-8") for file in committed} == {to_json(PREPROCESSING)}
