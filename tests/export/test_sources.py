"""`tandem export FILE.onnx`: what is published, with which record, and what is turned away before any gate."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export import sources
from serving.export.data import digits
from serving.export.gates import Limits
from serving.export.precision import to_fp16, to_int8
from serving.export.proof import SpeedRun
from serving.export.publish import publish, writing
from serving.export.sources import export_digits, export_onnx
from serving.repository import MODEL_FILE, DigestMismatch, Repository, Variant, processor_key

from . import spoil
from .conftest import PAYLOAD

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

QUICK = SpeedRun(batch_sizes=(1,), seconds=0.05, keep_slow=True)


@pytest.fixture
def int8_file(tmp_path: Path, fp32: bytes) -> Path:
    (tmp_path / "mine.onnx").write_bytes(to_int8(fp32, digits()[0].inputs))
    return tmp_path / "mine.onnx"


def export(file: Path, repository: Path, variant: str = "int8", run: SpeedRun = QUICK) -> Variant:
    return export_onnx(
        file, model="digits", variant=variant, repository=repository, data=PAYLOAD, speed_run=run, limits=Limits()
    )


def test_a_good_file_is_published_with_its_proof(repository: Path, int8_file: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    variant = export_onnx(
        int8_file,
        model="digits",
        variant="int8",
        repository=repository,
        data=PAYLOAD,
        speed_run=QUICK,
        progress=lambda *step: steps.append(step),
    )
    variant.verify()
    record = variant.record
    assert (variant.directory / MODEL_FILE).read_bytes() == int8_file.read_bytes()
    assert record.source == "onnx: mine.onnx"
    assert record.gate.dataset == "digits.npz"
    assert record.gate.num_samples == 450
    assert [(s.processor, s.batch_size, s.num_threads) for s in record.speed] == [(processor_key(), 1, 1)]
    assert record.pools["cpu"].status in ("passed", "not_useful")
    assert record.pools["gpu"].status == "not_allowed"
    assert "onnxruntime" in record.toolchain
    assert {step for step, _, _ in steps} == {"proving digits-int8", "timing digits-int8"}
    assert all(any(s == step and done == total for s, done, total in steps) for step, _, _ in steps)


def test_fp16_is_published_for_the_gpu_pool_without_being_timed(repository: Path, tmp_path: Path, fp32: bytes) -> None:
    (tmp_path / "half.onnx").write_bytes(to_fp16(fp32))
    record = export(tmp_path / "half.onnx", repository, "fp16").record
    assert {pool: gate.status for pool, gate in record.pools.items()} == {"cpu": "not_allowed", "gpu": "passed"}
    assert record.speed == ()


def test_a_slower_variant_that_is_kept_is_published_as_not_useful(
    repository: Path, tmp_path: Path, fp32: bytes
) -> None:
    (tmp_path / "slow.onnx").write_bytes(spoil.slowed(fp32))
    variant = export(tmp_path / "slow.onnx", repository)
    gate = variant.record.pools["cpu"]
    assert gate.status == "not_useful"
    assert gate.reason.startswith(f"slower than FP32 on {processor_key()}: batch 1 0.")
    assert variant.config("cpu").parameters["tandem_gate"] == "not_useful"
    assert variant.loadable_pools == ("cpu",)


def test_a_clearly_faster_variant_passes(repository: Path, tmp_path: Path, fp32: bytes) -> None:
    baseline = Repository(repository).variant("digits-fp32")
    files = {path: (baseline.directory / path).read_bytes() for path in ("labels.txt", "sample.json")}
    with writing(repository):
        publish(repository, replace(baseline.record, speed=()), {MODEL_FILE: spoil.slowed(fp32), **files})
    (tmp_path / "fast.onnx").write_bytes(fp32)
    record = export(tmp_path / "fast.onnx", repository, run=SpeedRun(batch_sizes=(1, 3), seconds=0.05)).record
    assert record.pools["cpu"].status == "passed"
    assert [speed.batch_size for speed in record.speed] == [1, 3]
    assert all(speed.ratio_low > 1 for speed in record.speed)


def test_the_threads_of_the_measurement_are_in_the_record(repository: Path, int8_file: Path) -> None:
    run = SpeedRun(batch_sizes=(1,), num_threads=2, seconds=0.02, keep_slow=True)
    assert [speed.num_threads for speed in export(int8_file, repository, run=run).record.speed] == [2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"variant": "fp32"}, "cannot be exported as variant 'fp32'"),
        ({"variant": "int88"}, "cannot be exported as variant 'int88', did you mean 'int8'"),
        ({"model": "digits-int8"}, "ends in the precision -int8"),
        ({"model": "digit"}, "no variant 'digit-fp32', did you mean 'digits-fp32'"),
        ({"source": Path("nowhere.onnx")}, r"there is no file nowhere.onnx"),
        ({"data": Path("nowhere.npz")}, r"nowhere.npz is not there"),
        ({"repository": Path("nowhere")}, "there is no model repository at nowhere"),
    ],
)
def test_what_cannot_be_is_turned_away_with_the_repository_as_it_was(
    repository: Path,
    int8_file: Path,
    content: Callable[[Path], dict[str, bytes]],
    changes: dict[str, object],
    says: str,
) -> None:
    before = content(repository)
    given = {"source": int8_file, "model": "digits", "variant": "int8", "repository": repository, "data": PAYLOAD}
    with pytest.raises(UserError, match=says):
        export_onnx(**{**given, **changes})  # type: ignore[arg-type]
    assert content(repository) == before


def test_a_baseline_that_changed_after_its_gate_is_no_measure(repository: Path, int8_file: Path) -> None:
    with (repository / "digits-fp32" / MODEL_FILE).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DigestMismatch, match=r"digits-fp32: 1/model.onnx changed"):
        export(int8_file, repository)


def test_ctrl_c_in_the_middle_of_a_gate_leaves_the_repository_as_it_was(
    repository: Path, int8_file: Path, content: Callable[[Path], dict[str, bytes]]
) -> None:
    before = content(repository)

    def interrupt(step: str, _done: int, _total: int) -> None:
        if step.startswith("timing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_onnx(int8_file, model="digits", variant="int8", repository=repository, data=PAYLOAD, progress=interrupt)
    assert content(repository) == before


@pytest.mark.parametrize(
    "options",
    [{"batch_sizes": ()}, {"batch_sizes": (0,)}, {"num_threads": 0}, {"seconds": 0}, {"seconds": float("nan")}],
)
def test_a_measurement_of_nothing_is_the_users_to_mend(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"want at least|speed is measured with"):
        SpeedRun(**options)  # type: ignore[arg-type]


def test_the_builtin_digits_judge_like_the_committed_payload(repository: Path, int8_file: Path) -> None:
    by_file = export(int8_file, repository).record.gate
    by_name = export_onnx(
        int8_file, model="digits", variant="int8", repository=repository, data="digits", speed_run=QUICK
    ).record.gate
    assert by_name.dataset_digest == by_file.dataset_digest
    assert by_name.value == by_file.value


def test_without_torch_the_training_says_what_to_install(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "serving.export.digits", raising=False)
    monkeypatch.delattr("serving.export.digits", raising=False)
    with pytest.raises(EnvironmentFault, match=r"torch is missing: pip install 'tandem-serving\[export\]'"):
        export_digits(repository)


def test_a_sample_is_the_first_held_out_image() -> None:
    data = digits()[1]
    body = sources._request(data)
    assert np.allclose(np.array(json.loads(body)["inputs"][0]["data"]), data.inputs["image"][0].ravel())
