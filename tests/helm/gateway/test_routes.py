"""The ways in from outside: Ingress, HTTPRoute, GRPCRoute. What they refuse is in wrong_values/gateway.py.

The Gateway API's kinds are not in the schemas of Kubernetes that are at hand without a cluster, so what counts is asserted field by field.
"""

from __future__ import annotations

import pytest

from tests.helm.conftest import Object, Render
from tests.helm.wrong_values.gateway import KEYS, OUTSIDE, ROUTE, ingress, route

GRPC: Object = {"enabled": True, "hostnames": ["grpc.example.com"]}


def test_nothing_comes_in_from_outside_unless_it_is_asked_for(render: Render) -> None:
    kinds = {made["kind"] for made in render(KEYS).objects}
    assert not {"Ingress", "HTTPRoute", "GRPCRoute"} & kinds
    assert render(KEYS).one("Service", "tandem-gateway")["spec"]["type"] == "ClusterIP"


def test_an_ingress_sends_every_path_of_its_hosts_to_the_http_port(render: Render) -> None:
    it = render(ingress(className="nginx", hosts=["a.example.com", "b.example.com"], annotations={"a": "b"}))
    (made,) = it.all("Ingress")
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == [{"secretName": "cert", "hosts": ["a.example.com", "b.example.com"]}]
    backend = {"service": {"name": "tandem-gateway", "port": {"name": "http"}}}
    assert made["spec"]["rules"] == [
        {"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
        for host in ("a.example.com", "b.example.com")
    ]
    assert "http" in [port["name"] for port in it.one("Service", "tandem-gateway")["spec"]["ports"]]


@pytest.mark.parametrize(
    "values",
    [
        ingress(hosts=["a.example.com"], tls=[{"secretName": "cert", "hosts": ["*.example.com"]}]),
        ingress(
            hosts=["a.example.com", "b.example.com"],
            tls=[{"secretName": "a", "hosts": ["a.example.com"]}, {"secretName": "b", "hosts": ["b.example.com"]}],
        ),
        ingress(tls=[], insecureNoTls=True),
    ],
    ids=["a wildcard", "one each", "TLS ends before it"],
)
def test_certificates_that_cover_the_hosts_are_taken_and_none_when_told_so(values: Object, render: Render) -> None:
    (made,) = render(values).all("Ingress")
    assert made["spec"].get("tls", []) == values["ingress"]["tls"]


def test_a_route_sends_all_to_the_http_port_and_hangs_where_it_was_told(render: Render) -> None:
    parent = {"name": "public", "namespace": "gateways", "sectionName": "https"}
    values = {**route(parentRefs=[parent], annotations={"a": "b"}), "gateway": {"service": {"port": 8000}}}
    it = render(values)
    (made,) = it.all("HTTPRoute")
    assert it.all("GRPCRoute") == []
    assert made["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"] == {
        "parentRefs": [parent],
        "hostnames": ["a.example.com"],
        "rules": [{"backendRefs": [{"name": "tandem-gateway", "port": 8000}], "timeouts": {"request": "70s"}}],
    }


@pytest.mark.parametrize(("limit_s", "timeout"), [(0.5, "11s"), (60, "70s"), (90.25, "101s"), (3600, "3610s")])
def test_a_route_waits_longer_than_the_gateway_does(limit_s: float, timeout: str, render: Render) -> None:
    it = render({**route(), "gateway": {"limits": {"upstreamTimeoutS": limit_s}}})
    (made,) = it.all("HTTPRoute")
    assert made["spec"]["rules"][0]["timeouts"] == {"request": timeout}
    assert int(timeout.removesuffix("s")) > limit_s


@pytest.mark.parametrize(
    ("grpc", "parents"),
    [
        (GRPC, [{"name": "public"}]),
        ({**GRPC, "parentRefs": [{"name": "other"}]}, [{"name": "other"}]),
        ({**GRPC, "hostnames": ["a.example.com"], "parentRefs": [{"name": "public", "sectionName": "grpc"}]}, None),
    ],
    ids=["another name", "another Gateway", "another listener"],
)
def test_grpc_has_a_route_of_its_own_to_its_own_port(
    grpc: Object, parents: list[Object] | None, render: Render
) -> None:
    it = render({**KEYS, **OUTSIDE, "httpRoute": {**ROUTE, "grpc": grpc}, "gateway": {"service": {"grpcPort": 9000}}})
    (made,) = it.all("GRPCRoute")
    assert made["spec"] == {
        "parentRefs": parents or grpc["parentRefs"],
        "hostnames": grpc["hostnames"],
        "rules": [{"backendRefs": [{"name": "tandem-gateway", "port": 9000}]}],
    }
    ports = {port["name"]: port["port"] for port in it.one("Service", "tandem-gateway")["spec"]["ports"]}
    assert ports["grpc"] == 9000


# -- the Service and the Ingress, field by field ---------------------------------------------------------------------------------


def test_a_load_balancer_has_its_class_its_sources_and_its_policy(render: Render) -> None:
    said = {"loadBalancerClass": "example.com/internal", "loadBalancerSourceRanges": ["203.0.113.0/24"], "externalTrafficPolicy": "Local"}  # fmt: skip
    spec = render({**KEYS, **OUTSIDE, "gateway": {"service": {"type": "LoadBalancer", **said}}}).one("Service", "tandem-gateway")["spec"]  # fmt: skip
    assert {key: spec[key] for key in said} == said
    assert not said.keys() & render({**KEYS, **OUTSIDE, "gateway": {"service": {"type": "LoadBalancer"}}}).one("Service", "tandem-gateway")["spec"].keys()  # fmt: skip


@pytest.mark.parametrize(
    ("said", "host"),
    [
        ({}, "0.0.0.0"),
        ({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}, "0.0.0.0"),
        ({"ipFamilies": ["IPv6"]}, "::"),
        ({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}, "::"),
        ({"ipFamilyPolicy": "PreferDualStack"}, "::"),
    ],
)
def test_the_gateway_listens_where_its_services_families_lead(said: Object, host: str, render: Render) -> None:
    it = render({"gateway": {"service": said}})
    spec = it.one("Service", "tandem-gateway")["spec"]
    assert {key: spec[key] for key in ("ipFamilies", "ipFamilyPolicy") if key in spec} == said
    assert {f"--host={host}", f"--admin-host={host}"} <= set(it.container("tandem-gateway")["command"])


def test_an_ingress_lets_in_the_paths_that_it_is_told(render: Render) -> None:
    paths = [{"path": "/v2", "pathType": "Prefix"}, {"path": "/health/ready", "pathType": "Exact"}]
    for values, expected in ((ingress(), [{"path": "/", "pathType": "Prefix"}]), (ingress(paths=paths), paths)):
        for rule in render({**values}).one("Ingress", "tandem-gateway")["spec"]["rules"]:
            assert [{key: it[key] for key in ("path", "pathType")} for it in rule["http"]["paths"]] == expected
            assert {it["backend"]["service"]["name"] for it in rule["http"]["paths"]} == {"tandem-gateway"}
