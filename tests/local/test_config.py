"""What `tandem up` takes from a tandem.yaml, and how it says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.local.config import UpConfig, for_gateway, overrides_of
from serving.local.instances import TritonOverrides
from serving.local.pool_options import read_pools
from serving.settings import GatewaySettings, read_settings


def told(tmp_path: Path, pools: Any, given: tuple[str, ...] = (), **more: Any) -> GatewaySettings:
    file = tmp_path / "tandem.yaml"
    file.write_text(json.dumps({"version": 1, "pools": pools, **more}))
    made = UpConfig(file)
    chosen = read_pools(made.values(given, ()), has_gpu=False)
    return made.settings(chosen, {"cpu": "http://127.0.0.1:7"})


def test_a_pool_without_urls_is_started_here_and_one_with_urls_runs_already(tmp_path: Path) -> None:
    settings = told(tmp_path, {"gpu": {"urls": ["http://far:8000"], "price_per_hour": 2}, "cpu": {"price_per_hour": 1}})
    assert {name: pool.urls for name, pool in settings.pools.items()} == {
        "gpu": ("http://far:8000",),
        "cpu": ("http://127.0.0.1:7",),
    }
    assert [pool.device for pool in settings.pools.values()] == ["gpu", "cpu"]
    assert [pool.price_per_hour for pool in settings.pools.values()] == [2.0, 1.0]


def test_objectives_and_limits_of_the_file_reach_the_gateway(tmp_path: Path) -> None:
    settings = told(
        tmp_path, {}, models={"digits": {"objective": {"latency_s": 0.2}}}, limits={"max_body_bytes": 5}, given=("cpu",)
    )
    assert settings.models["digits"].objective.latency_s == 0.2
    assert settings.limits.max_body_bytes == 5


def test_without_a_file_there_are_the_pools_alone() -> None:
    made = UpConfig(None)
    assert made.values((), ()) == []
    assert made.values(("cpu",), ()) == ["cpu"]
    assert made.settings(read_pools(["cpu"], has_gpu=False)).pools["cpu"].price_per_hour is None


@pytest.mark.parametrize(
    ("pools", "given", "said"),
    [
        (
            {"cpu": {"price_per_hour": 1}, "gpu": {}},
            (),
            "pools.gpu: it has no price_per_hour and pools.cpu has one; give every pool a price, or none",
        ),
        (
            {"cpu": {"price_per_hour": 1}},
            ("cpu", "gpu=http://far:1"),
            "pools.gpu: it has no price_per_hour and pools.cpu has one",
        ),
        ({"cpu": {}, "gpu": {}}, ("cpu",), "pools.gpu: it is not served here, where --pool names cpu; add --pool gpu"),
        ({"cpu": {"device": "gpu"}}, (), "pools.cpu: its device here is 'cpu', not 'gpu'"),
        ({"cpu": {"prise_per_hour": 1}}, (), "did you mean 'price_per_hour'?"),
        ({"cpu": []}, (), "pools: expected a mapping"),
        ({"cpuu": {}}, (), "there is no pool 'cpuu'"),
        ({"cpu": {"urls": ["grpc://x"]}}, (), "is not of the form http://HOST:PORT"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_started(
    tmp_path: Path, pools: Any, given: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError) as error:
        told(tmp_path, pools, given)
    assert said in str(error.value)


TRITONS = {"instances": 2, "threads": 1, "queue_delay_us": 0, "max_batch": 8}


def test_how_a_triton_is_started_is_for_the_triton_and_not_for_the_gateway(tmp_path: Path) -> None:
    settings = told(tmp_path, {"cpu": {"price_per_hour": 1, **TRITONS}})
    assert overrides_of(settings, "cpu") == TritonOverrides(**TRITONS)
    gateway = for_gateway(settings)
    assert overrides_of(gateway, "cpu") == TritonOverrides()
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(gateway.model_dump(mode="json", exclude_unset=True)))
    assert read_settings(file).pools["cpu"].price_per_hour == 1
    assert not set(TRITONS) & set(json.loads(file.read_text())["pools"]["cpu"])


@pytest.mark.parametrize("key", TRITONS)
def test_how_to_start_a_triton_that_runs_already_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match=rf"pools\.cpu\.{key} would do nothing: its Tritons run already, by its urls"):
        told(tmp_path, {"cpu": {"urls": ["http://far:8000"], key: TRITONS[key]}})
