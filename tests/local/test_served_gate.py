"""Variants answer the rows of their gates where they are served, and what is off gets no traffic."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import EnvironmentFault
from serving.local import served_gate
from serving.local.environments import Environment
from serving.local.served_gate import MAX_ROWS, Judged, ServedGate, some_rows
from serving.repository import GATE_DATA_FILE, Repository, Tensor
from tests.gateway.conftest import triton_of_its_own
from tests.local.harness import ROOT
from tests.local.repository import BROKEN, digits_of_other_labels, publish_digits

REPOSITORY = Repository(ROOT / "model_repo")
DATA = REPOSITORY.variant("digits-fp32").directory / GATE_DATA_FILE
NAMES = ("digits-fp32", "digits-int8")
CONFIGS = {name: json.dumps({"max_batch_size": 32}) for name in NAMES}


def judged(wrong: Mapping[str, float]) -> dict[str, Judged]:
    """Where each model answers this share of rows with another class than the label, spread evenly."""
    with np.load(DATA) as kept:
        right = {row.tobytes(): int(label) for row, label in zip(kept["image"], kept["labels"], strict=True)}
    num_asked = dict.fromkeys(NAMES, 0)

    async def infer(
        model: str, _: Sequence[Tensor], rows: Mapping[str, NDArray[Any]], __: Sequence[Tensor]
    ) -> list[NDArray[Any]]:
        scores = np.zeros((len(rows["image"]), 10), np.float32)
        for at, row in enumerate(rows["image"]):
            num_asked[model] += 1
            every = int(1 / wrong[model]) if wrong[model] else 0
            is_wrong = every > 0 and num_asked[model] % every == 0
            scores[at, (right[row.tobytes()] + is_wrong) % 10] = 1
        return [scores]

    variants = {name: REPOSITORY.variant(name) for name in NAMES}
    return {it.name: it for it in asyncio.run(ServedGate(infer).judge(variants, CONFIGS))}


@pytest.mark.parametrize(
    ("fp32", "int8", "refused"),
    [
        (0.0, 0.0, set()),
        (0.02, 0.0, set()),
        (0.1, 0.0, {"digits-fp32"}),  # then nothing says what INT8 is to be like
        (0.0, 0.01, set()),
        (0.0, 0.1, {"digits-int8"}),
        (0.0, 1.0, {"digits-int8"}),
    ],
)
def test_what_is_off_beyond_its_gate_is_refused(fp32: float, int8: float, refused: set[str]) -> None:
    found = judged({"digits-fp32": fp32, "digits-int8": int8})
    assert {name for name, it in found.items() if it.problem} == refused
    assert found["digits-fp32"].num_rows == MAX_ROWS
    assert found["digits-int8"].num_rows == (0 if "digits-fp32" in refused else MAX_ROWS)


def test_rows_that_a_model_does_not_take_judge_nothing() -> None:
    async def infer(*_: object) -> list[NDArray[Any]]:
        raise EnvironmentFault("it takes others")

    variants = {name: REPOSITORY.variant(name) for name in NAMES}
    found = asyncio.run(ServedGate(infer).judge(variants, CONFIGS))
    assert [(it.num_rows, it.problem) for it in found] == [(0, None), (0, None)]


def test_a_model_that_never_answers_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def infer(*_: object) -> list[NDArray[Any]]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(served_gate, "ANSWER_S", 0.01)
    variants = {name: REPOSITORY.variant(name) for name in NAMES}
    found = asyncio.run(asyncio.wait_for(ServedGate(infer).judge(variants, CONFIGS), 30))
    assert [(it.num_rows, it.problem) for it in found] == [(0, None), (0, None)]


def test_fp32_of_another_version_is_no_reference() -> None:
    async def infer(
        model: str, _: Sequence[Tensor], rows: Mapping[str, NDArray[Any]], __: Sequence[Tensor]
    ) -> list[NDArray[Any]]:
        return [np.eye(10, dtype=np.float32)[np.zeros(len(rows["image"]), int)]]

    int8 = REPOSITORY.variant("digits-int8")
    variants = {"digits-int8": replace(int8, record=replace(int8.record, model_version=2))}
    [found] = asyncio.run(ServedGate(infer).judge(variants, CONFIGS))
    assert (found.num_rows, found.problem) == (0, None)


@pytest.mark.parametrize("num_rows", [1, 5, 449, 450, 1_000])
def test_of_kept_rows_as_many_as_are_asked_for_are_spread_over_all(num_rows: int) -> None:
    rows = some_rows(DATA, num_rows)
    with np.load(DATA) as kept:
        assert set(rows) == set(kept)
        chosen = np.linspace(0, 449, min(num_rows, 450)).astype(int)
        for name, values in rows.items():
            assert np.array_equal(values, kept[name][chosen])
            assert values.dtype == kept[name].dtype


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "served"),
    [("int8", {"digits-fp32"}), pytest.param("fp32", {"digits-int8"}, marks=pytest.mark.thorough)],
)
def test_a_real_server_keeps_a_wrong_file_from_traffic_and_says_why(
    environment: Environment, tmp_path: Path, wrong: str, served: set[str]
) -> None:
    repository = tmp_path / "repository"
    for precision in ("fp32", "int8"):
        file = digits_of_other_labels() if precision == wrong else None
        publish_digits(repository, precisions=[precision], model_file=file)
    with triton_of_its_own(tmp_path, "--no-measure", "--model-repository", str(repository)) as (program, url):
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/repository/index", b"")) as answer:
            index = {row["name"]: row for row in json.load(answer)}
        assert {name for name, row in index.items() if row["state"] == "READY"} == served
        assert "rows that its gate kept are off" in index[f"digits-{wrong}"]["reason"]
        assert program.says(f"not served: digits-{wrong}")
        ready = next(line for line in program.lines() if "ready:" in line)
        assert f"digits-{wrong}" not in ready


@pytest.mark.triton
@pytest.mark.slow
def test_a_start_serves_the_version_before_one_that_is_off_here(environment: Environment, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_digits(repository)
    publish_digits(repository, precisions=["fp32"], version=2, model_file=BROKEN, num_kept=3)
    publish_digits(repository, precisions=["int8"], version=2, num_kept=3)
    publish_digits(repository, precisions=["fp32"], version=3, model_file=digits_of_other_labels(), num_kept=3)
    publish_digits(repository, precisions=["int8"], version=3, num_kept=3)
    publish_digits(repository, "other", precisions=["fp32"])
    with triton_of_its_own(tmp_path, "--no-measure", "--model-repository", str(repository)) as (program, url):
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/repository/index", b"")) as answer:
            rows = [(row["name"], row["version"], row["state"]) for row in json.load(answer)]
        assert {it[:2] for it in rows if it[2] == "READY"} == {
            ("digits-fp32", "1"),
            ("digits-int8", "1"),
            ("other-fp32", "1"),
        }
        assert ("digits-fp32", "3", "UNAVAILABLE") in rows
        assert program.says("digits-fp32: version 1 is served in its place")
