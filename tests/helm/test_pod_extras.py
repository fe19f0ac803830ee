"""What the values add to the pods of the gateway, the pools and the scaler: each is in the rendered pod, where it belongs, and nowhere else.

What is refused of it is at the end, with its sentence.
"""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.helm import checks
from tests.helm.conftest import Names, Object, Render, Rendering, accepted
from tests.helm.test_profiles import PROFILES

COMPONENTS = {"gateway": "tandem-gateway", "pools.cpu": "tandem-cpu", "scaler": "tandem-scaler"}
MAIN = {"gateway": "gateway", "pools.cpu": "triton", "scaler": "scaler"}
CONTAINER: Object = {"name": "mine", "image": "registry.example.com/mine:1"}
SLEEPS: Object = {
    "device": "gpu",
    "models": ["digits-fp16"],
    "nodeSelector": {"card": "yes"},
    "autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 0},
}


def of(component: str, **values: Any) -> Object:
    """Values of one of the three, with the scaler on where it is the one."""
    if component == "scaler":
        return {"scaler": {"enabled": True, **values}}
    return {"pools": {"cpu": values}} if component == "pools.cpu" else {component: values}


def pod(it: Rendering, component: str) -> Object:
    spec = it.one("Deployment", COMPONENTS[component])["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def main(it: Rendering, component: str) -> Object:
    (found,) = [each for each in pod(it, component)["containers"] if each["name"] == MAIN[component]]
    assert isinstance(found, dict)
    return found


# -- each does something ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", COMPONENTS)
def test_volumes_containers_and_variables_are_added_to_the_pod(component: str, render: Render) -> None:
    mount = {"name": "data", "mountPath": "/data", "subPath": "models", "readOnly": True}
    source = {"prefix": "MY_", "secretRef": {"name": "mine", "optional": True}}
    before = pod(render(of(component)), component)
    it = render(
        of(
            component,
            extraVolumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "x", "emptyDir": {}}],
            extraVolumeMounts=[mount],
            initContainers=[{**CONTAINER, "name": "first"}],
            extraContainers=[{**CONTAINER, "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
            env=[{"name": "http_proxy", "value": "http://proxy:3128"}],
            envFrom=[source],
            schedulerName="volcano",
        )
    )  # fmt: skip
    after = pod(it, component)
    assert after["volumes"] == [
        *before["volumes"],
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "x", "emptyDir": {}},
    ]
    assert after["initContainers"][0]["name"] == "first"
    assert after["initContainers"][1:] == before.get("initContainers", [])
    assert [each["name"] for each in after["containers"]] == [MAIN[component], "mine"]
    container, was = main(it, component), before["containers"][0]
    assert container["volumeMounts"] == [*was["volumeMounts"], mount]
    assert container["env"] == [*was.get("env", []), {"name": "http_proxy", "value": "http://proxy:3128"}]
    assert container["envFrom"] == [source]
    assert after["schedulerName"] == "volcano"
    assert "schedulerName" not in before
    checks.valid(it.objects, "1.37", set())


def test_init_containers_come_before_models_are_copied_and_verified(render: Render) -> None:
    first = [{**CONTAINER, "name": "first"}]
    models = {"modelRepository": {"source": "claim", "claimName": "models"}}
    for values, names in (
        ({}, ["first", "copy-models", "verify-models"]),
        (models, ["first", "verify-models"]),
    ):
        it = render({**values, **of("pools.cpu", initContainers=first)})
        assert [each["name"] for each in pod(it, "pools.cpu")["initContainers"]] == names


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector(render: Render) -> None:
    everything: Object = {
        "commonLabels": {"team": "vision", "cost-centre": "7"},
        "auth": {"insecureNoAuth": False},
        "scaler": {"enabled": True},
        "loadTest": {"enabled": True},
        "ingress": {"enabled": True, "hosts": ["a.example.com"], "tls": [{"secretName": "cert"}]},
        "networkPolicy": {"gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "metricsFrom": [{"podSelector": {}}]},
        "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}},
        "priorityClass": {"create": True},
        "pools": {"cpu": {"podLabels": {"team": "mine"}, "prePull": {"enabled": True}, "autoscaling": {"enabled": True}}},
    }  # fmt: skip
    it = render(everything)
    for made in it.objects:
        assert made["metadata"]["labels"]["team"] == "vision", (made["kind"], made["metadata"]["name"])
        template = made.get("spec", {}).get("template")
        if template:
            own = "mine" if made["metadata"]["name"] == "tandem-cpu" else "vision"
            assert (template["metadata"]["labels"]["team"], template["metadata"]["labels"]["cost-centre"]) == (own, "7")
        selector = made.get("spec", {}).get("selector") or {}
        assert "team" not in str(selector)
    checks.valid(it.objects, "1.37", set())


def test_every_pod_takes_annotations(render: Render) -> None:
    said = {"sidecar.istio.io/inject": "false"}
    it = render(
        {
            "auth": {"insecureNoAuth": False, "job": {"podAnnotations": said}},
            "gateway": {"podAnnotations": said},
            "scaler": {
                "enabled": True,
                "podAnnotations": said,
                "warmNodes": {"cards": {"pools": ["a", "b"], "maxNodes": 1}},
            },
            "pools": {"a": SLEEPS, "b": SLEEPS},
            "test": {"podAnnotations": said},
            "loadTest": {"enabled": True, "podAnnotations": said},
            "poolDefaults": {"podAnnotations": said, "prePull": {"enabled": True, "podAnnotations": said}},
        }
    )
    found = {}
    for made in it.objects:
        if made["kind"] == "Pod" or "template" in made.get("spec", {}):
            about = made["metadata"] if made["kind"] == "Pod" else made["spec"]["template"]["metadata"]
            found[made["metadata"]["name"]] = about["annotations"].get("sidecar.istio.io/inject")
    assert len(found) == 8 + 5, sorted(found)
    assert set(found.values()) == {"false"}


def test_the_pods_of_tests_go_where_they_are_sent(render: Render) -> None:
    where = {
        "nodeSelector": {"pool": "web"},
        "tolerations": [{"key": "web", "operator": "Exists"}],
        "schedulerName": "x",
    }
    it = render({"test": where, "loadTest": {"enabled": True, "schedulerName": "x"}})
    test = it.one("Pod", "tandem-test-infer")["spec"]
    assert {key: test[key] for key in where} == where
    assert all(pod["schedulerName"] == "x" for name, pod in it.pods() if "-load-" in name)


def test_a_pools_scheduler_pulls_its_images_too(render: Render) -> None:
    it = render(of("pools.cpu", schedulerName="volcano", prePull={"enabled": True}))
    assert it.one("DaemonSet", "tandem-cpu-prepull")["spec"]["template"]["spec"]["schedulerName"] == "volcano"


# -- what pods may do ------------------------------------------------------------------------------------------------------------


def test_what_pods_may_do_is_said_once_for_all_and_over_it_for_a_pool(render: Render) -> None:
    it = render(
        {
            "auth": {"insecureNoAuth": False},
            "scaler": {"enabled": True},
            "loadTest": {"enabled": True},
            "podSecurityContext": {"runAsUser": 1000660000, "seccompProfile": {"type": "Unconfined"}},
            "securityContext": {
                "readOnlyRootFilesystem": False,
                "capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]},
            },
            "pools": {
                "gpu": {
                    "enabled": True,
                    "podSecurityContext": {"supplementalGroups": [44, 109]},
                    "securityContext": {"privileged": False},
                }
            },
        }
    )
    names = [name for name, _ in it.pods()]
    assert len(names) == 8
    for name, spec in it.pods():
        assert spec["securityContext"]["runAsUser"] == 1000660000, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
        assert spec["securityContext"].get("supplementalGroups") == ([44, 109] if name == "tandem-gpu" else None)
        for container in checks.containers(spec):
            assert container["securityContext"]["readOnlyRootFilesystem"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
    triton = it.container("tandem-gpu")
    assert triton["securityContext"]["privileged"] is False
    checks.valid(it.objects, "1.37", set())


ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def restricted_v2(it: Rendering) -> None:
    """What OpenShift's SCC of that name lets a service account run which may do nothing else: its `MustRunAsRange`, `MustRunAs` and
    `RunAsAny` are met by saying nothing, or what is of the namespace's range, which no chart knows."""
    for name, spec in it.pods():
        security = spec["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup", "seLinuxOptions", "supplementalGroups"} & security.keys(), (
            name
        )
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
        for volume in spec.get("volumes", []):
            assert (volume.keys() - {"name"}) <= ALLOWED_VOLUMES, name
        for container in checks.containers(spec):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert all("hostPort" not in port for port in container.get("ports", []))


EVERY_POD: Object = {
    "auth": {"insecureNoAuth": False},
    "scaler": {"enabled": True},
    "loadTest": {"enabled": True},
    "pools": {"cpu": {"prePull": {"enabled": True}}, "gpu": {"enabled": True}},
}


def test_on_openshift_no_pod_names_a_user_or_a_group(render: Render) -> None:
    it = render({**PROFILES["openshift"], **EVERY_POD})
    assert len(list(it.pods())) == 9
    restricted_v2(it)
    checks.valid(it.objects, "1.37", set())
    with pytest.raises(AssertionError):
        restricted_v2(render(EVERY_POD))


# -- what is refused -------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Object, Names]] = {
    "a label of the chart's for all": (
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        ("commonLabels", "app.kubernetes.io/name"),
    ),
    "a volume that nothing mounts": (
        of("gateway", extraVolumes=[{"name": "data", "emptyDir": {}}]),
        ("gateway.extraVolumes", "gateway.extraVolumeMounts", "volumeMounts"),
    ),
    "a volume that is nothing": (
        of("gateway", extraVolumes=[{"name": "data"}], extraVolumeMounts=[{"name": "data", "mountPath": "/data"}]),
        ("gateway.extraVolumes.data", "emptyDir", "{secretName"),
    ),
    "a volume with a name of the chart's": (
        of("pools.cpu", extraVolumes=[{"name": "shm", "emptyDir": {}}]),
        ("pools.cpu.extraVolumes",),
    ),
    "a mount of nothing": (
        of("scaler", extraVolumeMounts=[{"name": "data", "mountPath": "/data"}]),
        ("scaler.extraVolumes",),
    ),
    "a mount of nothing in a container of one's own": (
        of("pools.cpu", extraContainers=[{**CONTAINER, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]),
        ("pools.cpu", "pools.cpu.extraVolumes"),
    ),
    "a container with a name of the chart's": (
        of("gateway", extraContainers=[{**CONTAINER, "name": "gateway"}]),
        ("gateway.extraContainers",),
    ),
    "two containers of one name": (
        of("pools.cpu", initContainers=[CONTAINER], extraContainers=[CONTAINER]),
        ("pools.cpu.extraContainers",),
    ),
    "variables from nowhere": (
        of("gateway", envFrom=[{"prefix": "A_"}]),
        ("gateway.envFrom", "secretRef", "configMapRef"),
    ),
    "variables from two places": (
        of("pools.cpu", envFrom=[{"secretRef": {"name": "a"}, "configMapRef": {"name": "b"}}]),
        ("pools.cpu.envFrom", "secretRef", "configMapRef"),
    ),
    "a scaler's variable that the chart decides": (
        of("scaler", env=[{"name": "TANDEM_API_KEY", "value": "x"}]),
        ("scaler.env", "TANDEM_API_KEY", "auth.client"),
    ),
    "the slim image as another user": (
        {"podSecurityContext": {"runAsUser": 2000}, **of("pools.cpu", server="tandem")},
        ("pools.cpu.server", "1000", "2000", "podSecurityContext.runAsUser=1000", "pools.cpu.server=nvidia"),
    ),
    "the slim image on OpenShift": (
        {**PROFILES["openshift"], **of("pools.cpu", server="tandem")},
        ("pools.cpu.server", "1000", "podSecurityContext.runAsUser=1000", "pools.cpu.server=nvidia"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(case: str, chart: helm_python.Chart) -> None:
    values, names = REFUSED[case]
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert checks.lacks(str(refusal.value), names) == []


@pytest.mark.parametrize(
    "values",
    [
        of("gateway", extraVolumes=[{"emptyDir": {}}]),
        of("gateway", extraVolumeMounts=[{"name": "tmp"}]),
        of("gateway", extraVolumeMounts=[{"name": "tmp", "mountPath": "data"}]),
        of("gateway", extraVolumeMounts=[{"name": "tmp", "mountPath": "/data", "readonly": True}]),
        of("pools.cpu", initContainers=[{"name": "mine"}]),
        of("pools.cpu", extraContainers={"name": "mine"}),
        of("scaler", envFrom=[{"secret": {"name": "mine"}}]),
        of("scaler", env=[{"name": "1st", "value": "x"}]),
        of("scaler", schedulerName=1),
        {"commonLabels": {"team": 7}},
        {"podSecurityContext": {"runAsuser": 1000}},
        {"podSecurityContext": {"runAsUser": "1000"}},
        {"securityContext": {"capabilities": {"drop": "ALL"}}},
        of("pools.cpu", securityContext={"fsGroup": 7}),
        {"test": {"podAnnotations": {"a": 1}}},
        {"auth": {"job": {"annotations": {}}}},
    ],
    ids=str,
)
def test_a_misspelt_or_wrong_value_is_refused_by_the_schema(values: Object, chart: helm_python.Chart) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart.render(accepted(values), name="tandem")
