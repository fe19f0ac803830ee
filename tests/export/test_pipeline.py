"""From a source to a whole model in a repository: what is written, what is left out or refused, and what a crash leaves."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from serving.errors import GateRefused, UserError
from serving.export import pipeline, variants
from serving.export.data.dataset import Dataset
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates.limits import Limits
from serving.export.job import ExportSpec
from serving.export.pipeline import ExportResult
from serving.export.publish import writing
from serving.export.sources import onnx_file
from serving.export.speed_nets import bert
from serving.export.variants import fusion
from serving.export.variants.candidate import Candidate
from serving.export.verify import verify
from serving.local.devices import installed
from serving.measure.machine import has_instructions, processor_key
from serving.repository import Repository, Variant

from . import spoil
from .conftest import COMMITTED, MODEL_FILE
from .variants import nets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untimed")]  # computes for seconds: not in `make check`

ENGINES = {"cpu": installed()["cpu"]}
FP32 = COMMITTED / "digits-fp32" / MODEL_FILE
ASKED = ExportSpec("mine", precisions=("int8",), seconds=0.05)


@pytest.fixture
def exported() -> ExportedModel:
    return onnx_file.load(FP32, SourceOptions(), lambda *_: None)


@pytest.fixture
def few(held_out: Dataset) -> Dataset:
    """For what no number of rows changes."""
    assert held_out.labels is not None
    return Dataset("few", held_out.rows(0, 60), held_out.labels[:60])


def export(
    exported: ExportedModel, data: Dataset | None, repository: Path, asked: ExportSpec = ASKED, **how: object
) -> ExportResult:
    with writing(repository, asked.model):
        return pipeline.export(exported, data, None, asked, repository, ENGINES, **how)  # type: ignore[arg-type]


def test_a_file_becomes_a_model_with_its_variants_and_its_data(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    outcome = export(exported, held_out, tmp_path)
    assert [variant.name for variant in outcome.published] == ["mine-fp32", "mine-int8"]
    assert outcome.refused == {}
    for variant in outcome.published:
        variant.verify()
        assert variant.record.task == "classification"
        assert variant.record.gate.basis == "labels"
        assert variant.record.gate.num_samples == 360  # a fifth of 450 calibrates
        assert variant.record.model_version == 1
    fp32, int8 = outcome.published
    assert (fp32.directory / "gate.npz").is_file()
    assert not (int8.directory / "gate.npz").exists()
    assert "static QDQ" in int8.record.source
    assert fp32.record.gate.judged_on.startswith("ONNX Runtime 1.")
    assert processor_key() in fp32.record.gate.judged_on
    assert int8.record.gate.calibration.startswith("90 rows, SHA-256 ")
    assert fp32.record.gate.calibration == ""
    assert fp32.record.pools["gpu"].reason == "the baseline; answers judged on a CPU stand-in, not timed"
    assert {row.ratio for row in fp32.record.speed} <= {1.0}


def test_too_few_rows_to_judge_and_calibrate_are_counted(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    few = Dataset("few", held_out.rows(0, 15), None)
    with pytest.raises(UserError, match=r"--data .*\b16\b.*\b15\b"):
        export(exported, few, tmp_path)
    enough = Dataset("enough", held_out.rows(0, 16), None)
    assert len(export(exported, enough, tmp_path).published) == 2


def test_tf32_is_fp32s_file_for_cards_alone_judged_with_rounded_factors(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    fp32, tf32 = export(exported, held_out, tmp_path, replace(ASKED, precisions=("tf32",))).published
    assert tf32.digest == fp32.digest
    assert tf32.loadable_pools == ("gpu",)
    assert {pool: gate.status for pool, gate in tf32.record.pools.items()} == {"cpu": "not_allowed", "gpu": "passed"}
    assert tf32.record.gate.reference == "fp32"
    differences = [check.value for check in tf32.record.gate.checks if check.metric == "probability_difference"]
    assert all(0 < difference < 0.05 for difference in differences)
    assert 'key: "use_tf32" value: "1"' in (tf32.directory / "configs" / "gpu.pbtxt").read_text()


def test_a_second_export_of_another_file_is_the_next_version_with_the_old_one_beside_it(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    asked = replace(ASKED, precisions=("fp32",))
    export(exported, held_out, tmp_path, asked)
    [same] = export(exported, held_out, tmp_path, asked).published
    assert same.record.model_version == 1
    other = onnx.load_from_string(exported.model)
    other.producer_name = "another"
    [new] = export(replace(exported, model=other.SerializeToString()), held_out, tmp_path, asked).published
    new.verify()
    assert new.record.model_version == 2
    assert (new.directory / "1/model.onnx").read_bytes() == exported.model
    assert (new.directory / "2/model.onnx").is_file()


IMPOSSIBLE = Limits(min_agreement=1, max_probability_difference=0)


def test_a_search_that_failed_names_what_breaks_and_a_second_one_is_made_of_what_is_remembered(
    exported: ExportedModel, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    asked = replace(ASKED, limits=IMPOSSIBLE, int8_range="7bit")
    said: list[str] = []
    tries = []
    for name in ("first", "second"):
        said.clear()
        outcome = export(exported, few, tmp_path / name, asked, progress=lambda step, *_: said.append(step))
        reason = outcome.refused["int8"]
        tries.append(len({line.partition(",")[0] for line in said if line.startswith("try ")}))
        assert "probability" in reason
        assert "tried" in reason
        assert "quantisation-aware training" in reason
    assert tries[0] > 5
    assert tries[1] == 0
    assert sum("refused before" in line for line in said) == tries[0]


def test_a_search_ends_with_its_budget_and_says_what_it_left_out(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    asked = replace(ASKED, limits=IMPOSSIBLE, int8_range="7bit", budget_s=1e-3)
    reason = export(exported, held_out, tmp_path, asked).refused["int8"]
    assert "1 file" in reason
    assert re.search(r"0\.001 s .*--budget", reason)


@pytest.mark.parametrize(("task", "is_told"), [("other", True), ("segmentation", False)])
def test_a_mask_that_was_judged_by_its_numbers_is_told_of_the_task_that_judges_masks(
    task: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "mask.onnx"
    source.write_bytes(
        nets.net(
            "(float[n, 3, 16, 16] x) => (float[n, 1, 16, 16] y)",
            "a = Conv <pads = [1, 1, 1, 1]> (x, w) y = Sigmoid (a)",
            w=(1, 3, 3, 3),
        )
    )
    rows = Dataset("rows", {"x": np.random.default_rng(0).normal(size=(24, 3, 16, 16)).astype(np.float32)}, None)
    asked = replace(ASKED, limits=IMPOSSIBLE, budget_s=1e-3)
    reason = export(onnx_file.load(source, SourceOptions(task=task), lambda *_: None), rows, tmp_path, asked).refused
    assert ("--task segmentation" in reason["int8"]) is is_told


def test_a_file_that_is_quantised_already_is_the_int8_as_it_is_beside_its_fp32(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    made = next(variants.candidates("int8", exported.model, {"image": held_out.inputs["image"][:32]})).model
    (tmp_path / "qat.onnx").write_bytes(made)
    source = onnx_file.load(tmp_path / "qat.onnx", SourceOptions(task="classification"), lambda *_: None)
    outcome = export(source, held_out, tmp_path / "models")
    assert outcome.refused == {}
    fp32, int8 = outcome.published
    assert int8.model_path.read_bytes() == source.model
    assert b"QuantizeLinear" in source.model
    assert "as it is" in int8.record.source
    assert b"QuantizeLinear" not in fp32.model_path.read_bytes()
    assert fp32.record.gate.checks[0].value > 0.97


def test_a_new_version_is_judged_beside_the_one_before_it_on_the_same_rows(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    asked = replace(ASKED, precisions=("fp32",))
    [first] = export(exported, held_out, tmp_path, asked).published
    assert first.record.gate.previous is None
    spoilt = replace(exported, model=spoil.perturbed(exported.model))
    with pytest.raises(GateRefused, match=r"top1 .*0\.98\d* of version 1 .*--worse-is-fine"):
        export(spoilt, held_out, tmp_path, asked)
    [worse] = export(spoilt, held_out, tmp_path, replace(asked, accepts_worse=True)).published
    [better] = export(exported, held_out, tmp_path, asked).published
    for new, version, is_better in ((worse, 1, False), (better, 2, True)):
        previous = new.record.gate.previous
        assert previous is not None
        assert (previous.version, new.record.model_version) == (version, version + 1)
        assert (previous.checks[0].value > (previous.checks[0].reference or 0)) is is_better
    unlabelled = Dataset("rows", held_out.inputs, None)
    [told] = export(spoilt, unlabelled, tmp_path, asked).published  # nobody knows which of the two is right
    assert told.record.gate.previous is not None
    assert all(check.limit is None for check in told.record.gate.previous.checks)


def test_a_metric_of_the_users_says_too_which_version_is_worse(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    def errors(reference: Any, answers: Any, labels: Any) -> dict[str, tuple[float, float, bool]]:
        return {"errors": (float((answers[0].argmax(1) != held_out.labels).mean()), 1.0, False)}

    asked = replace(ASKED, precisions=("fp32",), metric=errors)
    unlabelled = Dataset("rows", held_out.inputs, None)
    export(exported, unlabelled, tmp_path, asked)
    with pytest.raises(GateRefused, match=r"errors .* of version 1"):
        export(replace(exported, model=spoil.perturbed(exported.model)), unlabelled, tmp_path, asked)


def test_a_version_with_other_inputs_is_not_compared_which_is_told(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    asked = replace(ASKED, precisions=("fp32",))
    export(exported, held_out, tmp_path, asked)
    other = onnx_file.load(tmp_path / "mine-fp32/1/model.onnx", SourceOptions(), lambda *_: None)
    renamed = spoil.with_renamed_input(other.model)
    inputs = (replace(other.inputs[0], name="picture"),)
    data = Dataset("rows", {"picture": held_out.inputs["image"]}, held_out.labels)
    example = {"picture": held_out.inputs["image"][:8]}
    outcome = export(replace(other, model=renamed, inputs=inputs, example=example), data, tmp_path, asked)
    assert any("version 1" in warning for warning in outcome.warnings)


def test_a_variant_that_a_new_export_did_not_make_again_is_told(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    assert export(exported, held_out, tmp_path).warnings == exported.notes
    other = onnx.load_from_string(exported.model)
    other.producer_name = "another"
    new = replace(exported, model=other.SerializeToString())
    outcome = export(new, held_out, tmp_path, replace(ASKED, precisions=("fp32", "fp32")))
    assert [variant.name for variant in outcome.published] == ["mine-fp32"]
    [warning] = set(outcome.warnings) - {*exported.notes}
    assert "mine-int8" in warning
    assert "version 1" in warning


def test_a_record_of_another_model_that_cannot_be_read_does_not_stop_an_export(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "other-fp32").mkdir()
    (tmp_path / "other-fp32" / "tandem.json").write_text("{")
    [fp32] = export(exported, held_out, tmp_path, replace(ASKED, precisions=("fp32",))).published
    fp32.verify()


def test_without_labels_the_gate_rests_on_agreement_and_the_record_says_so(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    data = Dataset("no labels", held_out.inputs, None)
    int8 = export(exported, data, tmp_path).published[1]
    assert int8.record.gate.basis == "agreement"
    assert int8.record.gate.headline is not None
    assert int8.record.gate.headline.metric == "agreement"


def test_without_data_nothing_is_written_unless_that_is_accepted(exported: ExportedModel, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    with pytest.raises(UserError, match=r"variants.*--i-accept-ungated"):
        export(exported, None, repository)
    assert not repository.exists()
    asked = ExportSpec("mine", accepts_ungated=True, seconds=0.05)
    outcome = export(exported, None, repository, asked)
    [fp32] = outcome.published
    assert "no data" in outcome.left_out["int8"]
    assert fp32.record.gate.basis == "nothing"
    assert {gate.status for gate in fp32.record.pools.values()} == {"ungated"}
    assert fp32.config("cpu").parameters["tandem_gate"] == "ungated"
    assert fp32.loadable_pools == ("cpu", "gpu")


def test_a_variant_that_fails_its_gate_is_named_and_the_others_are_written(
    exported: ExportedModel, few: Dataset, tmp_path: Path
) -> None:
    strict = replace(ASKED, limits=Limits.chosen({"max_probability_difference": 1e-7}))
    outcome = export(exported, few, tmp_path, strict)
    assert [variant.name for variant in outcome.published] == ["mine-fp32"]
    assert "probability" in outcome.refused["int8"]
    assert not (tmp_path / "mine-int8").exists()
    assert outcome.published[0].record.not_made == {"int8": outcome.refused["int8"]}


@pytest.mark.parametrize(("int8_range", "bits"), [("auto", 8 if has_instructions("vnni") else 7), ("7bit", 7)])
def test_finer_weights_are_tried_where_the_coarse_ones_fail_and_the_processor_computes_them_rightly(
    exported: ExportedModel, few: Dataset, tmp_path: Path, int8_range: str, bits: int
) -> None:
    strict = Limits.chosen({"max_probability_difference": 1e-7})
    outcome = export(exported, few, tmp_path, replace(ASKED, limits=strict, int8_range=int8_range))
    assert f"{bits} bits" in outcome.refused["int8"]
    assert "left in FP32" in outcome.refused["int8"]  # the last of all tries


def test_a_file_that_is_right_on_every_processor_is_preferred(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    int8 = export(exported, held_out, tmp_path).published[1]
    assert "7 bits" in int8.record.source
    assert int8.record.needs == ()


@pytest.mark.parametrize("is_fast_first", [True, False])
def test_of_two_files_that_pass_the_faster_one_is_kept(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast_first: bool
) -> None:
    """Two real files with the same answers, one of them larger."""
    made = [Candidate("int8", exported.model, "fast"), Candidate("int8", spoil.slowed(exported.model, 6), "slow")]
    monkeypatch.setattr(variants, "candidates", lambda *_, **__: iter(made if is_fast_first else made[::-1]))
    int8 = export(exported, held_out, tmp_path).published[1]
    assert int8.model_path.read_bytes() == exported.model
    assert "fast" in int8.record.source


SMALL_BERT = bert.BertShape("small", num_layers=1, width=32, num_heads=4, is_pooled=True, vocabulary=60)
FP16 = replace(ASKED, precisions=("fp16",))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    source = tmp_path_factory.mktemp("encoder") / "small.onnx"
    source.write_bytes(bert.build(SMALL_BERT, seed=3, opset=18))
    return onnx_file.load(source, SourceOptions(task="embedding", max_batch_size=8), lambda *_: None)


def own_operators(variant: Variant) -> Counter[str]:
    nodes = onnx.load(str(variant.model_path)).graph.node
    return Counter(node.op_type for node in nodes if node.domain == "com.microsoft")


def test_fp16_of_a_transformer_is_fused_unless_asked_not_to_and_its_record_counts_by_operator(
    encoder: ExportedModel, tmp_path: Path
) -> None:
    data = Dataset("tokens", nets.texts(24, 12), None)
    fp32, fused = export(encoder, data, tmp_path / "fused", FP16).published
    assert dict(fused.record.fused) == {"Attention": 1, "BiasGelu": 1, "SkipLayerNormalization": 2}
    assert own_operators(fused) == fused.record.fused
    assert re.search(rf"fused .*ONNX Runtime {fused.record.toolchain['onnxruntime']}", fused.record.source)
    assert fused.loadable_pools == ("gpu",)
    assert own_operators(fp32) == fp32.record.fused == {}
    assert verify(tmp_path / "fused").has_passed
    _, plain = export(encoder, data, tmp_path / "plain", replace(FP16, fuses=False)).published
    assert own_operators(plain) == plain.record.fused == {}
    assert "fused" not in (plain.directory / "tandem.json").read_text()


def test_a_fused_file_is_none_of_tensorrts(encoder: ExportedModel, tmp_path: Path) -> None:
    data = Dataset("tokens", nets.texts(24, 12), None)
    _, fp16 = export(encoder, data, tmp_path, replace(FP16, is_for_tensorrt=True)).published
    assert own_operators(fp16) == {}


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (lambda model: spoil.with_attribute(model, "Attention", "scale", 5.0), "cosine"),
        (lambda model: spoil.with_attribute(model, "Attention", "num_heads", 5), "hidden"),
    ],
)
def test_a_fusion_that_answers_otherwise_or_does_not_run_is_dropped_and_said(
    encoder: ExportedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: Callable[[bytes], bytes],
    says: str,
) -> None:
    made = fusion.fused

    def wrong(fp32: bytes, also_left: frozenset[str] = frozenset()) -> fusion.Fusion | None:
        found = made(fp32, also_left)
        assert found is not None
        return replace(found, model=spoilt(found.model))

    monkeypatch.setattr(fusion, "fused", wrong)
    outcome = export(encoder, Dataset("tokens", nets.texts(24, 12), None), tmp_path, FP16)
    _, fp16 = outcome.published
    assert own_operators(fp16) == fp16.record.fused == {}
    assert outcome.refused == {}
    [told] = [warning for warning in outcome.warnings if "not fused" in warning]
    assert says in told
    assert told.partition(": ")[2] in fp16.record.source


def test_fp16_is_judged_as_a_gpu_rounds_it_and_not_as_this_processor_does(tmp_path: Path) -> None:
    """Values beyond FP16 between two layers: without calibration that shows them, infinite on a GPU and fine here."""
    source = tmp_path / "swelling.onnx"
    source.write_bytes(nets.swelling())
    swelling = onnx_file.load(source, SourceOptions(), lambda *_: None)
    rows = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    data = Dataset("rows", {"x": rows}, None)
    asked = replace(ASKED, precisions=("fp16",))
    blind = {"x": rows[:4] * 1e-6}  # inputs that show no large value
    with writing(tmp_path / "repo", ASKED.model):
        outcome = pipeline.export(swelling, data, blind, asked, tmp_path / "repo", ENGINES)
        assert "NaN or infinite" in outcome.refused["fp16"]
        seeing = pipeline.export(swelling, data, None, asked, tmp_path / "repo", ENGINES)
    assert [variant.record.variant for variant in seeing.published] == ["fp32", "fp16"]
    assert "values over" in seeing.published[1].record.source


@pytest.mark.thorough
def test_a_file_for_tensorrt_is_for_no_other_pool(exported: ExportedModel, held_out: Dataset, tmp_path: Path) -> None:
    outcome = export(exported, held_out, tmp_path, replace(ASKED, precisions=("fp16", "int8"), is_for_tensorrt=True))
    pools = {variant.record.variant: variant.record.pools for variant in outcome.published}
    assert {name: pool["gpu"].engine for name, pool in pools.items()} == dict.fromkeys(pools, "tensorrt")
    assert pools["int8"]["cpu"].status == "not_allowed"
    assert "without --tensorrt" in pools["int8"]["cpu"].reason
    assert pools["int8"]["gpu"].status == "passed"
    assert outcome.published[-1].record.needs == ("tensorrt",)


def test_every_engine_that_may_serve_a_file_is_asked_for_its_answers(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    engines = {name: engine for name, engine in installed().items() if name in ("cpu", "openvino")}
    steps: list[str] = []
    with writing(tmp_path, ASKED.model):
        pipeline.export(exported, held_out, None, ASKED, tmp_path, engines, lambda step, *_: steps.append(step))
    for precision in ("fp32", "int8"):
        assert f"proving mine-{precision}" in steps
        assert (f"proving mine-{precision} on openvino" in steps) is ("openvino" in engines)


def test_limits_of_the_users_own_stand_in_the_record_as_such(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    asked = replace(ASKED, precisions=("fp32",), limits=Limits.chosen({"max_drop": 0.5}))
    gate = export(exported, held_out, tmp_path, asked).published[0].record.gate
    assert {check.metric: check.is_default_limit for check in gate.checks}["top1"] is False
    assert any(check.is_default_limit for check in gate.checks)


def test_a_net_that_answers_the_same_to_everything_is_refused(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    proto = onnx.load_from_string(exported.model)
    for tensor in proto.graph.initializer:
        if len(tensor.dims) > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tuple(tensor.dims), np.float32), tensor.name))
    with pytest.raises(GateRefused):
        export(replace(exported, model=proto.SerializeToString()), held_out, tmp_path)
    assert Repository(tmp_path).variants() == []


def test_a_graph_whose_rows_depend_on_their_batch_is_refused(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(GateRefused, match="row"):
        export(replace(exported, model=spoil.with_leaking_batch(exported.model)), held_out, tmp_path)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (replace(ASKED, model="a b"), "model name 'a b'"),
        (replace(ASKED, model="mine-int8"), "ends in the precision"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_is_made(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path, asked: ExportSpec, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        export(exported, held_out, tmp_path / "repo", asked)
    assert not (tmp_path / "repo").exists()


def test_a_precision_that_a_source_cannot_have_is_named(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    only = replace(exported, precisions=("fp32",), source="sklearn: trees.pkl")
    with pytest.raises(UserError, match=r"sklearn.*trees.pkl.*int8.*fp32"):
        export(only, held_out, tmp_path)


def test_a_model_for_processors_alone_gets_no_gpu_pool(
    exported: ExportedModel, held_out: Dataset, tmp_path: Path
) -> None:
    only = replace(exported, precisions=("fp32",), is_cpu_only=True)
    [fp32] = export(only, held_out, tmp_path, ExportSpec("mine", seconds=0.05)).published
    assert fp32.record.pools["gpu"].status == "not_allowed"
    assert "a CPU model" in fp32.record.pools["gpu"].reason
    assert fp32.loadable_pools == ("cpu",)


def test_ctrl_c_at_any_step_leaves_nothing(
    exported: ExportedModel, few: Dataset, tmp_path: Path, content: Callable[[Path], dict[str, bytes]]
) -> None:
    """At every third one, unless it is thorough."""
    steps: list[str] = []
    export(exported, few, tmp_path / "whole", progress=lambda step, *_: steps.append(step))
    stops = sorted(set(steps))
    for number, stop_at in enumerate(stops if os.environ.get("THOROUGH") else stops[::3]):
        seen: list[str] = []

        def interrupt(step: str, *_: object, stop_at: str = stop_at, seen: list[str] = seen) -> None:
            seen.append(step)
            if step == stop_at:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            export(exported, few, tmp_path / str(number), progress=interrupt)
            assert stop_at not in seen  # one that only noisy timings need
            continue
        assert content(tmp_path / str(number)) == {}


def test_random_weights_are_timed_and_marked(exported: ExportedModel, tmp_path: Path) -> None:
    untrained = replace(exported, is_untrained=True)
    [fp32] = export(untrained, None, tmp_path, ExportSpec("mine", precisions=("fp32",), seconds=0.05)).published
    assert fp32.record.is_untrained
    assert "untrained: speed only" in fp32.record.pools["cpu"].reason
    assert fp32.config("cpu").parameters["tandem_gate"] == "untrained: speed only"
    assert fp32.record.speed
