"""Contradictions in what is said of the gateway, keys and the ways to it."""

from __future__ import annotations

from tests.helm.conftest import Names, Object

KEYS: Object = {"auth": {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "one"}}}
KEYS_ALONE: Object = {"auth": {"existingSecret": "keys", "insecureNoAuth": False}}
OUTSIDE: Object = {"networkPolicy": {"gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
SCRAPED: Object = {"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}}
INGRESS = {"enabled": True, "hosts": ["a.example.com"], "tls": [{"secretName": "cert"}]}
ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["a.example.com"]}


def ingress(**other: object) -> Object:
    return {**KEYS, **OUTSIDE, "ingress": {**INGRESS, **other}}


def route(grpc: Object | None = None, **other: object) -> Object:
    return {**KEYS, **OUTSIDE, "httpRoute": {**ROUTE, "grpc": grpc or {}, **other}}


# (values, what the sentence names)
CONTRADICTIONS: dict[str, tuple[Object, Names]] = {
    "an annotation that the chart sets": (
        {"gateway": {"podAnnotations": {"checksum/config": "x"}}},
        ("gateway.podAnnotations", "checksum/config"),
    ),
    "keys, and none": (
        {"auth": {"existingSecret": "keys"}},
        ("auth.existingSecret", "auth.insecureNoAuth"),
    ),
    "a gateway that is killed while it drains": (
        {"gateway": {"terminationGracePeriodSeconds": 30}},
        ("gateway.terminationGracePeriodSeconds", "30", "40", "5"),
    ),
    "rollouts without a document": (
        {"gateway": {"control": {"rollouts": {"enabled": True}}}},
        ("gateway.control.rollouts", "gateway.control.configMap"),
    ),
    "a gateway without an account": (
        {"gateway": {"serviceAccount": {"create": False}}},
        ("gateway.serviceAccount.create", "gateway.serviceAccount.name"),
    ),
    "a variant on a pool that is off": (
        {"gateway": {"variants": {"digits": {"gpu": "fp16"}}}},
        ("gateway.variants.digits",),
    ),
    # -- keys, and the chart's own clients
    "a client's key without keys": (
        {"auth": {"client": {"existingSecret": "one"}}},
        ("auth.client.existingSecret", "auth.insecureNoAuth", "auth.existingSecret"),
    ),
    "a client's key that the chart makes itself": (
        {"auth": {"insecureNoAuth": False, "client": {"existingSecret": "one"}}},
        ("auth.client.existingSecret", "auth.existingSecret"),
    ),
    "a name for a file that the chart names": (
        {"auth": {"insecureNoAuth": False, "key": "own.json"}},
        ("auth.key", "own.json", "keys.json", "auth.existingSecret"),
    ),
    "a name for a key that the chart names": (
        {"auth": {"insecureNoAuth": False, "client": {"key": "mine"}}},
        ("auth.client.key", "auth.existingSecret"),
    ),
    "a Job that makes no keys": (
        {**KEYS, "auth": {**KEYS["auth"], "job": {"podAnnotations": {"a": "b"}}}},
        ("auth.job.podAnnotations", "auth.existingSecret", "auth.insecureNoAuth"),
    ),
    "pages of other sites, and no keys": (
        {"gateway": {"allowedOrigins": ["https://app.example.com"]}},
        ("gateway.allowedOrigins", "auth.insecureNoAuth"),
    ),
    "a test without a key": (
        KEYS_ALONE,
        ("test.enabled", "auth.client.existingSecret", "test.enabled=false"),
    ),
    "a load test without a key": (
        {**KEYS_ALONE, "test": {"enabled": False}, "loadTest": {"enabled": True}},
        ("loadTest.enabled", "auth.client.existingSecret", "loadTest.enabled=false"),
    ),
    "a Prometheus without a key": (
        {**KEYS_ALONE, "test": {"enabled": False}, "monitoring": {"serviceMonitor": {"enabled": True}}, **SCRAPED},
        ("monitoring.serviceMonitor.enabled", "auth.client.existingSecret", "monitoring.serviceMonitor.enabled=false"),
    ),
    "an admin listener that anybody reaches": (
        {"networkPolicy": {"enabled": False}},
        (
            "gateway.admin.enabled",
            "NetworkPolicy",
            "auth.insecureNoAuth",
            "networkPolicy.enabled=true",
            "gateway.admin.enabled=false",
        ),
    ),
    # -- its pods
    "a gateway autoscaler upside down": (
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        ("gateway.autoscaling.minReplicas", "9", "maxReplicas", "8"),
    ),
    "a gateway autoscaler on a share of no CPU": (
        {
            "gateway": {
                "autoscaling": {"enabled": True},
                "resources": {"requests": {"cpu": None}, "limits": {"cpu": None}},
            }
        },
        ("gateway.autoscaling.targetCpuPercent", "gateway.resources", "gateway.resources.requests.cpu"),
    ),
    "two listeners on one port": (
        {"gateway": {"service": {"grpcPort": 80}}},
        ("gateway.service.port", "gateway.service.grpcPort", "80", "gateway.grpc.enabled=false"),
    ),
    "a label that the pods are found by": (
        {"gateway": {"podLabels": {"app.kubernetes.io/component": "mine"}}},
        ("gateway.podLabels", "app.kubernetes.io/component"),
    ),
    "a variable that the command line has": (
        {
            "gateway": {
                "env": [{"name": "TANDEM_CACHE", "value": "/tmp"}, {"name": "TANDEM_GRPC_PORT", "value": "9001"}]
            }
        },
        ("gateway.env", "TANDEM_GRPC_PORT", "gateway.grpc", "gateway.admin", "gateway.preprocessing"),
    ),
    "annotations for an account of somebody else": (
        {"gateway": {"serviceAccount": {"create": False, "name": "mine", "annotations": {"a": "b"}}}},
        ("gateway.serviceAccount.annotations", "gateway.serviceAccount.create=true"),
    ),
    # -- images
    "a copier that moves": (
        {"images": {"rclone": {"tag": "latest"}}},
        ("images.rclone.tag",),
    ),
    "models that move": (
        {"modelRepository": {"image": {"repository": "registry.example.com/models", "tag": "latest"}}},
        ("modelRepository.image.tag",),
    ),
    "models without a version": (
        {"modelRepository": {"image": {"repository": "registry.example.com/models"}}},
        ("modelRepository.image.repository", "registry.example.com/models", "modelRepository.image.tag"),
    ),
    "an image volume without a version": (
        {
            "modelRepository": {
                "source": "imageVolume",
                "imageVolume": {"reference": "registry.example.com:5000/models"},
            }
        },
        ("modelRepository.imageVolume.reference", "registry.example.com:5000/models"),
    ),
    # -- its Service
    "a load balancer's class without one": (
        {"gateway": {"service": {"loadBalancerClass": "internal"}}},
        ("gateway.service.loadBalancerClass", "gateway.service.type", "ClusterIP", "gateway.service.type=LoadBalancer"),
    ),
    "a load balancer's sources without one": (
        {**KEYS, **OUTSIDE, "gateway": {"service": {"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]}}},
        (
            "gateway.service.loadBalancerSourceRanges",
            "gateway.service.type",
            "NodePort",
            "gateway.service.type=LoadBalancer",
        ),
    ),
    "traffic from outside, which there is not": (
        {"gateway": {"service": {"externalTrafficPolicy": "Local"}}},
        ("gateway.service.externalTrafficPolicy", "gateway.service.type", "ClusterIP"),
    ),
    "two families in one stack": (
        {"gateway": {"service": {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "SingleStack"}}},
        (
            "gateway.service.ipFamilies",
            "IPv6",
            "IPv4",
            "gateway.service.ipFamilyPolicy",
            "SingleStack",
            "ipFamilyPolicy=PreferDualStack",
        ),
    ),
    # -- ways in from outside
    "a load balancer for everybody": (
        {"gateway": {"service": {"type": "LoadBalancer"}}, **OUTSIDE},
        ("gateway.service.type=LoadBalancer", "auth.insecureNoAuth", "auth.existingSecret"),
    ),
    "an Ingress for everybody": (
        {**OUTSIDE, "ingress": INGRESS},
        ("ingress.enabled=true", "auth.insecureNoAuth", "auth.existingSecret"),
    ),
    "a route for everybody": (
        {**OUTSIDE, "httpRoute": ROUTE},
        ("httpRoute.enabled=true", "auth.insecureNoAuth", "auth.existingSecret"),
    ),
    "an Ingress that the policy keeps out": (
        {**KEYS, "ingress": INGRESS},
        (
            "ingress.enabled=true",
            "NetworkPolicy",
            "networkPolicy.gatewayFrom",
            "{namespaceSelector",
            "{matchLabels",
            "{kubernetes.io/metadata.name",
            "{ipBlock",
            "10.0.0.0/8}}",
        ),
    ),
    "a node port that the policy keeps out": (
        {**KEYS, "gateway": {"service": {"type": "NodePort"}}, "networkPolicy": {"gatewayFrom": []}},
        (
            "gateway.service.type=NodePort",
            "NetworkPolicy",
            "networkPolicy.gatewayFrom",
            "{namespaceSelector",
            "{matchLabels",
            "{kubernetes.io/metadata.name",
            "{ipBlock",
            "10.0.0.0/8}}",
        ),
    ),
    "an Ingress without hosts": (
        ingress(hosts=[]),
        ("ingress.hosts", "[tandem.example.com]"),
    ),
    "an Ingress in the clear": (
        ingress(tls=[]),
        ("ingress.tls", "a.example.com", "{secretName", "ingress.insecureNoTls=true"),
    ),
    "a host that its certificates leave out": (
        ingress(hosts=["a.example.com", "a.b.example.com"], tls=[{"secretName": "cert", "hosts": ["*.example.com"]}]),
        ("ingress.tls", "a.b.example.com", "{secretName", "ingress.insecureNoTls=true"),
    ),
    "a route that hangs on nothing": (
        route(parentRefs=[]),
        ("httpRoute.parentRefs", "[{name"),
    ),
    "a route for every name": (
        route(hostnames=[]),
        ("httpRoute.hostnames", "[tandem.example.com]"),
    ),
    "a gRPC route alone": (
        {**KEYS, **OUTSIDE, "httpRoute": {"grpc": {"enabled": True}}},
        ("httpRoute.grpc.enabled", "httpRoute.enabled", "httpRoute.enabled=true"),
    ),
    "a gRPC route to nobody": (
        {**route({"enabled": True, "hostnames": ["b.example.com"]}), "gateway": {"grpc": {"enabled": False}}},
        ("httpRoute.grpc.enabled", "gRPC", "gateway.grpc.enabled=true"),
    ),
    "a gRPC route for every name": (
        route({"enabled": True}),
        ("httpRoute.grpc.hostnames", "gRPC", "[grpc.tandem.example.com]"),
    ),
    "one name for two kinds of route": (
        route({"enabled": True, "hostnames": ["b.example.com", "a.example.com"], "parentRefs": [{"name": "public"}]}),
        ("httpRoute.hostnames", "httpRoute.grpc.hostnames", "a.example.com", "gRPC", "httpRoute.grpc.parentRefs"),
    ),
}
