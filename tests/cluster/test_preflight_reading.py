"""What is asked of a cluster is read from rendered objects, and what it has from its own; both as their makers write them."""

from __future__ import annotations

import io
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.objects.fields import quantity
from serving.cluster.objects.gpus import is_gpu, sign_of_gpu
from serving.cluster.objects.namespace import Event, LimitRange, Quota
from serving.cluster.objects.nodes import NodePool
from serving.cluster.objects.pods import Pod
from serving.cluster.preflight.checks import failed_pulls
from serving.cluster.preflight.command import requirements_of
from serving.cluster.preflight.quotas import own_use
from serving.cluster.preflight.requirements import DEFAULT, Kind, Resource, requirements
from serving.errors import UserError

Object = dict[str, Any]
MIB = Decimal(2**20)


def deployment(*containers: Object, init: tuple[Object, ...] = (), replicas: int | None = 1, **spec: Any) -> Object:
    pod = {"containers": list(containers), "initContainers": list(init), **spec}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"replicas": replicas, "template": {"spec": pod}},
    }  # fmt: skip


def container(requests: Object | None = None, limits: Object | None = None, **more: Any) -> Object:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}, **more}


@pytest.mark.parametrize(
    ("it", "sums"),
    [
        pytest.param(deployment(container({"cpu": "500m"}, {"cpu": "1"}), replicas=3),
                     {"requests.cpu": "1.5", "limits.cpu": "3", "pods": "3"}, id="times its replicas"),
        pytest.param(deployment(container(None, {"cpu": "1"})),
                     {"requests.cpu": "1", "limits.cpu": "1", "pods": "1"}, id="an absent request is the limit"),
        pytest.param(deployment(container({"memory": "64Mi"})), {"requests.memory": str(64 * MIB), "pods": "1"}, id="no limit"),
        pytest.param(deployment(container({"cpu": "1"}), container({"cpu": "2"}), init=(container({"cpu": "2"}), container({"cpu": "2"}))),
                     {"requests.cpu": "3", "pods": "1"}, id="init containers run one by one, before"),
        pytest.param(deployment(container({"cpu": "1"}), init=(container({"cpu": "4"}),)),
                     {"requests.cpu": "4", "pods": "1"}, id="a large init container"),
        pytest.param(deployment(container(None, {"nvidia.com/gpu": "1"}), replicas=2),
                     {"requests.nvidia.com/gpu": "2", "limits.nvidia.com/gpu": "2", "pods": "2"}, id="cards"),
        pytest.param(deployment(container(), replicas=None), {"pods": "1"}, id="no number of replicas"),
        pytest.param(deployment(container({"cpu": "1"}), replicas=0), {"requests.cpu": "0", "pods": "0"}, id="none"),
    ],
)  # fmt: skip
def test_what_pods_ask_for_is_summed_as_a_quota_counts(it: Object, sums: dict[str, str]) -> None:
    assert requirements([it], "mine").sums() == {key: Decimal(value) for key, value in sums.items()}


@pytest.mark.parametrize("kind", ["autoscaling/v2/HorizontalPodAutoscaler", "keda.sh/v1alpha1/ScaledObject"])
def test_what_begins_with_none_and_an_autoscaler_starts_counts_as_one(kind: str) -> None:
    version, _, name = kind.rpartition("/")
    follower = {
        "apiVersion": version,
        "kind": name,
        "metadata": {"name": "b"},
        "spec": {"scaleTargetRef": {"name": "a"}},
    }
    for replicas, gpus in ((0, 1), (3, 3)):
        pool = deployment(container(None, {"nvidia.com/gpu": "1"}), replicas=replicas)
        assert requirements([pool, follower], "mine").gpus == {"nvidia.com/gpu": gpus}


def test_a_rendered_volume_claim_counts_too() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"},
             "spec": {"resources": {"requests": {"storage": "10Gi"}}}}  # fmt: skip
    user = deployment(container(), volumes=[{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}])
    found = requirements([claim, user], "mine")
    assert found.sums() == {"pods": 1, "persistentvolumeclaims": 1, "requests.storage": 10 * 1024 * MIB}
    assert (found.claims_made[0].storage_class, found.claims_used) == (None, frozenset())
    assert requirements([user], "mine").claims_used == {"models"}


def test_secrets_that_pods_cannot_start_without_are_found() -> None:
    it = deployment(
        container(
            env=[
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "of-env", "key": "k"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "may-lack", "key": "k", "optional": True}}},
                {"name": "C", "value": "plain"},
            ],
            envFrom=[{"secretRef": {"name": "of-all"}}, {"configMapRef": {"name": "no-secret"}}],
        ),
        init=(container(env=[{"name": "D", "valueFrom": {"secretKeyRef": {"name": "of-init", "key": "k"}}}]),),
        volumes=[
            {"name": "keys", "secret": {"secretName": "of-volume"}},
            {
                "name": "both",
                "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "x"}}]},
            },
            {"name": "tmp", "emptyDir": {}},
        ],
        imagePullSecrets=[{"name": "registry"}],
    )
    found = requirements([it], "mine")
    assert found.secrets_used == {"of-env", "of-all", "of-init", "of-volume", "projected"}
    assert found.pull_secrets == {"registry"}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-env"}}
    assert "of-env" not in requirements([it, made], "mine").secrets_used


def test_kinds_of_others_and_rights_follow_from_the_objects() -> None:
    objects = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}
        for version, kind in [
            ("networking.k8s.io/v1", "Ingress"),
            ("gateway.networking.k8s.io/v1", "HTTPRoute"),
            ("monitoring.coreos.com/v1", "ServiceMonitor"),
            ("scheduling.k8s.io/v1", "PriorityClass"),
        ]
    ]
    found = requirements(objects, "mine")
    assert found.kinds == {
        Kind("gateway.networking.k8s.io", "v1", "HTTPRoute"),
        Kind("monitoring.coreos.com", "v1", "ServiceMonitor"),
    }
    assert found.resources == {
        Resource("networking.k8s.io", "ingresses"),
        Resource("gateway.networking.k8s.io", "httproutes"),
        Resource("monitoring.coreos.com", "servicemonitors"),
        Resource("scheduling.k8s.io", "priorityclasses", is_namespaced=False),
        Resource("", "secrets"),
    }
    assert not found.has_policies


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("Resource", "metrics.k8s.io"),
        ("ContainerResource", "metrics.k8s.io"),
        ("External", "external.metrics.k8s.io"),
        ("Pods", "custom.metrics.k8s.io"),
        ("Object", "custom.metrics.k8s.io"),
    ],
)
def test_an_autoscaler_needs_the_api_that_has_its_metric(kind: str, group: str) -> None:
    it = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "x"},
        "spec": {"metrics": [{"type": kind}]},
    }
    assert requirements([it], "mine").metrics == {group}


def test_what_helm_test_makes_later_is_not_counted() -> None:
    hook = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t", "annotations": {"helm.sh/hook": "test"}}}
    assert requirements([hook, None], "mine").resources == {Resource("", "secrets")}  # type: ignore[list-item]


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{a: [", "is not what `helm template` prints"),
        ("just words", "is not what `helm template` prints"),
        ("kind: Deployment", "is not what `helm template` prints: 'apiVersion'"),
        ("- a\n- b", "is not what `helm template` prints"),
        (
            "apiVersion: apps/v1\nkind: Deployment\nspec: {template: {spec: {containers: [{resources: {limits: {cpu: lots}}}]}}}",
            "is not what",
        ),
        ("", "holds no objects"),
        ("---\n# nothing\n---\n", "holds no objects"),
    ],
    ids=["not YAML", "a string", "no version", "a list", "a quantity that is none", "empty", "comments"],
)
def test_a_file_that_holds_no_objects_is_the_users_to_mend(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rendered.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="--rendered") as error:
        requirements_of(path, None, ())
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml.*read"):
        requirements_of(tmp_path / "none.yaml", None, ())


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\n"))
    found = requirements_of(Path("-"), None, ())
    assert (found.source, Resource("", "services") in found.resources) == ("standard input", True)


def test_a_gpu_pool_and_pull_secrets_come_on_top() -> None:
    found = requirements_of(None, "nvidia.com/mig-1g.10gb", ("b", "a"))
    assert found.gpus == {"nvidia.com/mig-1g.10gb": 1}
    assert found.pull_secrets == {"a", "b"}
    assert found.resources == DEFAULT.resources


@pytest.mark.parametrize("resource", ["gpu", "amd.com/gpu", "nvidia.com/hostdev", "cpu", ""])
def test_what_is_no_gpu_resource_is_refused(resource: str) -> None:
    with pytest.raises(UserError, match=r"nvidia\.com/gpu.*usual"):
        requirements_of(None, resource, ())


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared"]
)
def test_the_names_of_nvidias_device_plugin_are_known(resource: str) -> None:
    assert is_gpu(resource)


# -- the cluster's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "sign"),
    [
        ({"nvidia.com/gpu.present": "true"}, "nvidia.com/gpu.present=true"),
        ({"nvidia.com/gpu.present": "false"}, None),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "cloud.google.com/gke-accelerator=nvidia-l4"),
        ({"node.kubernetes.io/instance-type": "g6.xlarge"}, "node.kubernetes.io/instance-type=g6.xlarge"),
        ({"node.kubernetes.io/instance-type": "g4dn.12xlarge"}, "node.kubernetes.io/instance-type=g4dn.12xlarge"),
        (
            {"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"},
            "node.kubernetes.io/instance-type=Standard_NC24ads_A100_v4",
        ),
        ({"node.kubernetes.io/instance-type": "a2-highgpu-1g"}, "node.kubernetes.io/instance-type=a2-highgpu-1g"),
        ({"node.kubernetes.io/instance-type": "m5.large"}, None),
        ({"node.kubernetes.io/instance-type": "g4ad.xlarge"}, None),
        ({"node.kubernetes.io/instance-type": "Standard_D4s_v5"}, None),
        ({"accelerator": "tpu"}, None),
        ({}, None),
    ],
)
def test_a_machine_with_a_card_is_known_by_its_labels(labels: dict[str, str], sign: str | None) -> None:
    assert sign_of_gpu(labels) == sign


def karpenter_pool(**spec: Any) -> Object:
    template = {key: value for key, value in spec.items() if key != "limits"}
    return {
        "metadata": {"name": "gpu"},
        "spec": {"limits": spec.get("limits"), "template": {"spec": template}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize(
    ("it", "sign"),
    [
        (karpenter_pool(limits={"nvidia.com/gpu": 4}), "limits.nvidia.com/gpu"),
        (karpenter_pool(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), "taint nvidia.com/gpu"),
        (karpenter_pool(requirements=[{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Gt", "values": ["0"]}]),
         "requirement karpenter.k8s.aws/instance-gpu-count"),
        (karpenter_pool(requirements=[{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g6.xlarge"]}]),
         "requirement node.kubernetes.io/instance-type=g6.xlarge"),
        (karpenter_pool(requirements=[{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "DoesNotExist"}]), None),
        (karpenter_pool(limits={"cpu": 100}, taints=[{"key": "team", "effect": "NoSchedule"}]), None),
    ],
)  # fmt: skip
def test_a_karpenter_pool_that_buys_cards_is_known_by_what_it_says(it: Object, sign: str | None) -> None:
    found = NodePool.parse(it)
    assert (found.sign_of_gpu, found.is_ready, found.trouble) == (sign, True, "")


def event(reason: str, message: str, at: str) -> Object:
    return {"reason": reason, "message": message, "lastTimestamp": at}


def test_of_each_image_the_newest_failure_that_says_why_is_kept() -> None:
    events = [
        event("Failed", 'Failed to pull image "a:1": 401 Unauthorized', "2026-11-20T10:00:00Z"),
        event("BackOff", 'Back-off pulling image "a:1"', "2026-11-20T10:05:00Z"),
        event("Failed", 'Failed to pull image "a:1": not found', "2026-11-20T10:01:00Z"),
        event("BackOff", 'Back-off pulling image "b:1"', "2026-11-20T10:00:00Z"),
        event("BackOff", 'Back-off restarting failed container "triton" in pod x', "2026-11-20T10:00:00Z"),
        event("Failed", "Error: ErrImagePull", "2026-11-20T10:00:00Z"),
        event("Pulled", 'Successfully pulled image "c:1"', "2026-11-20T10:00:00Z"),
    ]
    found = failed_pulls(map(Event.parse, events))
    assert [(image, it.message) for image, it in found.items()] == [
        ("a:1", 'Failed to pull image "a:1": not found'),
        ("b:1", 'Back-off pulling image "b:1"'),
    ]


def test_pods_that_have_ended_take_nothing_of_a_quota() -> None:
    spec = {"containers": [container({"cpu": "1"}, {"cpu": "1"})]}
    pods = [{"spec": spec, "status": {"phase": phase}} for phase in ("Running", "Pending", "Succeeded", "Failed")]
    assert own_use(map(Pod.parse, pods)) == {"requests.cpu": 2, "limits.cpu": 2, "pods": 2}


def test_a_quota_that_has_no_status_yet_counts_by_its_spec() -> None:
    found = Quota.parse({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "4"}, "scopes": ["BestEffort"]}})
    assert (found.hard, found.used, found.is_scoped) == ({"pods": 4}, {}, True)


def test_a_limit_ranges_maximum_is_its_default() -> None:
    found = LimitRange.parse(
        {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}
    )
    assert found.limits[0].default == {"cpu": 2}


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "1",
        "1.5",
        "500m",
        "250u",
        "3n",
        "12k",
        "1M",
        "2G",
        "3T",
        "1P",
        "1E",
        "64Ki",
        "1.5Gi",
        "1Ei",
        "1e3",
        "12E2",
        4,
    ],
)
def test_quantities_are_read_as_the_client_library_reads_them(text: str | int) -> None:
    from kubernetes.utils import parse_quantity

    assert quantity(text) == parse_quantity(text)


@pytest.mark.parametrize("text", ["", "lots", "1.5.2", "1 Gi", "Gi", "1gi", "nan"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)
