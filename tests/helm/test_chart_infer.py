"""What `helm test` says: its pod's own command, run here against real gateways and a real Triton; only the address is another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from serving.keys import changes
from tests.gateway.conftest import Running, gateway_before
from tests.helm.conftest import ROOT, Object, Render
from tests.local import models
from tests.local.harness import served

pytestmark = pytest.mark.triton
KEYS: Object = {"auth": {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own"}}}
AWAY = {"cpu": ["http://127.0.0.1:9"]}  # nothing listens there
RECEIPT = "tandem-pool: cpu"


def helm_test(
    render: Render, url: str, *, loads: list[str], timeout_s: str = "20", key: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the command of the test pod of an installation whose CPU pool loads these."""
    values = {**KEYS, "pools": {"cpu": {"models": loads}}}
    container = render(values).one("Pod", "tandem-test-infer")["spec"]["containers"][0]
    _, flag, script, address, _, samples, *wanted = container["command"]
    assert address == "http://tandem-gateway:80"
    here = samples.replace("/opt/tandem/model_repo", str(ROOT / "model_repo"))
    return subprocess.run(
        [sys.executable, flag, script, url, timeout_s, here, *wanted],
        env={**os.environ, "TANDEM_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=60,
    )


def names_in(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines()]


# -- a gateway with keys before a Triton with models of several kinds --------------------------------------------------------


def write_models(folder: Path) -> dict[str, models.Config]:
    """`numbers`, `everything` of all types with open sizes, and `picky`, which fails on what no made-up request could know."""
    open_sizes: list[int | str] = ["n", "m"]
    configs = [
        models.double(folder, "numbers"),
        models.write(
            folder,
            "everything",
            [models.node("Identity", [t], [f"{t}_out"]) for t in models.TYPES],
            [(t, t, open_sizes) for t in models.TYPES],
            [(f"{t}_out", t, open_sizes) for t in models.TYPES],
        ),
        models.write(
            folder,
            "picky",
            [models.node("Reshape", ["x", "by7"], ["y"])],
            [("x", "fp32", open_sizes)],
            [("y", "fp32", ["n", "m", 7])],
            {"by7": np.array([0, -1, 7], np.int64)},
        ),
    ]
    for it in configs:
        gate = {"model": f"{it['name']}.any", "variant": "fp32", "engine": "cpu", "digest": "00" * 32, "gate": "passed"}
        it["parameters"] |= {f"tandem_{name}": {"string_value": value} for name, value in gate.items()}
    return {it["name"]: it for it in configs}


@dataclass(frozen=True)
class Keyed:
    url: str
    for_all: str
    for_two: str  # may ask `numbers` and `everything`


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("models")
    file = folder / "keys.json"
    now, infer = datetime.now(UTC), frozenset({"infer"})
    for_all = changes.add(file, "all", infer, now).text
    for_two = changes.add(file, "two", infer, now, models=frozenset({"numbers.any", "everything.any"})).text
    with (
        served(folder, write_models(folder)) as triton,
        gateway_before(folder, {"cpu": [f"http://{triton.url}"]}, "--keys", str(file)) as running,
    ):
        yield Keyed(f"http://{running.url}", for_all, for_two)


def test_every_model_that_the_key_may_ask_answers_once_by_each_name(keyed: Keyed, render: Render) -> None:
    done = helm_test(render, keyed.url, loads=["numbers", "everything"], key=keyed.for_two)
    assert done.returncode == 0, done.stderr
    assert names_in(done.stdout) == ["everything.any", "numbers.any", "everything", "numbers"]
    lines = done.stdout.lower().splitlines()
    assert all(RECEIPT in line and "a made-up request" in line for line in lines)
    assert "y [1, 4]" in lines[-1]


def test_what_fails_is_named_with_its_reason_and_the_others_answer_all_the_same(keyed: Keyed, render: Render) -> None:
    done = helm_test(render, keyed.url, loads=["numbers"], key=keyed.for_all)
    assert done.returncode == 1
    assert names_in(done.stdout) == ["everything.any", "numbers.any", "everything", "numbers"]
    assert "picky: 500" in done.stderr
    assert re.search("2 of 6 .*: picky.any, picky\n$", done.stderr)


@pytest.mark.parametrize(("key", "said"), [("", "wants an API key"), ("tdm_" + "0" * 12 + "_" + "0" * 64, "not valid")])
def test_without_a_good_key_it_fails_at_once(key: str, said: str, keyed: Keyed, render: Render) -> None:
    done = helm_test(render, keyed.url, loads=["numbers"], key=key)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert said in done.stderr


def test_what_a_pool_should_have_loaded_and_has_not_is_named(keyed: Keyed, render: Render) -> None:
    done = helm_test(render, keyed.url, loads=["numbers", "forgotten"], key=keyed.for_two, timeout_s="1")
    assert done.returncode == 1
    assert re.search("1 s: .*: forgotten\n$", done.stderr)


# -- without a model ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway_before(tmp_path_factory.mktemp("empty"), AWAY, ready=False) as running:
        yield running


def test_a_gateway_before_nothing_fails_with_what_is_missing(empty: Running, render: Render) -> None:
    done = helm_test(render, f"http://{empty.url}", loads=["digits-fp32", "digits-int8"], timeout_s="0")
    assert done.returncode == 1
    assert done.stderr.endswith(": digits-fp32, digits-int8\n")


def test_no_gateway_fails_with_its_address(render: Render) -> None:
    done = helm_test(render, "http://127.0.0.1:9", loads=["digits-fp32"], timeout_s="0")
    assert done.returncode == 1
    assert "http://127.0.0.1:9/v2/repository/index" in done.stderr
    assert "[Errno 111]" in done.stderr


# -- the pod -----------------------------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_secret_that_the_values_name(render: Render) -> None:
    container = render(KEYS).one("Pod", "tandem-test-infer")["spec"]["containers"][0]
    reference = {"secretKeyRef": {"name": "own", "key": "api-key"}}
    assert container["env"] == [{"name": "TANDEM_API_KEY", "valueFrom": reference}]
    assert "env" not in render().one("Pod", "tandem-test-infer")["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("pools", "wanted"),
    [
        ({}, ["digits-fp32", "digits-int8"]),
        ({"gpu": {"enabled": True}}, ["digits-fp32", "digits-int8"]),
        ({"cpu": {"enabled": False}, "gpu": {"enabled": True}}, []),
        ({"cpu": {"replicas": 0}, "spare": {"models": ["digits-fp32"]}}, ["digits-fp32"]),
        ({"cpu": {"models": ["a"]}, "spare": {"models": ["b", "a"]}}, ["a", "b"]),
    ],
)
def test_what_cpu_pools_load_has_to_answer_and_a_cold_gpu_fails_no_test(
    pools: Object, wanted: list[str], render: Render
) -> None:
    command = render({"pools": pools}).one("Pod", "tandem-test-infer")["spec"]["containers"][0]["command"]
    assert command[6:] == wanted


def test_how_long_it_waits_is_a_value_and_without_a_test_there_is_no_pod(render: Render) -> None:
    pod = render({"test": {"timeoutSeconds": 7}}).one("Pod", "tandem-test-infer")
    assert pod["spec"]["containers"][0]["command"][4] == "7"
    assert render({"test": {"enabled": False}}).all("Pod") == []


# -- its requests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = util.spec_from_file_location("infer", ROOT / "helm" / "tandem" / "files" / "infer.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DIGIT: list[dict[str, Any]] = [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]


@pytest.mark.parametrize("name", ["digits", "digits-fp32", "digits-int8"])
def test_a_committed_sample_is_sent_where_it_fits(name: str, script: ModuleType) -> None:
    body = script.sample_of(name, DIGIT, str(ROOT / "model_repo"))
    assert json.loads(body)["inputs"][0]["shape"] == [1, 1, 8, 8]


@pytest.mark.parametrize(
    "inputs",
    [
        [{"name": "picture", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        [{"name": "image", "datatype": "UINT8", "shape": [-1, 1, 8, 8]}],
        [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
        [{"name": "image", "datatype": "FP32", "shape": [-1, 64]}],
        [*DIGIT, {"name": "second", "datatype": "FP32", "shape": [-1]}],
        [],
    ],
)
def test_the_sample_of_another_model_of_the_same_name_is_not(inputs: list[Any], script: ModuleType) -> None:
    assert script.sample_of("digits", inputs, str(ROOT / "model_repo")) is None
