"""What does an installation require of a cluster? Read from rendered objects (`helm template`), or the chart's default.

Pure: objects in, `Requirements` out. `DEFAULT` is what reading k8s/rendered gives; a test holds the two together. Rule: nothing here
knows a chart's values, only objects, so that it is right for whatever values made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from serving.cluster.objects.fields import Object, at, name_of
from serving.cluster.objects.gpus import GPU, total
from serving.cluster.objects.namespace import Autoscaler, ScaledObject, VolumeClaim
from serving.cluster.objects.pods import ContainerSpec, PodSpec

CLUSTER_SCOPED = {"PriorityClass", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PersistentVolume", "Namespace"}
AUTOSCALERS: dict[str, type[Autoscaler | ScaledObject]] = {
    "HorizontalPodAutoscaler": Autoscaler,
    "ScaledObject": ScaledObject,
}
TEMPLATED = {"Deployment", "StatefulSet", "ReplicaSet", "Job", "DaemonSet"}
# Groups that every API server serves; what another group's objects need is a definition that somebody installed.
BUILT_IN = {
    "", "apps", "autoscaling", "batch", "policy",
    "networking.k8s.io", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """What a right is asked for: deployments of apps."""

    group: str
    name: str
    is_namespaced: bool = True


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    group: str
    version: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.group}/{self.version})"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """`count` pods alike. Of a DaemonSet there are as many as nodes, which nobody knows beforehand: count 1 then."""

    owner: str  # "deployment tandem-cpu"
    count: int
    spec: PodSpec

    def sums(self) -> dict[str, Decimal]:
        """What a quota counts of all of them."""
        return {"pods": Decimal(self.count), **{key: each * self.count for key, each in self.spec.sums().items()}}


@dataclass(frozen=True, slots=True)
class Requirements:
    source: str  # where this comes from, for the one who reads the findings
    resources: frozenset[Resource]
    pods: tuple[PodGroup, ...]
    kinds: frozenset[Kind] = frozenset()  # of groups that are not built in
    metrics: frozenset[str] = frozenset()  # API groups that its autoscalers read
    claims_made: tuple[VolumeClaim, ...] = ()
    claims_used: frozenset[str] = frozenset()  # and not made
    secrets_used: frozenset[str] = frozenset()  # likewise
    pull_secrets: frozenset[str] = frozenset()
    has_policies: bool = True  # NetworkPolicies, which somebody must enforce

    @property
    def gpus(self) -> dict[str, int]:
        return total([{key: value * it.count for key, value in it.spec.gpus.items()} for it in self.pods])

    def sums(self) -> dict[str, Decimal]:
        summed = total(it.sums() for it in self.pods)
        if self.claims_made:
            summed["persistentvolumeclaims"] = Decimal(len(self.claims_made))
            summed["requests.storage"] = sum((it.storage_bytes for it in self.claims_made), Decimal(0))
        return summed


SECRETS = Resource("", "secrets")  # where Helm keeps its releases
MAKES_SECRET = "tandem-makes-secret"  # annotation of the chart's hook that makes keys before the first pod wants them
POOL_TOLERATIONS = ({"key": GPU, "operator": "Exists", "effect": "NoSchedule"},)  # of pools.gpu in the chart's values


def requirements(objects: Iterable[Object], source: str) -> Requirements:
    """Of rendered objects; raises TypeError, ValueError or AttributeError for what is none."""
    # `helm test` makes its pods later, and they go again.
    found = [it for it in objects if it and _annotations(it).get("helm.sh/hook") != "test"]
    kinds = {_kind(it) for it in found}
    autoscalers = [AUTOSCALERS[it["kind"]].parse(it) for it in found if it.get("kind") in AUTOSCALERS]
    scaled = {it.target for it in autoscalers}
    templated = [it for it in found if it.get("kind") in TEMPLATED]
    pods = tuple(_pods(it, 1 if name_of(it) in scaled else 0) for it in templated)
    claims = tuple(VolumeClaim.parse(it) for it in found if it.get("kind") == "PersistentVolumeClaim")
    secrets = {name_of(it) for it in found if it.get("kind") == "Secret"}
    secrets |= {str(_annotations(it)[MAKES_SECRET]) for it in found if MAKES_SECRET in _annotations(it)}
    return Requirements(
        source=source,
        resources=frozenset({SECRETS, *(_resource(it) for it in found)}),
        pods=pods,
        kinds=frozenset(it for it in kinds if it.group not in BUILT_IN),
        metrics=frozenset(group for it in found for group in _metrics(it)),
        claims_made=claims,
        claims_used=frozenset(name for it in pods for name in it.spec.volume_claims) - {it.name for it in claims},
        secrets_used=frozenset(name for it in pods for name in it.spec.secrets) - secrets,
        pull_secrets=frozenset(name for it in pods for name in it.spec.pull_secrets) - secrets,
        has_policies=any(it.name == "NetworkPolicy" for it in kinds),
    )


def with_gpu_pool(it: Requirements, resource: str) -> Requirements:
    """And the chart's GPU pool, as it is when turned on with that resource."""
    triton = _container("triton", cpu=("1", "2"), mib=(2048, 4096))
    card = replace(triton, limits={**triton.limits, resource: Decimal(1)})
    pool = PodSpec((card,), tolerations=POOL_TOLERATIONS)
    group = PodGroup("deployment tandem-gpu", 1, pool)
    return replace(it, source=f"{it.source} and a GPU pool", pods=(*it.pods, group))


def _annotations(it: Object) -> Object:
    annotations: Object = at(it, "metadata", "annotations", default={})
    return annotations


def _kind(it: Object) -> Kind:
    group, _, version = str(it["apiVersion"]).rpartition("/")
    return Kind(group, version, str(it["kind"]))


def _resource(it: Object) -> Resource:
    kind = _kind(it)
    name = kind.name.lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"
    return Resource(kind.group, plural, kind.name not in CLUSTER_SCOPED)


def _pods(it: Object, least: int) -> PodGroup:
    """`least`: what an autoscaler starts with none has to find room for one, too."""
    count = at(it, "spec", "replicas", default=at(it, "spec", "parallelism", default=1))
    spec = PodSpec.parse(at(it, "spec", "template", "spec", default={}))
    # What is tolerated for seconds, as of a node that is lost, is none to live on.
    spec = replace(spec, tolerations=tuple(each for each in spec.tolerations if "tolerationSeconds" not in each))
    return PodGroup(f"{str(it['kind']).lower()} {name_of(it)}", max(least, count), spec)


def _metrics(it: Object) -> list[str]:
    if it.get("kind") != "HorizontalPodAutoscaler":
        return []
    groups = {"External": "external.metrics.k8s.io", "Pods": "custom.metrics.k8s.io", "Object": "custom.metrics.k8s.io"}
    return [groups.get(str(each.get("type")), "metrics.k8s.io") for each in at(it, "spec", "metrics", default=())]


MIB = Decimal(2**20)


def _container(name: str, *, cpu: tuple[str, str], mib: tuple[int, int], is_init: bool = False) -> ContainerSpec:
    """`cpu` and `mib`: request and limit."""
    return ContainerSpec(
        name,
        is_init,
        requests={"cpu": Decimal(cpu[0]), "memory": mib[0] * MIB},
        limits={"cpu": Decimal(cpu[1]), "memory": mib[1] * MIB},
    )


DEFAULT_POOL = PodSpec(
    (
        _container("copy-models", cpu=("0.05", "0.5"), mib=(64, 256), is_init=True),
        _container("verify-models", cpu=("0.05", "0.5"), mib=(64, 256), is_init=True),
        _container("triton", cpu=("1", "2"), mib=(768, 1536)),
    )
)
DEFAULT_GATEWAY = PodSpec((_container("gateway", cpu=("0.5", "2"), mib=(512, 2048)),))
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
    pods=(
        PodGroup("deployment tandem-cpu", 1, DEFAULT_POOL),
        PodGroup("deployment tandem-gateway", 2, DEFAULT_GATEWAY),
    ),
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
    (Resource("rbac.authorization.k8s.io", "roles"), "keys that the chart makes, scaler"),
    (Resource("rbac.authorization.k8s.io", "rolebindings"), "keys that the chart makes, scaler"),
    (Resource("rbac.authorization.k8s.io", "clusterroles", is_namespaced=False), "scaler"),
    (Resource("rbac.authorization.k8s.io", "clusterrolebindings", is_namespaced=False), "scaler"),
    (Resource("apps", "daemonsets"), "image pre-pull"),
    (Resource("batch", "jobs"), "keys that the chart makes, loadTest"),
    (Resource("scheduling.k8s.io", "priorityclasses", is_namespaced=False), "priorityClass"),
    (Resource("", "pods"), "helm test"),
    (Resource("", "persistentvolumeclaims"), "a volume of its own"),
)
