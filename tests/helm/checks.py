"""What holds for all that the chart makes, in whatever shape: pods are restricted and bounded, volumes are used, objects are valid.

Takes a rendering or its objects, raises AssertionError; the shapes are in the test modules. Objects of kinds that Kubernetes itself does not have (of the Gateway
API, of the Prometheus operator, of KEDA) are left out of the validity.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest

from tests import api_server

from .conftest import Names, Object, Rendering

# 1.30 is the oldest that Chart.yaml accepts; the newest is the newest whose schemas kubernetes-validate carries.
KUBERNETES = (pytest.param("1.30", marks=pytest.mark.thorough), "1.37")
OF_OTHERS = ("gateway.networking.k8s.io/", "monitoring.coreos.com/", "keda.sh/")
READS_KUBERNETES = (
    "tandem-scaler",
    "tandem-keys",
)  # the only pods with a token, beside gateways that follow a ConfigMap


def linted(shapes: Iterable[str], *quick: str) -> list[object]:
    """Shapes as parameters of `helm lint`, which costs as much as four renderings; each is rendered and validated elsewhere."""
    shapes = list(shapes)
    assert {*quick} <= {*shapes}
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.thorough]) for name in shapes]


def lacks(refusal: str, names: Names) -> list[str]:
    said = " ".join(refusal.split())
    return [name for name in ([names] if isinstance(names, str) else names) if " ".join(name.split()) not in said]


def containers(pod: Object) -> Iterator[Object]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def valid(objects: Iterable[Object], version: str, seen: set[str]) -> None:
    """`seen` is what was validated before: most shapes change one object."""
    for made in objects:
        if not made["apiVersion"].startswith(OF_OTHERS) and (text := json.dumps(made)) not in seen:
            seen.add(text)
            try:
                api_server.validate(made, version)
            except api_server.ValidationError as error:
                raise AssertionError(f"{made['kind']} {made['metadata']['name']}: {error}") from None


def named_once(it: Rendering) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in it.objects]
    assert len(set(names)) == len(names), sorted(names)
    assert all("namespace" not in made["metadata"] for made in it.objects), (
        "Helm puts objects into the release's namespace"
    )


def restricted(it: Rendering) -> None:
    pods = dict(it.pods())
    assert pods
    for name, pod in pods.items():
        follows = any("--control=configmap:" in word for word in pod["containers"][0].get("command", []))
        assert pod["automountServiceAccountToken"] is (name in READS_KUBERNETES or follows), name
        assert pod["enableServiceLinks"] is False, name
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({"hostPath", "projected"}.isdisjoint(volume) for volume in pod.get("volumes", []))
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def bounded(it: Rendering) -> None:
    for name, pod in it.pods():
        for container in containers(pod):
            for bound in ("requests", "limits"):
                assert {"cpu", "memory"} <= container["resources"][bound].keys(), name
            version = container["image"].rpartition("/")[2].partition(":")[2]
            assert version not in ("", "latest"), container["image"]


def mounted(it: Rendering) -> None:
    """Every volume is used and every mount has a volume; nothing is mounted by subPath, which would never change."""
    for name, pod in it.pods():
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        mounts = [mount for container in containers(pod) for mount in container.get("volumeMounts", [])]
        assert sorted(volumes) == sorted({mount["name"] for mount in mounts}), name
        assert not any("subPath" in mount for mount in mounts), name


def secrets_by_reference(it: Rendering) -> None:
    assert it.all("Secret") == []
