"""What the chart makes: valid for the API server's own schemas, safe by Pod Security "restricted", and adding up.

The matrix is every shape that a value gives the chart. What only a cluster can show (that the policies are enforced, that a
GPU appears) is not claimed here.
"""

from __future__ import annotations

import re
from typing import Any

import helm_python
import pytest
import yaml

from serving.cuda_options import CudaOptions, cuda_options
from tests import api_server

from . import checks
from .conftest import ROOT, Object, Render, Rendering, accepted

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

GPU = {"pools": {"gpu": {"enabled": True}}}
SLIM = {"pools": {"cpu": {"server": "tandem"}}}
CLAIM = {"modelRepository": {"source": "claim", "claimName": "models"}}
SHAPES: dict[str, Object] = {
    "the default": {},
    "a GPU pool": GPU,
    "only a GPU pool": {"pools": {"cpu": {"enabled": False}, "gpu": {"enabled": True}}},
    "a GPU pool with an own card": {"pools": {"gpu": {"enabled": True, "gpu": {"resource": "nvidia.com/mig-1g.10gb"}}}},
    "two GPU Tritons": {"pools": {"gpu": {"enabled": True, "replicas": 2}}},
    "the slim image": SLIM,
    "buffers and graphs on a card": {
        "pools": {
            "gpu": {"enabled": True, "server": "tandem", "batchBuckets": "auto", "cuda": {"enable_cuda_graph": True}}
        }
    },
    "a claim": CLAIM,
    "an autoscaler": {"pools": {"cpu": {"autoscaling": {"enabled": True, "maxReplicas": 9}}}},
    "a pool of one's own": {"pools": {"spare": {"models": ["digits-fp32"], "replicas": 3}}},
    "no network policy": {"networkPolicy": {"enabled": False}, "gateway": {"admin": {"enabled": False}}},
    "metrics for somebody": {
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "mon"}}}]}
    },
    "accounts that exist": {
        "gateway": {"serviceAccount": {"create": False, "name": "one"}},
        "triton": {"serviceAccount": {"create": False, "name": "two"}},
    },
    "everything optional": {
        "imageRegistry": "registry.example.com/team/",
        "imagePullSecrets": [{"name": "pull"}],
        "images": {"gateway": {"digest": "sha256:" + "a" * 64}, "nvidia": {"tag": "26.10-py3"}},
        "gateway": {
            "replicas": 2,
            "env": [{"name": "TANDEM_CACHE", "value": "/tmp"}],
            "variants": {"digits": {"cpu": "int8"}},
            "objectives": {"digits": {"latencyS": 0.5}},
            "limits": {"maxBodyBytes": 2**30, "upstreamTimeoutS": 2.5},
            "service": {"port": 8080},
            "podAnnotations": {"example.com/team": "a"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        "poolDefaults": {
            "pricePerHour": 0.5,
            "maxReplicas": 2,
            "coldStartS": 30,
            "podAnnotations": {"example.com/team": "a"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "affinity": {"nodeAffinity": {}},
            "extraArgs": ["--log-verbose=1"],
        },
    },
    "no test": {"test": {"enabled": False}},
}


@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_every_object_is_valid_for_the_api_server(version: str, render: Render) -> None:
    seen: set[str] = set()
    for values in SHAPES.values():
        checks.valid(render(values).objects, version, seen)


def test_the_server_schemas_do_notice_a_mistake(render: Render) -> None:
    deployment = render().one("Deployment", "tandem-cpu")
    spoilt = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(api_server.ValidationError, match="replica"):
        api_server.validate(spoilt, checks.KUBERNETES[-1])


@pytest.mark.parametrize("shape", checks.linted(SHAPES, "the default", "everything optional"))
def test_helm_lint_finds_nothing(shape: str) -> None:
    report = helm_python.lint(ROOT / "helm" / "tandem", accepted(SHAPES[shape]), strict=True, kube_version="v1.30.0")
    worse_than_info = [message for message in report["messages"] if message["severity"] > 1]
    assert (report["errors"], worse_than_info) == ([], [])


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_safe_and_adds_up(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    for check in (checks.named_once, checks.restricted, checks.bounded, checks.mounted, checks.secrets_by_reference):
        check(it)


@pytest.mark.parametrize("shape", SHAPES)
def test_services_policies_and_deployments_select_the_same_pods(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    pods = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in it.all("Deployment")]
    selectors = [service["spec"]["selector"] for service in it.all("Service")]
    tests = ("-test", "-loadtest")  # whose pods are no Deployment's
    policies = [policy for policy in it.all("NetworkPolicy") if not policy["metadata"]["name"].endswith(tests)]
    selectors += [policy["spec"]["podSelector"]["matchLabels"] for policy in policies]
    selectors += [deployment["spec"]["selector"]["matchLabels"] for deployment in it.all("Deployment")]
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector
    for service in it.all("Service"):
        selector = service["spec"]["selector"]
        assert sum(selector.items() <= labels.items() for labels in pods) == 1, "a service stands for one deployment"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pools_name_means_every_triton_in_it_at_the_port_that_the_gateway_asks(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    services = {service["metadata"]["name"]: service["spec"] for service in it.all("Service")}
    [written] = [one["data"]["tandem.yaml"] for one in it.all("ConfigMap") if "tandem.yaml" in one["data"]]
    config = yaml.safe_load(written)
    for pool in config["pools"].values():
        for url in pool["urls"]:
            name, port = url.removeprefix("http://").split(":")
            assert services[name]["clusterIP"] == "None"  # a service with an address would be one server
            assert int(port) in [served["port"] for served in services[name]["ports"]]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_drain_fits_into_the_grace_period(shape: str, render: Render) -> None:
    for name, pod in render(SHAPES[shape]).pods():
        (container,) = pod["containers"]
        if "lifecycle" in container:
            before_sigterm_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert before_sigterm_s + 30 + 5 <= pod["terminationGracePeriodSeconds"], name


def test_a_longer_drain_raises_the_grace_period_and_reaches_the_processes(render: Render) -> None:
    drain = {"preStopSeconds": 10, "exitTimeoutSeconds": 100, "marginSeconds": 7}
    it = render({"gateway": {"drain": drain}, "poolDefaults": {"drain": drain}})
    for name, pod in it.pods():
        if not name.endswith("test-infer"):
            assert pod["terminationGracePeriodSeconds"] == 117
    assert "--exit-timeout-secs=100" in it.container("tandem-cpu")["args"]
    assert "drain_s: 100" in it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]


def test_a_grace_period_of_ones_own_is_taken_when_it_is_long_enough(render: Render) -> None:
    it = render({"gateway": {"terminationGracePeriodSeconds": 41}})
    assert it.one("Deployment", "tandem-gateway")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 41


# -- pools --------------------------------------------------------------------------------------------------------------------


def test_the_default_is_one_cpu_pool_of_nvidias_image_that_loads_by_name(render: Render) -> None:
    it = render()
    assert [deployment["metadata"]["name"] for deployment in it.all("Deployment")] == ["tandem-gateway", "tandem-cpu"]
    container = it.container("tandem-cpu")
    assert container["image"] == "nvcr.io/nvidia/tritonserver:26.08-py3"
    arguments = container["args"]
    assert arguments[0] == "tritonserver"
    assert [a for a in arguments if a.startswith("--load-model")] == [
        "--load-model=digits-fp32",
        "--load-model=digits-int8",
    ]
    assert {"--model-control-mode=explicit", "--model-config-name=cpu", "--disable-auto-complete-config"} <= {
        *arguments
    }
    assert not any("*" in argument for argument in arguments)
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_a_gpu_pool_takes_a_card_tolerates_the_taint_and_is_replaced_in_place(render: Render) -> None:
    it = render(GPU)
    deployment = it.one("Deployment", "tandem-gpu")["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    assert it.tolerations("tandem-gpu") == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    container = it.container("tandem-gpu")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"--model-config-name=gpu", "--load-model=digits-fp16"} <= {*container["args"]}


def test_several_gpu_tritons_are_replaced_one_by_one_without_a_spare(render: Render) -> None:
    strategy = render({"pools": {"gpu": {"enabled": True, "replicas": 2}}}).one("Deployment", "tandem-gpu")["spec"][
        "strategy"
    ]
    assert strategy == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def test_the_card_may_be_a_slice(render: Render) -> None:
    it = render({"pools": {"gpu": {"enabled": True, "gpu": {"resource": "nvidia.com/mig-1g.10gb"}}}})
    limits = it.container("tandem-gpu")["resources"]["limits"]
    assert limits["nvidia.com/mig-1g.10gb"] == 1
    assert "nvidia.com/gpu" not in limits


def test_replicas_are_left_out_where_an_autoscaler_owns_them(render: Render) -> None:
    it = render({"pools": {"cpu": {"autoscaling": {"enabled": True}}}})
    assert "replicas" not in it.one("Deployment", "tandem-cpu")["spec"]
    scaler = it.one("HorizontalPodAutoscaler", "tandem-cpu")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tandem-cpu"}
    (metric,) = scaler["metrics"]
    assert metric["containerResource"]["container"] == it.container("tandem-cpu")["name"]


def test_no_autoscaler_is_made_unless_it_is_asked_for(render: Render) -> None:
    it = render()
    assert it.all("HorizontalPodAutoscaler") == []
    assert it.one("Deployment", "tandem-cpu")["spec"]["replicas"] == 1


@pytest.mark.parametrize("shape", ["the default", "a GPU pool", "the slim image", "a claim"])
def test_models_are_verified_before_triton_starts_and_read_only_for_it(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    for deployment in it.all("Deployment")[1:]:
        pod = deployment["spec"]["template"]["spec"]
        last = pod["initContainers"][-1]
        assert last["command"][:4] == ["tandem", "verify", "--model-repository=/models", "--digests-only"]
        for container in (last, *pod["containers"]):
            (mount,) = [m for m in container["volumeMounts"] if m["name"] == "models"]
            assert mount["readOnly"] is True


@pytest.mark.parametrize(
    ("values", "pool", "words"),
    [
        ({}, "cpu", ["--server=nvidia", "--variant=digits-fp32", "--variant=digits-int8"]),
        (GPU, "gpu", ["--variant=digits-fp32", "--variant=digits-fp16"]),
        (SLIM, "cpu", []),
    ],
)
def test_what_nvidias_image_would_compute_otherwise_is_asked_of_what_a_cpu_pool_of_it_loads(
    values: Object, pool: str, words: list[str], render: Render
) -> None:
    pod = render(values).one("Deployment", f"tandem-{pool}")["spec"]["template"]["spec"]
    assert pod["initContainers"][-1]["command"][4:] == words


def test_a_claim_is_mounted_read_only_and_nothing_is_copied(render: Render) -> None:
    pod = render(CLAIM).one("Deployment", "tandem-cpu")["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["verify-models"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in pod["volumes"]


def test_shared_memory_is_memory_and_fits_into_the_limit(render: Render) -> None:
    it = render(GPU)
    for name, limit_mib in (("tandem-cpu", 1536), ("tandem-gpu", 4096)):
        volumes = {v["name"]: v for v in it.one("Deployment", name)["spec"]["template"]["spec"]["volumes"]}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
        assert limit_mib > 2 * 256


def test_the_slim_image_runs_tandem_triton(render: Render) -> None:
    container = render({**SLIM, "imageRegistry": "registry.example.com/team"}).container("tandem-cpu")
    assert container["image"] == "registry.example.com/team/tandem-triton-cpu:0.1.0"
    assert container["command"][:3] == ["tandem", "triton", "--pool=cpu"]


def test_how_a_model_is_run_reaches_the_slim_images_triton_and_unset_says_nothing(render: Render) -> None:
    asked = {"instances": 2, "threads": 3, "queueDelayUs": 0, "maxBatch": 65536, "versions": 3, "maxMemoryMb": 700}
    words = {"--instances=2", "--threads=3", "--queue-delay-us=0", "--max-batch=65536", "--versions=3"} | {
        "--max-memory-mb=700"
    }
    command = render({"pools": {"cpu": {"server": "tandem", **asked}}}).container("tandem-cpu")["command"]
    assert words <= set(command)
    options = {word.partition("=")[0] for word in render(SLIM).container("tandem-cpu")["command"]}
    assert not options & {word.partition("=")[0] for word in words}


CARD_OPTIONS: Object = {
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
    "gpu_mem_limit": 34_359_738_368,
    "sdpa_kernel": 0,
    **{name: name == "enable_cuda_graph" for name, field in CudaOptions.model_fields.items() if "bool" in str(field)},
}


def test_buffers_and_options_of_a_card_reach_the_slim_images_triton_as_it_reads_them(render: Render) -> None:
    pool = {"enabled": True, "server": "tandem", "bucketLengths": [16, 128], "cuda": CARD_OPTIONS}
    for sizes, told in (("auto", "auto"), ([1, 8, 32], "1,8,32")):
        command = render({"pools": {"gpu": {**pool, "batchBuckets": sizes}}}).container("tandem-gpu")["command"]
        assert {f"--batch-buckets={told}", "--bucket-lengths=16,128"} <= set(command)
        options = [word.removeprefix("--cuda-option=") for word in command if word.startswith("--cuda-option=")]
        assert dict(cuda_options(options)) == dict(CudaOptions(**CARD_OPTIONS).pairs())
    unset = render({"pools": {"gpu": {"enabled": True, "server": "tandem"}}}).container("tandem-gpu")["command"]
    assert not [word for word in unset if "bucket" in word or "cuda" in word]


def test_the_options_of_a_card_are_those_that_tandem_triton_takes(chart: helm_python.Chart) -> None:
    assert chart.schema is not None
    values = chart.schema["definitions"]["cudaOptions"]["properties"]
    assert set(values) == set(CudaOptions.model_fields) == set(CARD_OPTIONS)
    for name, field in CudaOptions.model_json_schema()["properties"].items():
        kind, _ = field["anyOf"]  # and null
        least = kind.get("minimum", kind["exclusiveMinimum"] + 1 if "exclusiveMinimum" in kind else None)
        said = {"enum": kind["enum"]} if "enum" in kind else {"type": kind["type"]}
        bounds = {"minimum": least, "maximum": kind.get("maximum")}
        assert values[name] == {**said, **{bound: of for bound, of in bounds.items() if of is not None}}


def test_a_triton_has_started_with_its_models_is_ready_by_its_server_and_alive_by_its_process(render: Render) -> None:
    container = render().container("tandem-cpu")
    assert container["startupProbe"]["httpGet"]["path"] == "/v2/models/digits-fp32/ready"
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


def test_the_slim_images_triton_has_started_when_it_wrote_down_the_first_model(render: Render) -> None:
    container = render(SLIM).container("tandem-cpu")
    *grep, name, file = container["startupProbe"]["exec"]["command"]
    assert (grep, name) == (["grep", "-qxF"], "digits-fp32")
    assert f"--ready-file={file}" in container["command"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"


@pytest.mark.parametrize("server", ["nvidia", "tandem"])
def test_onnx_runtime_is_told_to_send_no_usage_data(server: str, render: Render) -> None:
    container = render({"pools": {"cpu": {"server": server}}}).container("tandem-cpu")
    assert {"name": "ORT_DISABLE_TELEMETRY", "value": "1"} in container["env"]


def test_the_startup_probe_waits_as_long_as_it_was_told(render: Render) -> None:
    probe = render({"pools": {"cpu": {"startupTimeoutSeconds": 93}}}).container("tandem-cpu")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 95


def test_values_of_one_pool_leave_the_others_alone(render: Render) -> None:
    it = render({"pools": {"cpu": {"shmSize": "1Gi"}, "gpu": {"enabled": True}}})
    sizes = {
        name: next(v for v in pod["volumes"] if v["name"] == "shm")["emptyDir"]["sizeLimit"]
        for name, pod in it.pods()
        if name in ("tandem-cpu", "tandem-gpu")
    }
    assert sizes == {"tandem-cpu": "1Gi", "tandem-gpu": "256Mi"}


def test_false_nothing_and_none_of_a_pool_win_over_the_defaults(render: Render) -> None:
    toleration = {"key": "spot", "operator": "Exists"}
    defaults = {"tolerations": [toleration], "extraArgs": ["--log-verbose=1"], "autoscaling": {"enabled": True}}
    own = {"tolerations": [], "extraArgs": [], "autoscaling": {"enabled": False}, "replicas": 0}
    it = render({"poolDefaults": defaults, "pools": {"cpu": own, "spare": {"models": ["digits-fp32"]}}})
    cpu, spare = (it.one("Deployment", f"tandem-{name}")["spec"] for name in ("cpu", "spare"))
    assert cpu["replicas"] == 0
    assert it.tolerations("tandem-cpu") == []
    assert "--log-verbose=1" not in it.container("tandem-cpu")["args"]
    assert "replicas" not in spare
    assert it.tolerations("tandem-spare") == [toleration]
    assert it.container("tandem-spare")["args"][-1] == "--log-verbose=1"


# -- nodes that are lost ------------------------------------------------------------------------------------------------------

LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
EVERYTHING: Object = {"scaler": {"enabled": True}, "pools": {"gpu": {"enabled": True}}}


def _seconds(it: Rendering, name: str) -> dict[str, int]:
    tolerations = it.one("Deployment", name)["spec"]["template"]["spec"].get("tolerations", [])
    return {
        one["key"]: one["tolerationSeconds"]
        for one in tolerations
        if one.get("key") in LOST and (one["operator"], one["effect"]) == ("Exists", "NoExecute")
    }


@pytest.mark.parametrize("name", ["tandem-gateway", "tandem-scaler", "tandem-cpu", "tandem-gpu"])
def test_every_pod_leaves_a_lost_node_after_seconds(name: str, render: Render) -> None:
    it = render(EVERYTHING)
    assert len(_seconds(it, name)) == len(LOST)
    assert all(10 <= seconds <= 30 for seconds in _seconds(it, name).values())


def test_how_long_is_a_value_of_each_and_what_the_user_tolerates_goes_before(render: Render) -> None:
    own = {"key": LOST[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 7}
    it = render(
        {
            "gateway": {"lostNodeSeconds": 300},
            "scaler": {"enabled": True, "tolerations": [{"operator": "Exists"}]},
            "pools": {
                "cpu": {"lostNodeSeconds": 0, "tolerations": [own]},
                "gpu": {"enabled": True, "lostNodeSeconds": 90},
            },
        }
    )
    assert _seconds(it, "tandem-gateway") == dict.fromkeys(LOST, 300)
    assert _seconds(it, "tandem-scaler") == {}
    assert _seconds(it, "tandem-cpu") == {LOST[0]: 7, LOST[1]: 0}
    assert _seconds(it, "tandem-gpu") == dict.fromkeys(LOST, 90)


# -- who may talk to whom -----------------------------------------------------------------------------------------------------


def test_only_the_gateway_reaches_triton_and_triton_reaches_nobody(render: Render) -> None:
    it = render(GPU)
    policy = it.one("NetworkPolicy", "tandem-triton")["spec"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    gateway = it.one("Deployment", "tandem-gateway")["spec"]["selector"]["matchLabels"]
    assert peer == {"podSelector": {"matchLabels": gateway}}
    assert [port["port"] for port in rule["ports"]] == ["http", "grpc"]
    assert policy["egress"] == []
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for pool in ("tandem-cpu", "tandem-gpu"):
        labels = it.one("Deployment", pool)["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()


def test_metrics_are_open_only_to_whom_the_values_name_and_only_their_port(render: Render) -> None:
    peers: list[Any] = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    rules = render({"networkPolicy": {"metricsFrom": peers}}).one("NetworkPolicy", "tandem-triton")["spec"]["ingress"]
    assert rules[1] == {"from": peers, "ports": [{"port": "metrics", "protocol": "TCP"}]}


# -- names --------------------------------------------------------------------------------------------------------------------


def test_releases_with_long_names_that_begin_alike_have_names_of_their_own(render: Render) -> None:
    names = [
        {it["metadata"]["name"] for it in render({}, release=f"{'r' * 45}-{end}").objects if it["kind"] == "Deployment"}
        for end in ("one", "two")
    ]
    assert names[0].isdisjoint(names[1])
    assert all(len(name) <= 63 and name.startswith("r" * 31 + "-") for of in names for name in of)


def test_a_long_release_name_still_gives_names_that_kubernetes_takes(render: Render) -> None:
    it = render({"pools": {"a" * 20: {"models": ["digits-fp32"]}}}, release="r" * 53)
    names = [made["metadata"]["name"] for made in it.objects]
    assert all(len(name) <= 63 and not name.endswith("-") for name in names), names
    assert len({(made["kind"], made["metadata"]["name"]) for made in it.objects}) == len(it.objects)


@pytest.mark.parametrize("release", ["123", "1-tandem", "my.app", "2026.11.tandem"])
def test_a_release_may_have_a_name_that_no_service_may(release: str, render: Render) -> None:
    it = render(release=release)
    for service in it.all("Service"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", service["metadata"]["name"])
    for made in it.objects:
        assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == release


@pytest.mark.parametrize("name", ["on", "true", "null", "y"])
def test_a_pool_and_an_override_may_be_words_that_yaml_takes_for_something_else(name: str, render: Render) -> None:
    values = {"nameOverride": name, "pools": {name: {"models": ["digits-fp32"], "prePull": {"enabled": True}}}}
    it = render({**values, "gateway": {"objectives": {name: {"latencyS": 1}}}})
    pod = it.one("Deployment", f"tandem-{name}-{name}")["spec"]["template"]["metadata"]["labels"]
    assert (pod["tandem-pool"], pod["app.kubernetes.io/name"]) == (name, name)
    prepull = it.one("DaemonSet", f"tandem-{name}-{name}-prepull")["spec"]["selector"]["matchLabels"]
    assert prepull["tandem-prepull"] == name
    config = yaml.safe_load(it.one("ConfigMap", f"tandem-{name}-gateway")["data"]["tandem.yaml"])
    assert list(config["pools"]) == ["cpu", name] or list(config["pools"]) == [name, "cpu"]
    assert list(config["models"]) == [name]


def test_two_releases_share_no_object_and_no_pod(render: Render) -> None:
    one, other = render(release="one"), render(release="other")
    names = [{(made["kind"], made["metadata"]["name"]) for made in it.objects} for it in (one, other)]
    assert not names[0] & names[1]
    selectors = [
        it.all("Deployment")[0]["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] for it in (one, other)
    ]
    assert selectors == ["one", "other"]


def test_a_changed_configuration_replaces_the_gateways_pods(render: Render) -> None:
    before, after = (
        it.one("Deployment", "tandem-gateway")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for it in (render(), render(GPU))
    )
    assert before != after
