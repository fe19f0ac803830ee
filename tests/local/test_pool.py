"""What a pool loads from a repository, and what it never loads; speeds that are known, cached or measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.local import measure
from serving.local.environments import Environment
from serving.local.measure import Place
from serving.local.pool import loadable, plan_pool
from serving.repository import Repository, Speed

COMMITTED = Path(__file__).parents[2] / "model_repo"
ENVIRONMENT = Environment(Path("/e"), Path("/e/bin/python3"), Path("/e/t"), Path("/e/l"), engine_version="9.9")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for variant in Repository(COMMITTED).variants():
        shutil.copytree(variant.directory, tmp_path / "repository" / variant.name)
    return Repository(tmp_path / "repository")


@pytest.fixture
def said() -> list[str]:
    return []


def names(repository: Repository, pool: str, said: list[str]) -> list[str]:
    return [variant.name for variant in loadable(repository, pool, said.append)]


def change_record(repository: Repository, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    file = repository.path / name / "tandem.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_pool_gets_what_may_run_on_it(repository: Repository, said: list[str]) -> None:
    assert "digits-fp16" not in names(repository, "cpu", said)
    assert "digits-int8" not in names(repository, "gpu", said)
    assert "digits-fp32" in names(repository, "cpu", said)
    assert said == []


@pytest.mark.parametrize("file", ["1/model.onnx", "configs/cpu.pbtxt", "labels.txt"])
def test_a_variant_with_one_flipped_byte_is_not_loaded_and_the_file_is_named(
    repository: Repository, said: list[str], file: str
) -> None:
    flip_a_byte(repository.path / "digits-int8" / file)
    assert "digits-int8" not in names(repository, "cpu", said)
    assert said == [
        f"not loaded: digits-int8: {file} changed after its gate; it is not served until it is exported again or restored"
    ]


def test_a_directory_without_a_gate_record_is_not_loaded(repository: Repository, said: list[str]) -> None:
    shutil.copytree(repository.path / "digits-fp32", repository.path / "other-fp32")
    (repository.path / "other-fp32" / "tandem.json").unlink()
    assert "other-fp32" not in names(repository, "cpu", said)
    assert said == ["not loaded: other-fp32 has no gate record (tandem.json)"]


@pytest.mark.parametrize(("status", "is_loaded"), [("refused", False), ("not_allowed", False), ("not_useful", True)])
def test_the_gate_of_this_pool_decides(repository: Repository, said: list[str], status: str, is_loaded: bool) -> None:
    change_record(repository, "digits-int8", lambda record: record["pools"]["cpu"].update(status=status))
    assert ("digits-int8" in names(repository, "cpu", said)) == is_loaded


def test_a_repository_with_nothing_left_to_serve_is_the_users_to_mend(repository: Repository, said: list[str]) -> None:
    for name in ("digits-fp32", "digits-int8"):
        flip_a_byte(repository.path / name / "1" / "model.onnx")
    with pytest.raises(UserError, match=r"no variant in .* may be served on the cpu pool"):
        names(repository, "cpu", said)


def test_a_broken_record_is_an_error_and_not_an_absence(repository: Repository, said: list[str]) -> None:
    (repository.path / "digits-int8" / "tandem.json").write_text("{")
    with pytest.raises(UserError, match=r"tandem\.json"):
        names(repository, "cpu", said)


# -- the configuration that is loaded ---------------------------------------------------------------------------------


def parameters(repository: Repository, name: str, pool: str = "cpu", num_cores: int = 6) -> dict[str, str]:
    plan = plan_pool(repository, pool, ENVIRONMENT, num_cores, may_measure=False, say=lambda _: None)
    return {key: value["string_value"] for key, value in json.loads(plan.configs[name])["parameters"].items()}


def test_the_cores_of_this_machine_decide_the_threads(repository: Repository) -> None:
    assert parameters(repository, "digits-fp32")["intra_op_thread_count"] == "6"
    assert parameters(repository, "digits-fp32", pool="gpu")["intra_op_thread_count"] == "1"


def test_a_configuration_says_what_the_gateway_wants_to_know(repository: Repository) -> None:
    told = parameters(repository, "digits-fp32")
    assert told["tandem_speed_ratio"] == "1.00"
    assert told["tandem_processor"] == measure.place_here("cpu", "9.9", 6).processor
    assert told["tandem_device_name"]
    assert told["tandem_gate"] == "passed"


def test_a_variant_without_a_speed_here_is_unmeasured(repository: Repository) -> None:
    assert parameters(repository, "digits-int8")["tandem_speed_ratio"] == "unmeasured"


@pytest.mark.parametrize(
    ("low", "ratio", "high", "told"),
    [(1.2, 1.43, 1.6, "1.43"), (0.9, 1.2, 1.5, "unmeasured"), (0.5, 0.6, 0.7, "unmeasured")],
    ids=["clearly faster", "unclear", "slower"],
)
def test_only_a_clear_gain_on_this_processor_is_told(
    repository: Repository, low: float, ratio: float, high: float, told: str
) -> None:
    place = measure.place_here("cpu", "9.9", 6)
    here = {"processor": place.processor, "engine": "cpu", "engine_version": "9.9", "batch_size": 1, "num_threads": 1}
    times = {"latency_s": 1e-4, "fp32_latency_s": 1e-4, "measured": "2026-11-21"}
    row = {**here, "ratio": ratio, "ratio_low": low, "ratio_high": high, **times}
    change_record(repository, "digits-int8", lambda record: record.update(speed=[row]))
    assert parameters(repository, "digits-int8")["tandem_speed_ratio"] == told


# -- measuring --------------------------------------------------------------------------------------------------------

PLACE = Place("x86_64-made-up", "cpu", "9.9", 2)
ROW = {"batch_size": 1, "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1, "latency_s": 1e-4, "fp32_latency_s": 2e-4}


def speeds(repository: Repository, said: list[str]) -> tuple[Speed, ...]:
    candidate, baseline = repository.variant("digits-int8"), repository.variant("digits-fp32")
    return measure.speeds(ENVIRONMENT, candidate, baseline, PLACE, said.append)


def test_a_measurement_is_made_once_and_then_remembered(
    repository: Repository, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_measure", lambda *_: [ROW])
    first = speeds(repository, said)
    assert [speed.ratio for speed in first] == [2.0]
    monkeypatch.setattr(measure, "_measure", lambda *_: pytest.fail("measured again"))
    assert speeds(repository, said) == first
    assert said == ["measuring digits-int8 beside digits-fp32 on this processor (x86_64-made-up), once"]


def test_another_file_processor_engine_version_or_number_of_threads_is_measured_anew() -> None:
    others = [
        Place("x", "cpu", "9.9", 2),
        Place(PLACE.processor, "cpu", "9.8", 2),
        Place(PLACE.processor, "cpu", "9.9", 3),
    ]
    keys = {
        measure.cache_file(a, b, place)
        for a, b, place in [("1", "2", PLACE), ("3", "2", PLACE), *(("1", "2", p) for p in others)]
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    "content", ["", "{", '{"version": 2, "speeds": []}', '{"version": 1, "speeds": [{"ratio": 1}]}']
)
def test_a_cache_that_cannot_be_read_is_measured_anew(
    repository: Repository, said: list[str], monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    variant, baseline = repository.variant("digits-int8"), repository.variant("digits-fp32")
    file = measure.cache_file(variant.digest, baseline.digest, PLACE)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    monkeypatch.setattr(measure, "_measure", lambda *_: [ROW])
    assert [speed.ratio for speed in speeds(repository, said)] == [2.0]


@pytest.mark.parametrize("rows", [[{}], [{**ROW, "ratio": -1}], "no list"])
def test_a_measurement_that_fails_costs_the_knowledge_only(
    repository: Repository, said: list[str], monkeypatch: pytest.MonkeyPatch, rows: Any
) -> None:
    monkeypatch.setattr(measure, "_measure", lambda *_: rows)
    assert speeds(repository, said) == ()
    assert said[-1].startswith("could not measure digits-int8, so it counts as unmeasured: ")


def test_without_an_environment_to_measure_in_it_counts_as_unmeasured(repository: Repository, said: list[str]) -> None:
    assert speeds(repository, said) == ()
    assert "counts as unmeasured" in said[-1]


@pytest.mark.triton
def test_a_real_measurement_tells_ratio_and_interval(
    environment: Environment, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.1)
    candidate, baseline = repository.variant("digits-int8"), repository.variant("digits-fp32")
    measured = measure.speeds(environment, candidate, baseline, PLACE, lambda _: None)
    assert [speed.batch_size for speed in measured] == [1, 8, 32]
    assert all(speed.ratio_low <= speed.ratio <= speed.ratio_high for speed in measured)
