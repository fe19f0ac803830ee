"""What `tandem models` and `tandem verify` print: every cell, and the words for what is untrained, ungated, lost or not made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from serving.export import inventory_tables as tables
from serving.export import verify
from serving.export.inventory import Models, VariantRow
from serving.export.verify import VariantVerdict, Verification
from serving.repository import STAND_IN, UNTRAINED, Check, Gate, PoolGate, Speed

GATE = Gate(
    basis="labels",
    reference="fp32",
    checks=(
        Check("top1", 0.98, 0.97, True, 0.9812, True),
        Check("agreement", 0.9951, None, True, None, True),
        Check("probability_difference", 0.25, 0.5, False, None, True),
        Check("row_difference", 0.125, 0.5, False, None, True),
    ),
    num_samples=450,
    dataset="digits",
    dataset_digest="0" * 64,
    batch_sizes=(1, 8),
)
PASSED, BASE = PoolGate("passed", "cpu", ""), PoolGate("not_allowed", "tensorrt", "no kernels")
SPEED = Speed("xeon", "cpu", "1.31.1", "cpu", 1, 1, 1.234, 1.1, 1.3449, 0.001, 0.001234, "2026-11-21")
ROW = VariantRow(
    name="net-int8",
    model="net",
    variant="int8",
    task="classification",
    model_version=1,
    size_bytes=2048,
    digest="abcdef0123456789",
    gate=GATE,
    is_untrained=False,
    is_ungated=False,
    not_made={},
    is_data_kept=True,
    pools={"cpu": PASSED, "gpu": BASE},
    speed=(SPEED,),
    max_batch_size=8,
    source="onnx: net.onnx",
    created="2026-11-21",
)
AS_FP32 = replace(SPEED, ratio=1.0, ratio_low=1.0, ratio_high=1.0, latency_s=SPEED.fp32_latency_s)
FP32 = replace(ROW, name="net-fp32", variant="fp32", speed=(AS_FP32,))


def shown(
    capsys: pytest.CaptureFixture[str],
    *rows: VariantRow,
    cards: tuple[str, ...] = (),
    draw: Callable[..., None] = tables.show_one,
    **changes: object,
) -> str:
    found = Models(1, "somewhere", "xeon", cards, rows, ())
    draw(replace(found, **changes), as_json=False)  # type: ignore[arg-type]
    return capsys.readouterr().out


def cells(capsys: pytest.CaptureFixture[str], row: VariantRow, **changes: object) -> list[list[str]]:
    """Of each column its lines, top down, without empty ones."""
    _, heading, *lines = shown(capsys, row, **changes).splitlines()  # type: ignore[arg-type]
    starts = [heading.index(column) for column in tables.VARIANT_COLUMNS]
    ends = [*starts[1:], None]
    return [
        [text for line in lines if not line.startswith(f"{row.name}:") and (text := line[start:end].strip())]
        for start, end in zip(starts, ends, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "column", "says"),
    [
        (ROW, "variant", ["net-int8"]),
        (ROW, "proof (FP32)", ["top1 0.98 (0.9812)", "agreement 0.9951", "probability_difference 0.25"]),
        (replace(ROW, is_untrained=True), "proof (FP32)", [UNTRAINED]),
        (replace(ROW, is_ungated=True), "proof (FP32)", ["ungated: no proof"]),
        (ROW, "size", ["2 KiB"]),
        (replace(ROW, size_bytes=2**20 - 1), "size", ["1024 KiB"]),
        (replace(ROW, size_bytes=90 * 2**20), "size", ["90 MiB"]),
        (ROW, "pools", ["cpu passed (cpu)", "gpu not_allowed"]),
        (ROW, "digest", ["abcdef012345"]),
        (ROW, "speed against FP32", ["batch 1: 1.23 (1.10 to 1.34)"]),
        (replace(ROW, speed=()), "speed against FP32", ["unmeasured here"]),
        (FP32, "speed against FP32", ["the baseline"]),
        (replace(FP32, speed=()), "speed against FP32", ["the baseline"]),
        (
            replace(ROW, speed=(SPEED, replace(SPEED, engine="openvino"))),
            "speed against FP32",
            ["batch 1 on cpu: 1.23 (1.10 to 1.34)", "batch 1 on openvino: 1.23 (1.10 to 1.34)"],
        ),
        (
            replace(ROW, speed=(replace(SPEED, engine="openvino", baseline_engine="openvino", batch_size=8),)),
            "speed against FP32",
            ["batch 8 on openvino beside openvino: 1.23 (1.10 to 1.34)"],
        ),
        (
            replace(FP32, speed=(*FP32.speed, replace(SPEED, engine="openvino"))),
            "speed against FP32",
            ["batch 1 on openvino: 1.23 (1.10 to 1.34)"],
        ),
    ],
)
def test_a_cell_says_what_the_row_holds(
    capsys: pytest.CaptureFixture[str], row: VariantRow, column: str, says: list[str]
) -> None:
    assert cells(capsys, row)[tables.VARIANT_COLUMNS.index(column)] == says


def test_the_heading_says_whose_repository_it_is_and_where_speed_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert re.match("somewhere, .* xeon$", shown(capsys, ROW).splitlines()[0])
    assert re.match("somewhere, .* xeon and H200$", shown(capsys, ROW, cards=("H200",)).splitlines()[0])


def test_what_was_not_made_and_what_has_no_record_is_told_below(capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"ungated": ("stray",), "left_out": {"net-fp32": "it needs [more]"}}
    said = shown(capsys, replace(FP32, not_made={"bf16": "no [AMX] here"}), **changes).splitlines()  # type: ignore[arg-type]
    assert re.match(r"net-bf16: .*: no \[AMX\] here$", said[-3])
    assert re.match(r"net-fp32: .*: it needs \[more\]$", said[-2])
    assert re.match(r"stray: .*tandem\.json", said[-1])


def test_a_pool_of_cards_that_nobody_asked_says_so_and_no_other_pool_does(capsys: pytest.CaptureFixture[str]) -> None:
    unseen = replace(ROW, pools={"cpu": PASSED, "gpu": PoolGate("passed", "cuda", f"{STAND_IN}: FP32 goes first")})
    words = "for pool gpu answers judged on a CPU stand-in, not timed"
    assert words in shown(capsys, unseen)
    assert "stand-in" not in shown(capsys, ROW)


SERVED = {
    "name": "net-fp32",
    "model": "net",
    "variant": "fp32",
    "version": "1",
    "pool": "cpu",
    "state": "served",
    "reason": "",
}
BROKEN = {**SERVED, "name": "net-int8", "variant": "int8", "state": "not_loaded", "reason": "no [room]"}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "proven"),
        ({"gateways": ("http://h",)}, "not served"),
        ({"gateways": ("http://h",), "account": (SERVED,)}, "served"),
        ({"gateways": ("http://h",), "account": (SERVED, BROKEN)}, "served, int8 not loaded"),
        ({"gateways": ("http://h",), "account": (BROKEN,)}, "not served, int8 not loaded"),
        (  # told once
            {"gateways": ("http://h",), "account": (SERVED, BROKEN), "left_out": {"net-int8": BROKEN["reason"]}},
            "served, int8 not loaded",
        ),
        (
            {"gateways": ("http://h",), "account": (SERVED, {**SERVED, "state": "not_loaded", "version": "2"})},
            "served, fp32 version 2 not loaded",
        ),
    ],
)
def test_a_model_is_one_line_with_its_state_as_the_gateways_say(
    capsys: pytest.CaptureFixture[str], changes: dict[str, object], state: str
) -> None:
    _, heading, line, *below = shown(capsys, FP32, ROW, draw=tables.show, **changes).splitlines()  # type: ignore[arg-type]
    starts = [heading.index(column) for column in tables.COLUMNS]
    cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    cells[7] = ""  # its age
    speed = "int8 1 ms, 1.2× fp32"
    assert cells == ["net", "1", "classification", "fp32 int8", "top1 0.98 (0.9812)", speed, "4 KiB", "", state]
    assert [re.split(": ", line)[::2] for line in below] == ([["net-int8", "no [room]"]] if "int8" in state else [])


@pytest.mark.parametrize(
    ("created", "says"), [("2026-11-23", "today"), ("2026-11-20", "3 d"), ("2026-01-23", "10 months")]
)
def test_an_age_is_read_at_a_glance(created: str, says: str) -> None:
    assert tables.age(created, date(2026, 11, 23)) == says


def test_json_holds_every_field_of_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(Models(1, "somewhere", "xeon", (), (ROW,), ("stray",)), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {*told["variants"][0]} == {*VariantRow.__dataclass_fields__}
    assert (told["version"], told["ungated"], told["variants"][0]["speed"][0]["ratio"]) == (1, ["stray"], 1.234)


GOOD = VariantVerdict("net-int8", True, "passed", (), (), ())


@pytest.mark.parametrize(
    ("variant", "says", "has_passed"),
    [
        (GOOD, "net-int8: whole, gate passed again", True),
        (replace(GOOD, gate="not_run"), "net-int8: whole", True),
        (replace(GOOD, notes=("on kept data",)), "net-int8: whole, gate passed again; on kept data", True),
        (replace(GOOD, is_whole=False, problems=("1/model.onnx changed",)), "net-int8: 1/model.onnx changed", False),
        (replace(GOOD, problems=("a", "b"), notes=("c",)), "net-int8: a; b; c", False),
    ],
)
def test_a_verified_variant_is_a_line_with_its_problems_first(
    capsys: pytest.CaptureFixture[str], variant: VariantVerdict, says: str, has_passed: bool
) -> None:
    verification = Verification(1, "somewhere", "tandem", (variant,))
    verify.show(verification, as_json=False)
    assert capsys.readouterr().out == f"{says}\n"
    verify.show(verification, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["has_passed"], told["is_whole"]) == (has_passed, variant.is_whole)
