"""`tandem verify`: every kind of damage named, every gate run again that can be, and what was not proven again is said."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from serving import cli
from serving.decisions.engines import EnginePython
from serving.errors import UserError
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Run
from serving.export.speed.process import running
from serving.export.verify import FAILED, NOT_RUN, PASSED, VariantVerdict, Verification, verify
from serving.repository import GATE_DATA_FILE, RECORD_FILE, Repository, digests_of

from . import spoil
from .conftest import MODEL_FILE, PAYLOAD, ROOT

Edit = Callable[[dict[str, Any]], object]


def edit(repository: Path, variant: str, change: Edit | None = None) -> None:
    """Change a record, and make it true again of the files beside it."""
    file = repository / variant / RECORD_FILE
    data = json.loads(file.read_text())
    if change:
        change(data)
    data["files"] = digests_of(file.parent)
    file.write_text(json.dumps(data))


def keep(repository: Path, data: Dataset, num_rows: int | None = None, *, has_labels: bool = True) -> None:
    """Data beside FP32, as an export keeps it."""
    arrays = {name: values[:num_rows] for name, values in data.inputs.items()}
    if has_labels and data.labels is not None:
        arrays["labels"] = data.labels[:num_rows]
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    (repository / "digits-fp32" / GATE_DATA_FILE).write_bytes(buffer.getvalue())
    edit(repository, "digits-fp32")


def spoilt(repository: Path, spoiler: Callable[[bytes], bytes], variant: str = "digits-int8") -> None:
    """Another model whose digest is recorded, as if its gate had let it through."""
    model = repository / variant / MODEL_FILE
    model.write_bytes(spoiler(model.read_bytes()))
    edit(repository, variant)


def of(verification: Verification, name: str) -> VariantVerdict:
    return next(variant for variant in verification.variants if variant.name == name)


@pytest.fixture
def kept(repository: Path, held_out: Dataset) -> Path:
    keep(repository, held_out)
    return repository


@pytest.fixture
def bare(repository: Path) -> Path:
    (repository / "digits-fp32" / GATE_DATA_FILE).unlink(missing_ok=True)
    edit(repository, "digits-fp32")
    return repository


# -- digests ----------------------------------------------------------------------------------------------------------


def test_an_untouched_repository_is_whole(repository: Path) -> None:
    found = verify(repository, digests_only=True)
    assert found.has_passed
    assert [(variant.name, variant.is_whole, variant.problems, variant.gate) for variant in found.variants] == [
        ("digits-fp16", True, (), NOT_RUN),
        ("digits-fp32", True, (), NOT_RUN),
        ("digits-int8", True, (), NOT_RUN),
    ]


def test_one_damaged_variant_is_named_with_its_file_and_the_others_are_proven_again(kept: Path) -> None:
    model = kept / "digits-int8" / MODEL_FILE
    content = bytearray(model.read_bytes())
    content[1000] ^= 1
    model.write_bytes(content)
    found = verify(kept)
    assert not found.has_passed
    damaged = of(found, "digits-int8")
    assert (damaged.is_whole, damaged.gate) == (False, NOT_RUN)
    [problem] = damaged.problems
    assert problem.startswith("1/model.onnx ")
    assert of(found, "digits-fp16").gate == PASSED


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "labels.txt").unlink(), "labels.txt is missing"),
        (lambda folder: (folder / "more.txt").write_text("x"), "more.txt was added after the gate"),
        (lambda folder: (folder / "config.pbtxt").write_text("x"), "config.pbtxt changed after its gate"),
    ],
)
def test_every_kind_of_damage_is_named(repository: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(repository / "digits-fp16")
    assert of(verify(repository), "digits-fp16").problems == (says,)


def test_where_fp32_is_damaged_nothing_is_compared_with_it(kept: Path) -> None:
    (kept / "digits-fp32" / "labels.txt").unlink()
    int8 = of(verify(kept), "digits-int8")
    assert int8.gate == NOT_RUN
    [note] = int8.notes
    assert "files of digits-fp32" in note


def test_a_directory_without_a_record_is_a_problem(repository: Path) -> None:
    (repository / "digits-int8" / RECORD_FILE).unlink()
    found = verify(repository)
    assert not found.has_passed
    [problem] = of(found, "digits-int8").problems
    assert "tandem.json" in problem


@pytest.fixture(params=["{", "[]", '{"version": 99}'], ids=["no JSON", "no object", "of another version"])
def broken(kept: Path, request: pytest.FixtureRequest) -> Path:
    (kept / "digits-fp16" / RECORD_FILE).write_text(request.param)
    return kept


def test_a_record_that_cannot_be_read_is_a_problem_of_its_own_variant_alone(broken: Path) -> None:
    found = verify(broken)
    assert not found.has_passed
    [problem] = of(found, "digits-fp16").problems
    assert "digits-fp16/tandem.json" in problem
    assert [(variant.name, variant.gate) for variant in found.variants if not variant.problems] == [
        ("digits-fp32", PASSED),
        ("digits-int8", PASSED),
    ]


def test_a_record_that_cannot_be_read_is_told_where_others_are_asked_for(broken: Path) -> None:
    found = verify(broken, names=["digits-int8"])
    assert found.has_passed
    assert [(variant.name, variant.gate) for variant in found.variants] == [("digits-int8", PASSED)]
    assert list(found.unread) == ["digits-fp16"]
    json.dumps(asdict(found))
    asked = verify(broken, names=["digits-fp16"])
    assert (asked.has_passed, [variant.name for variant in asked.variants], asked.unread) == (
        False,
        ["digits-fp16"],
        {},
    )


def test_a_record_that_cannot_be_read_belongs_to_its_model(broken: Path) -> None:
    shutil.copytree(broken / "digits-int8", broken / "numbers-int8")
    edit(broken, "numbers-int8", lambda data: data.update(model="numbers"))
    assert not verify(broken, model="digits", digests_only=True).has_passed
    others = verify(broken, model="numbers", digests_only=True)
    assert (others.has_passed, list(others.unread)) == (True, ["digits-fp16"])
    with pytest.raises(UserError, match=r"model.*'digit'.*'digits'"):
        verify(broken, model="digit")


def test_where_fp32s_record_cannot_be_read_nothing_is_compared_with_it(kept: Path) -> None:
    (kept / "digits-fp32" / RECORD_FILE).write_text("{")
    found = verify(kept)
    assert [variant.name for variant in found.variants if variant.problems] == ["digits-fp32"]
    [note] = of(found, "digits-int8").notes
    assert "record of digits-fp32" in note
    for name in ("digits-int8", "digits-fp16"):
        (kept / name / RECORD_FILE).write_text("{")
    assert len(verify(kept, model="digits").variants) == 3


def test_the_command_line_names_a_broken_record_beside_what_was_asked_for(kept: Path) -> None:
    (kept / "digits-fp16" / RECORD_FILE).write_text("{")
    words = ["--model-repository", str(kept)]
    asked = CliRunner().invoke(cli.cli, ["verify", *words, "--variant", "digits-int8", "--digests-only"])
    assert (asked.exit_code, asked.stdout) == (0, "digits-int8: whole\n")
    assert "digits-fp16" in asked.stderr
    listed = CliRunner().invoke(cli.cli, ["models", *words])
    assert listed.exit_code == 0
    assert "fp32 int8" in listed.stdout
    assert "digits-fp16: " in listed.stdout


# -- gates, on the data that was kept ---------------------------------------------------------------------------------


def test_every_gate_is_run_again_on_the_data_kept(kept: Path) -> None:
    found = verify(kept)
    assert found.has_passed
    assert [(variant.gate, variant.problems) for variant in found.variants] == [(PASSED, ())] * 3
    int8 = of(found, "digits-int8")
    top1 = int8.checks[0]
    recorded = Repository(kept).variant("digits-int8").record.gate.check("top1")
    assert recorded is not None
    assert (top1.metric, top1.limit) == ("top1", recorded.limit)
    assert top1.value >= top1.limit
    assert top1.reference == pytest.approx(recorded.reference)
    assert int8.notes == ()
    json.dumps(asdict(found), allow_nan=False)


def test_fp32_is_held_against_labels_and_its_frameworks_other_numbers_are_said_to_be_missing(kept: Path) -> None:
    fp32 = of(verify(kept), "digits-fp32")
    assert [check.metric for check in fp32.checks] == ["top1", "row_difference"]
    assert fp32.notes[-1].startswith("not measured again: ")
    assert fp32.notes[-1].endswith(" is not here")


@pytest.mark.parametrize(
    ("spoiler", "says"),
    [
        (spoil.perturbed, r"top1 is 0.\d+ now, want at least 0.9[67]\d\d"),
        (spoil.with_leaking_batch, "digits-int8 refused: in a batch of"),
        (spoil.with_nan_answers, "digits-int8 refused: 4500 NaN or infinite values in its answers on the data"),
        (
            lambda model: spoil.with_weight(model, float("nan")),
            "digits-int8 refused: 1 NaN or infinite values in weight",
        ),
        (spoil.with_fixed_batch, "digits-int8 does not run on a batch of 32"),
        (spoil.with_renamed_input, "digits-int8: inputs are picture; FP32 has image"),
        (lambda _: b"GIF89a", "digits-int8: this is not a sound ONNX file"),
    ],
)
def test_a_variant_that_does_not_pass_its_gate_any_more_is_a_problem(
    kept: Path, fp32: bytes, spoiler: Callable[[bytes], bytes], says: str
) -> None:
    spoilt(kept, lambda _: spoiler(fp32))
    found = verify(kept)
    assert not found.has_passed
    int8 = of(found, "digits-int8")
    assert (int8.is_whole, int8.gate) == (True, FAILED)
    assert re.match(says, int8.problems[0]), int8.problems
    assert of(found, "digits-fp16").gate == PASSED


def test_a_limit_that_was_recorded_is_what_decides(kept: Path) -> None:
    def strict(data: dict[str, Any]) -> None:
        data["gate"]["checks"][0]["limit"] = 0.9999

    edit(kept, "digits-int8", strict)
    [problem] = of(verify(kept), "digits-int8").problems
    assert re.findall(r"top1|0\.9\d*", problem)[::2] == ["top1", "0.9999"]


def test_data_that_was_cut_short_keeps_the_distance_to_fp32_and_says_so(repository: Path, held_out: Dataset) -> None:
    keep(repository, held_out, 40)
    int8 = of(verify(repository), "digits-int8")
    assert int8.gate == PASSED
    assert int8.checks[0].reference is not None
    assert int8.checks[0].limit == pytest.approx(int8.checks[0].reference - 0.01)
    assert re.findall(r"\b\d{2,3}\b", int8.notes[0])[:1] == ["40"]
    assert " 450 " in int8.notes[0]


def test_data_without_labels_proves_what_it_can(repository: Path, held_out: Dataset) -> None:
    keep(repository, held_out, has_labels=False)
    int8 = of(verify(repository), "digits-int8")
    assert "top1" not in [check.metric for check in int8.checks]
    assert "probability_difference" in [check.metric for check in int8.checks]
    assert "top1" in int8.notes[-1]


def test_a_number_of_the_users_own_is_said_to_be_missing(kept: Path) -> None:
    own = {"metric": "f1", "value": 0.9, "limit": 0.8, "is_minimum": True, "reference": 0.9, "is_default_limit": False}
    edit(kept, "digits-int8", lambda data: data["gate"]["checks"].insert(0, own))
    [note] = of(verify(kept), "digits-int8").notes
    assert "not measured again: f1" in note


def test_without_data_the_digests_are_checked_and_the_rest_is_said(bare: Path) -> None:
    found = verify(bare)
    assert found.has_passed
    assert all("--data" in note for variant in found.variants for note in variant.notes)
    assert {(len(variant.notes), variant.gate) for variant in found.variants} == {(1, NOT_RUN)}


@pytest.mark.parametrize(
    ("basis", "says"),
    [
        ("nothing", "gate not run again: there was none, it was accepted ungated"),
        ("untrained: speed only", "gate not run again: untrained, so that there is nothing to be right about"),
    ],
)
def test_what_never_had_a_gate_is_said_to_have_none(kept: Path, basis: str, says: str) -> None:
    edit(kept, "digits-int8", lambda data: data["gate"].update(basis=basis))
    int8 = of(verify(kept), "digits-int8")
    assert (int8.gate, int8.notes, int8.problems) == (NOT_RUN, (says,), ())


# -- on other data ----------------------------------------------------------------------------------------------------


def test_other_data_stands_in_for_what_was_kept(bare: Path) -> None:
    found = verify(bare, data=PAYLOAD)
    assert found.has_passed
    assert {variant.gate for variant in found.variants} == {PASSED}


def test_limits_on_other_data_keep_their_distance_to_fp32_and_fp32_itself_is_only_told(
    bare: Path, held_out: Dataset, tmp_path: Path
) -> None:
    assert held_out.labels is not None
    np.savez(tmp_path / "wrong.npz", image=held_out.inputs["image"], labels=(held_out.labels + 1) % 10)
    found = verify(bare, data=tmp_path / "wrong.npz")
    assert found.has_passed
    assert of(found, "digits-int8").checks[0].value < 0.05
    assert of(found, "digits-fp32").checks[0].limit is None


def test_data_that_does_not_fit_the_model_is_the_users_to_mend(bare: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", picture=np.zeros(3))
    with pytest.raises(UserError, match="unknown array 'picture'"):
        verify(bare, data=tmp_path / "x.npz")
    (tmp_path / "x.csv").write_text("text\na\n")
    with pytest.raises(UserError, match=r"images.*\.npz"):
        verify(bare, data=tmp_path / "x.csv")


def test_data_of_one_model_is_not_guessed_to_be_of_another(bare: Path) -> None:
    shutil.copytree(bare / "digits-fp32", bare / "numbers-fp32")
    edit(bare, "numbers-fp32", lambda data: data.update(model="numbers"))
    with pytest.raises(UserError, match=r"--data.*repository.*--model"):
        verify(bare, data=PAYLOAD)
    found = verify(bare, data=PAYLOAD, model="numbers")
    assert [(variant.name, variant.gate) for variant in found.variants] == [("numbers-fp32", PASSED)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "digit"}, "has no model 'digit'; did you mean 'digits'"),
        ({"names": ["digits-int4"]}, "has no variant 'digits-int4'; did you mean 'digits-int8'"),
        (
            {"names": ["digits-fp32"], "model": "digits"},
            "--model and --variant both say what to verify; give one of them",
        ),
        ({"server": "nvidea"}, "unknown server 'nvidea'; did you mean 'nvidia'"),
        ({"data": PAYLOAD, "digests_only": True}, "--digests-only runs none; give one of them"),
    ],
)
def test_options_that_make_no_sense_are_the_users_to_mend(repository: Path, options: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        verify(repository, **options)


def test_a_variant_that_a_new_export_left_behind_is_no_part_of_the_model(kept: Path) -> None:
    def newer(data: dict[str, Any]) -> None:
        data["model_version"] = 2
        data["files"]["2/model.onnx"] = data["files"].pop("1/model.onnx")

    (kept / "digits-fp32" / "1").rename(kept / "digits-fp32" / "2")
    edit(kept, "digits-fp32", newer)
    found = {variant.name: variant for variant in verify(kept, digests_only=True).variants}
    assert re.findall(r"version (\d)", " ".join(found["digits-int8"].problems)) == ["1", "2"]
    assert not verify(kept, digests_only=True).has_passed
    assert not any("version" in problem for problem in found["digits-fp32"].problems)


# -- BF16, which another engine computes ------------------------------------------------------------------------------


@pytest.fixture
def with_bf16(kept: Path) -> Path:
    shutil.copytree(kept / "digits-fp32", kept / "digits-bf16")
    (kept / "digits-bf16" / GATE_DATA_FILE).unlink()

    def bf16(data: dict[str, Any]) -> None:
        data["variant"] = "bf16"
        data["pools"]["cpu"]["engine"] = "openvino"
        data["gate"]["reference"] = "fp32"

    edit(kept, "digits-bf16", bf16)
    return kept


def test_bf16_is_not_proven_by_an_engine_that_computes_it_in_fp32(with_bf16: Path) -> None:
    bf16 = of(verify(with_bf16), "digits-bf16")
    [note] = bf16.notes
    assert bf16.gate == NOT_RUN
    assert "openvino" in note


@pytest.mark.parametrize(("answer", "gate"), [(1, PASSED), (-1, FAILED)])
def test_bf16_is_proven_again_where_its_engine_is(with_bf16: Path, answer: int, gate: str) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(with_bf16 / "digits-bf16" / MODEL_FILE, providers=["CPUExecutionProvider"])

    @contextmanager
    def openvino(model: bytes, precision: str) -> Iterator[Run]:
        assert precision == "bf16"
        yield lambda inputs: [values[:, ::answer] for values in session.run(None, dict(inputs))]

    assert of(verify(with_bf16, engines={"openvino": openvino}), "digits-bf16").gate == gate


# -- INT8, which more than one engine computes ------------------------------------------------------------------------

NOT_HERE = "run again on ONNX Runtime's own provider: openvino, which serves it, is not here"


@pytest.fixture
def on_openvino(kept: Path) -> Path:
    edit(kept, "digits-int8", lambda data: data["pools"]["cpu"].update(status="passed", engine="openvino"))
    return kept


@pytest.mark.slow  # where OpenVINO's environment has to be made first
def test_int8_is_proven_again_by_the_engine_that_serves_it(on_openvino: Path, openvino: EnginePython) -> None:
    asked: list[tuple[str, str]] = []

    def counted(model: bytes, precision: str) -> AbstractContextManager[Run]:
        asked.append((hashlib.sha256(model).hexdigest(), precision))
        return running(openvino, model, precision)

    found = verify(on_openvino, engines={"openvino": counted})
    assert found.has_passed
    int8 = of(found, "digits-int8")
    assert (int8.gate, int8.notes) == (PASSED, ())
    assert asked == [(Repository(on_openvino).variant("digits-int8").digest, "int8")]


@contextmanager
def wrong(model: bytes, precision: str) -> Iterator[Run]:
    """An engine that answers to other images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    yield lambda inputs: session.run(None, {name: values[::-1] for name, values in inputs.items()})


def test_int8_that_its_engine_computes_wrongly_is_a_problem_though_another_computes_it_rightly(
    on_openvino: Path, kept: Path
) -> None:
    found = verify(on_openvino, engines={"openvino": wrong})
    assert [(variant.name, variant.gate) for variant in found.variants if variant.problems] == [("digits-int8", FAILED)]
    edit(kept, "digits-int8", lambda data: data["pools"]["cpu"].update(engine="cpu"))
    assert verify(kept, engines={"openvino": wrong}).has_passed


def test_an_engine_that_may_not_load_it_proves_nothing(on_openvino: Path) -> None:
    edit(on_openvino, "digits-int8", lambda data: data["pools"]["cpu"].update(status="not_allowed"))
    assert of(verify(on_openvino, engines={"openvino": wrong}), "digits-int8").gate == PASSED


def test_where_the_engine_that_serves_int8_is_not_here_the_plain_one_runs_it_and_that_is_said(
    on_openvino: Path, fp32: bytes
) -> None:
    int8 = of(verify(on_openvino), "digits-int8")
    assert (int8.gate, int8.notes) == (PASSED, (NOT_HERE,))
    spoilt(on_openvino, lambda _: spoil.perturbed(fp32))
    int8 = of(verify(on_openvino), "digits-int8")
    assert (int8.gate, int8.notes) == (FAILED, (NOT_HERE,))


# -- other servers ----------------------------------------------------------------------------------------------------


def test_nvidias_image_is_told_what_only_our_backend_computes(with_bf16: Path) -> None:
    assert verify(with_bf16, digests_only=True).has_passed
    found = verify(with_bf16, digests_only=True, server="nvidia")
    assert not found.has_passed
    [problem] = of(found, "digits-bf16").problems
    assert "BF16" in problem
    assert [variant.name for variant in found.variants if variant.problems] == ["digits-bf16"]


def test_nvidias_image_is_told_that_it_cannot_count_openvinos_threads(kept: Path) -> None:
    edit(kept, "digits-int8", lambda data: data["pools"]["cpu"].update(engine="openvino"))
    found = verify(kept, digests_only=True, server="nvidia")
    [problem] = of(found, "digits-int8").problems
    assert "OpenVINO" in problem
    assert verify(kept, digests_only=True).has_passed


@pytest.mark.parametrize(
    ("processor", "server", "problems", "notes"),
    [
        (
            "x86_64-avx2",
            "nvidia",
            "needs VNNI, which this processor lacks; NVIDIA's image would load it all the same",
            "",
        ),
        (
            "x86_64-avx512_vnni",
            "nvidia",
            "",
            "needs VNNI, which this processor has; NVIDIA's image loads it on every other",
        ),
        ("x86_64-avx2", "tandem", "", ""),
    ],
)
def test_nvidias_image_is_told_what_a_file_needs_of_the_processor(
    repository: Path, processor: str, server: str, problems: str, notes: str
) -> None:
    edit(repository, "digits-int8", lambda data: data.update(needs=["vnni"]))
    found = verify(repository, digests_only=True, server=server, processor=processor)
    int8 = of(found, "digits-int8")
    assert (len(int8.problems), len(int8.notes)) == (bool(problems), bool(notes))
    assert "".join(int8.problems).startswith(problems)
    assert "".join(int8.notes).startswith(notes)
    assert found.has_passed == (not problems)


def test_nvidias_image_is_told_nothing_of_bf16_that_runs_on_no_cpu_pool(with_bf16: Path) -> None:
    edit(with_bf16, "digits-bf16", lambda data: data["pools"]["cpu"].update(status="not_allowed"))
    assert verify(with_bf16, digests_only=True, server="nvidia").has_passed


# -- only some of it --------------------------------------------------------------------------------------------------


def test_variants_asked_for_by_name_are_verified_alone_beside_their_fp32(kept: Path) -> None:
    (kept / "digits-fp16" / "labels.txt").unlink()
    found = verify(kept, names=["digits-int8"])
    assert [(variant.name, variant.gate, variant.problems) for variant in found.variants] == [
        ("digits-int8", PASSED, ())
    ]
    (kept / "digits-fp32" / "labels.txt").unlink()
    [int8] = verify(kept, names=["digits-int8"]).variants
    [note] = int8.notes
    assert "files of digits-fp32" in note


def test_a_name_of_a_directory_without_a_record_is_a_problem_and_others_of_that_kind_are_not(kept: Path) -> None:
    for name in ("digits-int8", "digits-fp16"):
        (kept / name / RECORD_FILE).unlink()
    found = verify(kept, names=["digits-fp32", "digits-int8"], digests_only=True)
    assert [(variant.name, bool(variant.problems)) for variant in found.variants] == [
        ("digits-fp32", False),
        ("digits-int8", True),
    ]


def test_a_variant_asked_for_by_name_that_is_of_an_older_version_than_fp32_is_a_problem(kept: Path) -> None:
    def newer(data: dict[str, Any]) -> None:
        data["model_version"] = 2
        data["files"]["2/model.onnx"] = data["files"].pop("1/model.onnx")

    (kept / "digits-fp32" / "1").rename(kept / "digits-fp32" / "2")
    edit(kept, "digits-fp32", newer)
    [int8] = verify(kept, names=["digits-int8"], digests_only=True).variants
    assert re.findall(r"version (\d)", " ".join(int8.problems)) == ["1", "2"]


# -- images with nothing installed ------------------------------------------------------------------------------------

THIN = """
import pathlib, sys
sys.modules.update(dict.fromkeys(sys.argv[2:]))
from serving.export.inventory import models
from serving.export.verify import verify
path = pathlib.Path(sys.argv[1])
models(path)
found = verify(path)
print(found.has_passed, {note for variant in found.variants for note in variant.notes})
"""


def thin(repository: Path, *absent: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", THIN, repository, *absent],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_verify_where_no_gate_can_run_is_exit_code_3_and_says_what_was_checked(kept: Path) -> None:
    code = "import sys; sys.modules['onnxruntime'] = None; from serving.cli import main; main()"
    command = [sys.executable, "-c", code, "verify", "--model-repository", str(kept)]
    asked = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, **asked)
    assert done.returncode == 3
    assert re.search("^digits-fp32: whole; .*onnxruntime", done.stdout, re.MULTILINE)
    [line] = done.stderr.splitlines()
    assert line.startswith("tandem: ")
    assert "pip install -e '.[onnx]'" in line
    assert subprocess.run([*command, "--digests-only"], **asked).returncode == 0
    assert json.loads(subprocess.run([*command, "--json"], **asked).stdout)["lacks"] == "onnxruntime"
    (kept / "digits-int8" / "1" / "model.onnx").write_bytes(b"?")
    assert subprocess.run(command, **asked).returncode == 1


@pytest.mark.parametrize("absent", ["numpy", pytest.param("onnxruntime", marks=pytest.mark.thorough)])
def test_a_thin_image_checks_digests_and_says_that_gates_were_not_run(kept: Path, absent: str) -> None:
    has_passed, _, notes = thin(kept, absent).partition(" ")
    assert has_passed == "True"
    assert [absent in note for note in ast.literal_eval(notes)] == [True]


def test_looking_at_digests_needs_neither_numpy_nor_onnx(repository: Path) -> None:
    script = (
        "import pathlib, sys\nfrom serving.export.inventory import models\nfrom serving.export.verify import verify\n"
        "models(pathlib.Path(sys.argv[1])), verify(pathlib.Path(sys.argv[1]), digests_only=True)\n"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'sklearn', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, repository], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "[]"


def test_data_that_was_asked_for_and_cannot_be_used_is_the_environments_fault(kept: Path) -> None:
    script = (
        "import pathlib, sys\nsys.modules['numpy'] = None\nfrom serving.export.verify import verify\n"
        "from serving.errors import EnvironmentFault\n"
        "try:\n    verify(pathlib.Path(sys.argv[1]), data=pathlib.Path(sys.argv[2]))\n"
        "except EnvironmentFault as fault:\n    print(fault)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, kept, PAYLOAD], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    assert re.match("--data .*numpy", done.stdout)
    assert done.stdout.endswith("pip install -e '.[onnx]'\n")


def test_progress_names_each_gate(kept: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    verify(kept, progress=lambda *step: steps.append(step))
    assert "digits-int8" in steps[-1][0]
    assert steps[-1][1:] == (1, 1)
    assert len(steps) == 6


@pytest.mark.thorough
def test_the_command_line_says_how_far_it_is_beside_its_result(kept: Path) -> None:
    words = ["verify", "--model-repository", str(kept), "--variant", "digits-int8"]
    done = subprocess.run(
        [sys.executable, "-m", "serving", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    [progress] = done.stderr.splitlines()
    assert re.search("digits-int8.*done$", progress)
    [result] = done.stdout.splitlines()
    assert re.match("digits-int8: whole, .*passed", result)
