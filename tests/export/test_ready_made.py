"""`tandem export FILE.onnx --variant int8`: what is published, with which record, and what is turned away before any gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.export import ready_made
from serving.export.data.reading import digits
from serving.export.gates.limits import AccuracyLost
from serving.export.job import ExportSpec
from serving.export.progress import silent
from serving.export.publish import publish, writing
from serving.export.ready_made import Slower
from serving.export.variants import candidates
from serving.local.devices import installed
from serving.measure.machine import processor_key
from serving.repository import DigestMismatch, Repository, Variant

from . import spoil
from .conftest import MODEL_FILE, PAYLOAD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("untimed"),
]  # starts processes, or computes for seconds: not in `make check`

ENGINES = {"cpu": installed()["cpu"]}
ASKED = ExportSpec("digits", seconds=0.05)


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fp32 = (Path(__file__).parents[2] / "model_repo" / "digits-fp32" / MODEL_FILE).read_bytes()
    file = tmp_path_factory.mktemp("made") / "mine.onnx"
    file.write_bytes(
        next(candidates("int8", fp32, {name: rows[:150] for name, rows in digits()[0].inputs.items()})).model
    )
    return file


def export(file: Path, repository: Path, variant: str = "int8", **changes: object) -> Variant:
    given: dict[str, object] = {
        "spec": ASKED,
        "data": str(PAYLOAD),
        "keeps_slow": True,
        "engines": ENGINES,
        "progress": silent,
    }
    with writing(repository, "digits"):
        outcome = ready_made.export(
            file,
            variant=variant,
            repository=repository,
            **{**given, **changes},  # type: ignore[arg-type]
        )
    return outcome.published[0]


def test_a_good_file_is_published_with_its_proof(repository: Path, int8: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    variant = export(int8, repository, progress=lambda *step: steps.append(step))
    variant.verify()
    record = variant.record
    assert (variant.directory / MODEL_FILE).read_bytes() == int8.read_bytes()
    assert record.source == "onnx: mine.onnx"
    assert (record.gate.basis, record.gate.dataset, record.gate.num_samples) == ("labels", "digits.npz", 450)
    assert {(s.processor, s.num_threads, s.baseline_engine) for s in record.speed} == {(processor_key(), 1, "cpu")}
    assert [s.batch_size for s in record.speed] == [1, 8, 32]
    assert record.pools["cpu"].status in ("passed", "not_useful")
    assert record.pools["gpu"].status == "not_allowed"
    assert record.sample is not None
    assert all(any(s == step and done == total for s, done, total in steps) for step, _, _ in steps)


def test_fp16_is_published_for_the_gpu_pool_without_being_timed(repository: Path, tmp_path: Path, fp32: bytes) -> None:
    (tmp_path / "half.onnx").write_bytes(next(candidates("fp16", fp32, None)).model)
    record = export(tmp_path / "half.onnx", repository, "fp16").record
    assert {pool: gate.status for pool, gate in record.pools.items()} == {"cpu": "not_allowed", "gpu": "passed"}
    assert record.speed == ()


def test_a_slower_variant_is_refused_and_kept_when_told_so(
    repository: Path, tmp_path: Path, fp32: bytes, content: Callable[[Path], dict[str, bytes]]
) -> None:
    (tmp_path / "slow.onnx").write_bytes(spoil.slowed(fp32, 6))
    before = content(repository)
    with pytest.raises(Slower, match=r"digits-int8.*refused.*FP32.*--keep-slow"):
        export(tmp_path / "slow.onnx", repository, keeps_slow=False)
    assert content(repository) == before
    variant = export(tmp_path / "slow.onnx", repository)
    assert variant.record.pools["cpu"].status == "not_useful"
    assert variant.config("cpu").parameters["tandem_gate"] == "not_useful"
    assert variant.loadable_pools == ("cpu",)


def test_a_clearly_faster_variant_passes(repository: Path, tmp_path: Path, fp32: bytes) -> None:
    baseline = Repository(repository).variant("digits-fp32")
    files = {
        path: (baseline.directory / path).read_bytes()
        for path in ("labels.txt", "preprocessing.json", "sample.json", "warmup/0.bin")
    }
    with writing(repository, "digits"):
        publish(repository, replace(baseline.record, speed=()), {MODEL_FILE: spoil.slowed(fp32, 6), **files})
    (tmp_path / "fast.onnx").write_bytes(fp32)
    record = export(tmp_path / "fast.onnx", repository).record
    assert record.pools["cpu"].status == "passed"
    assert all(speed.ratio_low > 1 for speed in record.speed)


def test_a_spoilt_file_is_refused_by_its_own_gate(
    repository: Path, tmp_path: Path, fp32: bytes, content: Callable[[Path], dict[str, bytes]]
) -> None:
    (tmp_path / "bad.onnx").write_bytes(spoil.perturbed(fp32))
    before = content(repository)
    with pytest.raises(AccuracyLost, match="digits-int8 refused"):
        export(tmp_path / "bad.onnx", repository)
    assert content(repository) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"variant": "fp32"}, "cannot be exported as variant 'fp32'"),
        ({"variant": "int88"}, "cannot be exported as variant 'int88'; did you mean 'int8'"),
        ({"spec": ExportSpec("digits-int8")}, "ends in the precision -int8"),
        ({"spec": ExportSpec("digit")}, "no variant 'digit-fp32'; did you mean 'digits-fp32'"),
        ({"file": Path("nowhere.onnx")}, r"there is no file nowhere.onnx"),
        ({"data": "nowhere.npz"}, r"nowhere.npz is not there"),
    ],
)
def test_what_cannot_be_is_turned_away_with_the_repository_as_it_was(
    repository: Path, int8: Path, content: Callable[[Path], dict[str, bytes]], changes: dict[str, object], says: str
) -> None:
    before = content(repository)
    with pytest.raises(UserError, match=says):
        export(**{"file": int8, "repository": repository, **changes})  # type: ignore[arg-type]
    assert content(repository) == before


def test_a_baseline_that_changed_after_its_gate_is_no_measure(repository: Path, int8: Path) -> None:
    with (repository / "digits-fp32" / MODEL_FILE).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DigestMismatch, match=r"digits-fp32: 1/model.onnx changed"):
        export(int8, repository)


def test_ctrl_c_in_the_middle_of_a_gate_leaves_the_repository_as_it_was(
    repository: Path, int8: Path, content: Callable[[Path], dict[str, bytes]]
) -> None:
    before = content(repository)

    def interrupt(step: str, _done: int, _total: int) -> None:
        if step.startswith("timing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(int8, repository, progress=interrupt)
    assert content(repository) == before


def test_the_builtin_digits_judge_like_the_committed_payload(repository: Path, int8: Path) -> None:
    by_file = export(int8, repository).record.gate
    by_name = export(int8, repository, data="digits").record.gate
    assert by_name.dataset_digest == by_file.dataset_digest
    assert by_name.checks[0] == by_file.checks[0]


def test_without_data_it_is_judged_on_what_fp32_kept_under_the_name_that_it_has_there(
    repository: Path, int8: Path
) -> None:
    kept = Repository(repository).variant("digits-fp32").record.gate
    gate = export(int8, repository, data=None).record.gate
    assert (gate.dataset, gate.dataset_digest) == (kept.dataset, kept.dataset_digest)
    (repository / "digits-fp32" / "gate.npz").unlink()
    with pytest.raises(UserError, match=r"digits-fp32.*judge.*--data"):
        export(int8, repository, data=None)


def test_a_queue_delay_is_fp32s_unless_another_is_asked_for_and_0_is_another(
    repository: Path, int8: Path, fp32: bytes
) -> None:
    baseline = Repository(repository).variant("digits-fp32")
    files = {
        path: (baseline.directory / path).read_bytes()
        for path in ("labels.txt", "preprocessing.json", "sample.json", "gate.npz", "warmup/0.bin")
    }
    with writing(repository, "digits"):
        publish(repository, replace(baseline.record, queue_delay_us=500), {MODEL_FILE: fp32, **files})
    assert export(int8, repository).record.queue_delay_us == 500
    assert export(int8, repository, queue_delay_us=0).record.queue_delay_us == 0
