"""A spoilt variant is refused with its own reason, and what was served before stays as it was, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving.errors import GateRefused, TandemError, UserError, exit_code
from serving.export import gates
from serving.export.data import Dataset
from serving.export.gates import (
    AccuracyLost,
    AnswersMoved,
    Interface,
    Limits,
    NonFinite,
    RowsDiffer,
    Slower,
    judge_speed,
)
from serving.export.proof import SpeedRun
from serving.export.sources import export_onnx
from serving.export.speed import Measurement
from serving.repository import Repository

from . import spoil
from .conftest import PAYLOAD

QUICK = SpeedRun(batch_sizes=(1,), seconds=0.05)


def refusals(root: type[TandemError] = GateRefused) -> set[type[TandemError]]:
    return {one for one in root.__subclasses__() if one.__module__ == gates.__name__}


SPOILT: list[tuple[type[TandemError], Callable[[bytes], bytes], str]] = [
    (AccuracyLost, spoil.perturbed, r"top1 0\.\d+ is 0\.\d+ below FP32's 0\.98\d+, more than 0\.01"),
    (NonFinite, lambda model: spoil.with_weight(model, math.nan), "1 NaN or infinite values in weight '0.0.weight'"),
    (NonFinite, lambda model: spoil.with_weight(model, math.inf), "1 NaN or infinite values in weight"),
    (NonFinite, spoil.with_nan_answers, "4500 NaN or infinite values in its answers on the held-out data"),
    (RowsDiffer, spoil.with_fixed_batch, "in a batch of 32 it fails"),
    (RowsDiffer, spoil.with_leaking_batch, r"in a batch of \d+ a row changes by"),
    (Slower, spoil.slowed, r"slower than FP32 on \S+ at every batch size \(batch 1 0\.\d\dx"),
]


@pytest.mark.parametrize(
    ("refusal", "spoiler", "says"), SPOILT, ids=[f"{r.__name__}-{i}" for i, (r, _, _) in enumerate(SPOILT)]
)
def test_a_spoilt_variant_is_refused_with_its_reason_and_the_repository_stays_byte_identical(
    repository: Path,
    tmp_path: Path,
    fp32: bytes,
    content: Callable[[Path], dict[str, bytes]],
    refusal: type[TandemError],
    spoiler: Callable[[bytes], bytes],
    says: str,
) -> None:
    before = content(repository)
    file = tmp_path / "spoilt.onnx"
    file.write_bytes(spoiler(fp32))
    with pytest.raises(refusal, match=says) as caught:
        export_onnx(file, model="digits", variant="int8", repository=repository, data=PAYLOAD, speed_run=QUICK)
    assert exit_code(caught.value) == 1
    assert str(caught.value).startswith("digits-int8 refused: ")
    assert "\n" not in str(caught.value)
    assert content(repository) == before
    for variant in Repository(repository).variants():
        variant.verify()


def test_every_refusal_has_a_row_above_or_its_own_test() -> None:
    assert refusals() == {refusal for refusal, _, _ in SPOILT} | {AnswersMoved}


@pytest.mark.parametrize(
    ("spoiler", "says"),
    [
        pytest.param(lambda _: b"", "not a sound ONNX file", id="empty"),
        pytest.param(lambda _: b"GIF89a", "not a sound ONNX file", id="no ONNX"),
        pytest.param(lambda model: model[: len(model) // 2], "not a sound ONNX file", id="cut off"),
        pytest.param(spoil.with_later_ir, "IR version 11, servers read at most 10", id="too new"),
        pytest.param(spoil.with_weights_elsewhere, "weights lie in another file", id="weights in another file"),
        pytest.param(spoil.with_renamed_input, "inputs are picture; FP32 has image", id="another name"),
        pytest.param(
            spoil.with_fp64_output, r"output 'probabilities' is tensor\(double\) \[10\] a row", id="another type"
        ),
    ],
)
def test_a_file_that_servers_could_not_load_is_the_users_to_mend(
    repository: Path,
    tmp_path: Path,
    fp32: bytes,
    content: Callable[[Path], dict[str, bytes]],
    spoiler: Callable[[bytes], bytes],
    says: str,
) -> None:
    before = content(repository)
    file = tmp_path / "spoilt.onnx"
    file.write_bytes(spoiler(fp32))
    with pytest.raises(UserError, match=says) as caught:
        export_onnx(file, model="digits", variant="int8", repository=repository, data=PAYLOAD, speed_run=QUICK)
    assert exit_code(caught.value) == 2
    assert "\n" not in str(caught.value)
    assert content(repository) == before


def check(model: bytes, fp32: bytes, data: Dataset, interface: Interface, limits: Limits) -> object:
    reference = gates.run("digits-fp32", fp32, data, interface)
    return gates.check_accuracy("digits-int8", model, reference, data, interface, limits)


def test_a_variant_whose_probabilities_moved_too_far_is_refused_though_its_top1_is_good(
    fp32: bytes, held_out: Dataset, interface: Interface
) -> None:
    shaken = spoil.perturbed(fp32, scale=0.1)
    with pytest.raises(AnswersMoved, match=r"a probability moved by 0\.\d+ from FP32's, more than 0.001"):
        check(shaken, fp32, held_out, interface, Limits(max_drop=1, max_probability_difference=0.001))
    check(shaken, fp32, held_out, interface, Limits(max_drop=1, max_probability_difference=1))


def test_the_allowed_drop_is_what_decides(fp32: bytes, held_out: Dataset, interface: Interface) -> None:
    spoilt = spoil.perturbed(fp32)
    loose = Limits(max_drop=1, max_probability_difference=1)
    check(spoilt, fp32, held_out, interface, loose)
    with pytest.raises(AccuracyLost):
        check(spoilt, fp32, held_out, interface, Limits(max_drop=0.01, max_probability_difference=1))


def test_the_allowed_row_difference_is_what_decides(fp32: bytes, held_out: Dataset, interface: Interface) -> None:
    leaking = spoil.with_leaking_batch(fp32)
    loose = Limits(max_drop=1, max_probability_difference=1, max_row_difference=1)
    check(leaking, fp32, held_out, interface, loose)
    with pytest.raises(RowsDiffer):
        check(leaking, fp32, held_out, interface, Limits(max_drop=1, max_probability_difference=1))


def test_a_reference_of_nan_refuses_too(fp32: bytes, held_out: Dataset, interface: Interface) -> None:
    reference = np.full((held_out.num_samples, 10), math.nan, np.float32)
    with pytest.raises(AnswersMoved):
        gates.check_accuracy("x", fp32, reference, held_out, interface, Limits())


@pytest.mark.parametrize("limit", ["max_drop", "max_probability_difference", "max_row_difference"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_limit_outside_0_to_1_is_the_users_to_mend(limit: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{limit} is"):
        Limits(**{limit: value})


# -- speed ------------------------------------------------------------------------------------------------------------


def measured(low: float, ratio: float, high: float, batch_size: int = 1) -> Measurement:
    return Measurement(batch_size, ratio, low, high, 1e-4, ratio * 1e-4)


@pytest.mark.parametrize(
    ("measurements", "keep_slow", "status"),
    [
        pytest.param([measured(1.2, 1.3, 1.4)], False, "passed", id="clear gain"),
        pytest.param([measured(0.9, 1.0, 1.1)], False, "not_useful", id="the interval holds one"),
        pytest.param([measured(1.0, 1.1, 1.2)], False, "not_useful", id="the interval touches one from above"),
        pytest.param([measured(0.8, 0.9, 1.0)], False, "not_useful", id="the interval touches one from below"),
        pytest.param([measured(0.7, 0.8, 0.9), measured(1.2, 1.3, 1.4, 8)], False, "passed", id="a gain at one size"),
        pytest.param(
            [measured(0.7, 0.8, 0.9), measured(0.9, 1.0, 1.1, 8)], False, "not_useful", id="unclear at one size"
        ),
        pytest.param([measured(0.7, 0.8, 0.9)], True, "not_useful", id="slower, but kept"),
        pytest.param([measured(0.7, 0.8, 0.9)], False, None, id="slower"),
        pytest.param([measured(0.7, 0.8, 0.9), measured(0.4, 0.5, 0.6, 8)], False, None, id="slower at every size"),
    ],
)
def test_the_verdict_on_speed(measurements: list[Measurement], keep_slow: bool, status: str | None) -> None:
    if status is None:
        with pytest.raises(Slower, match="--keep-slow"):
            judge_speed("digits-int8", "x86_64-avx2", measurements, keep_slow=keep_slow)
        return
    got, reason = judge_speed("digits-int8", "x86_64-avx2", measurements, keep_slow=keep_slow)
    assert got == status
    assert "x86_64-avx2" in reason
