"""Which pools `--pool` values mean, and what is wrong with those that mean none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.cuda_options import cuda_options
from serving.errors import UserError
from serving.local.pool_options import (
    Pool,
    TritonOverrides,
    UpConfig,
    for_gateway,
    overrides_of,
    read_pools,
)
from serving.settings import GatewaySettings, read_settings

CPU, GPU = Pool("cpu", is_local=True, urls=()), Pool("gpu", is_local=True, urls=())
EMULATED = Pool("emulated-gpu", is_local=True, urls=(), curves=Path("/f"))


@pytest.mark.parametrize(
    ("values", "emulate", "expected"),
    [
        ([], ["emulated-gpu=/f"], [EMULATED]),
        (["cpu"], ["emulated-gpu=/f"], [EMULATED, CPU]),
        (["emulated-gpu"], ["emulated-gpu=/f"], [EMULATED]),
        (["emulated-gpu=http://a:1"], ["emulated-gpu=/f"], [replace(EMULATED, urls=("http://a:1",))]),
        (["emulated-gpu=http://a:1"], [], [Pool("emulated-gpu", False, ("http://a:1",))]),
        ([], ["emulated=/a=b"], [Pool("emulated", True, (), Path("/a=b"))]),
    ],
)
def test_an_emulated_pool_is_there_when_it_is_asked_for(
    values: list[str], emulate: list[str], expected: list[Pool]
) -> None:
    assert read_pools(values, has_gpu=True, emulate=emulate) == expected


def test_a_pools_device_is_its_name_or_emulated() -> None:
    assert (CPU.device, GPU.device, EMULATED.device) == ("cpu", "gpu", "emulated")


@pytest.mark.parametrize(
    ("values", "emulate", "says"),
    [
        (["emulated-gpu"], [], "--pool emulated-gpu: say whose times it follows: --emulate emulated-gpu=FILE"),
        ([], ["gpu=/f"], "the name of an emulated pool begins with 'emulated'"),
        ([], ["/f"], "the name of an emulated pool begins with 'emulated'"),
        ([], ["emulated/x=/f"], "the name of an emulated pool begins with 'emulated'"),
        ([], ["emulated-gpu"], "'emulated-gpu' is not of the form NAME=FILE"),
        ([], ["emulated=/f", "emulated=/g"], "the pool emulated is given twice"),
    ],
)
def test_what_is_wrong_with_an_emulated_pool(values: list[str], emulate: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        read_pools(values, has_gpu=False, emulate=emulate)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("values", "has_gpu", "expected"),
    [
        ([], False, [CPU]),
        ([], True, [CPU, GPU]),
        (["gpu"], False, [GPU]),
        (["gpu", "cpu"], True, [GPU, CPU]),
        (["cpu=http://10.0.0.1:8000"], True, [Pool("cpu", False, ("http://10.0.0.1:8000",))]),
        (["cpu=http://one"], False, [Pool("cpu", False, ("http://one:8000",))]),
        (["cpu=http://[::1]:9"], False, [Pool("cpu", False, ("http://[::1]:9",))]),
        (["cpu", "cpu=http://a:1", "cpu=http://b:2/"], False, [Pool("cpu", True, ("http://a:1", "http://b:2"))]),
    ],
)
def test_what_the_values_mean(values: list[str], has_gpu: bool, expected: list[Pool]) -> None:
    assert read_pools(values, has_gpu=has_gpu) == expected


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("gqu", "there is no pool 'gqu'; did you mean 'gpu'?"),
        ("edge", "there is no pool 'edge'; known are cpu, gpu"),
        ("", "there is no pool ''"),
        ("cpu=", "'' is not of the form http://HOST:PORT"),
        ("cpu=host:8000", "'host:8000' is not of the form http://HOST:PORT"),
        ("cpu=https://host", "is not of the form http://HOST:PORT"),
        ("cpu=http://host:99999", "is not of the form http://HOST:PORT"),
        ("cpu=http://host/v2", "is not of the form http://HOST:PORT"),
    ],
)
def test_what_is_wrong_with_a_value(value: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        read_pools([value], has_gpu=False)
    assert says in str(error.value)


# -- a tandem.yaml ----------------------------------------------------------------------------------------------------


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


TRITONS = {
    "instances": 2,
    "threads": 1,
    "queue_delay_us": 0,
    "max_batch": 8,
    "batch_buckets": "auto",
    "max_memory_mb": 512,
}


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
    with pytest.raises(UserError, match=rf"pools\.cpu\.{key}.*Tritons"):
        told(tmp_path, {"cpu": {"urls": ["http://far:8000"], key: TRITONS[key]}})


def test_what_is_asked_for_becomes_options_of_a_triton_and_zero_is_asked_for_too() -> None:
    assert TritonOverrides().flags() == []
    assert TritonOverrides(instances=2, queue_delay_us=0).flags() == ["--instances", "2", "--queue-delay-us", "0"]
    assert TritonOverrides(threads=3, max_batch=8).flags() == ["--threads", "3", "--max-batch", "8"]
    assert TritonOverrides(max_memory_mb=512).flags() == ["--max-memory-mb", "512"]


CARD = {"cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": 7, "prefer_nhwc": True, "enable_cuda_graph": False}


def test_options_of_a_card_reach_its_triton_by_the_file_as_by_the_command_line(tmp_path: Path) -> None:
    pool = {"cuda": CARD, "batch_buckets": [1, 8], "bucket_lengths": [32]}
    overrides = overrides_of(told(tmp_path, {"gpu": pool}), "gpu")
    assert dict(overrides.cuda) == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "7",
        "prefer_nhwc": "1",
        "enable_cuda_graph": "0",
    }
    words = overrides.flags()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given.pop("--batch-buckets"), given.pop("--bucket-lengths")) == ("1,8", "32")
    assert set(given) == {"--cuda-option"}
    assert cuda_options(word for word in words if "=" in word) == overrides.cuda


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("prefer_nhcw=1", "unknown key 'prefer_nhcw'; did you mean 'prefer_nhwc'?"),
        ("use_tf32=1", "unknown key 'use_tf32'"),  # the variant says it
        ("prefer_nhwc", "not of the form NAME=VALUE"),
        ("prefer_nhwc=perhaps", "prefer_nhwc"),
        ("cudnn_conv_algo_search=FAST", "cudnn_conv_algo_search"),
        ("gpu_mem_limit=0", "gpu_mem_limit"),
    ],
)
def test_an_option_that_the_provider_cannot_have_is_refused(option: str, says: str) -> None:
    with pytest.raises(UserError, match="--cuda-option") as error:
        cuda_options([option])
    assert says in str(error.value)


@pytest.mark.parametrize("asked", [{"cuda": (("enable_cuda_graph", "1"),)}, {"bucket_lengths": "32"}])
def test_graphs_and_lengths_without_buckets_are_an_error(asked: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="batch_buckets: auto"):
        TritonOverrides(**asked)
