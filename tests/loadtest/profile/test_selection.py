"""What is measured and with what is chosen before anything starts, and what is wrong is told then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.profile.load import default_objective_s, search_plan
from loadtest.profile.options import Pace, ProfileOptions
from loadtest.profile.selection import accuracy, check_batch_sizes, check_engines, inputs_for, linked, variants_of
from loadtest.profile.wording import notes
from serving.errors import UserError
from serving.repository.layout import Repository, default_repository

DIGITS = ProfileOptions("digits")


def test_all_variants_of_the_pool_are_measured_fp32_first() -> None:
    assert [variant.name for variant in variants_of(DIGITS)] == ["digits-fp32", "digits-int8"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ProfileOptions("digts"), "has no model 'digts'; did you mean 'digits'"),
        (ProfileOptions("digits", variants=("int4",)), "has no variant 'int4'; did you mean 'int8'"),
        (ProfileOptions("digits", model_repository=Path("/nowhere/at/all")), "there is no model repository"),
        (ProfileOptions("digits", pool="emulated-gpu", emulate=Path("/nowhere.yaml")), "cannot read the curves"),
    ],
)
def test_what_is_not_there_is_told_with_the_nearest_that_is(options: ProfileOptions, words: str) -> None:
    with pytest.raises(UserError, match=words):
        variants_of(options)


def test_an_emulated_device_runs_what_its_file_speaks_of(tmp_path: Path) -> None:
    curves = tmp_path / "card.yaml"
    curves.write_text("version: 1\nname: card\nvariants: {fp16: [[1, 0.01]], fp32: [[1, 0.02]]}\n")
    options = ProfileOptions("digits", pool="emulated-gpu", emulate=curves)
    assert [variant.record.variant for variant in variants_of(options)] == ["fp32", "fp16"]


def test_more_rows_than_the_model_takes_are_refused() -> None:
    options = ProfileOptions("digits", batch_sizes=(1, 33))
    with pytest.raises(UserError, match=r"--batch-size 33.*digits-fp32.*32.*rows"):
        check_batch_sizes(options, variants_of(options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ProfileOptions("digits", engines=("openvino",)), "--engine openvino is not installed here"),
        (ProfileOptions("digits", engines=("cpu", "cuda")), "--engine cuda computes on the gpu pool, not on cpu"),
        (ProfileOptions("digits", engines=("cpu",), emulate=Path("x")), "--engine cpu does nothing for an emulated"),
    ],
)
def test_an_engine_that_cannot_be_had_is_told_before_anything_starts(options: ProfileOptions, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_engines(options, ["cpu"])


def test_a_linked_repository_is_as_good_as_its_files(tmp_path: Path) -> None:
    folder = linked(tmp_path / "repository", variants_of(ProfileOptions("digits", variants=("int8",))))
    (variant,) = Repository(folder).variants()
    variant.verify()
    assert variant.name == "digits-int8"


def test_accuracy_is_the_gates_where_it_counted_right_answers() -> None:
    fp32, int8 = variants_of(DIGITS)
    assert accuracy(fp32) == pytest.approx(0.982222)
    assert accuracy(int8) is not None


@pytest.mark.parametrize("variants", [(), ("int8",)])
def test_what_the_gate_saw_is_sent_where_nothing_else_is_named(variants: tuple[str, ...]) -> None:
    sent = inputs_for(variants_of(ProfileOptions("digits", variants=variants)), None)
    assert "gate" in sent.what
    kept = np.load(default_repository() / "digits-fp32" / "gate.npz")["image"]
    np.testing.assert_array_equal(sent.batch(8)["image"], kept[:8])


def test_too_few_rows_are_sent_again_from_the_first(tmp_path: Path) -> None:
    file = tmp_path / "three.npz"
    np.savez(file, image=np.arange(3 * 64, dtype=np.float32).reshape(3, 1, 8, 8))
    sent = inputs_for(variants_of(DIGITS), str(file))
    assert sent.batch(5)["image"][:, 0, 0, 0].tolist() == [0, 64, 128, 0, 64]
    assert sent.for_batches(8).num_inputs == 8
    assert sent.for_batches(2).num_inputs == 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"imag": np.zeros((1, 1, 8, 8), np.float32)}, "did you mean 'image'"),
        ({"image": np.zeros((1, 8, 8), np.float32)}, r"the model takes \[1, 8, 8\]"),
        ({"image": np.zeros((0, 1, 8, 8), np.float32)}, "at least one"),
        ({"image": np.full((1, 1, 8, 8), "a")}, "the model takes FP32"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_told(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=words):
        inputs_for(variants_of(DIGITS), str(file))


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(UserError, match="not there"):
        inputs_for(variants_of(DIGITS), "/nowhere/rows.npz")


@pytest.mark.parametrize(("medians_s", "seconds"), [([0.001], 0.02), ([0.001, 0.02], 0.1), ([9.0], 10.0), ([], 0.02)])
def test_without_an_objective_there_is_a_round_one_with_room(medians_s: list[float], seconds: float) -> None:
    assert default_objective_s(medians_s) == seconds


def test_a_search_begins_at_half_of_what_one_at_a_time_would_allow() -> None:
    made = search_plan(0.01, Pace())
    assert made.start_rps == 50.0
    assert made.floor_rps == 5.0
    assert (
        search_plan(100.0, Pace()).floor_rps == search_plan(100.0, Pace()).start_rps
    )  # slower than any rate worth a search


def test_a_reader_is_told_what_spoils_a_profile() -> None:
    quiet = notes(DIGITS, 2, 0.02, [], [], is_partial=False)
    assert "2 cores" in quiet
    assert "Other work" not in quiet
    assert "Partial" not in quiet
    busy = notes(DIGITS, 2, 0.31, ["digits-fp16 is not measured"], [], is_partial=True)
    assert "it was interrupted" in busy
    assert "31% of the cores" in busy
    assert "Digits-fp16" not in busy
    assert "digits-fp16 " in busy
    assert "what-if" in notes(ProfileOptions("digits", emulate=Path("t4.yaml")), 2, 0.0, [], [], is_partial=False)


@pytest.mark.parametrize(
    ("priorities", "words"),
    [
        ([True, True], "had real-time priority: it went before all other work"),
        ([True, False], "had real-time priority in 1 of 2 runs"),
        ([False], "had no real-time priority"),
    ],
)
def test_a_profile_says_whether_its_generator_went_before_all_other_work(priorities: list[bool], words: str) -> None:
    assert words in notes(DIGITS, 2, 0.0, [], priorities, is_partial=False)
    assert "priority" not in notes(DIGITS, 2, 0.0, [], [], is_partial=False)


def test_what_was_told_twice_is_in_the_note_once_and_begins_with_a_capital() -> None:
    said = notes(DIGITS, 2, 0.0, ["the rate is not measured", "the rate is not measured"], [], is_partial=False)
    assert said.count("rate is not measured") == 1
