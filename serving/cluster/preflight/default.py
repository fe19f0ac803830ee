"""What the chart's default asks of a cluster, for who has no rendering at hand. A test holds it against k8s/rendered.

The secret with the API keys is not among it, because its name is the user's.
"""

from __future__ import annotations

from decimal import Decimal

from serving.cluster.preflight.requirements import SECRETS, Container, Pods, Resource, Wanted

MIB = Decimal(2**20)


def _container(where: str, name: str, *, is_init: bool, cpu: tuple[str, str], mib: tuple[int, int]) -> Container:
    """`cpu` and `mib`: request and limit."""
    return Container(
        f"{where}, container {name}",
        is_init,
        requests={"cpu": Decimal(cpu[0]), "memory": mib[0] * MIB},
        limits={"cpu": Decimal(cpu[1]), "memory": mib[1] * MIB},
    )


def _pool(where: str) -> Pods:
    return Pods(
        where,
        1,
        (
            *(
                _container(where, name, is_init=True, cpu=("0.05", "0.5"), mib=(64, 256))
                for name in ("copy-models", "verify-models")
            ),
            _container(where, "triton", is_init=False, cpu=("1", "2"), mib=(768, 1536)),
        ),
    )


def _gateway(where: str) -> Pods:
    return Pods(where, 2, (_container(where, "gateway", is_init=False, cpu=("0.5", "2"), mib=(512, 2048)),))


DEFAULT = Wanted(
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
    pods=(_pool("deployment tandem-cpu"), _gateway("deployment tandem-gateway")),
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
