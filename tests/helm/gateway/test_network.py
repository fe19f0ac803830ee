"""Who may talk to whom: the chart's NetworkPolicies, read as a network plugin reads them.

A connection comes about where the policies of both ends allow it; a pod that no policy selects may do everything. That a plugin enforces
them is not shown here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.helm.conftest import Object, Render, Rendering
from tests.helm.wrong_values.gateway import KEYS

pytestmark = pytest.mark.slow  # computes for seconds: not in `make check`
NAMESPACE = "serving"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection: a pod by namespace and labels, or an address outside of the cluster."""

    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = NAMESPACE
    address: str = ""


def of_chart(component: str) -> End:
    names = {"name": "tandem", "instance": "tandem", "component": component}
    return End({f"app.kubernetes.io/{key}": value for key, value in names.items()})


GATEWAY, TRITON, TEST, LOADTEST = (of_chart(name) for name in ("gateway", "triton", "test", "loadtest"))
OTHER_RELEASE = End({**GATEWAY.labels, "app.kubernetes.io/instance": "another"})
NEIGHBOUR = End({"app": "shop"})
STRANGER = End({"app": "shop"}, "elsewhere")
PROMETHEUS = End({"app": "prometheus"}, "monitoring")
DNS = End({"k8s-app": "kube-dns"}, "kube-system")
BUCKET, METADATA = End(address="52.216.1.1"), End(address="169.254.169.254")


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "matchExpressions are not read here"
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: dict[str, Any], end: End) -> bool:
    if "ipBlock" in peer:
        if not end.address:
            return False
        address = ipaddress.ip_address(end.address)
        inside = [address in ipaddress.ip_network(cidr) for cidr in peer["ipBlock"].get("except", [])]
        return address in ipaddress.ip_network(peer["ipBlock"]["cidr"]) and not any(inside)
    if end.address:
        return False
    named = {"kubernetes.io/metadata.name": end.namespace}
    there = selects(peer["namespaceSelector"], named) if "namespaceSelector" in peer else end.namespace == NAMESPACE
    return there and selects(peer.get("podSelector", {}), end.labels)


def allowed(it: Rendering, direction: str, of: End, other: End, port: str | int) -> bool:
    """Whether the policies that select `of` let it have this connection; True where none selects it."""
    if of.address or of.namespace != NAMESPACE:
        return True
    policies = [one["spec"] for one in it.all("NetworkPolicy") if selects(one["spec"]["podSelector"], of.labels)]
    mine = [policy for policy in policies if direction.title() in policy["policyTypes"]]
    side = {"ingress": "from", "egress": "to"}[direction]
    return not mine or any(
        any(is_peer(peer, other) for peer in rule.get(side, [])) or not rule.get(side)
        for policy in mine
        for rule in policy.get(direction, [])
        if not rule.get("ports") or any(one.get("port", port) == port for one in rule["ports"])
    )


def may(it: Rendering, source: End, target: End, port: str | int) -> bool:
    return allowed(it, "egress", source, target, port) and allowed(it, "ingress", target, source, port)


METRICS: Object = {
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    }
}
LOAD: Object = {**KEYS, "loadTest": {"enabled": True}}
STORE: Object = {
    "modelRepository": {"source": "objectStore", "objectStore": {"from": "models:bucket", "existingSecret": "s"}}
}
HTTPS = 443

# (values, from, to, port, whether it may)
CONNECTIONS: list[tuple[str, Object, End, End, str | int, bool]] = [
    ("a neighbour asks the gateway", {}, NEIGHBOUR, GATEWAY, "http", True),
    ("a neighbour asks by gRPC", {}, NEIGHBOUR, GATEWAY, "grpc", True),
    ("a neighbour looks at the admin listener", {}, NEIGHBOUR, GATEWAY, "admin", False),
    ("a neighbour asks a Triton", {}, NEIGHBOUR, TRITON, "http", False),
    ("a neighbour loads models by gRPC", {}, NEIGHBOUR, TRITON, "grpc", False),
    ("a neighbour reads a Triton's metrics", {}, NEIGHBOUR, TRITON, "metrics", False),
    ("a neighbour reaches a test pod", {}, NEIGHBOUR, TEST, "http", False),
    ("a neighbour joins the load test", LOAD, NEIGHBOUR, LOADTEST, 5557, False),
    ("a stranger asks the gateway", {}, STRANGER, GATEWAY, "http", False),
    ("a stranger looks at the admin listener", METRICS, STRANGER, GATEWAY, "admin", False),
    ("a stranger asks the gateway from an address", {}, BUCKET, GATEWAY, "http", False),
    ("another release's gateway asks a Triton", {}, OTHER_RELEASE, TRITON, "http", False),
    ("a pod that a policy forgot", {}, of_chart("forgotten"), NEIGHBOUR, HTTPS, False),
    ("a neighbour reaches a pod that a policy forgot", {}, NEIGHBOUR, of_chart("forgotten"), "http", False),
    ("the gateway asks a Triton", {}, GATEWAY, TRITON, "http", True),
    ("the gateway loads models by gRPC", {}, GATEWAY, TRITON, "grpc", True),
    ("the gateway reads a Triton's metrics", {}, GATEWAY, TRITON, "metrics", False),
    ("the gateway looks a name up", {}, GATEWAY, DNS, 53, True),
    ("the gateway calls out", {}, GATEWAY, BUCKET, HTTPS, False),
    ("the gateway asks a neighbour", {}, GATEWAY, NEIGHBOUR, "http", False),
    ("a Triton asks the gateway", {}, TRITON, GATEWAY, "http", False),
    ("a Triton calls out", {}, TRITON, BUCKET, HTTPS, False),
    ("the gateway asks another gateway", {"networkPolicy": {"gatewayFrom": []}}, GATEWAY, GATEWAY, "http", False),
    ("a test asks the gateway", {"networkPolicy": {"gatewayFrom": []}}, TEST, GATEWAY, "http", True),
    ("a neighbour asks who is not named", {"networkPolicy": {"gatewayFrom": []}}, NEIGHBOUR, GATEWAY, "http", False),
    ("a test looks a name up", {}, TEST, DNS, 53, True),
    ("a test asks a Triton", {}, TEST, TRITON, "http", False),
    ("a test looks at the admin listener", {}, TEST, GATEWAY, "admin", False),
    ("a test calls out", {}, TEST, BUCKET, HTTPS, False),
    ("a load test asks the gateway", {**LOAD, "networkPolicy": {"gatewayFrom": []}}, LOADTEST, GATEWAY, "http", True),
    ("a worker calls its master", LOAD, LOADTEST, LOADTEST, 5557, True),
    ("a load test looks a name up", LOAD, LOADTEST, DNS, 53, True),
    ("a load test asks a Triton", LOAD, LOADTEST, TRITON, "http", False),
    ("a load test calls out", LOAD, LOADTEST, BUCKET, HTTPS, False),
    ("Prometheus is not named", {}, PROMETHEUS, GATEWAY, "admin", False),
    ("Prometheus reads the gateway's metrics", METRICS, PROMETHEUS, GATEWAY, "admin", True),
    ("Prometheus reads a Triton's metrics", METRICS, PROMETHEUS, TRITON, "metrics", True),
    ("Prometheus asks models", METRICS, PROMETHEUS, GATEWAY, "http", False),
    ("Prometheus asks a Triton", METRICS, PROMETHEUS, TRITON, "http", False),
    ("a Triton copies models", STORE, TRITON, BUCKET, HTTPS, True),
    ("the gateway copies models", STORE, GATEWAY, BUCKET, HTTPS, True),
    ("a copy looks the bucket up", STORE, TRITON, DNS, 53, True),
    ("a copy takes the node's credentials", STORE, TRITON, METADATA, HTTPS, False),
    ("the gateway takes the node's credentials", STORE, GATEWAY, METADATA, HTTPS, False),
    (
        "a gateway without preprocessing copies nothing",
        {**STORE, "gateway": {"preprocessing": {"enabled": False}}},
        GATEWAY,
        BUCKET,
        HTTPS,
        False,
    ),
    (
        "a copy goes where it was not told",
        {**STORE, "networkPolicy": {"modelsTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        GATEWAY,
        BUCKET,
        HTTPS,
        False,
    ),
    (
        "a name is looked up where it was not told",
        {"networkPolicy": {"dnsTo": [{"podSelector": {"matchLabels": {"k8s-app": "node-local-dns"}}}]}},
        GATEWAY,
        DNS,
        53,
        False,
    ),
    (
        "an Ingress controller that is named",
        {
            "networkPolicy": {
                "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}]
            }
        },
        STRANGER,
        GATEWAY,
        "http",
        True,
    ),
    ("a neighbour without policies", {**KEYS, "networkPolicy": {"enabled": False}}, NEIGHBOUR, TRITON, "http", True),
]


@pytest.mark.parametrize("row", CONNECTIONS, ids=[row[0] for row in CONNECTIONS])
def test_a_connection_comes_about_only_where_the_policies_say_so(
    row: tuple[str, Object, End, End, str | int, bool], render: Render
) -> None:
    _, values, source, target, port, expected = row
    assert may(render(values), source, target, port) is expected


def test_a_policy_selects_every_pod_of_the_chart_and_both_ways(render: Render) -> None:
    it = render(LOAD)
    (everything,) = [one["spec"] for one in it.all("NetworkPolicy") if one["metadata"]["name"] == "tandem-default-deny"]
    assert everything["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & everything.keys()
    for made in it.objects:
        template = made if made["kind"] == "Pod" else made.get("spec", {}).get("template")
        if template:
            assert selects(everything["podSelector"], template["metadata"]["labels"]), made["metadata"]["name"]


def test_every_named_port_of_a_policy_is_a_port_of_the_pods_that_it_selects(render: Render) -> None:
    it = render({**METRICS, **KEYS})
    ports = {
        component: {port["name"] for port in it.container(f"tandem-{name}")["ports"]}
        for component, name in (("gateway", "gateway"), ("triton", "cpu"))
    }
    checked = 0
    for policy in (one["spec"] for one in it.all("NetworkPolicy")):
        component = policy["podSelector"]["matchLabels"].get("app.kubernetes.io/component")
        for rule in policy.get("ingress", []):
            for port in rule["ports"]:
                assert port["port"] in ports[component]
                checked += 1
    assert checked == 6
