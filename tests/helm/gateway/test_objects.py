"""The gateway's objects in every shape that its values give them: valid, safe, and as the values say.

The ways in from outside are in test_routes.py, who may talk to whom in test_network.py, the process in test_runs.py.
"""

from __future__ import annotations

import re

import helm_python
import pytest
import yaml

from serving.settings import GatewaySettings, LimitSettings
from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render, accepted
from tests.helm.wrong_values.gateway import KEYS, OUTSIDE, ingress, route

pytestmark = pytest.mark.slow  # computes for seconds: not in `make check`

STORE: Object = {
    "source": "objectStore",
    "objectStore": {"from": "models:bucket/digits", "existingSecret": "bucket"},
}
OWN_IMAGE: Object = {"image": {"repository": "registry.example.com/models", "tag": "3", "path": "/repo"}}
SHAPES: dict[str, Object] = {
    "keys": KEYS,
    "only HTTP": {
        "gateway": {"grpc": {"enabled": False}, "admin": {"enabled": False}, "preprocessing": {"enabled": False}}
    },
    "one gateway": {"gateway": {"replicas": 1, "topologySpread": {"enabled": False}}},
    "an autoscaler": {"gateway": {"autoscaling": {"enabled": True, "maxReplicas": 5}}},
    "an autoscaler of one's own": {
        "gateway": {
            "autoscaling": {"enabled": True, "minReplicas": 1, "behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}
        }
    },
    "a load balancer": {
        **KEYS,
        **OUTSIDE,
        "gateway": {"service": {"type": "LoadBalancer", "port": 443, "grpcPort": 8443, "annotations": {"a": "b"}}},
    },
    "an Ingress": ingress(className="nginx", annotations={"a": "b"}),
    "routes": route({"enabled": True, "hostnames": ["grpc.example.com"]}),
    "a bucket": {"modelRepository": STORE},
    "a bucket somewhere": {
        "modelRepository": STORE,
        "networkPolicy": {"modelsTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "dnsTo": [{"namespaceSelector": {}}]},
    },
    "models in an image": {"modelRepository": OWN_IMAGE},
    "a claim": {"modelRepository": {"source": "claim", "claimName": "models"}},
    "a control document": {"gateway": {"control": {"configMap": "control"}}},
    "rollouts": {"gateway": {"control": {"configMap": "control", "rollouts": {"enabled": True}}}},
    "a priority class": {"priorityClass": {"create": True}},
    "a load test": {"loadTest": {"enabled": True}},
    "everything else": {
        "imageRegistry": "registry.example.com/team",
        "imagePullSecrets": [{"name": "pull"}],
        "gateway": {
            "podLabels": {"team": "a"},
            "podAnnotations": {"example.com/team": "a"},
            "priorityClassName": "high",
            "env": [{"name": "TANDEM_CACHE", "value": "/tmp"}],
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "serviceAccount": {"annotations": {"example.com/role": "reader"}},
        },
        "priorityClass": {"name": "mine"},
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-map"}},
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ include \"tandem.fullname\" . }}-text'}\n",
        ],
    },
}


@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_every_object_is_valid_for_the_api_server(version: str, render: Render) -> None:
    seen: set[str] = set()
    for values in SHAPES.values():
        components = ((made, made["metadata"].get("labels", {})) for made in render(values).objects)
        mine = [
            made for made, labels in components if labels.get("app.kubernetes.io/component") not in ("triton", "test")
        ]
        checks.valid(mine, version, seen)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_safe_and_adds_up(shape: str, render: Render) -> None:
    it = render(SHAPES[shape])
    for check in (checks.named_once, checks.restricted, checks.bounded, checks.mounted, checks.secrets_by_reference):
        check(it)


@pytest.mark.parametrize(
    "shape", checks.linted(["an Ingress", "routes", "a bucket", "everything else"], "everything else")
)
def test_helm_lint_finds_nothing(shape: str) -> None:
    report = helm_python.lint(ROOT / "helm" / "tandem", accepted(SHAPES[shape]), strict=True, kube_version="v1.30.0")
    worse_than_info = [message for message in report["messages"] if message["severity"] > 1]
    assert (report["errors"], worse_than_info) == ([], [])


def pod_of(render: Render, values: Object) -> Object:
    pod = render(values).one("Deployment", "tandem-gateway")["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def command_of(render: Render, values: Object) -> list[str]:
    return [str(word) for word in render(values).container("tandem-gateway")["command"]]


# -- keys -------------------------------------------------------------------------------------------------------------------------


def test_keys_come_from_the_secret_as_a_directory_and_nothing_else_of_it(render: Render) -> None:
    values: Object = {"auth": {**KEYS["auth"], "key": "own.json"}}
    pod = pod_of(render, values)
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
    assert volume["secret"] == {
        "secretName": "keys",
        "defaultMode": 0o440,  # of the group 1000, whose the volume is by fsGroup
        "items": [{"key": "own.json", "path": "own.json"}],
    }
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "keys"]
    assert mount == {"name": "keys", "mountPath": "/etc/tandem-keys", "readOnly": True}
    command = command_of(render, values)
    assert "--keys=/etc/tandem-keys/own.json" in command
    assert "--insecure-no-auth" not in command


def test_without_keys_nothing_of_a_secret_is_mounted(render: Render) -> None:
    assert not any("secret" in volume for volume in pod_of(render, {})["volumes"])
    command = command_of(render, {})
    assert "--insecure-no-auth" in command
    assert not any(word.startswith("--keys") for word in command)


def test_no_checksum_of_a_secret_restarts_what_reads_it_again(render: Render) -> None:
    texts = [
        render({"auth": {**KEYS["auth"], "existingSecret": name}}).one("Deployment", "tandem-gateway")["spec"][
            "template"
        ]
        for name in ("keys", "others")
    ]
    assert texts[0]["metadata"] == texts[1]["metadata"]


# -- listeners ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "option", "port"), [("grpc", "--grpc-port=8081", "grpc"), ("admin", "--admin-port=9090", "admin")]
)
def test_a_listener_is_there_in_command_ports_services_and_policy_or_nowhere(
    off: str, option: str, port: str, render: Render
) -> None:
    metrics: Object = {"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}}
    for values, there in ((metrics, True), ({**metrics, "gateway": {off: {"enabled": False}}}, False)):
        it = render(values)
        container = it.container("tandem-gateway")
        assert (option in container["command"]) is there
        assert (port in [one["name"] for one in container["ports"]]) is there
        services = [
            one["name"]
            for service in it.all("Service")
            if service["spec"]["selector"]["app.kubernetes.io/component"] == "gateway"
            for one in service["spec"]["ports"]
        ]
        assert (port in services) is there
        rules = it.one("NetworkPolicy", "tandem-gateway")["spec"]["ingress"]
        assert (port in [one["port"] for rule in rules for one in rule["ports"]]) is there


def test_clients_have_http_and_grpc_and_the_admin_listener_has_a_service_of_its_own(render: Render) -> None:
    it = render()
    service = it.one("Service", "tandem-gateway")["spec"]
    assert [(one["name"], one["port"], one["appProtocol"]) for one in service["ports"]] == [
        ("http", 80, "http"),
        ("grpc", 8081, "kubernetes.io/h2c"),
    ]
    admin = it.one("Service", "tandem-gateway-admin")["spec"]
    assert (admin["clusterIP"], admin["publishNotReadyAddresses"]) == ("None", False), (
        "its name means every ready gateway"
    )
    assert [(one["name"], one["port"]) for one in admin["ports"]] == [("admin", 9090)]
    ports = {one["name"]: one["containerPort"] for one in it.container("tandem-gateway")["ports"]}
    assert ports == {"http": 8080, "grpc": 8081, "admin": 9090}
    for spec in (service, admin):
        assert spec["selector"] == it.one("Deployment", "tandem-gateway")["spec"]["selector"]["matchLabels"]
        assert all(one["targetPort"] == one["name"] for one in spec["ports"])


def test_a_load_balancer_has_the_ports_and_annotations_that_it_was_given(render: Render) -> None:
    service = render(SHAPES["a load balancer"]).one("Service", "tandem-gateway")
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert service["spec"]["type"] == "LoadBalancer"
    assert [one["port"] for one in service["spec"]["ports"]] == [443, 8443]


# -- models -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "option", "copies"),
    [
        ({}, "--model-repository=/opt/tandem/model_repo", []),
        ({"modelRepository": {"image": {"path": "/models-of-mine"}}}, "--model-repository=/models-of-mine", []),
        (SHAPES["models in an image"], "--model-repository=/models", ["copy-models"]),
        (SHAPES["a bucket"], "--model-repository=/models", ["copy-models"]),
        (SHAPES["a claim"], "--model-repository=/models", []),
        (
            {"modelRepository": {"source": "imageVolume", "imageVolume": {"reference": "registry.example.com/m:1"}}},
            "--model-repository=/models",
            [],
        ),
    ],
    ids=["its own image", "its own image elsewhere", "another image", "a bucket", "a claim", "an image volume"],
)
def test_the_gateway_has_the_models_where_it_looks_for_them(
    values: Object, option: str, copies: list[str], render: Render
) -> None:
    pod = pod_of(render, values)
    assert option in command_of(render, values)
    assert [container["name"] for container in pod.get("initContainers", [])] == copies
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "models"]
    own = option != "--model-repository=/models"
    assert mounts == ([] if own else [{"name": "models", "mountPath": "/models", "readOnly": True}])
    assert ("models" in [volume["name"] for volume in pod["volumes"]]) is not own


@pytest.mark.parametrize("shape", ["models in an image", "a bucket", "a claim"])
def test_without_preprocessing_the_gateway_has_no_models_and_copies_none(shape: str, render: Render) -> None:
    values = {**SHAPES[shape], "gateway": {"preprocessing": {"enabled": False}}}
    pod = pod_of(render, values)
    assert "initContainers" not in pod
    assert "models" not in [volume["name"] for volume in pod["volumes"]]
    assert not any(word.startswith("--model-repository") for word in command_of(render, values))


# -- limits -------------------------------------------------------------------------------------------------------------------------


BOUNDS = ("type", "minimum", "exclusiveMinimum", "maximum")


def bounds(field: Object) -> Object:
    """Of a whole number, more than 0 is 1 and more."""
    of_field = {name: field[name] for name in BOUNDS if name in field}
    if of_field == {"type": "integer", "exclusiveMinimum": 0}:
        return {"type": "integer", "minimum": 1}
    return of_field


def test_every_limit_of_the_settings_but_the_drain_is_a_value_with_the_same_bounds(chart: helm_python.Chart) -> None:
    assert chart.schema is not None
    values = chart.schema["definitions"]["gatewayLimits"]["properties"]
    settings = LimitSettings.model_json_schema()["properties"]
    del settings["drain_s"]
    as_values = {re.sub("_(.)", lambda found: found[1].upper(), name): field for name, field in settings.items()}
    assert {name: bounds(field) for name, field in values.items()} == {
        name: bounds(field) for name, field in as_values.items()
    }


def test_every_limit_reaches_the_configuration_under_its_name(chart: helm_python.Chart, render: Render) -> None:
    assert chart.schema is not None
    limits = dict.fromkeys(chart.schema["definitions"]["gatewayLimits"]["properties"], 7)
    limits["maxHeadBytes"] = 2048
    written = render({"gateway": {"limits": limits}}).one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]
    found = LimitSettings.model_validate(yaml.safe_load(written)["limits"])
    assert {getattr(found, name) for name in LimitSettings.model_fields} == {7, 2048, 30}


# -- how many, where --------------------------------------------------------------------------------------------------------------------


def test_no_gateway_goes_before_another_is_ready(render: Render) -> None:
    deployment = render().one("Deployment", "tandem-gateway")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_an_autoscaler_owns_the_number_and_follows_the_gateways_own_container(render: Render) -> None:
    it = render(SHAPES["an autoscaler"])
    assert "replicas" not in it.one("Deployment", "tandem-gateway")["spec"]
    scaler = it.one("HorizontalPodAutoscaler", "tandem-gateway")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 5)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tandem-gateway"}
    (metric,) = scaler["metrics"]
    assert metric["containerResource"]["container"] == it.container("tandem-gateway")["name"]
    assert scaler["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert scaler["behavior"]["scaleDown"] == {
        "stabilizationWindowSeconds": 300,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }


def test_a_behaviour_of_ones_own_is_taken_whole(render: Render) -> None:
    scaler = render(SHAPES["an autoscaler of one's own"]).one("HorizontalPodAutoscaler", "tandem-gateway")["spec"]
    assert scaler["behavior"] == {"scaleDown": {"selectPolicy": "Disabled"}}


@pytest.mark.parametrize(
    ("gateway", "made"),
    [
        ({}, True),
        ({"autoscaling": {"enabled": True}, "replicas": 1}, True),
        ({"replicas": 1}, False),
        ({"autoscaling": {"enabled": True, "minReplicas": 1}}, False),
        ({"podDisruptionBudget": {"enabled": False}}, False),
    ],
)
def test_a_disruption_budget_is_made_where_two_are_kept_and_lets_one_go(
    gateway: Object, made: bool, render: Render
) -> None:
    it = render({"gateway": gateway})
    budgets = [one for one in it.all("PodDisruptionBudget") if one["metadata"]["name"] == "tandem-gateway"]
    assert [one["spec"] for one in budgets] == [
        {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": it.one("Deployment", "tandem-gateway")["spec"]["selector"]["matchLabels"]},
        }
    ] * made


def test_pods_spread_over_zones_and_nodes_where_they_can_and_are_counted_by_revision(render: Render) -> None:
    it = render()
    labels = it.one("Deployment", "tandem-gateway")["spec"]["selector"]["matchLabels"]
    assert pod_of(render, {})["topologySpreadConstraints"] == [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
    assert "topologySpreadConstraints" not in pod_of(render, SHAPES["one gateway"])


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, None),
        ({"priorityClass": {"create": True}}, "serving-tandem"),
        ({"priorityClass": {"create": True, "name": "mine"}}, "mine"),
        ({"priorityClass": {"name": "there"}}, "there"),
        ({"priorityClass": {"create": True}, "gateway": {"priorityClassName": "own"}}, "own"),
    ],
)
def test_a_priority_class_is_the_charts_or_ones_own(values: Object, name: str | None, render: Render) -> None:
    assert pod_of(render, values).get("priorityClassName") == name


def test_one_priority_class_is_made_when_it_is_asked_for_and_no_other_pod_gets_it(render: Render) -> None:
    assert render({"priorityClass": {"name": "there"}}).all("PriorityClass") == []
    (made,) = render({"priorityClass": {"create": True, "value": 5}}).all("PriorityClass")
    assert (made["metadata"]["name"], made["value"], made["globalDefault"]) == ("serving-tandem", 5, False)


# -- the rest ---------------------------------------------------------------------------------------------------------------------------


def test_labels_annotations_and_places_are_the_users_beside_the_charts(render: Render) -> None:
    template = render(SHAPES["everything else"]).one("Deployment", "tandem-gateway")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"
    assert {"example.com/team", "checksum/config"} <= template["metadata"]["annotations"].keys()
    pod = template["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert pod["tolerations"][0] == {"key": "spot", "operator": "Exists"}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["containers"][0]["env"] == [{"name": "TANDEM_CACHE", "value": "/tmp"}]
    assert pod["containers"][0]["image"] == "registry.example.com/team/tandem-gateway:0.1.0"


def test_accounts_have_their_annotations_no_token_and_no_rights(render: Render) -> None:
    it = render(SHAPES["everything else"])
    accounts = {made["metadata"]["name"]: made for made in it.all("ServiceAccount")}
    assert accounts["tandem-gateway"]["metadata"]["annotations"] == {"example.com/role": "reader"}
    assert "annotations" not in accounts["tandem-triton"]["metadata"]
    assert {made["automountServiceAccountToken"] for made in accounts.values()} == {False}
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {made["kind"] for made in it.objects}


def test_a_gateway_that_follows_a_configmap_may_read_it_and_nothing_else(render: Render) -> None:
    it = render(SHAPES["a control document"])
    pod = it.one("Deployment", "tandem-gateway")["spec"]["template"]["spec"]
    assert "--control=configmap:control" in pod["containers"][0]["command"]
    [rule] = it.one("Role", "tandem-gateway")["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["control"],
        "verbs": ["get", "watch"],
    }
    bound = it.one("RoleBinding", "tandem-gateway")
    assert [subject["name"] for subject in bound["subjects"]] == [pod["serviceAccountName"]]
    ports = [
        port["port"]
        for rule in it.one("NetworkPolicy", "tandem-gateway")["spec"]["egress"]
        for port in rule["ports"]
        if "port" in port
    ]
    assert {443, 6443, 53} <= set(ports)
    plain = render({}).one("NetworkPolicy", "tandem-gateway")["spec"]["egress"]
    assert 6443 not in [port.get("port") for rule in plain for port in rule["ports"]]


def test_a_gateway_that_judges_rollouts_may_also_write_both_objects_and_make_none(render: Render) -> None:
    it = render({"gateway": {"control": {"configMap": "control", "rollouts": {"enabled": True}}}})
    rules = it.one("Role", "tandem-gateway")["rules"]
    assert {(*rule["resourceNames"], *rule["verbs"]) for rule in rules} == {
        ("control", "get", "watch", "update"),
        ("control-rollouts", "get", "update"),
    }
    assert "data" not in it.one("ConfigMap", "control-rollouts")
    assert "control-rollouts" not in [made["metadata"]["name"] for made in render(SHAPES["a control document"]).objects]


def test_objects_of_ones_own_are_rendered_with_the_charts_values(render: Render) -> None:
    names = [made["metadata"]["name"] for made in render(SHAPES["everything else"]).all("ConfigMap")]
    assert {"tandem-map", "tandem-text"} <= set(names)


def test_the_drain_is_before_sigterm_in_flight_and_margin(render: Render) -> None:
    drain = {"preStopSeconds": 3, "exitTimeoutSeconds": 20, "marginSeconds": 2}
    it = render({"gateway": {"drain": drain}})
    pod = pod_of(render, {"gateway": {"drain": drain}})
    assert pod["terminationGracePeriodSeconds"] == 25
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 3}}}
    written = yaml.safe_load(it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert written["limits"]["drain_s"] == 20


def test_the_gateway_knows_what_each_pool_loads_or_reads_it_in_the_repository(render: Render) -> None:
    """What a GPU pool alone serves is known before it has a Triton, so that asking for it wakes one."""

    def told(values: Object) -> dict[str, list[str] | None]:
        text = render(values).one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]
        settings = GatewaySettings.model_validate(yaml.safe_load(text))
        return {name: list(pool.models) for name, pool in settings.pools.items()}

    listed = {"gpu": ["digits-fp32", "digits-fp16"], "cpu": ["digits-fp32", "digits-int8"]}
    gpu: Object = {"enabled": True}
    assert told({"pools": {"gpu": gpu}}) == listed
    slim: Object = {"pools": {"gpu": {**gpu, "server": "tandem"}}}
    assert told(slim) == {**listed, "gpu": []}, (
        "it loads all that the repository has for a GPU, which the gateway has, too"
    )
    assert told({**slim, "gateway": {"preprocessing": {"enabled": False}}}) == listed


def test_a_changed_limit_replaces_the_pods_and_a_changed_place_leaves_the_checksum(render: Render) -> None:
    def checksum(values: Object) -> str:
        template = render(values).one("Deployment", "tandem-gateway")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) != checksum({"gateway": {"limits": {"maxHeaders": 7}}})
    assert checksum({}) == checksum({"gateway": {"nodeSelector": {"a": "b"}}})
