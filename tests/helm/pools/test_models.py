"""Where a pool's models come from: its volume, what copies them there, what that may reach, and that they are proven in any case."""

from __future__ import annotations

import shutil
from pathlib import Path

import helm_python
import pytest

from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render, accepted

from .test_pools_objects import FOLLOWED, IMAGE_VOLUME, OWN_IMAGE, STORE

pytestmark = pytest.mark.slow  # computes for seconds: not in `make check`

CLAIM: Object = {"source": "claim", "claimName": "models"}


def pod(render: Render, repository: Object) -> Object:
    spec: Object = render({"modelRepository": repository}).one("Deployment", "tandem-cpu")["spec"]["template"]["spec"]
    return spec


def volume(pod: Object) -> Object:
    (models,) = [it for it in pod["volumes"] if it["name"] == "models"]
    return {key: value for key, value in models.items() if key != "name"}


@pytest.mark.parametrize(
    ("repository", "lies", "copied_by"),
    [
        ({}, {"emptyDir": {"sizeLimit": "64Mi"}}, "tandem-gateway:0.1.0"),
        (OWN_IMAGE, {"emptyDir": {"sizeLimit": "64Mi"}}, "registry.example.com:5000/models:3"),
        ({**STORE, "sizeLimit": "9Gi"}, {"emptyDir": {"sizeLimit": "9Gi"}}, "docker.io/rclone/rclone:1.71.2"),
        (CLAIM, {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}, None),
        (
            IMAGE_VOLUME,
            {"image": {"reference": "registry.example.com/models:3", "pullPolicy": "IfNotPresent"}},
            None,
        ),
    ],
)
def test_each_source_has_its_volume_and_only_two_of_them_copy(
    repository: Object, lies: Object, copied_by: str | None, render: Render
) -> None:
    spec = pod(render, repository)
    assert volume(spec) == lies
    images = {container["name"]: container["image"] for container in spec["initContainers"]}
    assert images.pop("verify-models") == "tandem-gateway:0.1.0"
    assert images == ({"copy-models": copied_by} if copied_by else {})


@pytest.mark.parametrize("repository", [{}, OWN_IMAGE, STORE, CLAIM, IMAGE_VOLUME])
def test_whatever_the_source_the_models_are_proven_last_and_only_a_copy_may_write(
    repository: Object, render: Render
) -> None:
    spec = pod(render, repository)
    assert spec["initContainers"][-1]["command"][:2] == ["tandem", "verify"]
    for container in [*spec["initContainers"], *spec["containers"]]:
        (mount,) = [it for it in container["volumeMounts"] if it["name"] == "models"]
        assert mount["mountPath"] == "/models"
        assert mount.get("readOnly", False) == (container["name"] != "copy-models"), container["name"]


def test_an_image_of_ones_own_is_copied_from_where_it_says_and_pulled_as_it_says(render: Render) -> None:
    own = {"image": {**OWN_IMAGE["image"], "pullPolicy": "Always"}}
    copy = pod(render, own)["initContainers"][0]
    assert copy["command"] == ["cp", "-R", "/repo/.", "/models"]
    assert copy["imagePullPolicy"] == "Always"


def test_a_bucket_is_named_by_variables_of_a_secret_and_by_plain_ones(render: Render) -> None:
    env = {"RCLONE_CONFIG_MODELS_TYPE": "s3", "RCLONE_CONFIG_MODELS_ENV_AUTH": "true"}
    repository = {"source": "objectStore", "objectStore": {"from": "models:b/p", "existingSecret": "keys", "env": env}}
    copy = pod(render, repository)["initContainers"][0]
    assert copy["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {it["name"]: it["value"] for it in copy["env"]} == env
    assert copy["command"][:4] == ["rclone", "copy", "models:b/p", "/models"]


def test_the_plain_ones_alone_may_be_enough(render: Render) -> None:
    repository = {
        "source": "objectStore",
        "objectStore": {"from": "models:b", "env": {"RCLONE_CONFIG_MODELS_TYPE": "s3"}},
    }
    copy = pod(render, repository)["initContainers"][0]
    assert "envFrom" not in copy


def test_a_bucket_is_followed_by_a_container_of_each_pod_that_alone_may_write(render: Render) -> None:
    it = render(FOLLOWED)
    for name in ("tandem-cpu", "tandem-gateway"):
        spec = it.one("Deployment", name)["spec"]["template"]["spec"]
        containers = {each["name"]: each for each in [*spec["initContainers"], *spec["containers"]]}
        may_write = {
            each["name"]
            for each in containers.values()
            for mount in each["volumeMounts"]
            if mount["name"] == "models" and not mount.get("readOnly")
        }
        assert may_write == {"copy-models", "mirror-models"}
        assert containers["mirror-models"]["command"][-1] == "rclone://models/bucket"
        assert containers["mirror-models"]["envFrom"] == containers["copy-models"]["envFrom"]
        (given,) = [mount for mount in containers["copy-rclone"]["volumeMounts"] if mount["name"] == "rclone"]
        assert containers["copy-rclone"]["command"][-1] == f"{given['mountPath']}/rclone"
    checks.valid(it.objects, "1.37", set())


# -- claims and caches ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_a_claim_is_mounted_wherever_models_are_read(render: Render) -> None:
    it = render({"modelRepository": {**CLAIM, "claimSubPath": "team/models"}})
    for name in ("tandem-cpu", "tandem-gateway"):
        spec = it.one("Deployment", name)["spec"]["template"]["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            (mount,) = [each for each in container["volumeMounts"] if each["name"] == "models"]
            assert mount == {"name": "models", "mountPath": "/models", "subPath": "team/models", "readOnly": True}


def test_a_claim_that_the_chart_makes_is_the_pods_and_outlives_the_release(render: Render) -> None:
    new = {"create": True, "size": "40Gi", "storageClassName": "efs", "accessModes": ["ReadWriteMany", "ReadOnlyMany"], "annotations": {"a": "b"}}  # fmt: skip
    it = render({"modelRepository": {"source": "claim", "newClaim": new}})
    claim = it.one("PersistentVolumeClaim", "tandem-models")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep", "a": "b"}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany", "ReadOnlyMany"],
        "storageClassName": "efs",
        "resources": {"requests": {"storage": "40Gi"}},
    }
    for name in ("tandem-cpu", "tandem-gateway"):
        spec = it.one("Deployment", name)["spec"]["template"]["spec"]
        assert volume(spec) == {"persistentVolumeClaim": {"claimName": "tandem-models", "readOnly": True}}
    checks.valid(it.objects, "1.37", set())
    plain = render({"modelRepository": {"source": "claim", "newClaim": {"create": True}}})
    assert "storageClassName" not in plain.one("PersistentVolumeClaim", "tandem-models")["spec"]


def test_a_nodes_cache_takes_the_place_of_the_pods_own_copy(render: Render) -> None:
    it = render({"modelRepository": {**STORE, "nodeCache": {"path": "/var/lib/tandem"}}})
    for name in ("tandem-cpu", "tandem-gateway"):
        spec = it.one("Deployment", name)["spec"]["template"]["spec"]
        assert volume(spec) == {"hostPath": {"path": "/var/lib/tandem", "type": "Directory"}}
        assert spec["initContainers"][0]["command"][:2] == ["rclone", "copy"]
    checks.valid(it.objects, "1.37", set())


# -- what it may reach ----------------------------------------------------------------------------------------------------------


def egress(render: Render, values: Object) -> list[Object]:
    rules: list[Object] = render(values).one("NetworkPolicy", "tandem-triton")["spec"]["egress"]
    return rules


@pytest.mark.parametrize("repository", [{}, OWN_IMAGE, CLAIM, IMAGE_VOLUME])
def test_a_triton_calls_nobody_where_the_node_brings_the_models(repository: Object, render: Render) -> None:
    assert egress(render, {"modelRepository": repository}) == []


def test_a_bucket_is_reached_by_https_anywhere_but_where_clouds_hand_out_credentials(render: Render) -> None:
    bucket, names = egress(render, {"modelRepository": STORE})
    assert bucket["ports"] == [{"port": 443, "protocol": "TCP"}]
    assert [it["ipBlock"]["cidr"] for it in bucket["to"]] == ["0.0.0.0/0", "::/0"]
    assert bucket["to"][0]["ipBlock"]["except"] == ["169.254.0.0/16"]
    assert [port["port"] for port in names["ports"]] == [53, 53]


def test_a_bucket_whose_place_is_known_is_all_that_is_reached(render: Render) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "minio"}}}]
    dns = [{"namespaceSelector": {"matchLabels": {"name": "kube-system"}}}]
    bucket, names = egress(render, {"modelRepository": STORE, "networkPolicy": {"modelsTo": peers, "dnsTo": dns}})
    assert bucket == {"to": peers, "ports": [{"protocol": "TCP"}]}
    assert names["to"] == dns


# -- image volumes by the version of Kubernetes -----------------------------------------------------------------------------------

REFUSED = "which Kubernetes {} does not mount: the feature gate ImageVolume is on from 1.35"


@pytest.mark.parametrize(
    ("version", "gate", "accepted_there"),
    [
        ("v1.32.9", False, False),
        ("v1.32.9", True, False),
        ("v1.34.2", False, False),
        ("v1.34.2-gke.100", False, False),
        ("v1.33.0", True, True),
        ("v1.34.2-gke.100", True, True),
        ("v1.35.0", False, True),
        ("v1.36.0-rc.1", False, True),
    ],
)
def test_an_image_volume_is_refused_where_kubernetes_does_not_mount_it(
    version: str, gate: bool, accepted_there: bool, tmp_path: Path
) -> None:
    values = accepted(
        {"modelRepository": {**IMAGE_VOLUME, "imageVolume": {**IMAGE_VOLUME["imageVolume"], "gateEnabled": gate}}}
    )
    with on_kubernetes(version, tmp_path) as chart:
        if accepted_there:
            assert chart.render(values, name="tandem")
        else:
            with pytest.raises(helm_python.HelmRenderError, match=REFUSED.format(version)):
                chart.render(values, name="tandem")


def on_kubernetes(version: str, folder: Path, file: str = "_model_guards.tpl", root: str = "") -> helm_python.Chart:
    """The chart as a cluster of this version would render it; rendering here knows one version only. `root`: how the file calls the root."""
    copy = folder / "tandem"
    shutil.copytree(ROOT / "helm" / "tandem", copy)
    guards = copy / "templates" / file
    asks = f"{root}.Capabilities.KubeVersion.Version"
    assert guards.read_text().count(asks) == 1
    guards.write_text(guards.read_text().replace(asks, f'"{version}"'))
    return helm_python.Chart.load(copy)
