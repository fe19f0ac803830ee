"""A scenario that is wrong is one line that says where and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.decisions.simulate.scenario import read_scenario
from serving.errors import UserError

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "scenarios").glob("*.yaml"))
POOL = {"curve": [[1, 0.01], [8, 0.04]], "price_per_hour": 1.0, "replicas": [0, 4], "cold_start_s": [10, 20, 30]}
GOOD: dict[str, Any] = {"version": 1, "objective_s": 0.5, "pools": {"cpu": POOL, "gpu": POOL}}


def written(tmp_path: Path, raw: object) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw), encoding="utf-8")
    return path


def write_curves(folder: Path) -> None:
    (folder / "fast.yaml").write_text(
        'version: 1\nname: fast\nvariants: {"*": [[1, 0.005]], int8: [[1, 0.002]], digits-fp16: [[1, 0.001]]}\n',
        encoding="utf-8",
    )
    (folder / "date.yaml").write_text("version: 2026-13-01\n", encoding="utf-8")
    (folder / "wrong.yaml").write_text("version: 1\nname: fast\nvariant: {}\n", encoding="utf-8")


def pool(**changes: object) -> dict[str, Any]:
    return {**GOOD, "pools": {"cpu": {**POOL, **changes}, "gpu": POOL}}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{", "not valid YAML"),
        ("", "expected a mapping with version"),
        ([1], "expected a mapping"),
        ({**GOOD, "version": 2}, "version: "),
        ({**GOOD, "version": True}, "version: "),
        ({**GOOD, "objectiv_s": 1}, "did you mean 'objective_s'?"),
        ({"version": 1, "pools": GOOD["pools"]}, "'objective_s' is missing"),
        ({**GOOD, "objective_s": 0}, "an objective is more than 0"),
        ({**GOOD, "objective_s": "5e-3"}, "objective_s: must be a number, not '5e-3'"),
        ({**GOOD, "rows": True}, "rows: must be a number"),
        ({**GOOD, "wake": {"patience": 1}}, "did you mean 'patience_s'?"),
        ({**GOOD, "wake": {"max_load_ratio": 2}}, "wake.max_load_ratio: must be less than or equal to 1, not 2"),
        ({**GOOD, "pools": {"cpu": POOL}}, "none has the device 'gpu'"),
        ({**GOOD, "pools": {"cpu": POOL, "gpu": POOL, "tpu": POOL}}, "pools.tpu: say its device, cpu or gpu"),
        (pool(price_per_hr=1), "did you mean 'price_per_hour'?"),
        (pool(curve=[]), "at least one point"),
        (pool(curve=[[1]]), "pools.cpu.curve[0]: it needs more than 1 values"),
        (pool(curve=[[8, 0.1], [1, 0.2]]), "rows ascend"),
        (pool(curve=[[1, "5e-3"]]), "write it without quotes, and 5e-3 as 0.005"),
        (pool(curve="fast.yaml"), "pools.cpu.curve: must be a "),
        (pool(curve={"fil": "fast.yaml"}), "did you mean 'file'?"),
        (pool(curve={"variant": "fp32"}), "pools.cpu.curve: 'file' is missing"),
        (pool(curve={"file": 7}), "pools.cpu.curve.file: must be text, not 7"),
        (pool(curve={"file": "none.yaml"}), "pools.cpu.curve: cannot read the curves"),
        (pool(curve={"file": "fast.yaml", "variant": "int9"}), "did you mean 'int8'?"),
        (pool(curve={"file": "fast.yaml", "variant": "fp16"}), "has no curve of 'fp16'"),
        (pool(curve={"file": "wrong.yaml"}), "unknown key 'variant'; did you mean 'variants'?"),
        (pool(noise_ratio=-0.1), "noise is a ratio of 0 or more"),
        (pool(noise_ratio="much"), "noise_ratio: must be a number, not 'much'"),
        (pool(replicas=4), "replicas: must be a list, not 4"),
        (pool(replicas=[4, 1]), "not between 0 and max_replicas"),
        (pool(replicas=[0, 1.5]), "must be a whole number"),
        (pool(cold_start_s=[1, 2]), "cold_start_s: it needs more than 2 values"),
        (pool(cold_start_s=[3, 2, 1]), "least to usual to most"),
        (pool(price_per_hour=-1), "not negative"),
        (pool(max_batch=0), "at least one instance"),
        (pool(instances=0), "at least one instance"),
        (pool(noise_ratio=1e200), "at most 10"),
        (pool(price_per_hour=10**400), "must be a number"),
        (pool(curve={"file": "date.yaml"}), "date.yaml, line 1: version: must be 1"),
        ({**GOOD, "cooldown_s": -5}, "cooldown_s is 0 or more seconds, not -5"),
        ({**GOOD, "wake": {"hold_s": -5}}, "wake.hold_s: must be greater than or equal to 0, not -5"),
        ({**GOOD, "wake": {"cpu_hold_s": -1}}, "wake.cpu_hold_s: must be"),
        ({**GOOD, "wake": {"handover_s": -1}}, "wake.handover_s: must be"),
        ({**GOOD, "wake": {"patience_s": -1}}, "wake.patience_s: must be"),
        ({**GOOD, "wake": {"max_wakes_per_hour": -1}}, "wake.max_wakes_per_hour: must be"),
        ({**GOOD, "wake": {"max_wakes_per_hour": 0}}, "wake.max_wakes_per_hour: must be"),
        ({**GOOD, "wake": {"max_wakes_per_hour": 1.5}}, "max_wakes_per_hour: must be a whole number, not 1.5"),
        ("version: 2026-02-30", "scenario.yaml"),
        ("version: !!timestamp x", "not valid YAML"),
        ("version: !!bool x", "not valid YAML"),
        ("version: !python/object 1", "not valid YAML"),
        ("version: \x07", "not valid YAML"),
        ("[" * 1000, "not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_named(tmp_path: Path, raw: object, said: str) -> None:
    write_curves(tmp_path)
    with pytest.raises(UserError) as raised:
        read_scenario(written(tmp_path, raw))
    assert said in str(raised.value)
    assert "scenario.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 0.005),
        ({"variant": "*"}, 0.005),
        ({"variant": "fp32"}, 0.005),
        ({"variant": "int8"}, 0.002),
        ({"variant": "digits-fp16"}, 0.001),
    ],
)
def test_a_curve_may_stand_in_the_file_of_an_emulated_pool_beside_the_scenario(
    tmp_path: Path, given: dict[str, str], seconds: float
) -> None:
    write_curves(tmp_path)
    setting = read_scenario(written(tmp_path, pool(curve={"file": "fast.yaml", **given})))
    assert setting.cpus[0].service.curve.seconds(1) == seconds


def test_a_scenario_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_bytes(b"version: \xff\n")
    with pytest.raises(UserError, match=r"scenario.*scenario\.yaml"):
        read_scenario(path)


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"read.*scenario"):
        read_scenario(tmp_path / "none.yaml")


def test_every_setting_arrives(tmp_path: Path) -> None:
    changed = pool(
        instances=3, max_batch=8, price_per_hour=0.25, replicas=[2, 5], cold_start_s=[1, 2, 3], noise_ratio=0.2
    )
    setting = read_scenario(
        written(tmp_path, {**changed, "rows": 2, "cooldown_s": 60, "wake": {"hold_s": 7, "handover_s": 8}})
    )
    (cpu,) = setting.cpus
    assert (cpu.service.num_instances, cpu.service.max_batch, cpu.price_per_hour) == (3, 8, 0.25)
    assert (cpu.min_replicas, cpu.max_replicas, cpu.cold_start.usual_s, cpu.noise_ratio) == (2, 5, 2, 0.2)
    assert (setting.rows, setting.cooldown_s, setting.wake.hold_s, setting.wake.handover_s) == (2, 60, 7, 8)
    assert setting.gpus[0].service.num_instances == 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_in_the_docs_are_read(path: Path) -> None:
    assert read_scenario(path).gpus[0].max_replicas > 0
