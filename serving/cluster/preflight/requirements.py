"""What does an installation ask of a cluster? Read from rendered objects (`helm template`), or the chart's default.

Pure: objects in, `Wanted` out. `DEFAULT` is what reading k8s/rendered gives; a test holds the two together. Rule: nothing here knows a
chart's values, only objects, so that it is right for whatever values made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from serving.cluster.api import Object
from serving.cluster.fields import amounts, at, label, name_of
from serving.cluster.gpus import follows_scaler, is_gpu, total

CLUSTER_SCOPED = {"PriorityClass", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PersistentVolume", "Namespace"}
AUTOSCALERS = {"HorizontalPodAutoscaler", "ScaledObject"}
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
class Container:
    where: str  # "deployment tandem-cpu, container triton"
    is_init: bool
    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Pods:
    """`count` pods alike. Of a DaemonSet there are as many as nodes, which nobody knows beforehand: count 1 then."""

    where: str  # "deployment tandem-cpu"
    count: int
    containers: tuple[Container, ...]
    tolerations: tuple[Mapping[str, str], ...] = ()

    @property
    def gpus(self) -> dict[str, int]:
        asked = [{key: int(value) for key, value in it.limits.items() if is_gpu(key)} for it in self.containers]
        return total(asked)

    def sums(self) -> dict[str, Decimal]:
        """What a quota counts: requests.cpu ... of all of them. Init containers run one by one, before the others."""
        summed: dict[str, Decimal] = {"pods": Decimal(self.count)}
        for kind in ("requests", "limits"):
            for resource in {key for it in self.containers for key in (*it.requests, *it.limits)}:
                mains, inits = Decimal(0), Decimal(0)
                for it in self.containers:
                    # An absent request is the limit, as the API server sets it.
                    asked = it.limits if kind == "limits" else {**it.limits, **it.requests}
                    if it.is_init:
                        inits = max(inits, asked.get(resource, Decimal(0)))
                    else:
                        mains += asked.get(resource, Decimal(0))
                if most := max(mains, inits):
                    summed[f"{kind}.{resource}"] = most * self.count
        return summed


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    name: str
    storage_class: str | None  # None: the cluster's default
    storage: Decimal


@dataclass(frozen=True, slots=True)
class Wanted:
    source: str  # where this comes from, for the one who reads the findings
    resources: frozenset[Resource]
    pods: tuple[Pods, ...]
    kinds: frozenset[Kind] = frozenset()  # of groups that are not built in
    metrics: frozenset[str] = frozenset()  # API groups that its autoscalers read
    claims_made: tuple[VolumeClaim, ...] = ()
    claims_used: frozenset[str] = frozenset()  # and not made
    secrets_used: frozenset[str] = frozenset()  # likewise
    pull_secrets: frozenset[str] = frozenset()
    runs_policies: bool = True  # has NetworkPolicies, which somebody must enforce
    gpu_pools: Mapping[str, bool] = field(default_factory=dict)  # name -> whether its number follows the scaler

    @property
    def gpus(self) -> dict[str, int]:
        return total([{key: value * it.count for key, value in it.gpus.items()} for it in self.pods])

    def sums(self) -> dict[str, Decimal]:
        summed: dict[str, Decimal] = {}
        for each in (it.sums() for it in self.pods):
            for key, value in each.items():
                summed[key] = summed.get(key, Decimal(0)) + value
        if self.claims_made:
            summed["persistentvolumeclaims"] = Decimal(len(self.claims_made))
            summed["requests.storage"] = sum((it.storage for it in self.claims_made), Decimal(0))
        return summed


SECRETS = Resource("", "secrets")  # where Helm keeps its releases
GIB = Decimal(2**30)


def wanted(objects: Iterable[Object], source: str) -> Wanted:
    """Of rendered objects; raises TypeError, ValueError or AttributeError for what is none."""
    # `helm test` makes its pods later, and they go again.
    found = [it for it in objects if it and "helm.sh/hook" not in at(it, "metadata", "annotations", default={})]
    kinds = {_kind(it) for it in found}
    specs = [(it, _pod_spec(it)) for it in found if it.get("kind") in TEMPLATED]
    made = {name_of(it) for it in found if it.get("kind") == "Secret"}
    autoscalers = [it for it in found if it.get("kind") in AUTOSCALERS]
    scaled = {at(it, "spec", "scaleTargetRef", "name") for it in autoscalers}
    following = {at(it, "spec", "scaleTargetRef", "name") for it in autoscalers if follows_scaler(it)}
    pods = tuple(_pods(it, spec, 1 if name_of(it) in scaled else 0) for it, spec in specs)
    claims = tuple(_volume_claim(it) for it in found if it.get("kind") == "PersistentVolumeClaim")
    return Wanted(
        source=source,
        resources=frozenset({SECRETS, *(_resource(it) for it in found)}),
        pods=pods,
        kinds=frozenset(it for it in kinds if it.group not in BUILT_IN),
        metrics=frozenset(group for it in found for group in _metrics(it)),
        claims_made=claims,
        claims_used=frozenset(name for _, spec in specs for name in _claims(spec)) - {it.name for it in claims},
        secrets_used=frozenset(name for _, spec in specs for name in _secrets(spec)) - made,
        pull_secrets=frozenset(
            str(each.get("name")) for _, spec in specs for each in at(spec, "imagePullSecrets", default=())
        )
        - made,
        runs_policies=any(it.name == "NetworkPolicy" for it in kinds),
        gpu_pools={
            pool: name_of(it) in following
            for (it, _), asked in zip(specs, pods, strict=True)
            if (pool := label(it, "tandem-pool")) and asked.gpus
        },
    )


def with_gpu_pool(it: Wanted, resource: str) -> Wanted:
    """And the chart's GPU pool, as it is when turned on with that resource."""
    has = {"requests": {"cpu": Decimal(1), "memory": 2 * GIB}, "limits": {"cpu": Decimal(2), "memory": 4 * GIB}}
    card = Container(
        "deployment tandem-gpu, container triton", False, has["requests"], {**has["limits"], resource: Decimal(1)}
    )
    tolerations = ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
    pool = Pods("deployment tandem-gpu", 1, (card,), tolerations)
    return replace(it, source=f"{it.source} and a GPU pool", pods=(*it.pods, pool))


# -- reading ----------------------------------------------------------------------------------------------------------


def _kind(it: Object) -> Kind:
    group, _, version = str(it["apiVersion"]).rpartition("/")
    return Kind(group, version, str(it["kind"]))


def _resource(it: Object) -> Resource:
    kind = _kind(it)
    name = kind.name.lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"
    return Resource(kind.group, plural, kind.name not in CLUSTER_SCOPED)


def _pod_spec(it: Object) -> Object:
    found: Object = at(it, "spec", "template", "spec", default={})
    return found


def _pods(it: Object, spec: Object, least: int) -> Pods:
    """`least`: what an autoscaler starts with none has to find room for one, too."""
    where = f"{str(it['kind']).lower()} {name_of(it)}"
    return Pods(
        where=where,
        count=max(least, at(it, "spec", "replicas", default=at(it, "spec", "parallelism", default=1))),
        containers=(
            *(_container(each, where, is_init=True) for each in at(spec, "initContainers", default=())),
            *(_container(each, where, is_init=False) for each in at(spec, "containers", default=())),
        ),
        # What is tolerated for seconds, as every pod does of a node that is lost, is none to live on.
        tolerations=tuple(each for each in at(spec, "tolerations", default=()) if "tolerationSeconds" not in each),
    )


def _container(it: Object, where: str, *, is_init: bool) -> Container:
    requests, limits = amounts(it, "resources", "requests"), amounts(it, "resources", "limits")
    return Container(f"{where}, container {it.get('name')}", is_init, requests, limits)


def _volume_claim(it: Object) -> VolumeClaim:
    asked = amounts(it, "spec", "resources", "requests")
    return VolumeClaim(name_of(it), at(it, "spec", "storageClassName"), asked.get("storage", Decimal(0)))


def _claims(spec: Object) -> list[str]:
    volumes = at(spec, "volumes", default=())
    return [name for each in volumes if (name := at(each, "persistentVolumeClaim", "claimName"))]


def _secrets(spec: Object) -> list[str]:
    """Secrets without which a pod does not start."""
    named = [at(each, "secret") for each in at(spec, "volumes", default=())]
    for each in at(spec, "volumes", default=()):
        named += [at(source, "secret") for source in at(each, "projected", "sources", default=())]
    for container in (*at(spec, "initContainers", default=()), *at(spec, "containers", default=())):
        named += [at(each, "valueFrom", "secretKeyRef") for each in at(container, "env", default=())]
        named += [at(each, "secretRef") for each in at(container, "envFrom", default=())]
    return [str(it.get("secretName") or it.get("name")) for it in named if it and not it.get("optional")]


def _metrics(it: Object) -> list[str]:
    if it.get("kind") != "HorizontalPodAutoscaler":
        return []
    groups = {"External": "external.metrics.k8s.io", "Pods": "custom.metrics.k8s.io", "Object": "custom.metrics.k8s.io"}
    return [groups.get(str(each.get("type")), "metrics.k8s.io") for each in at(it, "spec", "metrics", default=())]


def is_ours(it: Object) -> bool:
    """Whether an object of a namespace is part of a Tandem, whose use of a quota an upgrade replaces."""
    return label(it, "app.kubernetes.io/part-of") == "tandem"
