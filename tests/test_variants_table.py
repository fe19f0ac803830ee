"""The table of the measurements page: what each engine is to each pool, in the words that the intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import variants_table
from serving.export.inventory import Models, VariantRow
from serving.repository import Check, Gate, PoolGate, Speed

HERE, CARD = "x86_64-avx2", "NVIDIA Made Up"
CHECKS = (Check("top1", 0.9822, 0.97, True, 0.9844, True), Check("agreement", 1.0, 0.99, True, None, True))
GATE = Gate("labels", "fp32", CHECKS, 450, "digits", "0" * 64, (1, 3, 32))


def speeds(engine: str, *ratios: tuple[float, float, float], baseline: str | None = None) -> tuple[Speed, ...]:
    """At batch 1, 8, …: (low, ratio, high)."""
    is_on_card = engine in ("cuda", "tensorrt")
    plain = baseline or ("cuda" if is_on_card else "cpu")
    where = CARD if is_on_card else HERE
    return tuple(
        Speed(where, engine, "1.31", plain, 8**place, 1, ratio, low, high, 1e-3, 1e-3, "2026-11-21")
        for place, (low, ratio, high) in enumerate(ratios)
    )


def row(variant: str, cpu: PoolGate, gpu: PoolGate, speed: Sequence[Speed] = (), **more: object) -> VariantRow:
    made = VariantRow(
        name=f"m-{variant}", model="m", variant=variant, task="classification", model_version=1, size_bytes=3 * 2**20,
        digest="0" * 64, gate=GATE, is_untrained=False, is_ungated=False, not_made={}, is_data_kept=True,
        pools={"cpu": cpu, "gpu": gpu}, speed=tuple(speed), max_batch_size=32, source="a test", created="2026-11-21",
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


CPU, OPENVINO = PoolGate("passed", "cpu", ""), PoolGate("passed", "openvino", "")
CUDA, TENSORRT = PoolGate("passed", "cuda", ""), PoolGate("passed", "tensorrt", "")
NO_CPU, NO_GPU = PoolGate("not_allowed", "cuda", ""), PoolGate("not_allowed", "tensorrt", "")
USELESS = PoolGate("not_useful", "cpu", "")
FAST, FASTER, TIE = (1.9, 2.0, 2.1), (2.9, 3.0, 3.1), (0.95, 1.04, 1.2)
ONE = speeds("cpu", (1, 1, 1))


def told(*rows: VariantRow, cards: tuple[str, ...] = ()) -> list[list[str]]:
    """The cells of each line below the heading."""
    found = Models(1, "model_repo", HERE, cards, rows, ())
    text = list(variants_table.lines(found))
    assert text[1] == ""
    width = text[2].count("|")
    assert all(line.count("|") == width for line in text[2:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text[4:]]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [  # engine, speed, on the CPU pool, on the GPU pool
        (row("fp32", CPU, CUDA, ONE), [("cpu", "1", "**the baseline**", "passed, not timed")]),
        (row("fp32", CPU, CUDA), [("cpu", "1", "the baseline, not timed", "passed, not timed")]),
        (
            row("fp32", CPU, CUDA, (*ONE, *speeds("openvino", TIE))),
            [
                ("cpu", "1", "**the baseline**", "passed, not timed"),
                ("openvino", "1: 1.04 (0.95..1.20)", "not clearly faster", "passed, not timed"),
            ],
        ),
        (
            row("fp32", CPU, CUDA, (*ONE, *speeds("openvino", (0.8, 0.9, 0.99)))),
            [
                ("cpu", "1", "**the baseline**", "passed, not timed"),
                ("openvino", "1: 0.90 (0.80..0.99)", "another engine is faster", "passed, not timed"),
            ],
        ),
        (
            row("fp32", OPENVINO, CUDA, (*ONE, *speeds("openvino", FAST))),
            [
                ("cpu", "1", "another engine is faster", "passed, not timed"),
                ("openvino", "1: 2.00 (1.90..2.10)", "**the baseline**", "passed, not timed"),
            ],
        ),
        (
            row("int8", CPU, NO_GPU, (*speeds("cpu", FAST, FASTER), *speeds("openvino", TIE, FASTER))),
            [
                ("cpu", "1: 2.00 (1.90..2.10); 8: 3.00 (2.90..3.10)", "**passed**", "not_allowed"),
                ("openvino", "1: 1.04 (0.95..1.20); 8: 3.00 (2.90..3.10)", "another engine is faster", "not_allowed"),
            ],
        ),
        (
            row("int8", CPU, NO_GPU, (*speeds("cpu", FAST), *speeds("openvino", (1.8, 1.9, 2.0)))),
            [
                ("cpu", "1: 2.00 (1.90..2.10)", "**passed**", "not_allowed"),
                ("openvino", "1: 1.90 (1.80..2.00)", "not clearly faster", "not_allowed"),
            ],
        ),
        (row("int8", USELESS, NO_GPU, speeds("cpu", TIE)), [("cpu", "1: 1.04 (0.95..1.20)", "**not_useful**", "not_allowed")]),
        (row("fp16", NO_CPU, CUDA), [("cuda", "not measured", "not_allowed", "passed, not timed")]),
        (row("int8", PoolGate("refused", "cpu", ""), NO_GPU), [("cpu", "not measured", "refused", "not_allowed")]),
        (
            row("fp16", NO_CPU, TENSORRT, (*speeds("cuda", FAST), *speeds("tensorrt", FASTER))),
            [
                ("cuda", "1: 2.00 (1.90..2.10)", "not_allowed", "another engine is faster"),
                ("tensorrt", "1: 3.00 (2.90..3.10)", "not_allowed", "**passed**"),
            ],
        ),
        (
            row("fp32", CPU, CUDA, (*ONE, *speeds("cuda", (1, 1, 1)))),
            [("cpu", "1", "**the baseline**", ""), ("cuda", "1", "", "**the baseline**")],
        ),
        (
            row("bf16", OPENVINO, NO_GPU, (*speeds("openvino", FAST, baseline="openvino"), *speeds("openvino", FASTER))),
            [("openvino", "1: 3.00 (2.90..3.10)", "**passed**", "not_allowed")],
        ),
        (row("int8", OPENVINO, NO_GPU, speeds("cpu", FAST)), [("cpu", "1: 2.00 (1.90..2.10)", "another engine serves it", "not_allowed")]),
    ],
)  # fmt: skip
def test_each_engine_has_a_line_that_says_what_it_is_to_each_pool(
    row: VariantRow, wanted: list[tuple[str, ...]]
) -> None:
    assert [tuple(cells[4:]) for cells in told(row)] == wanted


def test_a_line_names_model_variant_size_and_proof() -> None:
    [cells] = told(row("fp16", NO_CPU, CUDA))
    assert cells[:4] == ["m", "fp16", "3 MiB", "top1 0.9822 (0.9844), agreement 1"]
    [cells] = told(row("fp16", NO_CPU, CUDA, is_untrained=True))
    assert cells[3] == "untrained: speed only"


def test_what_was_not_made_comes_last_with_its_reason() -> None:
    lines = told(row("fp32", CPU, CUDA, ONE, not_made={"int8": "it lost"}), row("fp16", NO_CPU, CUDA))
    assert lines[-1] == ["m", "int8", "", "", "", "not made: it lost", "", ""]


def test_the_heading_says_on_what_processor_and_card_and_a_line_on_which_card_if_there_are_several() -> None:
    measured = speeds("cuda", FAST)
    fp16 = row("fp16", NO_CPU, CUDA, (*measured, *(replace(one, processor="NVIDIA Other") for one in measured)))
    found = Models(1, "model_repo", HERE, (CARD, "NVIDIA Other"), (fp16,), ())
    assert next(variants_table.lines(found)).endswith(f" {HERE} and {CARD} and NVIDIA Other.")
    [cells] = told(fp16)
    assert cells[5] == f"{CARD}, 1: 2.00 (1.90..2.10); NVIDIA Other, 1: 2.00 (1.90..2.10)"


def test_it_prints_the_repository_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    committed = Path(__file__).parents[1] / "model_repo"
    assert variants_table.main(["--model-repository", str(committed)]) == 0
    assert capsys.readouterr().out.count("| digits | ") >= 3
