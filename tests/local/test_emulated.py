"""What an emulated pool serves, and that nobody gets one unasked. Its file: tests/decisions/test_curves.py."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.decisions.curves import read_curves
from serving.decisions.engines import EnginePython
from serving.errors import UserError
from serving.local import emulated
from serving.local.emulated import plan_emulated
from serving.local.launch import BACKENDS, sources
from serving.local.pool_options import NO_OVERRIDES, TritonOverrides
from serving.local.pool_plan import PoolPlan
from serving.local.triton import prepare
from serving.repository import Repository
from tests.committed import copy_committed

ROOT = Path(__file__).parents[2]
PLAIN = {"cpu": EnginePython("cpu", Path("/e/bin/python3"), "9.9")}
GOOD = 'version: 1\nname: t4\nvariants:\n  "*": [[1, 0.005], [9, 0.013]]\n'


def plan(tmp_path: Path, text: str, overrides: TritonOverrides = NO_OVERRIDES) -> PoolPlan:
    (tmp_path / "t4.yaml").write_text(text)
    curves = read_curves(tmp_path / "t4.yaml")
    repository = tmp_path / "repository"
    if not repository.exists():
        copy_committed(repository)
    return plan_emulated(Repository(repository), "emulated-gpu", curves, PLAIN, lambda line: None, overrides)


def with_variants(**points: Any) -> str:
    return json.dumps({"version": 1, "name": "t4", "variants": {k.replace("_", "-"): v for k, v in points.items()}})


# -- what a pool serves -----------------------------------------------------------------------------------------------


def test_all_means_what_a_cpu_pool_would_serve(tmp_path: Path) -> None:
    assert set(plan(tmp_path, GOOD).configs) == {"digits-fp32", "digits-int8"}


def test_what_only_a_card_may_serve_is_served_when_it_is_named(tmp_path: Path) -> None:
    configs = plan(tmp_path, with_variants(fp32=[[1, 0.004]], fp16=[[1, 0.002]])).configs
    assert set(configs) == {"digits-fp32", "digits-fp16"}
    fp16 = json.loads(configs["digits-fp16"])
    assert fp16["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]
    assert fp16["parameters"]["tandem_speed_ratio"] == {"string_value": "2.00"}


def test_a_full_name_goes_before_a_precision_and_that_before_all(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "version": 1,
            "name": "t4",
            "variants": {"*": [[1, 0.01]], "int8": [[1, 0.02]], "digits-int8": [[1, 0.03]]},
        }
    )
    seconds = {
        name: json.loads(json.loads(config)["parameters"]["tandem_emulated_curve"]["string_value"])["seconds"][0]
        for name, config in plan(tmp_path, text).configs.items()
    }
    assert seconds == {"digits-fp32": 0.01, "digits-int8": 0.03}


def test_a_configuration_says_that_it_is_emulated_and_has_the_seconds_of_every_batch(tmp_path: Path) -> None:
    config = json.loads(plan(tmp_path, GOOD).configs["digits-fp32"])
    parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
    assert config["backend"] == "emulated"
    assert (parameters["tandem_emulated"], parameters["tandem_engine"]) == ("t4", "emulated-t4")
    assert parameters["tandem_gate"] == "passed"
    curve = json.loads(parameters["tandem_emulated_curve"])
    assert len(curve["seconds"]) == config["max_batch_size"]
    assert curve["seconds"][0] == 0.005
    assert curve["seconds"][8] == 0.013
    assert curve["check_rows"] == [1, 9, config["max_batch_size"]]


@pytest.mark.parametrize(
    ("int8", "ratio"),
    [([[1, 0.002], [9, 0.013]], "2.50"), ([[1, 0.006], [9, 0.005]], "unmeasured"), ([[1, 0.005], [9, 0.013]], "unmeasured")],
)  # fmt: skip
def test_a_variant_is_preferred_where_its_curve_is_faster_and_nowhere_slower(
    tmp_path: Path, int8: list[list[float]], ratio: str
) -> None:
    configs = plan(tmp_path, with_variants(fp32=[[1, 0.005], [9, 0.013]], int8=int8)).configs
    assert json.loads(configs["digits-int8"])["parameters"]["tandem_speed_ratio"]["string_value"] == ratio
    assert json.loads(configs["digits-fp32"])["parameters"]["tandem_speed_ratio"]["string_value"] == "1.00"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"digits_int9": [[1, 1]]}, "no variant 'digits-int9' in the repository; did you mean 'digits-int8'?"),
        ({"int4": [[1, 1]]}, "no variant 'int4' in the repository; did you mean 'int8'?"),
        ({"bf16": [[1, 1]]}, "gives no curve for a variant of"),
    ],
)
def test_a_curve_of_nothing_that_is_there_is_an_error(tmp_path: Path, points: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        plan(tmp_path, with_variants(**points))
    assert said in str(error.value)


# -- never by accident ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "emulate", "said"),
    [
        ("cpu", "t4.yaml", "the name of an emulated pool begins with 'emulated'"),
        ("gpu", "t4.yaml", "the name of an emulated pool begins with 'emulated'"),
        ("emulated gpu", "t4.yaml", "--pool emulated gpu"),
        ("emulated-gpu", None, "say whose times it follows with --emulate FILE"),
        ("emulated-gpu", "none.yaml", "cannot read the curves"),
    ],
)
def test_the_name_of_the_pool_and_the_file_go_together(
    tmp_path: Path, pool: str, emulate: str | None, said: str
) -> None:
    (tmp_path / "t4.yaml").write_text(GOOD)
    with pytest.raises(UserError) as error:
        prepare(pool, ROOT / "model_repo", print, emulate=tmp_path / emulate if emulate else None)
    assert said in str(error.value)


@pytest.mark.parametrize("overrides", [TritonOverrides(instances=1), TritonOverrides(threads=2)])
def test_what_would_change_the_times_of_the_file_is_an_error(tmp_path: Path, overrides: TritonOverrides) -> None:
    (tmp_path / "t4.yaml").write_text(GOOD)
    with pytest.raises(UserError, match=r"instances.*threads"):
        prepare("emulated-gpu", ROOT / "model_repo", print, emulate=tmp_path / "t4.yaml", overrides=overrides)


def test_batches_that_are_asked_for_are_served_with_the_seconds_of_their_rows(tmp_path: Path) -> None:
    config = json.loads(plan(tmp_path, GOOD, TritonOverrides(max_batch=4, queue_delay_us=7)).configs["digits-fp32"])
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 7}
    assert len(json.loads(config["parameters"]["tandem_emulated_curve"]["string_value"])["seconds"]) == 4
    with pytest.raises(UserError, match="max batch 64: digits-"):
        plan(tmp_path, GOOD, TritonOverrides(max_batch=64))


def test_where_the_test_tool_is_not_installed_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[[str], Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "emulated" in name else find(name))
    with pytest.raises(UserError, match=r"package.*image"):
        prepare("emulated-gpu", ROOT / "model_repo", print, emulate=tmp_path / "t4.yaml")


def test_no_wheel_and_no_image_has_it() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for folder in (Path(emulated.__file__), emulated.BACKEND.parent):
        assert f"/{folder.relative_to(ROOT)}" in hatch["exclude"]
        assert str(folder.relative_to(ROOT)) in ignored
        places = [entry.removeprefix("!") for entry in ignored if entry.startswith("!")]
        assert any(fnmatch.fnmatch(str(folder.relative_to(ROOT)), f"{place}*") for place in places), "or it is moot"


def test_the_backend_directory_of_other_pools_does_not_hold_it(tmp_path: Path) -> None:
    assert set(BACKENDS) == {"onnxruntime"}
    triton = tmp_path / "triton"
    for place in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (triton / "backends" / "python").mkdir(parents=True, exist_ok=True)
        (triton / "backends" / "python" / place).touch()
    for version in ("3.11", "3.12"):
        (triton / "python_backend_stubs" / version).mkdir(parents=True)
        (triton / "python_backend_stubs" / version / "triton_python_backend_stub").touch()
    assert not any("emulated" in place for place in sources(triton))
    assert "emulated/model.py" in sources(triton, {**BACKENDS, "emulated": emulated.BACKEND})
