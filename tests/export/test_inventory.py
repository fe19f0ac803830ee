"""`tandem models`: rows that are true, also for what is untrained, ungated or measured elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.export import inventory_tables as tables
from serving.export.inventory import VariantRow, models
from serving.repository import RECORD_FILE

from .conftest import MODEL_FILE

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def row(repository: Path) -> Callable[[Edit], VariantRow]:
    """The row of digits-int8 after its record was edited."""

    def edited(edit: Edit) -> VariantRow:
        file = repository / "digits-int8" / RECORD_FILE
        data = json.loads(file.read_text())
        edit(data)
        file.write_text(json.dumps(data))
        [found] = [row for row in models(repository).variants if row.variant == "int8"]
        return found

    return edited


def test_every_variant_has_a_row_with_gate_size_digest_pools_and_speed(repository: Path) -> None:
    listed = models(repository)
    assert [row.name for row in listed.variants] == ["digits-fp16", "digits-fp32", "digits-int8"]
    for row in listed.variants:
        assert (row.model, row.task, row.model_version, row.max_batch_size) == ("digits", "classification", 1, 32)
        assert row.size_bytes == (repository / row.name / MODEL_FILE).stat().st_size
        assert len(row.digest) == 64
        assert (row.gate.basis, row.gate.num_samples) == ("labels", 450)
        assert row.gate.headline is not None
        assert row.gate.headline.metric == "top1"
        assert row.pools.keys() == {"cpu", "gpu"}
        assert row.pools["gpu"].engine in ("cuda", "tensorrt")
        assert all(speed.processor == listed.processor for speed in row.speed)
        assert not row.is_untrained
        assert not row.is_ungated
    json.dumps(asdict(listed), allow_nan=False)


def test_speed_of_another_processor_is_not_shown_as_ours(row: Callable[[Edit], VariantRow]) -> None:
    def elsewhere(data: dict[str, Any]) -> None:
        for speed in data["speed"]:
            speed["processor"] = "pdp11-base"

    assert row(elsewhere).speed == ()


ON_A_CARD = {
    "processor": "NVIDIA Made Up", "engine": "cuda", "engine_version": "1.31", "baseline_engine": "cuda", "batch_size": 8,
    "num_threads": 1, "ratio": 1.5, "ratio_low": 1.25, "ratio_high": 1.75, "latency_s": 0.001, "fp32_latency_s": 0.0015,
    "measured": "2026-11-21",
}  # fmt: skip


def test_speed_on_a_card_is_shown_wherever_one_looks_and_the_heading_names_the_card(
    row: Callable[[Edit], VariantRow], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    int8 = row(lambda data: data.update(speed=[ON_A_CARD]))
    assert [(speed.processor, speed.engine) for speed in int8.speed] == [("NVIDIA Made Up", "cuda")]
    listed = models(repository)
    assert listed.cards == ("NVIDIA Made Up",)
    tables.show_one(listed, as_json=False)
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(f" {listed.processor} and NVIDIA Made Up")
    assert re.search(r"batch 8 on cuda: 1\.50 \(1\.25 \S+ 1\.75\)", shown)


def test_of_several_cards_each_line_says_which(
    row: Callable[[Edit], VariantRow], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**ON_A_CARD, "processor": "NVIDIA Other", "baseline_engine": "tensorrt", "engine": "tensorrt"}
    row(lambda data: data.update(speed=[ON_A_CARD, other]))
    listed = models(repository)
    tables.show_one(listed, as_json=False)
    shown = capsys.readouterr().out
    assert re.findall(r"NVIDIA (\w+)", shown.splitlines()[0]) == ["Made", "Other"]
    assert re.search(r"batch 8 on cuda .*NVIDIA Made Up: 1\.50", shown)
    assert re.search(r"batch 8 on tensorrt .*NVIDIA Other .*tensorrt: 1\.50", shown)


@pytest.mark.parametrize(
    ("speed", "says"),
    [
        ({}, "batch 8: 1.50 (1.25 to 1.75)"),
        ({"engine": "openvino"}, "batch 8 on openvino: 1.50 (1.25 to 1.75)"),
        ({"baseline_engine": "openvino"}, "batch 8 beside openvino: 1.50 (1.25 to 1.75)"),
    ],
)
def test_speed_on_a_processor_names_the_engines_that_are_not_the_plain_one(
    speed: dict[str, str],
    says: str,
    row: Callable[[Edit], VariantRow],
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    processor = models(repository).processor
    here = {**ON_A_CARD, "processor": processor, "engine": "cpu", "baseline_engine": "cpu", **speed}
    row(lambda data: data.update(speed=[here]))
    tables.show_one(models(repository), as_json=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("digits-int8 ")]
    assert f"  {says}  " in line


def test_random_weights_and_accepted_models_are_marked(row: Callable[[Edit], VariantRow]) -> None:
    untrained = row(lambda data: data["gate"].update(basis="untrained: speed only"))
    assert (untrained.is_untrained, untrained.is_ungated) == (True, False)
    accepted = row(lambda data: data["gate"].update(basis="nothing", checks=[]))
    assert (accepted.is_untrained, accepted.is_ungated, accepted.gate.headline) == (False, True, None)


def test_a_variant_that_was_not_made_is_told_with_its_reason_unless_it_is_here_now(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repository / "digits-fp32" / RECORD_FILE
    data = json.loads(file.read_text())
    data["not_made"] = {"bf16": "this processor has no BF16", "int8": "refused once"}
    file.write_text(json.dumps(data))
    listed = models(repository)
    [fp32] = [row for row in listed.variants if row.variant == "fp32"]
    [(variant, why)] = fp32.not_made.items()
    assert (variant, "BF16" in why) == ("bf16", True)
    tables.show_one(listed, as_json=False)
    assert re.search(f"^digits-bf16: .*{why}$", capsys.readouterr().out, re.MULTILINE)


def test_data_kept_beside_fp32_counts_for_every_variant(row: Callable[[Edit], VariantRow], repository: Path) -> None:
    file = repository / "digits-fp32" / RECORD_FILE
    data = json.loads(file.read_text())
    data["files"].pop("gate.npz", None)
    file.write_text(json.dumps(data))
    assert not row(lambda data: None).is_data_kept
    data["files"]["gate.npz"] = "0" * 64
    file.write_text(json.dumps(data))
    assert row(lambda data: None).is_data_kept


def test_a_directory_without_a_record_is_listed_apart(repository: Path) -> None:
    (repository / "digits-int8" / RECORD_FILE).unlink()
    assert models(repository).ungated == ("digits-int8",)
    assert [row.name for row in models(repository).variants] == ["digits-fp16", "digits-fp32"]


def test_an_empty_repository_has_no_rows_and_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert models(tmp_path).variants == ()
    with pytest.raises(UserError, match=r"model.*repository"):
        models(tmp_path / "nowhere")
