"""Speeds that a record knows, that the cache knows, or that are measured now: what is asked for, and what is remembered."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.decisions.engines import EnginePython
from serving.export.speed import Results
from serving.local import measure
from serving.local.environments import Environment
from serving.local.measure import Key, MeasurementSite
from serving.repository import Repository, Speed, Variant

COMMITTED = Path(__file__).parents[2] / "model_repo"
PLAIN = EnginePython("cpu", Path(sys.executable), "9.9")
OPENVINO = EnginePython("openvino", Path("/o/bin/python3"), "2.2")
PLACE = MeasurementSite("cpu", "x86_64-made-up", {"cpu": PLAIN, "openvino": OPENVINO}, 2)
ONE_ENGINE = replace(PLACE, engines={"cpu": PLAIN})
Asked = list[list[Key]]


FAR = Speed("pdp11-base", "openvino", "2.2", "cpu", 1, 2, 1.0, 1.0, 1.0, 1e-3, 1e-3, "2026-11-21")


def with_speeds(variant: Variant, *rows: Speed) -> Variant:
    return replace(variant, record=replace(variant.record, speed=rows))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Variant]:
    """FP32 and INT8 of a repository of one's own; their records know both engines, but nothing of this place."""
    found = {}
    for name in ("digits-fp32", "digits-int8"):
        shutil.copytree(COMMITTED / name, tmp_path / "repository" / name)
        variant = Repository(tmp_path / "repository").variant(name)
        found[variant.record.variant] = with_speeds(variant, FAR)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What contests are asked for; each entrant takes as many milliseconds as its name has letters."""
    every: Asked = []

    def contest(model: Any, missing: Any, place: MeasurementSite) -> Results:
        every.append(list(missing))
        keys = [("fp32", place.plain), *missing]
        times = {1: [{key: np.full(10, len("".join(key)) * 1e-3) for key in keys} for _ in range(3)]}
        return Results(times, place.versions, {"cpu": place.processor}, place.num_threads, "2026-11-21")

    monkeypatch.setattr(measure, "_contest", contest)
    return every


def speeds(
    model: dict[str, Variant], said: list[str], place: MeasurementSite = PLACE, *, may_measure: bool = True
) -> dict[Key, tuple[Speed, ...]]:
    return measure.speeds(model, place, may_measure=may_measure, say=said.append)


# -- what is asked for ------------------------------------------------------------------------------------------------


def test_all_that_is_not_known_runs_in_one_contest_and_is_then_remembered(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    first = speeds(model, said)
    assert asked == [[("fp32", "openvino"), ("int8", "cpu"), ("int8", "openvino")]]
    assert set(first) == set(asked[0])
    assert speeds(model, said) == first
    assert len(asked) == 1
    [line] = said
    assert re.findall(r"(\S+) on (\w+)[, ]", line) == [
        ("digits-fp32", "openvino"),
        ("digits-int8", "cpu"),
        ("digits-int8", "openvino"),
        ("digits-fp32", "this"),
    ]
    assert "(x86_64-made-up)" in line


def test_fp32_on_the_plain_engine_alone_is_never_worth_a_contest(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    assert speeds({"fp32": model["fp32"]}, said, ONE_ENGINE) == {}
    assert asked == []


def test_what_a_record_knows_is_not_measured(model: dict[str, Variant], said: list[str], asked: Asked) -> None:
    known = speeds(model, said)
    row = known["int8", "cpu"][0]
    model["int8"] = with_speeds(model["int8"], row, FAR)
    shutil.rmtree(measure.cache_dir())
    assert speeds(model, said)["int8", "cpu"] == (row,)
    assert asked[1] == [("fp32", "openvino"), ("int8", "openvino")]


@pytest.mark.parametrize(
    "change",
    [{"processor": "x86_64-other"}, {"engine_version": "9.8"}, {"engine": "openvino", "engine_version": "2.1"}],
)
def test_what_a_record_knows_of_another_place_is_measured_here(
    model: dict[str, Variant], said: list[str], asked: Asked, change: dict[str, str]
) -> None:
    [row] = speeds(model, said)["int8", "cpu"]
    shutil.rmtree(measure.cache_dir())
    model["int8"] = with_speeds(model["int8"], replace(row, **change))
    speeds(model, said)
    assert ("int8", "cpu") in asked[1]


def test_nothing_is_measured_where_that_is_not_wanted_but_what_is_remembered_counts(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    assert speeds(model, said, may_measure=False) == {}
    known = speeds(model, said)
    assert speeds(model, said, may_measure=False) == known
    assert len(asked) == 1


def test_an_engine_that_is_installed_later_is_measured_alone(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    speeds(model, said, ONE_ENGINE)
    speeds(model, said, PLACE)
    assert asked == [[("int8", "cpu")], [("fp32", "openvino"), ("int8", "openvino")]]


def test_int8_is_tried_only_on_engines_on_which_its_answers_were_proven(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    model = {name: with_speeds(variant) for name, variant in model.items()}
    speeds(model, said)
    assert asked == [[("fp32", "openvino"), ("int8", "cpu")]]


def test_bf16_runs_on_openvino_alone(model: dict[str, Variant], said: list[str], asked: Asked) -> None:
    bf16 = replace(model["fp32"], record=replace(model["fp32"].record, variant="bf16"))
    speeds({"fp32": model["fp32"], "bf16": bf16}, said)
    assert asked == [[("fp32", "openvino"), ("bf16", "openvino")]]


def test_without_an_fp32_there_is_nothing_to_measure_beside(
    model: dict[str, Variant], said: list[str], asked: Asked
) -> None:
    assert speeds({"int8": model["int8"]}, said) == {}
    assert asked == []


# -- what is remembered -----------------------------------------------------------------------------------------------


def test_another_file_variant_engine_processor_version_or_number_of_threads_is_another_memory(
    model: dict[str, Variant],
) -> None:
    fp32, int8 = model["fp32"], model["int8"]
    bf16 = replace(fp32, record=replace(fp32.record, variant="bf16"))
    newer = {"cpu": replace(PLAIN, version="9.10"), "openvino": OPENVINO}
    files = [
        measure.cache_file(int8, "cpu", fp32, PLACE),
        measure.cache_file(int8, "openvino", fp32, PLACE),
        measure.cache_file(int8, "cpu", int8, PLACE),
        measure.cache_file(fp32, "openvino", fp32, PLACE),
        measure.cache_file(bf16, "openvino", fp32, PLACE),
        measure.cache_file(int8, "cpu", fp32, replace(PLACE, processor="x86_64-other")),
        measure.cache_file(int8, "cpu", fp32, replace(PLACE, num_threads=3)),
        measure.cache_file(int8, "openvino", fp32, replace(PLACE, engines=newer)),
    ]
    assert len(set(files)) == len(files)
    assert measure.cache_file(int8, "cpu", fp32, ONE_ENGINE) == files[0]


@pytest.mark.parametrize(
    "content", ["", "{", '{"version": 1, "speeds": []}', '{"version": 2, "speeds": [{"ratio": 1}]}']
)
def test_a_memory_that_cannot_be_read_is_measured_anew(
    model: dict[str, Variant], said: list[str], asked: Asked, content: str
) -> None:
    file = measure.cache_file(model["int8"], "cpu", model["fp32"], ONE_ENGINE)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert ("int8", "cpu") in speeds(model, said, ONE_ENGINE)
    assert json.loads(file.read_text())["version"] == 2


def test_a_cache_that_cannot_be_written_is_told_and_costs_nothing_else(
    model: dict[str, Variant], said: list[str], asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "file"))
    assert ("int8", "cpu") in speeds(model, said, ONE_ENGINE)
    assert str(tmp_path / "file") in said[-1]


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("crashed", "num_contests"), [(False, 1), (True, 2)])
def test_an_engine_that_refuses_is_remembered_and_one_that_crashed_is_tried_again(
    model: dict[str, Variant], said: list[str], monkeypatch: pytest.MonkeyPatch, crashed: bool, num_contests: int
) -> None:
    key, every = ("int8", "cpu"), []

    def contest(*_: Any) -> Results:
        every.append(1)
        out = frozenset({key}) if crashed else frozenset()
        return Results({}, {"cpu": "9.9"}, {"cpu": "k"}, 2, "2026-11-21", left_out={key: "it cannot"}, crashed=out)

    monkeypatch.setattr(measure, "_contest", contest)
    for _ in range(2):
        assert speeds(model, said, ONE_ENGINE) == {}
    assert len(every) == num_contests
    assert any("digits-int8 on cpu" in line and "it cannot" in line for line in said)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\3\4 and no more"])
def test_rows_of_the_gate_that_cannot_be_read_cost_the_knowledge_only(
    model: dict[str, Variant], said: list[str], content: bytes
) -> None:
    (model["fp32"].directory / "gate.npz").write_bytes(content)
    assert speeds(model, said, ONE_ENGINE) == {}
    assert "digits-int8 on cpu" in said[-1]


def test_a_python_that_cannot_be_started_costs_the_knowledge_only(model: dict[str, Variant], said: list[str]) -> None:
    gone = replace(PLACE, engines={"cpu": replace(PLAIN, python=Path("/nowhere/python3"))})
    assert speeds(model, said, gone) == {}
    assert "/nowhere/python3" in said[-1]


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.triton  # needs its environment, though no server
@pytest.mark.parametrize("has_rows", [False, True])
def test_a_real_contest_tells_ratio_and_interval_of_both_engines(
    environment: Environment,
    openvino: Environment,
    model: dict[str, Variant],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    has_rows: bool,
) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.1)
    if has_rows:
        rows = {"image": np.zeros((5, 1, 8, 8), np.float32), "labels": np.zeros(5)}
        np.savez(model["fp32"].directory / "gate.npz", **rows)  # type: ignore[arg-type]
    engines = {
        "cpu": EnginePython("cpu", environment.python, environment.engine_version),
        "openvino": EnginePython("openvino", openvino.python, openvino.engine_version),
    }
    found = speeds(model, said, measure.place_here("cpu", engines, 2))
    assert set(found) == {("fp32", "openvino"), ("int8", "cpu"), ("int8", "openvino")}
    for (_, engine), rows_of_one in found.items():
        plain = [row for row in rows_of_one if row.baseline_engine == "cpu"]
        assert [row.batch_size for row in plain] == [1, 8, 32]
        assert all(row.engine_version == engines[engine].version for row in rows_of_one)
    assert not any("could not" in line for line in said)


@pytest.mark.triton  # needs its environment, though no server
def test_a_profile_tells_in_which_types_a_variant_really_computes_and_is_remembered(
    environment: Environment, model: dict[str, Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EnginePython("cpu", environment.python, environment.engine_version)
    place = measure.place_here("cpu", {"cpu": engine}, 2)

    def told(variant: Variant, *, may_measure: bool = True) -> str:
        return measure.dtype(variant, "cpu", model["fp32"], place, may_measure=may_measure)

    assert told(model["int8"], may_measure=False) == ""
    assert {name: told(variant) for name, variant in model.items()} == {"fp32": "FP32", "int8": "INT8"}
    record = model["int8"].record
    pretended = replace(model["int8"], record=replace(record, files={**record.files, record.model_file: "0" * 64}))
    shutil.copy(model["fp32"].model_path, pretended.model_path)  # another file, by its digest
    assert told(pretended) == "FP32"
    assert told(model["int8"], may_measure=False) == "INT8"
    assert measure.dtype(model["int8"], "openvino", model["fp32"], place, may_measure=True) == ""
