"""What the pods run, run here: commands against the real command line, configuration against the real settings, init containers on real
repositories. The gateway's process is in gateway/test_runs.py, what `helm test` runs in test_chart_infer.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest

from serving.cli import cli
from serving.measure.machine import has_instructions
from serving.repository import Repository, pool_config_file
from serving.settings import AccessLogSettings, GatewaySettings, OtelSettings, UsageSettings, read_settings

from .conftest import ROOT, Object, Render
from .pools.here import run_init_containers

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

SHAPES: dict[str, Object] = {
    "the default": {},
    "a GPU pool": {"pools": {"gpu": {"enabled": True}}},
    "the slim image": {"pools": {"cpu": {"server": "tandem"}}},
    "a claim": {"modelRepository": {"source": "claim", "claimName": "models"}},
    "large limits": {
        "gateway": {"limits": {"maxBodyBytes": 2**31, "upstreamTimeoutS": 0.5}, "variants": {"digits": {"cpu": "int8"}}}
    },
}


def settings_of(render: Render, values: Object, folder: Path) -> GatewaySettings:
    file = folder / "tandem.yaml"
    file.write_text(render(values).one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    return read_settings(file)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_command_of_ours_is_one_that_tandem_knows(shape: str, render: Render, tmp_path: Path) -> None:
    seen = set()
    for _, pod in render(SHAPES[shape]).pods():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            command = container.get("command", [])
            if command[:1] == ["tandem"]:
                here = [
                    word.replace("/models", str(tmp_path)).replace("/etc/tandem", str(tmp_path)) for word in command
                ]
                verb = cli.commands[here[1]]
                assert isinstance(verb, click.Command)
                verb.make_context(here[1], here[2:])  # parses, does not run
                seen.add(here[1])
    assert {"gateway", "verify"} <= seen


def test_the_gateway_reads_what_the_chart_wrote(render: Render, tmp_path: Path) -> None:
    settings = settings_of(render, {}, tmp_path)
    assert {name: (pool.urls, pool.device) for name, pool in settings.pools.items()} == {
        "cpu": (("http://tandem-cpu:8000",), "cpu")
    }


def test_a_gpu_pool_comes_first_for_who_turned_it_on(render: Render, tmp_path: Path) -> None:
    assert [*settings_of(render, SHAPES["a GPU pool"], tmp_path).pools] == ["gpu", "cpu"]


def test_large_numbers_and_chosen_variants_arrive_as_they_were_written(render: Render, tmp_path: Path) -> None:
    settings = settings_of(render, SHAPES["large limits"], tmp_path)
    assert settings.limits.max_body_bytes == 2**31
    assert settings.limits.upstream_timeout_s == 0.5
    assert settings.limits.drain_s == 30
    assert settings.models["digits"].variants == {"cpu": "int8"}


def test_prices_objectives_and_what_can_be_had_reach_the_gateway(render: Render, tmp_path: Path) -> None:
    values: Object = {
        "gateway": {
            "objectives": {"digits": {"latencyS": 0.25}},
            "variants": {"other": {"cpu": "int8"}, "third": {}},
            "tokenIds": ["minilm", "digits"],
            "tritonWords": True,
            "allowMissing": True,
            "usage": {"place": "redis://redis:6379/1", "ifAway": "closed"},
            "accessLogRatio": 0.05,
        },
        "poolDefaults": {"coldStartS": 30, "minBillingS": 60},
        "pools": {
            "cpu": {"pricePerHour": 0.1785, "autoscaling": {"enabled": True, "maxReplicas": 9}},
            "gpu": {"enabled": True, "pricePerHour": 0.00002, "minReplicas": 0, "maxReplicas": 3, "coldStartS": 240.5},
            "spare": {"models": ["digits-fp32"], "replicas": 2, "pricePerHour": 1},
        },
    }
    settings = settings_of(render, values, tmp_path)
    assert {
        name: (pool.price_per_hour, pool.min_replicas, pool.max_replicas, pool.cold_start_s)
        for name, pool in settings.pools.items()
    } == {"gpu": (0.00002, 0, 3, 240.5), "cpu": (0.1785, 1, 9, 30.0), "spare": (1.0, 2, 2, 30.0)}
    assert {pool.min_billing_s for pool in settings.pools.values()} == {60.0}
    assert settings.models["digits"].objective.latency_s == 0.25
    assert settings.models["other"].variants == {"cpu": "int8"}
    assert settings.models["third"].variants == {}
    assert {name for name, model in settings.models.items() if model.token_ids} == {"digits", "minilm"}
    assert settings.triton_words
    assert settings.allow_missing
    assert settings.usage == UsageSettings(place="redis://redis:6379/1", if_away="closed")
    assert settings.access_log == AccessLogSettings(path="-", sample_ratio=0.05)
    plain = settings_of(render, {}, tmp_path)
    assert (plain.allow_missing, plain.usage, plain.access_log, plain.otel) == (False, None, None, None)


def test_a_collector_gets_spans_of_gateways_and_of_tritons_of_both_kinds(render: Render, tmp_path: Path) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]
    values: Object = {
        "otel": {"endpoint": "http://collector.observability:4318", "sampleRatio": 0.05},
        "networkPolicy": {"collectorTo": peers},
        "pools": {"cpu": {"server": "tandem"}, "gpu": {"enabled": True, "server": "nvidia"}},
    }
    settings = settings_of(render, values, tmp_path)
    assert settings.otel == OtelSettings(endpoint="http://collector.observability:4318", sample_ratio=0.05)
    it = render(values)
    told = {
        name: [*container.get("command", []), *container.get("args", [])]
        for name in ("cpu", "gpu")
        for container in it.one("Deployment", f"tandem-{name}")["spec"]["template"]["spec"]["containers"]
    }
    assert "--otel-endpoint=http://collector.observability:4318" in told["cpu"]
    assert "--trace-config=opentelemetry,url=http://collector.observability:4318/v1/traces" in told["gpu"]
    for name in ("tandem-gateway", "tandem-triton"):
        rules = it.one("NetworkPolicy", name)["spec"]["egress"]
        assert peers in [rule.get("to") for rule in rules]
        assert any({"port": 53, "protocol": "UDP"} in rule["ports"] for rule in rules)


def test_listed_origins_reach_the_gateway(render: Render, tmp_path: Path) -> None:
    keys = {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "one"}}
    values: Object = {"auth": keys, "gateway": {"allowedOrigins": ["https://app.example.com"]}}
    assert settings_of(render, values, tmp_path).allowed_origins == ("https://app.example.com",)
    assert settings_of(render, {}, tmp_path).allowed_origins == ()


def test_listed_names_reach_the_gateway_with_those_of_its_services_and_routes(render: Render, tmp_path: Path) -> None:
    assert settings_of(render, {}, tmp_path).allowed_hosts == ()
    values: Object = {
        "gateway": {"allowedHosts": ["models.example.com", "*.lab.example"]},
        "httpRoute": {"hostnames": ["route.example.com"]},
    }
    names = settings_of(render, values, tmp_path).allowed_hosts
    assert {"models.example.com", "*.lab.example", "route.example.com", "tandem-gateway", "tandem-gateway-admin"} < set(
        names
    )
    assert sum(name.endswith(".svc.cluster.local") for name in names) == 2


@pytest.mark.parametrize(
    ("pool", "bounds"),
    [
        ({"replicas": 2}, (2, 2)),  # fixed, and paid for
        ({"replicas": 0}, (0, 1)),  # one could be had
        ({"replicas": 2, "minReplicas": 1}, (1, 2)),  # what is said counts
        ({"replicas": 2, "maxReplicas": 4}, (None, 4)),
        ({"replicas": 2, "minReplicas": 0, "maxReplicas": 4}, (0, 4)),
        ({"replicas": None, "maxReplicas": 3}, (None, 3)),  # somebody else's
        ({"replicas": 3, "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 5}}, (2, 5)),
    ],
)
def test_a_fixed_number_is_both_the_fewest_and_the_most_unless_something_is_said_of_it(
    pool: Object, bounds: tuple[int | None, int], render: Render, tmp_path: Path
) -> None:
    told = settings_of(render, {"pools": {"cpu": pool}}, tmp_path).pools["cpu"]
    assert (told.min_replicas, told.max_replicas) == bounds


def test_without_prices_and_objectives_none_is_made_up(render: Render, tmp_path: Path) -> None:
    settings = settings_of(render, {}, tmp_path)
    assert [(p.price_per_hour, p.max_replicas, p.cold_start_s) for p in settings.pools.values()] == [(None, 1, None)]
    assert settings.models == {}


def test_every_pool_url_is_a_service_of_the_chart(render: Render, tmp_path: Path) -> None:
    it = render(SHAPES["a GPU pool"])
    for name, pool in settings_of(render, SHAPES["a GPU pool"], tmp_path).pools.items():
        (url,) = pool.urls
        service = it.one("Service", url.removeprefix("http://").partition(":")[0])
        assert service["spec"]["selector"]["tandem-pool"] == name
        assert int(url.rpartition(":")[2]) in [port["port"] for port in service["spec"]["ports"]]


@pytest.mark.parametrize("pool", ["cpu", "gpu"])
def test_the_default_models_are_committed_and_may_run_on_their_pool(pool: str, render: Render) -> None:
    repository = Repository(ROOT / "model_repo")
    arguments = render(SHAPES["a GPU pool"]).container(f"tandem-{pool}")["args"]
    names = [argument.removeprefix("--load-model=") for argument in arguments if argument.startswith("--load-model=")]
    assert names
    for name in names:
        variant = repository.variant(name)
        assert pool in variant.loadable_pools, name
        assert (variant.directory / pool_config_file(pool)).is_file()


def test_the_init_containers_copy_the_models_and_find_them_sound(render: Render, tmp_path: Path) -> None:
    it = render()
    assert run_init_containers(it.one("Deployment", "tandem-cpu")["spec"]["template"]["spec"], tmp_path) == 0
    for argument in it.container("tandem-cpu")["args"]:
        if argument.startswith("--load-model="):
            assert (tmp_path / argument.partition("=")[2] / "1" / "model.onnx").is_file()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The digits variants, as somebody copied them onto a claim."""
    shutil.copytree(ROOT / "model_repo", tmp_path / "volume")
    return tmp_path / "volume"


def changed(volume: Path, variant: str) -> None:
    model = volume / variant / "1" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)


def on_openvino(volume: Path, variant: str) -> None:
    """As if OpenVINO had won on the processor that exported it."""
    file = volume / variant / "tandem.json"
    record = json.loads(file.read_text())
    record["pools"]["cpu"]["engine"] = "openvino"
    file.write_text(json.dumps(record))


def needing_vnni(volume: Path, variant: str) -> None:
    file = volume / variant / "tandem.json"
    record = json.loads(file.read_text())
    record["needs"] = ["vnni"]
    file.write_text(json.dumps(record))


def started(render: Render, volume: Path, pool: Object, name: str = "cpu") -> bool:
    values = {**SHAPES["a claim"], "pools": {name: {"enabled": True, **pool}}}
    pod = render(values).one("Deployment", f"tandem-{name}")["spec"]["template"]["spec"]
    return run_init_containers(pod, volume) == 0


@pytest.mark.parametrize("server", ["nvidia", "tandem"])
def test_a_file_that_changed_on_the_volume_stops_the_pod(server: str, render: Render, volume: Path) -> None:
    assert started(render, volume, {"server": server})
    changed(volume, "digits-fp32")
    assert not started(render, volume, {"server": server})


def test_what_nvidias_image_does_not_load_does_not_stop_it_and_what_is_not_there_does(
    render: Render, volume: Path
) -> None:
    changed(volume, "digits-int8")
    on_openvino(volume, "digits-fp16")
    assert started(render, volume, {"models": ["digits-fp32"]})
    assert not started(render, volume, {"models": ["digits-fp32", "digits-int4"]})


def test_nvidias_image_does_not_start_with_a_variant_for_openvino_on_a_cpu_pool(render: Render, volume: Path) -> None:
    on_openvino(volume, "digits-fp32")
    assert not started(render, volume, {})
    assert started(render, volume, {"server": "tandem"})
    assert started(render, volume, {"models": ["digits-fp32"]}, "gpu")


def test_nvidias_image_starts_with_what_needs_vnni_only_where_the_processor_has_it(
    render: Render, volume: Path
) -> None:
    needing_vnni(volume, "digits-int8")
    assert started(render, volume, {}) == has_instructions("vnni")
