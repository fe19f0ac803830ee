"""tandem.yaml and the environment: what is misspelt is named, with the nearest word that is known."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import get_args

import pytest
import requests.utils

from serving import environment as variables
from serving import settings
from serving.errors import UserError
from serving.repository import PRECISIONS

GOOD = "version: 1\npools:\n  cpu: {urls: ['http://127.0.0.1:8000'], device: cpu}\n"


def read(tmp_path: Path, text: str) -> settings.GatewaySettings:
    path = tmp_path / "tandem.yaml"
    path.write_text(text, encoding="utf-8")
    return settings.read_settings(path)


def test_a_good_file_is_read_with_defaults(tmp_path: Path) -> None:
    good = read(tmp_path, GOOD)
    assert good.pools["cpu"].urls == ("http://127.0.0.1:8000",)
    assert good.limits.max_body_bytes == 64 * 2**20


def test_a_precision_is_the_same_word_in_settings_as_in_a_repository() -> None:
    assert get_args(settings.Precision) == PRECISIONS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: {}\n", "'version' is missing"),
        (GOOD + "day: 2026-13-45\n", "line 4: unknown key 'day'"),
        (GOOD + f"deep: {'[' * 10_000}\n", "not valid YAML"),
        ("version: 2\npools: {cpu: {urls: ['http://a:1'], device: cpu}}\n", "version: must be 1"),
        ("version: 1\npools: {}\n", "pools: it must have at least 1 value"),
        (GOOD + "limts: {}\n", "did you mean 'limits'?"),
        (GOOD + "limits: {max_body_byte: 1}\n", "did you mean 'max_body_bytes'?"),
        (GOOD + "limits: {upstream_timeout_s: 0}\n", "limits.upstream_timeout_s"),
        (GOOD.replace("device: cpu", "device: tpu"), "pools.cpu.device"),
        (GOOD.replace("urls:", "url:"), "did you mean 'urls'?"),
        (GOOD.replace("http://127.0.0.1:8000", "grpc://x"), "http://HOST:PORT"),
        (GOOD.replace("http://127.0.0.1:8000", "http://x:99999"), "port"),
        (GOOD.replace("['http://127.0.0.1:8000']", "[]"), "pools.cpu.urls"),
        (GOOD + "models: {digits: {variants: {gpuu: fp16}}}\n", "no pool 'gpuu'"),
        (GOOD + "models: {digits: {variants: {cpu: int9}}}\n", "models.digits.variants.cpu: must be "),
        (GOOD.replace("device: cpu", "device: cpu, models: [digits]"), "write 'digits-fp32'"),
        (GOOD.replace("cpu: {", "emulated-cpu: {"), "device 'cpu' does not go with this name"),
        (GOOD.replace("device: cpu", "device: emulated"), "device 'emulated' does not go with this name"),
        (
            GOOD.replace("device: cpu", "device: cpu, min_replicas: 3, max_replicas: 2"),
            "min_replicas 3 is more than max_replicas 2",
        ),
        (GOOD.replace("device: cpu", "device: cpu, min_replica: 3"), "did you mean 'min_replicas'?"),
        (GOOD.replace("device: cpu", "device: cpu, max_replicas: 0"), "pools.cpu.max_replicas"),
        (GOOD.replace("device: cpu", "device: cpu, cold_start_s: -1"), "pools.cpu.cold_start_s"),
        (GOOD + "quotas: {gpus: {pools: [cpuu], max_cards: 1}}\n", "did you mean 'cpu'?"),
        (GOOD + "quotas: {gpus: {pools: [cpu], max_cards: 0}}\n", "less than the 1 that min_replicas"),
        (GOOD + "warm_nodes: {a: {pools: [cpu, gpuu], max_nodes: 1}}\n", "warm_nodes.a.pools"),
        (GOOD + "warm_nodes: {a: {pools: [cpu], max_nodes: 1}}\n", "warm_nodes.a.pools"),
        (GOOD + "scaling: {patience: 1}\n", "did you mean 'patience_s'?"),
        (GOOD + "scaling: {max_wakes_per_hour: 0}\n", "scaling.max_wakes_per_hour"),
        (
            GOOD.replace("device: cpu", "device: cpu, memory_bytes: 9, models: [digits-fp32, digits-int8]")
            + "models: {digits: {memory_bytes: 5}}\n",
            "digits-fp32, digits-int8 take 10 bytes",
        ),
        (GOOD.replace("device: cpu", "device: cpu, instances: 0"), "pools.cpu.instances"),
        (GOOD.replace("device: cpu", "device: cpu, thread: 2"), "did you mean 'threads'?"),
        (
            GOOD.replace("device: cpu", "device: cpu, queue_delay_us: 0"),
            "pools.cpu.queue_delay_us would do nothing: a gateway alone starts no Triton",
        ),
        (GOOD.replace("device: cpu", "device: gpu, cuda: {prefer_nhcw: 1}"), "did you mean 'prefer_nhwc'?"),
        (GOOD.replace("device: cpu", "device: gpu, cuda: {sdpa_kernel: 32}"), "pools.cpu.cuda.sdpa_kernel"),
        (
            GOOD.replace("device: cpu", "device: cpu, cuda: {prefer_nhwc: true}"),
            "pools.cpu.cuda: options of a card do nothing for a pool of device 'cpu'",
        ),
        (GOOD.replace("device: cpu", "device: cpu, batch_buckets: [0]"), "pools.cpu.batch_buckets"),
        ("version: 1\n  pools: [\n", "line 2"),
        (GOOD + "usage: {place: 'mysql://user:secret@x'}\n", "line 4: usage.place: 'mysql://…'"),
        (GOOD + "usage: {place: 'redis://x:port'}\n", "line 4: usage.place"),
        (GOOD + "tenants: {a: {weight: 2}}\n", "line 4: unknown key 'tenants'; it belongs to the control document"),
        (GOOD + "models: {m: {weight: 2}}\n", "models.m: unknown key 'weight'; it belongs to the control document"),
        (GOOD + "parity_ratio: true\n", "line 4: parity_ratio"),
        ("- a\n", "expected a mapping"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_way_out(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"tandem\.yaml") as error:
        read(tmp_path, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        settings.read_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TANDEM_PORT": "8080"},
        {"TANDEM_CPU_SERVICE_HOST": "10.0.0.1"},
        {"TANDEM_CPU_PORT_8000_TCP_ADDR": "10.0.0.1"},
        {"PATH": "x"},
    ],
)
def test_known_variables_and_those_that_kubernetes_sets_pass(environment: dict[str, str]) -> None:
    variables.check_environment(environment)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"TANDEM_PROT": "1"}, "did you mean 'TANDEM_PORT'?"),
        ({"TANDEM_PORT": "tcp://10.0.0.1:80"}, "enableServiceLinks"),
    ],
)
def test_a_variable_that_nothing_reads_is_an_error(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        variables.check_environment(environment)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("host", False)]
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert settings.is_loopback(host) is loopback


def test_prices_are_for_all_pools_or_for_none(tmp_path: Path) -> None:
    text = 'version: 1\npools:\n  a: {urls: ["http://h:1"], device: cpu, price_per_hour: 0.1}\n  b: {urls: ["http://h:2"], device: cpu%s}\n'
    file = tmp_path / "tandem.yaml"
    file.write_text(text % "")
    with pytest.raises(UserError, match=r"pools\.b.*price_per_hour.*pools\.a.*price"):
        settings.read_settings(file)
    file.write_text(text % ", price_per_hour: 2")
    assert [pool.price_per_hour for pool in settings.read_settings(file).pools.values()] == [0.1, 2.0]


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("latency: 1", "did you mean 'latency_s'?"),
        ("latency_s: 0", "greater than 0"),
        ("latency_s: .inf", "must be a number"),
    ],
)
def test_an_objective_that_is_none_says_why(tmp_path: Path, objective: str, said: str) -> None:
    file = tmp_path / "tandem.yaml"
    pools = 'version: 1\npools: {cpu: {urls: ["http://h:1"], device: cpu}}\n'
    file.write_text(pools + f"models: {{m: {{objective: {{{objective}}}}}}}\n")
    with pytest.raises(UserError) as raised:
        settings.read_settings(file)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, None),
        ({"NO_PROXY": "example.com"}, "example.com"),
        ({"no_proxy": "a.example, b.example", "NO_PROXY": "c.example"}, "b.example"),
        ({"no_grpc_proxy": "g.example"}, None),
        ({"no_proxy": "*"}, "anything.example"),
    ],
)
def test_loopback_is_reached_without_a_proxy_and_other_exceptions_stay(given: dict[str, str], left: str | None) -> None:
    environment = {"http_proxy": "http://proxy.example:3128", **given}
    variables.reach_loopback_directly(environment)
    proxies = urllib.request.getproxies_environment() | {"no": environment["no_proxy"]}
    for host in ("127.0.0.1:8080", "localhost", "[::1]:8080", *([left] if left else [])):
        assert urllib.request.proxy_bypass_environment(host, proxies), host
    assert bool(urllib.request.proxy_bypass_environment("other.example", proxies)) == (given.get("no_proxy") == "*")
    for host in ("127.0.0.2:8080", "127.9.8.7", "a.localhost:8080"):
        assert requests.utils.should_bypass_proxies(f"http://{host}/", environment["no_proxy"]), host
    assert {"127.0.0.1", "127.0.0.0/8", "::1", "localhost"} <= set(environment["no_grpc_proxy"].split(","))
    assert ("g.example" in environment["no_grpc_proxy"]) == ("no_grpc_proxy" in given)
