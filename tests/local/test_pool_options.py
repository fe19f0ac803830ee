"""Which pools `--pool` values mean, and what is wrong with those that mean none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.local.pool_options import Pool, read_pools

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
