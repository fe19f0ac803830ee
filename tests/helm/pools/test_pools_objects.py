"""The pools' objects in every shape that their values give them: valid, safe, and what the pool's own values change.

Where models come from is in test_models.py, numbers of Tritons in test_scaling.py, what runs in test_runs.py and test_serves.py.
"""

from __future__ import annotations

import helm_python
import pytest

from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render, Rendering, accepted

pytestmark = pytest.mark.slow  # computes for seconds: not in `make check`

SELECTOR = {"nodeSelector": {"nvidia.com/gpu.present": "true"}}
EXTERNAL: Object = {
    "type": "External",
    "external": {"metric": {"name": "tandem_demand_replicas"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
SLIM_GPU: Object = {"pools": {"gpu": {"enabled": True, "server": "tandem"}}}
STORE: Object = {"source": "objectStore", "objectStore": {"from": "models:bucket", "existingSecret": "bucket"}}
FOLLOWED: Object = {
    "modelRepository": {"source": "objectStore", "objectStore": {**STORE["objectStore"], "follow": True}},
    "pools": {"cpu": {"server": "tandem"}},
}
IMAGE_VOLUME: Object = {"source": "imageVolume", "imageVolume": {"reference": "registry.example.com/models:3"}}
OWN_IMAGE: Object = {"image": {"repository": "registry.example.com:5000/models", "tag": "3", "path": "/repo/"}}
PRE_PULL: Object = {
    "pools": {"cpu": {"prePull": {"enabled": True}}, "gpu": {"enabled": True, "prePull": {"enabled": True}, **SELECTOR}}
}
SHAPES: dict[str, Object] = {
    "the slim image on a card": SLIM_GPU,
    "OpenVINO": {"pools": {"cpu": {"server": "tandem", "image": "tritonCpuOpenvino", "models": ["minilm-bf16"]}}},
    "a GPU pool from zero": {
        "pools": {"gpu": {"enabled": True, "autoscaling": {"enabled": True, "minReplicas": 0, "metrics": [EXTERNAL]}}}
    },
    "somebody else's scaler": {"pools": {"gpu": {"enabled": True, "replicas": None, "maxReplicas": 3}}},
    "three Tritons": {"pools": {"cpu": {"replicas": 3}}},
    "images ahead": PRE_PULL,
    "images ahead, in all sources": {**PRE_PULL, "modelRepository": OWN_IMAGE},
    "images ahead, with a bucket": {**PRE_PULL, "modelRepository": STORE},
    "images ahead, with an image volume": {**PRE_PULL, "modelRepository": IMAGE_VOLUME},
    "images ahead, with a claim": {**PRE_PULL, "modelRepository": {"source": "claim", "claimName": "models"}},
    "a bucket": {"modelRepository": STORE},
    "a bucket that is followed": FOLLOWED,
    "everything of a pool": {
        "imageRegistry": "registry.example.com/team",
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClass": {"create": True},
        "triton": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}}},
        "poolDefaults": {
            "prePull": {"enabled": True},
            "podLabels": {"team": "a"},
            "podAnnotations": {"example.com/team": "a"},
            "env": [{"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
            "runtimeClassName": "nvidia",
            "priorityClassName": "high",
            "topologySpread": {"enabled": True},
            **SELECTOR,
            "tolerations": [
                {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            ],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                    ]
                },
            },
        },
        "pools": {"gpu": {"enabled": True, "replicas": 2}},
    },
}


def of_pools(it: Rendering) -> list[Object]:
    """The others are validated where their values are tested."""
    components = [(made, made["metadata"]["labels"]["app.kubernetes.io/component"]) for made in it.objects]
    return [made for made, component in components if component in ("triton", "prepull")]


@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_every_object_is_valid_for_the_api_server(version: str, render: Render) -> None:
    seen: set[str] = set()
    for shape, values in SHAPES.items():
        if version == "1.30" and "image volume" in shape:
            continue  # the guard refuses it below 1.35, test_models.py
        checks.valid(of_pools(render(values)), version, seen)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pod_is_restricted_bounded_and_writes_to_volumes_that_exist(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    checks.restricted(it)
    checks.bounded(it)
    checks.mounted(it)
    checks.named_once(it)
    checks.secrets_by_reference(it)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_service_stands_for_the_tritons_of_one_pool_and_for_nothing_else(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    pods = [made["spec"]["template"]["metadata"]["labels"] for made in [*it.all("Deployment"), *it.all("DaemonSet")]]
    for service in it.all("Service"):
        selector = service["spec"]["selector"]
        assert sum(selector.items() <= labels.items() for labels in pods) == 1, service["metadata"]["name"]


@pytest.mark.parametrize("shape", checks.linted(SHAPES, "everything of a pool"))
def test_helm_lint_finds_nothing(shape: str) -> None:
    # Guards are not asked in `helm lint`; test_models.py does.
    report = helm_python.lint(
        ROOT / "helm" / "tandem",
        accepted(SHAPES[shape]),
        strict=True,
        kube_version="v1.30.0",
        namespace="serving",  # the priority class has it in its name
    )
    worse_than_info = [message for message in report["messages"] if message["severity"] > 1]
    assert (report["errors"], worse_than_info) == ([], [])


# -- images -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "image"),
    [
        ({"device": "cpu"}, "r/t/tandem-triton-cpu:0.1.0"),
        ({"device": "cpu", "image": "tritonCpu"}, "r/t/tandem-triton-cpu:0.1.0"),
        ({"device": "cpu", "image": "tritonCpuOpenvino"}, "r/t/tandem-triton-cpu-openvino:0.1.0"),
        ({"device": "gpu"}, "r/t/tandem-triton-gpu:0.1.0"),
        ({"device": "gpu", "image": "tritonGpu"}, "r/t/tandem-triton-gpu:0.1.0"),
        ({"device": "gpu", "server": "nvidia"}, "nvcr.io/nvidia/tritonserver:26.08-py3"),
    ],
)
def test_the_device_chooses_the_slim_image_unless_the_pool_names_one(pool: Object, image: str, render: Render) -> None:
    own = {"server": "tandem", "models": ["digits-fp32"], **pool}
    it = render({"imageRegistry": "r/t", "pools": {"own": own}})
    assert it.container("tandem-own")["image"] == image


def test_each_image_is_pulled_as_its_own_value_says(render: Render) -> None:
    images = {"tritonGpu": {"pullPolicy": "Always", "tag": "7"}, "nvidia": {"pullPolicy": "Never"}}
    it = render({"images": images, **SLIM_GPU})
    assert it.container("tandem-gpu")["imagePullPolicy"] == "Always"
    assert it.container("tandem-gpu")["image"] == "tandem-triton-gpu:7"
    assert it.container("tandem-cpu")["imagePullPolicy"] == "Never"


def test_the_slim_image_on_a_card_runs_tandem_triton_for_that_pool_and_takes_the_card(render: Render) -> None:
    container = render(SLIM_GPU).container("tandem-gpu")
    assert container["command"][:3] == ["tandem", "triton", "--pool=gpu"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


# -- what a pool's own values change --------------------------------------------------------------------------------------------


def test_pod_labels_annotations_runtime_class_and_priority_reach_the_pods(render: Render) -> None:
    it = render(SHAPES["everything of a pool"])
    for name in ("tandem-cpu", "tandem-gpu"):
        template = it.one("Deployment", name)["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == "a"
        assert template["metadata"]["annotations"] == {"example.com/team": "a"}
        assert template["spec"]["runtimeClassName"] == "nvidia"
        assert template["spec"]["priorityClassName"] == "high"
    default = render().one("Deployment", "tandem-cpu")["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "priorityClassName"} & default.keys()


def test_a_pool_without_a_priority_class_of_its_own_takes_the_charts(render: Render) -> None:
    it = render({"priorityClass": {"create": True, "name": "serving"}})
    assert it.one("Deployment", "tandem-cpu")["spec"]["template"]["spec"]["priorityClassName"] == "serving"


def environment(container: Object) -> dict[str, str | None]:
    names = [it["name"] for it in container["env"]]
    assert len(set(names)) == len(names), "the API server would keep one of two"
    return {it["name"]: it.get("value") for it in container["env"]}


@pytest.mark.parametrize("server", ["nvidia", "tandem"])
def test_a_cpu_pool_sees_no_card_of_its_node_and_a_gpu_pool_what_it_claimed(server: str, render: Render) -> None:
    it = render({"poolDefaults": {"server": server}, "pools": {"gpu": {"enabled": True}}})
    assert environment(it.container("tandem-cpu"))["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(it.container("tandem-gpu"))


def test_a_variable_of_the_user_stands_in_for_the_charts(render: Render) -> None:
    own = [{"name": "ORT_DISABLE_TELEMETRY", "value": "0"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    made = environment(render({"pools": {"cpu": {"env": own}}}).container("tandem-cpu"))
    assert (made["ORT_DISABLE_TELEMETRY"], made["OMP_NUM_THREADS"]) == ("0", "1")


def test_what_tandem_triton_measures_is_written_to_a_volume_and_nvidias_server_measures_nothing(render: Render) -> None:
    it = render({"pools": {"cpu": {"server": "tandem"}, "gpu": {"enabled": True}}})
    paths = {
        name: {mount["mountPath"] for mount in it.container(name)["volumeMounts"]}
        for name in ("tandem-cpu", "tandem-gpu")
    }
    assert paths == {
        "tandem-cpu": {"/models", "/tmp", "/dev/shm", "/opt/tandem/speeds"},
        "tandem-gpu": {"/models", "/tmp", "/dev/shm"},
    }


def test_the_pools_account_may_be_annotated_for_a_cloud_and_still_has_no_token(render: Render) -> None:
    account = render(SHAPES["everything of a pool"]).one("ServiceAccount", "tandem-triton")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}
    assert account["automountServiceAccountToken"] is False


# -- images ahead ---------------------------------------------------------------------------------------------------------------


def test_images_are_pulled_ahead_only_where_that_is_asked_for(render: Render) -> None:
    assert render().all("DaemonSet") == []
    it = render({"pools": {"cpu": {"prePull": {"enabled": True}}, "gpu": {"enabled": True}}})
    assert [made["metadata"]["name"] for made in it.all("DaemonSet")] == ["tandem-cpu-prepull"]


def test_what_is_pulled_ahead_lies_where_the_pool_may_run_and_claims_no_card(render: Render) -> None:
    it = render(SHAPES["everything of a pool"])
    for pool in ("tandem-cpu", "tandem-gpu"):
        triton = it.one("Deployment", pool)["spec"]["template"]["spec"]
        ahead = it.one("DaemonSet", f"{pool}-prepull")["spec"]["template"]["spec"]
        assert (
            ahead["tolerations"]
            == it.tolerations(pool)
            == SHAPES["everything of a pool"]["poolDefaults"]["tolerations"]
        )
        for same in ("nodeSelector", "imagePullSecrets"):
            assert ahead[same] == triton[same]
        assert ahead["affinity"] == {"nodeAffinity": triton["affinity"]["nodeAffinity"]}
        assert not {"runtimeClassName", "priorityClassName"} & ahead.keys()
        for container in checks.containers(ahead):
            assert container["resources"]["limits"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.startswith("images ahead")])
def test_everything_that_a_pools_pod_pulls_is_pulled_ahead(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    for pool in ("tandem-cpu", "tandem-gpu"):
        triton = it.one("Deployment", pool)["spec"]["template"]["spec"]
        ahead = it.one("DaemonSet", f"{pool}-prepull")["spec"]["template"]["spec"]
        assert {c["image"] for c in checks.containers(triton)} == {c["image"] for c in checks.containers(ahead)}
        volumes = [[v for v in pod.get("volumes", []) if "image" in v] for pod in (triton, ahead)]
        assert volumes[0] == volumes[1]


def test_pulling_ahead_sees_no_card_and_leaves_at_once(render: Render) -> None:
    for daemons in render(PRE_PULL).all("DaemonSet"):
        pod = daemons["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 1
        for container in pod["initContainers"]:
            assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]


# -- how it is replaced -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "strategy"),
    [
        ({}, {"type": "Recreate"}),
        ({"replicas": 0}, {"type": "Recreate"}),
        ({"replicas": None}, {"type": "Recreate"}),
        ({"replicas": None, "maxReplicas": 3}, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ({"replicas": 1, "maxReplicas": 3}, {"type": "Recreate"}),
        ({"replicas": 2}, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        (
            {"autoscaling": {"enabled": True, "maxReplicas": 1, "metrics": [EXTERNAL]}},
            {"type": "Recreate"},
        ),
        (
            {"autoscaling": {"enabled": True, "metrics": [EXTERNAL]}},
            {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
    ],
)
def test_a_gpu_pool_never_needs_a_card_more_than_it_has_to_be_updated(
    pool: Object, strategy: Object, render: Render
) -> None:
    it = render({"pools": {"gpu": {"enabled": True, **pool}}})
    assert it.one("Deployment", "tandem-gpu")["spec"]["strategy"] == strategy


def test_a_rollout_counts_as_failed_only_after_a_node_could_have_come_and_loaded(render: Render) -> None:
    it = render({"pools": {"cpu": {"startupTimeoutSeconds": 1200}}})
    assert it.one("Deployment", "tandem-cpu")["spec"]["progressDeadlineSeconds"] == 900 + 1200
