"""What the values add to pods, Services and claims is taken by a real API server, strictly: an unknown field or a reference to nothing would be refused.

Cards by dynamic resource allocation end here: no driver is run, so no pod with a claim gets a node.
"""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.release import PROFILES, Release, stack

pytestmark = pytest.mark.cluster
TEMPLATE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "half-a-card"},
    "spec": {
        "spec": {
            "devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "mig.nvidia.com", "count": 1}}]}
        }
    },
}
EXTRAS: Object = {
    "extraVolumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
    "extraVolumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a"}],
    "envFrom": [{"prefix": "MY_", "secretRef": {"name": "mine", "optional": True}}],
    "env": [{"name": "http_proxy", "value": "http://proxy:3128"}],
    "schedulerName": "default-scheduler",
}
SECURITY: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SIDECAR: Object = {"name": "beside", "image": "example.invalid/x:1", "securityContext": SECURITY}
OPEN: Object = {
    "auth.insecureNoAuth": False,
    "commonLabels": {"team": "vision"},
    "gateway": {
        **EXTRAS,
        "extraContainers": [SIDECAR],
        "initContainers": [{**SIDECAR, "name": "before"}],
        "service": {
            "type": "LoadBalancer",
            "loadBalancerClass": "example.com/internal",
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4"],
        },
    },
    "scaler": {"enabled": True, **EXTRAS},
    "poolDefaults": {**EXTRAS, "podSecurityContext": {"supplementalGroups": [44]}},
    "pools.far": {"device": "gpu", "urls": ["http://triton.ml:8000"]},
    "modelRepository": {"source": "claim", "newClaim": {"create": True}, "claimSubPath": "tandem"},
    "ingress": {
        "enabled": True,
        "hosts": ["tandem.example.com"],
        "tls": [{"secretName": "tls"}],
        "paths": [{"path": "/v2", "pathType": "Prefix"}],
    },
    "networkPolicy": {
        "gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "tritonsTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
    },
}
CLAIMS: Object = {
    "pools.gpu": {"enabled": True, "resourceClaims": [{"name": "card", "resourceClaimTemplateName": "half-a-card"}]},
    "extraObjects": [TEMPLATE],
}


def dry_run(bed: Bed, namespace: str, objects: str) -> str:
    return bed.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", stdin=objects)


@pytest.mark.parametrize("values", [OPEN, CLAIMS], ids=["open", "claims"])
def test_what_is_added_is_taken_strictly(values: Object, bed: Bed, namespace: str) -> None:
    release = Release(bed, namespace, more={"auth.insecureNoAuth": "auth.insecureNoAuth" not in values, **values})
    told = dry_run(bed, namespace, release.rendered())
    assert "deployment.apps/tandem-gateway created" in told
    assert "Warning" not in told


def test_a_pod_with_a_claim_that_it_does_not_have_is_refused_so_the_test_above_shows_something(
    bed: Bed, namespace: str
) -> None:
    release = Release(bed, namespace, more=CLAIMS)
    (gpu,) = [
        it for it in stack(release.rendered()) if it["metadata"]["name"] == "tandem-gpu" and it["kind"] == "Deployment"
    ]
    del gpu["spec"]["template"]["spec"]["resourceClaims"]
    with pytest.raises(Failed, match="resourceClaims"):
        dry_run(bed, namespace, yaml.safe_dump(gpu))


def test_openshifts_profile_lives_in_a_namespace_that_is_restricted(bed: Bed, namespace: str) -> None:
    release = Release(bed, namespace, PROFILES["openshift"])
    release.install()
    release.settle()
    for pod in release.pods():
        assert "runAsUser" not in pod["spec"]["securityContext"]
    release.uninstall()
