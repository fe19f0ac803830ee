"""The scaler's objects, and pools that follow it: nothing unless it is asked for, one number in every mode, least rights, and who reaches whom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.cli import cli
from serving.cluster.objects.pods import GATE, SCALED_BY
from serving.cluster.preflight.requirements import requirements
from serving.decisions.demand import Demand
from serving.decisions.sizes import FleetTarget, WarmNodes, next_fleet, sizes_of
from serving.errors import UserError
from serving.settings import ScalingRules, read_settings
from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render, Rendering
from tests.helm.gateway.test_network import GATEWAY, METADATA, PROMETHEUS, STRANGER, TRITON, End, may, of_chart

CHART = ROOT / "helm" / "tandem"
KEDA_POD = End({"app": "keda-operator"}, "keda")
SCALER, API_SERVER = of_chart("scaler"), End(address="10.96.0.1")
KEYS: Object = {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own", "key": "k"}}


def profile(name: str, **more: Any) -> Object:
    values: Object = yaml.safe_load((CHART / f"values-{name}.yaml").read_text())
    return {**values, **more}


@pytest.fixture(params=["prometheus-adapter", "keda"])
def it(request: pytest.FixtureRequest, render: Render) -> Rendering:
    return render(profile(request.param, auth=KEYS))


# -- the objects --------------------------------------------------------------------------------------------------------------


def test_nothing_of_it_is_made_unless_it_is_asked_for(render: Render) -> None:
    made = render({"pools": {"gpu": {"enabled": True}}}).objects
    assert not [one for one in made if "scaler" in one["metadata"]["name"] or "rbac" in one["apiVersion"]]
    assert all(one["kind"] != "ScaledObject" for one in made)


@pytest.mark.slow
@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_its_objects_are_valid_for_the_api_server(version: str, render: Render) -> None:
    made = render(profile("prometheus-adapter", auth=KEYS)).objects
    checks.valid([one for one in made if one["metadata"]["name"].endswith("-scaler")], version, set())


@pytest.mark.slow
def test_its_autoscaler_is_valid_for_the_version_that_it_was_made_for(render: Render) -> None:
    """Helm's code here says that the cluster has 1.36, whose schemas know `tolerance`; those of 1.30 do not."""
    checks.valid(render(profile("prometheus-adapter")).all("HorizontalPodAutoscaler"), "1.37", set())


def test_it_is_safe_bounded_and_alone_with_a_token(it: Rendering) -> None:
    for check in (checks.named_once, checks.restricted, checks.bounded, checks.mounted, checks.secrets_by_reference):
        check(it)
    accounts = {one["metadata"]["name"]: one["automountServiceAccountToken"] for one in it.all("ServiceAccount")}
    assert accounts == {"tandem-gateway": False, "tandem-triton": False, "tandem-scaler": False}


def test_its_command_is_one_that_tandem_knows_and_asks_the_gateways_name_with_their_key(it: Rendering) -> None:
    container = it.container("tandem-scaler")
    _, *words = container["command"]
    group = cli.commands[words[0]]
    command = group.get_command(None, words[1])  # type: ignore[attr-defined, unused-ignore]
    options = command.make_context("scaler", words[2:]).params
    service, port = options["gateways"][0].removeprefix("http://").split(":")
    admin = it.one("Service", service)["spec"]
    assert int(port) in [one["port"] for one in admin["ports"]]
    assert admin["clusterIP"] == "None", "every gateway has an address of its own"
    assert (options["namespace"], options["release"]) == ("serving", "tandem")
    assert str(options["key_file"]) == "/etc/tandem-key/k"
    (volume,) = [one for one in it.one("Deployment", "tandem-scaler")["spec"]["template"]["spec"]["volumes"] if one["name"] == "key"]  # fmt: skip
    assert volume["secret"]["secretName"] == "own"
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"metrics": options["port"], "grpc": options["grpc_port"]}
    assert {one["targetPort"] for one in it.one("Service", "tandem-scaler")["spec"]["ports"]} == ports.keys()


def test_it_reads_the_gateways_configuration_and_starts_anew_with_another(render: Render) -> None:
    def annotation(values: Object) -> str:
        made = render(values)
        template = made.one("Deployment", "tandem-scaler")["spec"]["template"]
        (config,) = [one for one in template["spec"]["volumes"] if one["name"] == "config"]
        assert made.one("ConfigMap", config["configMap"]["name"])["data"].keys() == {"tandem.yaml"}
        return str(template["metadata"]["annotations"]["checksum/config"])

    values = profile("keda")
    dearer = {**values, "poolDefaults": {"pricePerHour": 2}}
    assert annotation(values) != annotation(dearer)
    assert annotation(values) == annotation({**values, "scaler": {"enabled": True, "podLabels": {"a": "b"}}})


def test_the_pool_that_sleeps_is_weighed_against_the_one_that_is_there(it: Rendering, tmp_path: Path) -> None:
    (tmp_path / "tandem.yaml").write_text(it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    settings = read_settings(tmp_path / "tandem.yaml")
    (port,) = [one["port"] for one in it.one("Service", "tandem-scaler")["spec"]["ports"] if one["name"] == "metrics"]
    assert settings.scaler == f"http://tandem-scaler:{port}"
    sizes = sizes_of(settings)
    bounds = {name: (supply.min_replicas, supply.max_replicas) for name, supply in sizes.supplies.items()}
    assert bounds == {"cpu": (2, 2), "gpu": (0, 4)}
    assert sizes.coming == {"gpu"}


def test_an_old_scaler_tells_until_a_new_one_can_and_no_budget_keeps_its_node(it: Rendering) -> None:
    spec = it.one("Deployment", "tandem-scaler")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    container = it.container("tandem-scaler")
    paths = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert paths == {"livenessProbe": "/health/live", "readinessProbe": "/health/ready"}
    assert "tandem-scaler" not in {one["metadata"]["name"] for one in it.all("PodDisruptionBudget")}


CHANGED: dict[str, Any] = {
    "resources": {"limits": {"memory": "1Gi"}},
    "env": [{"name": "http_proxy", "value": "http://proxy:3128"}],
    "envFrom": [{"secretRef": {"name": "mine"}}],
    "initContainers": [{"name": "first", "image": "mine:1"}],
    "extraContainers": [{"name": "beside", "image": "mine:1"}],
    "extraVolumeMounts": [{"name": "tmp", "mountPath": "/more"}],
    "schedulerName": "volcano",
    "podLabels": {"team": "a"},
    "podAnnotations": {"team": "a"},
    "priorityClassName": "high",
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "lostNodeSeconds": 5,
    "affinity": {"nodeAffinity": {}},
    "serviceAccount": {"name": "mine", "annotations": {"a": "b"}},
    "rbac": {"nodes": False},
    "rules": {"patienceS": 9},
    "quotas": {"all": {"pools": ["cpu"], "maxCards": 9}},
}
ELSEWHERE = {"extraVolumes", "warmNodes"}  # they need a mount (test_pod_extras.py), or pools
# What test_pod_extras.py finds in the scaler's pod, and what the next test finds in its decisions.
TWICE = {"env", "envFrom", "initContainers", "extraContainers", "extraVolumeMounts", "schedulerName"}
TWICE |= {"podAnnotations", "rules", "quotas"}


def test_every_value_of_the_scaler_is_changed() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["scaler"]
    assert CHANGED.keys() == values.keys() - {"enabled"} - ELSEWHERE
    assert CHANGED.keys() >= TWICE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in TWICE else []) for name in CHANGED]
)
def test_every_value_of_the_scaler_changes_its_pod_or_its_rights(name: str, render: Render) -> None:
    plain = render({"scaler": {"enabled": True}}).objects
    assert render({"scaler": {"enabled": True, name: CHANGED[name]}}).objects != plain


def test_rules_quotas_cards_and_memory_reach_what_the_scaler_decides(render: Render, tmp_path: Path) -> None:
    """By each value alone another fleet, or another moment."""
    plain: Object = {
        "scaler": {"enabled": True},
        "gateway": {"modelMemoryBytes": {"digits": 40_000_000_000}},
        "poolDefaults": {"maxReplicas": 40},
        "pools": {
            "cpu": {"pricePerHour": 0.2},
            "gpu": {"enabled": True, "pricePerHour": 1.2, "minReplicas": 0, "coldStartS": 100},
            "spot": {
                "device": "gpu",
                "models": ["digits-fp16"],
                "pricePerHour": 1.0,
                "minReplicas": 0,
                "coldStartS": 100,
            },
        },
    }

    def decided(**more: Object) -> tuple[dict[str, int], int]:
        """Servers after twenty minutes, and the second in which the first card was asked for; a look each ten."""
        values = {name: merged(plain.get(name, {}), more.get(name, {})) for name in {**plain, **more}}
        config = render(values).one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"]
        (tmp_path / "tandem.yaml").write_text(config)
        settings = read_settings(tmp_path / "tandem.yaml")
        sizes, woken = sizes_of(settings), 0
        target = FleetTarget({name: it.min_replicas for name, it in sizes.supplies.items()})
        for second in range(10, 1200, 10):
            ready = target.replicas if second > 300 else {"cpu": target.replicas["cpu"], "gpu": 0, "spot": 0}
            demands = {name: Demand(28.0 if name == "cpu" else 2.8, 0.0, ready[name]) for name in sizes.supplies}
            target = next_fleet(target, float(second), demands, sizes, settings.scaling)
            woken = woken or (second if target.replicas["gpu"] + target.replicas["spot"] else 0)
        return dict(target.replicas), woken

    fleet, at = decided()
    assert fleet == {"gpu": 0, "spot": 4, "cpu": 1}
    assert decided(scaler={"quotas": {"gpus": {"pools": ["gpu", "spot"], "maxCards": 2}}})[0]["spot"] == 2
    assert decided(scaler={"rules": {"maxLoadRatio": 0.9}})[0]["spot"] < 4
    assert decided(scaler={"rules": {"changeRatio": 3}})[1] > at
    assert decided(pools={"spot": {"consolidationS": 600}, "gpu": {"consolidationS": 600}})[1] > at
    assert decided(pools={"gpu": {"serversPerCard": 4}})[0] == {"gpu": 4, "spot": 0, "cpu": 1}
    with pytest.raises(UserError, match=r"pools\.spot\.models"):
        decided(pools={"spot": {"memoryBytes": 16_000_000_000}})


def merged(one: Object, other: Object) -> Object:
    both = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            both[name] = merged(one[name], other[name])
    return both


def test_every_rule_of_the_scaler_has_a_value(render: Render, tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["definitions"]["scaling"]["properties"]
    rules = dict.fromkeys(schema, 1)
    config = render({"scaler": {"enabled": True, "rules": rules}}).one("ConfigMap", "tandem-gateway")["data"]
    (tmp_path / "tandem.yaml").write_text(config["tandem.yaml"])
    assert read_settings(tmp_path / "tandem.yaml").scaling.model_dump() == dict.fromkeys(ScalingRules.model_fields, 1)


def test_gpu_pools_of_all_sizes_are_weighed(render: Render, tmp_path: Path) -> None:
    sleeps: Object = {"enabled": True, "by": "keda", "minReplicas": 0}
    size: Object = {"device": "gpu", "models": ["digits-fp16"], "autoscaling": sleeps}
    keda: Object = {"kedaFrom": [{"namespaceSelector": {}}]}
    values: Object = {
        "scaler": {"enabled": True},
        "networkPolicy": keda,
        "pools": {"h100": size, "a10": size, "gpu": {"enabled": False}},
    }
    made = render(values)
    (tmp_path / "tandem.yaml").write_text(made.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert sizes_of(read_settings(tmp_path / "tandem.yaml")).coming == {"a10", "h100"}


def test_the_values_that_the_page_shows_make_a_scaler_and_a_pool_that_follows_it(render: Render) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "scaler.md").read_text(), re.DOTALL | re.MULTILINE)
    made = render(yaml.safe_load(block))
    assert made.one("Deployment", "tandem-scaler")
    assert made.one("Deployment", "tandem-gpu")["metadata"]["annotations"][SCALED_BY] == "scaler"


# -- a pool that it scales itself ---------------------------------------------------------------------------------------------


@pytest.fixture
def alone(render: Render) -> Rendering:
    return render(profile("scale-to-zero", auth=KEYS))


def test_it_sets_the_number_itself_and_no_manifest_says_one(alone: Rendering) -> None:
    pool = alone.one("Deployment", "tandem-gpu")
    assert "replicas" not in pool["spec"]
    assert pool["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert pool["metadata"]["annotations"] == {SCALED_BY: "scaler"}
    assert alone.all("HorizontalPodAutoscaler") + alone.all("ScaledObject") == []
    steady = alone.one("Deployment", "tandem-cpu")["spec"]
    assert (steady["replicas"], "schedulingGates" in steady["template"]["spec"]) == (2, False)


def test_two_of_it_share_one_lease_and_know_which_pools_are_theirs(alone: Rendering) -> None:
    spec = alone.one("Deployment", "tandem-scaler")["spec"]
    assert spec["replicas"] == 2
    _, *words = alone.container("tandem-scaler")["command"]
    options = cli.commands[words[0]].get_command(None, words[1]).make_context("scaler", words[2:]).params  # type: ignore[attr-defined, unused-ignore]
    assert (options["apply"], options["lease"]) == (("gpu",), "tandem-scaler")


def test_it_may_change_its_pools_its_lease_and_pods_gates_alone(alone: Rendering, render: Render) -> None:
    def changing(made: Rendering) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        rules = [rule for one in made.all("Role") for rule in one["rules"]]
        return [
            (rule["resources"][0], tuple(rule.get("resourceNames", ())), tuple(rule["verbs"]))
            for rule in rules
            if rule["verbs"] != ["list"]
        ]

    lease = [("leases", (), ("create",)), ("leases", ("tandem-scaler",), ("get", "update"))]
    assert changing(alone) == [("deployments/scale", ("tandem-gpu",), ("patch",)), *lease, ("pods", (), ("patch",))]
    one_at_least = profile(
        "scale-to-zero", pools={"gpu": {"enabled": True, "autoscaling": {"enabled": True, "by": "scaler"}}}
    )
    made = render(one_at_least)
    assert changing(made) == [("deployments/scale", ("tandem-gpu",), ("patch",)), *lease]
    assert "schedulingGates" not in made.one("Deployment", "tandem-gpu")["spec"]["template"]["spec"]


def test_preflight_knows_that_a_pool_without_a_number_may_become_one(alone: Rendering) -> None:
    found = requirements(alone.objects, "mine")
    assert {it.owner: it.count for it in found.pods}["deployment tandem-gpu"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_what_it_scales_is_valid_for_the_api_server(version: str, alone: Rendering) -> None:
    checks.valid([one for one in alone.objects if one["kind"] in ("Deployment", "Role")], version, set())


# -- nodes that are kept warm for several pools --------------------------------------------------------------------------------

SLEEPS: Object = {"autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 0}}
TWO: Object = {"gpu": {"enabled": True, **SLEEPS}, "chat": {"device": "gpu", "models": ["digits-fp16"], **SLEEPS}}
CARDS: Object = {"cards": {"pools": ["gpu", "chat"], "maxNodes": 2, "nodeStartS": 100}}


@pytest.fixture
def warm(render: Render) -> Rendering:
    return render({"scaler": {"enabled": True, "warmNodes": CARDS}, "pools": TWO})


def test_pods_that_hold_a_node_have_the_place_of_a_triton_the_lowest_priority_and_wait_for_the_scaler(
    warm: Rendering,
) -> None:
    it, triton = (warm.one("Deployment", f"tandem-{name}")["spec"] for name in ("warm-cards", "gpu"))
    spec, theirs = it["template"]["spec"], triton["template"]["spec"]
    assert "replicas" not in it
    assert spec["schedulingGates"] == [{"name": GATE}]
    (holds,), (serves,) = spec["containers"], theirs["containers"]
    assert [holds[name] for name in ("image", "resources")] == [serves[name] for name in ("image", "resources")]
    assert spec["tolerations"] == theirs["tolerations"]
    priority = warm.one("PriorityClass", spec["priorityClassName"])
    assert (priority["value"], priority["preemptionPolicy"], priority["globalDefault"]) == (-10, "Never", False)
    selected = warm.one("Deployment", "tandem-gpu")["spec"]["selector"]["matchLabels"].items()
    assert not selected <= it["template"]["metadata"]["labels"].items(), "no Service may send requests there"


def test_the_scaler_says_how_many_and_may(warm: Rendering, tmp_path: Path) -> None:
    _, *words = warm.container("tandem-scaler")["command"]
    options = cli.commands[words[0]].get_command(None, words[1]).make_context("scaler", words[2:]).params  # type: ignore[attr-defined, unused-ignore]
    assert set(options["apply"]) == {"gpu", "chat", "warm-cards"}
    rules = [rule for one in warm.all("Role") for rule in one["rules"] if rule["resources"] == ["deployments/scale"]]
    assert set(rules[0]["resourceNames"]) == {"tandem-gpu", "tandem-chat", "tandem-warm-cards"}
    (tmp_path / "tandem.yaml").write_text(warm.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert sizes_of(read_settings(tmp_path / "tandem.yaml")).warm == {"cards": WarmNodes(("gpu", "chat"), 2, 100.0)}


@pytest.mark.slow
@pytest.mark.parametrize("version", checks.KUBERNETES)
def test_they_are_safe_and_valid_for_the_api_server(version: str, warm: Rendering) -> None:
    for check in (checks.named_once, checks.restricted, checks.bounded):
        check(warm)
    checks.valid([one for one in warm.objects if "warm" in one["metadata"]["name"]], version, set())


# -- rights -------------------------------------------------------------------------------------------------------------------


def test_its_account_may_look_and_nothing_else_and_only_it_may(it: Rendering) -> None:
    rules = [rule for kind in ("Role", "ClusterRole") for one in it.all(kind) for rule in one["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    assert {name for rule in rules for name in rule["resources"]} == {"deployments", "pods", "nodes", "nodeclaims"}
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        (binding,) = it.all(kind)
        subject = {"kind": "ServiceAccount", "name": "tandem-scaler", "namespace": "serving"}
        assert binding["subjects"] == [subject]
        assert it.one(binding["roleRef"]["kind"], binding["roleRef"]["name"])


def test_what_is_cluster_wide_is_named_after_the_namespace_and_can_be_left_out(render: Render, it: Rendering) -> None:
    assert {one["metadata"]["name"] for one in it.all("ClusterRole") + it.all("ClusterRoleBinding")} == {
        "serving-tandem-scaler"
    }
    without = render({"scaler": {"enabled": True, "rbac": {"nodes": False}}})
    assert without.all("ClusterRole") + without.all("ClusterRoleBinding") == []
    assert without.all("Role")


def test_an_account_that_exists_gets_the_rights(render: Render) -> None:
    made = render({"scaler": {"enabled": True, "serviceAccount": {"create": False, "name": "mine"}}})
    assert made.one("Deployment", "tandem-scaler")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert [one["subjects"][0]["name"] for one in made.all("RoleBinding")] == ["mine"]
    assert "mine" not in {one["metadata"]["name"] for one in made.all("ServiceAccount")}


# -- who reaches whom ---------------------------------------------------------------------------------------------------------


def test_it_reaches_gateways_and_the_api_server_and_no_triton(it: Rendering) -> None:
    assert may(it, SCALER, GATEWAY, "admin")
    assert not may(it, SCALER, GATEWAY, "http")
    assert not may(it, SCALER, TRITON, "http")
    assert all(may(it, SCALER, API_SERVER, port) for port in (443, 6443))
    assert not may(it, SCALER, METADATA, 80), "where clouds hand out credentials"


def test_prometheus_and_keda_reach_their_own_port_where_they_are_named(render: Render) -> None:
    both = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in ("monitoring", "keda")
    ]
    made = render({"scaler": {"enabled": True}, "networkPolicy": {"metricsFrom": both[:1], "kedaFrom": both[1:]}})
    reached = {(who.namespace, port) for who in (PROMETHEUS, KEDA_POD, STRANGER) for port in ("metrics", "grpc") if may(made, who, SCALER, port)}  # fmt: skip
    assert reached == {("monitoring", "metrics"), ("keda", "grpc")}
    alone = render({"scaler": {"enabled": True}})
    assert not any(may(alone, who, SCALER, port) for who in (PROMETHEUS, KEDA_POD) for port in ("metrics", "grpc"))  # fmt: skip
    assert may(alone, GATEWAY, SCALER, "metrics"), "its console shows what the scaler says"
    assert not may(alone, GATEWAY, SCALER, "grpc")
    assert may(alone, SCALER, GATEWAY, "admin")
    assert not may(alone, PROMETHEUS, GATEWAY, "admin")


def test_the_api_server_may_be_named(render: Render) -> None:
    peers = {"apiServerTo": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]}
    made = render({"scaler": {"enabled": True}, "networkPolicy": peers})
    assert may(made, SCALER, API_SERVER, 443)
    assert not may(made, SCALER, End(address="52.216.1.1"), 443)


# -- pools that follow it -----------------------------------------------------------------------------------------------------


def test_a_pool_that_follows_the_scaler_has_one_owner_of_its_number(it: Rendering) -> None:
    assert it.one("Deployment", "tandem-gpu")["spec"]["replicas"] == 0, (
        "what it begins with; upgrades keep what is there"
    )
    owners = it.all("HorizontalPodAutoscaler") + it.all("ScaledObject")
    assert [one["spec"]["scaleTargetRef"]["name"] for one in owners] == ["tandem-gpu"]


def test_an_autoscaler_follows_the_number_itself_of_its_release_and_at_once(render: Render) -> None:
    spec = render(profile("prometheus-adapter")).one("HorizontalPodAutoscaler", "tandem-gpu")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (0, 4)
    (metric,) = spec["metrics"]
    assert metric["external"]["metric"]["name"] == "tandem_wanted_replicas"
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"pool": "gpu", "tandem": "tandem"}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    at_once = {"stabilizationWindowSeconds": 0, "tolerance": "0"}
    assert spec["behavior"] == {"scaleUp": at_once, "scaleDown": at_once}


def test_kedas_object_asks_the_scalers_service_from_any_namespace_and_keeps_what_is_when_it_cannot(
    render: Render,
) -> None:
    made = render(profile("keda"))
    spec = made.one("ScaledObject", "tandem-gpu")["spec"]
    (trigger,) = spec["triggers"]
    name, namespace, rest = trigger["metadata"]["scalerAddress"].split(".", 2)
    kind, port = rest.split(":")
    assert (namespace, kind) == ("serving", "svc")
    ports = {one["port"]: one["name"] for one in made.one("Service", name)["spec"]["ports"]}
    assert ports[int(port)] == "grpc"
    config = yaml.safe_load(made.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    pool = config["pools"][trigger["metadata"]["pool"]]
    assert (pool["min_replicas"], pool["max_replicas"]) == (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 4)
    assert spec["cooldownPeriod"] == 0
    assert "fallback" not in spec, "with one KEDA may scale to it, or to nothing, when it hears no answer"
    assert made.all("HorizontalPodAutoscaler") == [], "KEDA makes its own"


@pytest.mark.parametrize("name", ["prometheus-adapter", "keda"])
def test_a_behavior_of_ones_own_counts_in_both_modes(name: str, render: Render) -> None:
    values = profile(name)
    own = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    values["pools"]["gpu"]["autoscaling"]["behavior"] = own
    (owner,) = render(values).all("HorizontalPodAutoscaler") + render(values).all("ScaledObject")
    found = owner["spec"].get("behavior") or owner["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert found == own


def test_a_pool_called_like_a_word_of_yaml_stays_a_text(render: Render) -> None:
    pool = {"models": ["digits-fp32"], "autoscaling": {"enabled": True, "by": "keda"}}
    made = render(profile("keda", pools={"null": pool}), release="123")
    (trigger,) = made.one("ScaledObject", "tandem-123-null")["spec"]["triggers"]
    assert trigger["metadata"]["pool"] == "null"


def test_prometheus_finds_the_scaler_and_needs_no_key_for_it(render: Render) -> None:
    made = render(profile("prometheus-adapter", auth=KEYS))
    monitor = made.one("ServiceMonitor", "tandem-scaler")["spec"]
    found = [one["metadata"]["name"] for one in made.all("Service") if monitor["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()]  # fmt: skip
    assert found == ["tandem-scaler"]
    (endpoint,) = monitor["endpoints"]
    assert "authorization" not in endpoint
    assert {"targetLabel": "job", "replacement": "tandem-scaler"} in endpoint["relabelings"]
    assert "tandem-scaler" not in {one["metadata"]["name"] for one in render(profile("keda")).all("ServiceMonitor")}


def test_the_notes_say_where_it_says_why(render: Render) -> None:
    line = "kubectl --namespace serving logs --follow deployment/tandem-scaler"
    assert line in render(profile("keda")).notes
    assert line not in render().notes
