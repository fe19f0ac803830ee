"""What the chart's default asks of a cluster, for who has no rendering at hand. A test holds it against k8s/rendered.

The secret with the API keys is not among it, because its name is the user's.
"""

from __future__ import annotations

from decimal import Decimal

from serving.cluster.objects.pods import ContainerSpec, PodSpec
from serving.cluster.preflight.requirements import SECRETS, PodGroup, Requirements, Resource

MIB = Decimal(2**20)


def _container(name: str, *, cpu: tuple[str, str], mib: tuple[int, int], is_init: bool = False) -> ContainerSpec:
    """`cpu` and `mib`: request and limit."""
    return ContainerSpec(
        name,
        is_init,
        requests={"cpu": Decimal(cpu[0]), "memory": mib[0] * MIB},
        limits={"cpu": Decimal(cpu[1]), "memory": mib[1] * MIB},
    )


POOL = PodSpec(
    (
        _container("copy-models", cpu=("0.05", "0.5"), mib=(64, 256), is_init=True),
        _container("verify-models", cpu=("0.05", "0.5"), mib=(64, 256), is_init=True),
        _container("triton", cpu=("1", "2"), mib=(768, 1536)),
    )
)
GATEWAY = PodSpec((_container("gateway", cpu=("0.5", "2"), mib=(512, 2048)),))
DEFAULT = Requirements(
    source="the chart's default",
    resources=frozenset(
        {
            Resource("apps", "deployments"),
            Resource("", "services"),
            Resource("", "configmaps"),
            Resource("", "serviceaccounts"),
            Resource("networking.k8s.io", "networkpolicies"),
            Resource("policy", "poddisruptionbudgets"),
            SECRETS,
        }
    ),
    pods=(PodGroup("deployment tandem-cpu", 1, POOL), PodGroup("deployment tandem-gateway", 2, GATEWAY)),
)
# (resource, what of the chart makes it) of everything that only other values make; a test compares both with the chart's templates.
OPTIONAL = (
    (Resource("autoscaling", "horizontalpodautoscalers"), "autoscaled pools"),
    (Resource("networking.k8s.io", "ingresses"), "ingress"),
    (Resource("gateway.networking.k8s.io", "httproutes"), "httpRoute"),
    (Resource("gateway.networking.k8s.io", "grpcroutes"), "grpcRoute"),
    (Resource("monitoring.coreos.com", "servicemonitors"), "monitoring"),
    (Resource("monitoring.coreos.com", "podmonitors"), "monitoring"),
    (Resource("monitoring.coreos.com", "prometheusrules"), "monitoring"),
    (Resource("keda.sh", "scaledobjects"), "pools scaled by KEDA"),
    (Resource("rbac.authorization.k8s.io", "roles"), "scaler"),
    (Resource("rbac.authorization.k8s.io", "rolebindings"), "scaler"),
    (Resource("rbac.authorization.k8s.io", "clusterroles", is_namespaced=False), "scaler"),
    (Resource("rbac.authorization.k8s.io", "clusterrolebindings", is_namespaced=False), "scaler"),
    (Resource("apps", "daemonsets"), "image pre-pull"),
    (Resource("batch", "jobs"), "loadTest"),
    (Resource("scheduling.k8s.io", "priorityclasses", is_namespaced=False), "priorityClass"),
    (Resource("", "pods"), "helm test"),
    (Resource("", "persistentvolumeclaims"), "a volume of its own"),
)
