"""Keys that the chart makes: the hook that makes them and everybody who reads them, as objects. The hook at work is in tests/cluster/test_chart_keys.py."""

from __future__ import annotations

import json

import helm_python
import pytest

from tests.helm import checks
from tests.helm.conftest import ROOT, Object, Render

MADE: Object = {"auth": {"insecureNoAuth": False}}
EVERY_CLIENT: Object = {
    **MADE,
    "scaler": {"enabled": True},
    "loadTest": {"enabled": True},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "networkPolicy": {"metricsFrom": [{"podSelector": {}}]},
}
NAME = "tandem-keys"


@pytest.mark.parametrize("values", [MADE, EVERY_CLIENT])
@pytest.mark.slow
def test_the_hook_is_valid_restricted_and_adds_up(values: Object, render: Render) -> None:
    it = render(values)
    checks.valid(it.objects, "1.37", set())
    for check in (checks.named_once, checks.restricted, checks.bounded, checks.mounted, checks.secrets_by_reference):
        check(it)


@pytest.mark.slow
def test_helm_lint_finds_nothing_without_any_value() -> None:
    report = helm_python.lint(ROOT / "helm" / "tandem", {}, strict=True, kube_version="v1.30.0")
    assert (report["errors"], [it for it in report["messages"] if it["severity"] > 1]) == ([], [])


def test_all_of_the_hook_comes_before_the_release_and_goes_with_it(render: Render) -> None:
    it = render(MADE)
    hooks = [made for made in it.objects if made["metadata"]["name"] == NAME]
    assert {made["kind"] for made in hooks} == {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Job"}
    weights = {}
    for made in hooks:
        annotations = made["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        weights[made["kind"]] = int(annotations["helm.sh/hook-weight"])
    assert weights.pop("Job") > max(weights.values())


def test_the_hooks_account_may_touch_that_one_secret(render: Render) -> None:
    it = render(MADE)
    assert it.one("Role", NAME)["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [NAME], "verbs": ["get", "create", "patch"]}
    ]
    (subject,) = it.one("RoleBinding", NAME)["subjects"]
    pod = it.one("Job", NAME)["spec"]["template"]["spec"]
    assert (subject["kind"], subject["name"], subject["namespace"]) == ("ServiceAccount", NAME, "serving")
    assert pod["serviceAccountName"] == NAME
    assert f"--secret={NAME}" in pod["containers"][0]["command"]


def test_the_hooks_pod_reaches_the_api_server_where_the_releases_policy_keeps_it_from_all(render: Render) -> None:
    it = render({**MADE, "networkPolicy": {"apiServerTo": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}})
    labels = it.one("Job", NAME)["spec"]["template"]["metadata"]["labels"]
    deny, own = (it.one("NetworkPolicy", name)["spec"] for name in ("tandem-default-deny", NAME))
    assert deny["podSelector"]["matchLabels"].items() <= labels.items()
    assert own["podSelector"]["matchLabels"].items() <= labels.items()
    assert own["ingress"] == []
    server, names = own["egress"]
    assert ([port["port"] for port in server["ports"]], server["to"]) == (
        [443, 6443],
        [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    )
    assert {port["port"] for port in names["ports"]} == {53}
    assert not [
        made
        for made in render({**MADE, "networkPolicy": {"enabled": False}}).all("NetworkPolicy")
        if made["metadata"]["name"] == NAME
    ]


def test_gateways_and_every_client_read_the_secret_that_is_made(render: Render) -> None:
    it = render(EVERY_CLIENT)
    gateway = it.one("Deployment", "tandem-gateway")
    (keys,) = [each for each in gateway["spec"]["template"]["spec"]["volumes"] if each["name"] == "keys"]
    assert (keys["secret"]["secretName"], keys["secret"]["items"]) == (
        NAME,
        [{"key": "keys.json", "path": "keys.json"}],
    )
    assert "--keys=/etc/tandem-keys/keys.json" in it.container("tandem-gateway")["command"]
    assert gateway["metadata"]["annotations"]["tandem-client-key"] == f"{NAME}/api-key"
    (key,) = [
        each
        for each in it.one("Deployment", "tandem-scaler")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "key"
    ]
    assert (key["secret"]["secretName"], key["secret"]["items"][0]["key"]) == (NAME, "api-key")
    reference = {"secretKeyRef": {"name": NAME, "key": "api-key"}}
    for name, pod in it.pods():
        if name == "tandem-test-infer" or "-load-" in name:
            assert pod["containers"][0]["env"] == [{"name": "TANDEM_API_KEY", "valueFrom": reference}], name
    (endpoint,) = it.one("ServiceMonitor", "tandem-gateway")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": NAME, "key": "api-key"}
    assert NAME in json.dumps(it.one("PrometheusRule", "tandem"))


def test_nothing_of_it_is_there_with_keys_of_ones_own_or_without_any(render: Render) -> None:
    own = {"auth": {"existingSecret": "mine", "insecureNoAuth": False, "client": {"existingSecret": "one"}}}
    for values in (own, {}):
        assert not [it for it in render(values).objects if it["metadata"]["name"] == NAME]


def test_nothing_that_renders_has_a_key_so_two_renderings_are_the_same(chart: helm_python.Chart) -> None:
    one, other = (chart.render({}, name="tandem", namespace="serving") for _ in range(2))
    assert one == other
    assert "tdm_" not in json.dumps([text for path, text in one.items() if path.endswith(".yaml")])


def test_its_pod_runs_where_the_gateway_may_and_has_its_annotations(render: Render) -> None:
    toleration = {"key": "dedicated", "operator": "Exists"}
    gateway = {"nodeSelector": {"pool": "web"}, "tolerations": [toleration]}
    auth = {"insecureNoAuth": False, "job": {"podAnnotations": {"sidecar.istio.io/inject": "false"}}}
    template = render({"auth": auth, "gateway": gateway}).one("Job", NAME)["spec"]["template"]
    assert (template["spec"]["nodeSelector"], template["spec"]["tolerations"]) == ({"pool": "web"}, [toleration])
    assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_the_notes_say_how_to_read_both_keys_and_that_they_stay(render: Render) -> None:
    notes = render(MADE).notes
    for entry in ("api-key", "admin-key"):
        assert f"kubectl --namespace serving get secret {NAME} -o jsonpath='{{.data.{entry}}}' | base64 -d" in notes
    assert "WARNING" not in notes
    assert "admin-key" not in render({}).notes


@pytest.mark.parametrize("way", ["ingress", "balancer"])
def test_with_keys_that_are_made_the_gateway_may_be_opened(way: str, render: Render) -> None:
    outside = {"networkPolicy": {"gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
    ways: Object = {
        "ingress": {"ingress": {"enabled": True, "hosts": ["a.example.com"], "tls": [{"secretName": "cert"}]}},
        "balancer": {"gateway": {"service": {"type": "LoadBalancer"}}},
    }
    it = render({**MADE, **outside, **ways[way]})
    assert "--insecure-no-auth" not in it.container("tandem-gateway")["command"]
