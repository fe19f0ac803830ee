"""Every profile of the chart lives through lint, validation, install, `helm test`, upgrade, rollback and uninstall on a real API server.

The namespace enforces Pod Security `restricted`, so a pod outside it never starts and the install fails. Pods are simulated: that they
get ready says nothing about images, probes or models. The lives run side by side, because they mostly wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from serving.cluster.objects.pods import SCALED_BY
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import Nodes, drop_namespace, new_namespace
from tests.cluster.release import PROFILES, Release, extended_resources, node_labels, stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = {"existingSecret": "keys", "client": {"existingSecret": "client-key"}}
INGRESS_PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
# All that is off by default, with the kinds of others.
EVERYTHING: Object = {
    "auth": KEYS,
    "gateway": {
        "autoscaling": {"enabled": True, "minReplicas": 2},
        "objectives": {"digits": {"latencyS": 0.5}},
    },
    "pools": {
        "cpu": {"autoscaling": {"enabled": True, "minReplicas": 2}, "prePull": {"enabled": True}},
        "gpu": {"enabled": True},
    },
    "priorityClass": {"create": True},
    "networkPolicy": {"gatewayFrom": INGRESS_PEER, "metricsFrom": [{"podSelector": {}}]},
    "ingress": {"enabled": True, "hosts": ["tandem.example.com"], "tls": [{"secretName": "tls"}]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "edge"}], "hostnames": ["tandem.example.com"], "grpc": {"enabled": True, "hostnames": ["grpc.example.com"]}},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "loadTest": {"enabled": True},
}  # fmt: skip
# What is off by default holds all kinds of objects; the profiles are parts of it.
LIVES = [*(pytest.param(it, marks=pytest.mark.thorough) for it in PROFILES), "everything"]
SIDE_BY_SIDE = 4
GENERATED = ("ReplicaSet/", "Pod/", "EndpointSlice/", "Endpoints/", "ControllerRevision/")  # with names of their own
CLUSTER_WIDE = (
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
)


def secrets(bed: Bed, namespace: str) -> None:
    for name, key in (("keys", "keys.json"), ("client-key", "api-key"), ("tls", "tls.crt")):
        bed.api.create(
            f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": name}, "stringData": {key: "x"}}
        )


def live(release: Release) -> None:
    """Raises where a step fails."""
    bed, namespace = release.bed, release.namespace
    release.lint()
    rendered = release.rendered()
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", stdin=rendered)
    with ThreadPoolExecutor(1) as beside:
        asleep = beside.submit(fall_asleep, release)
        release.install()
        asleep.result()
    release.settle()
    assert not refused_pods(release)
    made = {it for it in labelled(bed, namespace) if not it.startswith(GENERATED)}
    assert "Phase:          Succeeded" in release.test()
    changed = {"gateway.podAnnotations": {"rolled": "out"}, "poolDefaults.podAnnotations": {"rolled": "out"}}
    Release(bed, namespace, release.values, {**release.more, **changed}).upgrade()
    assert rolled(release) == {"out"}
    release.rollback(1)
    assert rolled(release) == {None}
    release.settle()
    assert {it for it in labelled(bed, namespace) if not it.startswith(GENERATED)} >= made
    assert len(made) >= 10
    release.uninstall()
    until(lambda: not left(release), f"{namespace}: nothing left of the release", 30)


def fall_asleep(release: Release) -> None:
    """What the scaler does, while Helm waits, with the one server that a pool begins with which the scaler scales: nobody wants it."""
    scaled = [it for it in stack(release.rendered()) if it["metadata"].get("annotations", {}).get(SCALED_BY)]
    for it in scaled:
        name = it["metadata"]["name"].removeprefix(f"{release.name}-")
        until(lambda: name in release.deployments(), f"deployment {name}", 60)  # noqa: B023
        of_pool = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/{it['metadata']['name']}/scale"
        release.bed.api.merge(of_pool, {"spec": {"replicas": 0}})


def rolled(release: Release) -> set[str | None]:
    """The annotation of the test on gateway and pools; the scaler has none of its own."""
    found = [it["spec"]["template"]["metadata"] for it in release.deployments().values()]
    served = [it for it in found if it["labels"]["app.kubernetes.io/component"] in ("gateway", "triton")]
    return {it.get("annotations", {}).get("rolled") for it in served}


def refused_pods(release: Release) -> list[str]:
    return [it["message"] for it in release.objects("events") if it["reason"] == "FailedCreate"]


def labelled(bed: Bed, namespace: str) -> set[str]:
    """Kind and name of every object in the namespace with the release's label, whatever its kind."""
    kinds = bed.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    kinds = [it for it in kinds if not it.endswith(".metrics.k8s.io") and not it.startswith("events")]
    words = ("-n", namespace, "-l", "app.kubernetes.io/instance=tandem", "-o", "json")
    found = json.loads(bed.kubectl("get", ",".join(kinds), *words))["items"]
    return {f"{it['kind']}/{it['metadata']['name']}" for it in found}


def left(release: Release) -> set[str]:
    """Of all that has the release's label, and of what Helm keeps of it, but the pod of `helm test`, which Helm leaves for its log."""
    found = labelled(release.bed, release.namespace) - {"Pod/tandem-test-infer"}
    found |= {it["metadata"]["name"] for it in release.objects("secrets") if it["type"] == "helm.sh/release.v1"}
    for path in CLUSTER_WIDE:
        for it in release.bed.api.items(path):
            if it["metadata"].get("annotations", {}).get("meta.helm.sh/release-namespace") == release.namespace:
                found.add(f"{path}/{it['metadata']['name']}")
    return found


@pytest.fixture(scope="module")
def lives(bed: Bed, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """All that are tested at once, as many as the machine bears; a test waits for its own."""
    chosen = [it.callspec.params["profile"] for it in request.session.items if it.path == request.path]  # type: ignore[attr-defined]
    gpu_nodes, namespaces = Nodes(bed), {name: new_namespace(bed) for name in chosen}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        releases = {}
        for name, namespace in namespaces.items():
            more = EVERYTHING if name == "everything" else {}
            secrets(bed, namespace)
            releases[name] = Release(bed, namespace, PROFILES.get(name), more)
        asked = [it for release in releases.values() for it in stack(release.rendered())]
        cards = dict.fromkeys(extended_resources(asked), "8")
        gpu_nodes.add("gpu-life", cards, taint="nvidia.com/gpu", labels=node_labels(asked))
        yield {name: pool.submit(live, release) for name, release in releases.items()}
        pool.shutdown(cancel_futures=True)
    gpu_nodes.remove_all()
    for namespace in namespaces.values():
        drop_namespace(bed, namespace)


@pytest.mark.parametrize("profile", LIVES)
def test_a_profile_lives_from_install_to_uninstall(profile: str, lives: dict[str, Future[None]]) -> None:
    lives[profile].result()
