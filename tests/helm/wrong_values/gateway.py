"""Contradictions in what is said of the gateway, keys and the ways to it."""

from __future__ import annotations

from tests.helm.conftest import Object

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


# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "an annotation that the chart sets": (
        {"gateway": {"podAnnotations": {"checksum/config": "x"}}},
        "gateway.podAnnotations has checksum/config, which the chart sets itself, so that gateways are replaced when their configuration changes. Leave it out.",
    ),
    "keys, and none": (
        {"auth": {"existingSecret": "keys"}},
        "auth.existingSecret and auth.insecureNoAuth contradict each other. Leave one of them out.",
    ),
    "a gateway that is killed while it drains": (
        {"gateway": {"terminationGracePeriodSeconds": 30}},
        "gateway.terminationGracePeriodSeconds is 30, but its drain takes 40 s (5 before SIGTERM, 30 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 40, shorten the drain, or leave it unset.",
    ),
    "a gateway without an account": (
        {"gateway": {"serviceAccount": {"create": False}}},
        "gateway.serviceAccount.create is false and no name is given. Set gateway.serviceAccount.name to an account that exists.",
    ),
    "a variant on a pool that is off": (
        {"gateway": {"variants": {"digits": {"gpu": "fp16"}}}},
        "gateway.variants.digits names pool gpu, which is not on. Pools that are on: cpu.",
    ),
    # -- keys, and the chart's own clients
    "a client's key without keys": (
        {"auth": {"client": {"existingSecret": "one"}}},
        "auth.client.existingSecret is set, but no keys are asked for. Leave out auth.insecureNoAuth and set auth.existingSecret, or "
        "leave it out.",
    ),
    "a client's key that the chart makes itself": (
        {"auth": {"insecureNoAuth": False, "client": {"existingSecret": "one"}}},
        "auth.client.existingSecret is set, but the keys are made by the chart, which knows that one already. Set auth.existingSecret to "
        "the secret with its digest, or leave it out.",
    ),
    "a name for a file that the chart names": (
        {"auth": {"insecureNoAuth": False, "key": "own.json"}},
        "auth.key is own.json, but the keys are made by the chart, which calls it keys.json. Leave it out, or name a secret of yours in "
        "auth.existingSecret.",
    ),
    "a name for a key that the chart names": (
        {"auth": {"insecureNoAuth": False, "client": {"key": "mine"}}},
        "auth.client.key is mine, but the keys are made by the chart, which calls it api-key. Leave it out, or name a secret of yours in "
        "auth.existingSecret.",
    ),
    "a Job that makes no keys": (
        {**KEYS, "auth": {**KEYS["auth"], "job": {"podAnnotations": {"a": "b"}}}},
        "auth.job.podAnnotations would be ignored, because the chart makes no keys. Leave it out, or auth.existingSecret and "
        "auth.insecureNoAuth.",
    ),
    "pages of other sites, and no keys": (
        {"gateway": {"allowedOrigins": ["https://app.example.com"]}},
        "gateway.allowedOrigins lets pages of other sites ask with an API key, and none is asked for. Leave out auth.insecureNoAuth, or leave it out.",
    ),
    "a test without a key": (
        KEYS_ALONE,
        "test.enabled is true and the gateway asks for keys, so `helm test` needs one. Put a key with the scope infer into a secret "
        "and set auth.client.existingSecret to its name, or set test.enabled=false.",
    ),
    "a load test without a key": (
        {**KEYS_ALONE, "test": {"enabled": False}, "loadTest": {"enabled": True}},
        "loadTest.enabled is true and the gateway asks for keys, so the load test needs one. Put a key with the scope infer into a "
        "secret and set auth.client.existingSecret to its name, or set loadTest.enabled=false.",
    ),
    "a Prometheus without a key": (
        {**KEYS_ALONE, "test": {"enabled": False}, "monitoring": {"serviceMonitor": {"enabled": True}}, **SCRAPED},
        "monitoring.serviceMonitor.enabled is true and the gateway asks for keys, so Prometheus needs one. Put a key with the scope "
        "metrics into a secret and set auth.client.existingSecret to its name, or set monitoring.serviceMonitor.enabled=false.",
    ),
    "an admin listener that anybody reaches": (
        {"networkPolicy": {"enabled": False}},
        "gateway.admin.enabled is true without keys and without a NetworkPolicy, so every pod of the cluster could unload models and "
        "read what is served. Leave out auth.insecureNoAuth, keep networkPolicy.enabled=true, or set gateway.admin.enabled=false.",
    ),
    # -- its pods
    "a gateway autoscaler upside down": (
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "gateway.autoscaling.minReplicas is 9, more than its maxReplicas of 8. Make them agree.",
    ),
    "a gateway autoscaler on a share of no CPU": (
        {
            "gateway": {
                "autoscaling": {"enabled": True},
                "resources": {"requests": {"cpu": None}, "limits": {"cpu": None}},
            }
        },
        "gateway.autoscaling.targetCpuPercent is a share of the CPU that a gateway requests, and gateway.resources requests none. "
        "Set gateway.resources.requests.cpu.",
    ),
    "two listeners on one port": (
        {"gateway": {"service": {"grpcPort": 80}}},
        "gateway.service.port and gateway.service.grpcPort are both 80. Give each its own, or set gateway.grpc.enabled=false.",
    ),
    "a label that the pods are found by": (
        {"gateway": {"podLabels": {"app.kubernetes.io/component": "mine"}}},
        "gateway.podLabels has app.kubernetes.io/component, which the chart sets itself and finds its pods by. Leave it out.",
    ),
    "a variable that the command line has": (
        {
            "gateway": {
                "env": [{"name": "TANDEM_CACHE", "value": "/tmp"}, {"name": "TANDEM_GRPC_PORT", "value": "9001"}]
            }
        },
        "gateway.env has TANDEM_GRPC_PORT, which the chart decides: by auth, gateway.grpc, gateway.admin, gateway.preprocessing and the "
        "ports of its Services. Leave it out.",
    ),
    "annotations for an account of somebody else": (
        {"gateway": {"serviceAccount": {"create": False, "name": "mine", "annotations": {"a": "b"}}}},
        "gateway.serviceAccount.annotations would be ignored, because create is false. Annotate the account that exists, or set "
        "gateway.serviceAccount.create=true.",
    ),
    # -- images
    "a copier that moves": (
        {"images": {"rclone": {"tag": "latest"}}},
        "images.rclone.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "models that move": (
        {"modelRepository": {"image": {"repository": "registry.example.com/models", "tag": "latest"}}},
        "modelRepository.image.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "models without a version": (
        {"modelRepository": {"image": {"repository": "registry.example.com/models"}}},
        "modelRepository.image.repository is registry.example.com/models without a version. Set modelRepository.image.tag or digest.",
    ),
    "an image volume without a version": (
        {
            "modelRepository": {
                "source": "imageVolume",
                "imageVolume": {"reference": "registry.example.com:5000/models"},
            }
        },
        "modelRepository.imageVolume.reference is registry.example.com:5000/models, which is another image tomorrow. "
        "Add a version or a digest.",
    ),
    # -- its Service
    "a load balancer's class without one": (
        {"gateway": {"service": {"loadBalancerClass": "internal"}}},
        "gateway.service.loadBalancerClass would be ignored, because gateway.service.type is ClusterIP. Leave it out, or set "
        "gateway.service.type=LoadBalancer.",
    ),
    "a load balancer's sources without one": (
        {**KEYS, **OUTSIDE, "gateway": {"service": {"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]}}},
        "gateway.service.loadBalancerSourceRanges would be ignored, because gateway.service.type is NodePort. Leave it out, or set "
        "gateway.service.type=LoadBalancer.",
    ),
    "traffic from outside, which there is not": (
        {"gateway": {"service": {"externalTrafficPolicy": "Local"}}},
        "gateway.service.externalTrafficPolicy would be ignored, because gateway.service.type is ClusterIP, which nobody reaches from "
        "outside. Leave it out, or set gateway.service.type.",
    ),
    "two families in one stack": (
        {"gateway": {"service": {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "SingleStack"}}},
        "gateway.service.ipFamilies are IPv6 and IPv4, and gateway.service.ipFamilyPolicy is SingleStack. Name one family, or set "
        "ipFamilyPolicy=PreferDualStack.",
    ),
    # -- ways in from outside
    "a load balancer for everybody": (
        {"gateway": {"service": {"type": "LoadBalancer"}}, **OUTSIDE},
        "gateway.service.type=LoadBalancer opens the gateway to others, and auth.insecureNoAuth lets everybody use it. Leave "
        "that out: the chart makes keys, or takes those of auth.existingSecret.",
    ),
    "an Ingress for everybody": (
        {**OUTSIDE, "ingress": INGRESS},
        "ingress.enabled=true opens the gateway to others, and auth.insecureNoAuth lets everybody use it. Leave that out: the chart "
        "makes keys, or takes those of auth.existingSecret.",
    ),
    "a route for everybody": (
        {**OUTSIDE, "httpRoute": ROUTE},
        "httpRoute.enabled=true opens the gateway to others, and auth.insecureNoAuth lets everybody use it. Leave that out: the chart "
        "makes keys, or takes those of auth.existingSecret.",
    ),
    "an Ingress that the policy keeps out": (
        {**KEYS, "ingress": INGRESS},
        "ingress.enabled=true brings requests from outside this namespace, which the NetworkPolicy keeps out. Name where they come from "
        "in networkPolicy.gatewayFrom, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}} or "
        "{ipBlock: {cidr: 10.0.0.0/8}}.",
    ),
    "a node port that the policy keeps out": (
        {**KEYS, "gateway": {"service": {"type": "NodePort"}}, "networkPolicy": {"gatewayFrom": []}},
        "gateway.service.type=NodePort brings requests from outside this namespace, which the NetworkPolicy keeps out. Name where they "
        "come from in networkPolicy.gatewayFrom, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "
        "ingress-nginx}}} or {ipBlock: {cidr: 10.0.0.0/8}}.",
    ),
    "an Ingress without hosts": (
        ingress(hosts=[]),
        "ingress.hosts is empty. Name the hosts that clients ask, for example [tandem.example.com].",
    ),
    "an Ingress in the clear": (
        ingress(tls=[]),
        "ingress.tls has no certificate for a.example.com, so keys would travel in the clear. Add {secretName, hosts}, or set "
        "ingress.insecureNoTls=true where TLS ends before the Ingress.",
    ),
    "a host that its certificates leave out": (
        ingress(hosts=["a.example.com", "a.b.example.com"], tls=[{"secretName": "cert", "hosts": ["*.example.com"]}]),
        "ingress.tls has no certificate for a.b.example.com, so keys would travel in the clear. Add {secretName, hosts}, or set "
        "ingress.insecureNoTls=true where TLS ends before the Ingress.",
    ),
    "a route that hangs on nothing": (
        route(parentRefs=[]),
        "httpRoute.parentRefs is empty, so the route would hang on no Gateway. Name one, for example [{name: public, namespace: "
        "gateways}].",
    ),
    "a route for every name": (
        route(hostnames=[]),
        "httpRoute.hostnames is empty, so the route would take every name of its Gateway. Name the hosts that clients ask, for example "
        "[tandem.example.com].",
    ),
    "a gRPC route alone": (
        {**KEYS, **OUTSIDE, "httpRoute": {"grpc": {"enabled": True}}},
        "httpRoute.grpc.enabled would be ignored, because httpRoute.enabled is false. Set httpRoute.enabled=true, or leave it out.",
    ),
    "a gRPC route to nobody": (
        {**route({"enabled": True, "hostnames": ["b.example.com"]}), "gateway": {"grpc": {"enabled": False}}},
        "httpRoute.grpc.enabled is true, but the gateway does not listen for gRPC. Set gateway.grpc.enabled=true, or leave it out.",
    ),
    "a gRPC route for every name": (
        route({"enabled": True}),
        "httpRoute.grpc.hostnames is empty, so the route would take every name of its Gateway. Name the hosts that gRPC clients ask, "
        "for example [grpc.tandem.example.com].",
    ),
    "one name for two kinds of route": (
        route({"enabled": True, "hostnames": ["b.example.com", "a.example.com"], "parentRefs": [{"name": "public"}]}),
        "httpRoute.hostnames and httpRoute.grpc.hostnames both have a.example.com on the same Gateway, which accepts one kind of route "
        "for a name. Give gRPC a name of its own, or another listener by httpRoute.grpc.parentRefs.",
    ),
}
