"""Pods, what their containers ask for and how these are, and the Deployments and Jobs that make them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from math import ceil

from serving.cluster.objects.fields import (
    COMPONENT,
    MANAGED_BY,
    NAME,
    POOL,
    RELEASE,
    SCALER,
    VERSION,
    Condition,
    Object,
    amounts,
    annotation,
    at,
    conditions,
    created,
    is_true,
    label,
    moment,
    name_of,
    one_line,
    text,
)
from serving.cluster.objects.gpus import is_gpu, total
from serving.cluster.objects.nodes import Toleration

ENDED = ("Succeeded", "Failed")  # phases in which a pod takes nothing of its node, nor of a quota
GATE = "tandem-wanted"  # of pods of a pool that the scaler scales from none, which it opens
SCALED_BY = "tandem-scaled-by"  # annotation of a pool's Deployment: that the scaler itself sets its replicas
CAMPAIGN = "tandem-campaign"  # annotation of a campaign's Job: the name in its file
LOAD_MODEL = (
    "--load-model="  # how NVIDIA's Triton is given what to load; `tandem triton` loads all that its repository holds
)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """`words`: its command and arguments. Amounts are in base units."""

    name: str
    is_init: bool = False
    requests: Mapping[str, Decimal] = field(default_factory=dict)
    limits: Mapping[str, Decimal] = field(default_factory=dict)
    image: str = ""
    pull_policy: str = ""
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, it: Object, *, is_init: bool) -> ContainerSpec:
        return cls(
            name=text(it, "name"),
            is_init=is_init,
            requests=amounts(it, "resources", "requests"),
            limits=amounts(it, "resources", "limits"),
            image=text(it, "image"),
            pull_policy=text(it, "imagePullPolicy"),
            words=tuple(map(str, (*at(it, "command", default=()), *at(it, "args", default=())))),
        )

    @property
    def effective_requests(self) -> dict[str, Decimal]:
        """An absent request is the limit, as the API server sets it."""
        return {**self.limits, **self.requests}


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a pod asks for. `secrets`: those without which it does not start; `gates`: as long as there is one, nobody looks for a node."""

    containers: tuple[ContainerSpec, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    volume_claims: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()

    @classmethod
    def parse(cls, it: Object) -> PodSpec:
        volumes = at(it, "volumes", default=())
        return cls(
            containers=(
                *(ContainerSpec.parse(each, is_init=True) for each in at(it, "initContainers", default=())),
                *(ContainerSpec.parse(each, is_init=False) for each in at(it, "containers", default=())),
            ),
            tolerations=tuple(at(it, "tolerations", default=())),
            volume_claims=tuple(name for each in volumes if (name := text(each, "persistentVolumeClaim", "claimName"))),
            secrets=_secrets(it),
            pull_secrets=tuple(text(each, "name") for each in at(it, "imagePullSecrets", default=())),
            gates=tuple(text(each, "name") for each in at(it, "schedulingGates", default=())),
        )

    @property
    def main(self) -> ContainerSpec:
        """The first that is no init container."""
        return next((it for it in self.containers if not it.is_init), ContainerSpec(""))

    @property
    def gpus(self) -> dict[str, int]:
        """GPU resource -> how many one pod asks for; an extended resource's request is its limit."""
        summed = {key.removeprefix("limits."): int(value) for key, value in self.sums().items() if key[:7] == "limits."}
        return {key: count for key, count in sorted(summed.items()) if is_gpu(key)}

    def sums(self) -> dict[str, Decimal]:
        """What a quota counts of one pod: requests.cpu ... Init containers run one by one, before the others."""
        summed: dict[str, Decimal] = {}
        for side in ("requests", "limits"):
            amounts = [(it.limits if side == "limits" else it.effective_requests, it.is_init) for it in self.containers]
            mains = total(of for of, is_init in amounts if not is_init)
            inits: dict[str, Decimal] = {}
            for resource, value in (pair for of, is_init in amounts if is_init for pair in of.items()):
                inits[resource] = max(inits.get(resource, Decimal(0)), value)
            for resource in {**mains, **inits}:
                if most := max(mains.get(resource, Decimal(0)), inits.get(resource, Decimal(0))):
                    summed[f"{side}.{resource}"] = most
        return summed


def _secrets(spec: Object) -> tuple[str, ...]:
    named = []
    for each in at(spec, "volumes", default=()):
        named += [at(each, "secret"), *(at(it, "secret") for it in at(each, "projected", "sources", default=()))]
    for container in (*at(spec, "initContainers", default=()), *at(spec, "containers", default=())):
        named += [at(each, "valueFrom", "secretKeyRef") for each in at(container, "env", default=())]
        named += [at(each, "secretRef") for each in at(container, "envFrom", default=())]
    return tuple(str(it.get("secretName") or it.get("name")) for it in named if it and not it.get("optional"))


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the kubelet last reported it."""

    name: str
    image: str
    is_init: bool
    is_ready: bool
    is_running: bool
    is_started: bool  # its startup probe has passed
    num_restarts: int
    waits: str  # the kubelet's reason (ImagePullBackOff, CrashLoopBackOff ...), empty when it does not wait
    message: str
    exit_code: int | None  # of its last end, None while there was none
    ended: str  # the reason of that end: Error, OOMKilled, Completed
    last_words: str
    running_since: datetime | None

    @classmethod
    def parse(cls, it: Object, *, is_init: bool) -> Container:
        # While it waits to be started again, how it ended stands in lastState; an init container that failed for good, in state.
        ended = at(it, "state", "terminated") or at(it, "lastState", "terminated") or {}
        return cls(
            name=text(it, "name"),
            image=text(it, "image"),
            is_init=is_init,
            is_ready=bool(it.get("ready")),
            is_running=at(it, "state", "running") is not None,
            is_started=bool(it.get("started")),
            num_restarts=it.get("restartCount") or 0,
            waits=text(it, "state", "waiting", "reason"),
            message=text(it, "state", "waiting", "message"),
            exit_code=ended.get("exitCode"),
            ended=text(ended, "reason"),
            last_words=one_line(ended.get("message")),
            running_since=moment(at(it, "state", "running", "startedAt")),
        )


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    release: str
    component: str
    pool: str
    node: str | None
    phase: str
    reason: str  # of a pod that failed as a whole: Evicted, NodeShutdown ...
    message: str
    leaves_by: datetime | None  # when it has to be gone, of one that was told to go
    conditions: tuple[Condition, ...]
    containers: tuple[Container, ...]
    spec: PodSpec
    created_at: datetime | None
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, it: Object) -> Pod:
        return cls(
            name=name_of(it),
            release=label(it, RELEASE),
            component=label(it, COMPONENT),
            pool=label(it, POOL),
            node=at(it, "spec", "nodeName"),
            phase=text(it, "status", "phase"),
            reason=text(it, "status", "reason"),
            message=text(it, "status", "message"),
            leaves_by=moment(at(it, "metadata", "deletionTimestamp")),
            conditions=conditions(it),
            containers=(
                *(
                    Container.parse(each, is_init=True)
                    for each in at(it, "status", "initContainerStatuses", default=())
                ),
                *(Container.parse(each, is_init=False) for each in at(it, "status", "containerStatuses", default=())),
            ),
            spec=PodSpec.parse(at(it, "spec", default={})),
            created_at=created(it),
            labels=at(it, "metadata", "labels", default={}),
        )

    @property
    def is_leaving(self) -> bool:
        return self.leaves_by is not None

    @property
    def is_ready(self) -> bool:
        return is_true(self.conditions, "Ready")

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    def container(self, name: str) -> Container | None:
        return next((it for it in self.containers if it.name == name), None)


@dataclass(frozen=True, slots=True)
class Deployment:
    """Of the chart: the gateway, one pool, or the scaler. `pool` is its name under `pools`, empty for the others."""

    name: str
    release: str
    component: str
    pool: str
    version: str
    app: str  # label app.kubernetes.io/name
    client_key: str  # annotation: SECRET/KEY of auth.client
    namespace: str
    replicas: int
    num_ready: int
    spec: PodSpec
    conditions: tuple[Condition, ...]
    is_paused: bool
    is_observed: bool  # the controller has seen the newest change
    max_surge: int = 0  # pods above `replicas` while it rolls out
    is_scaled_by_us: bool = False  # annotation: the scaler sets its replicas
    # `replicas` may be the one that the API server takes a missing number for: the gates of its pods tell whether anybody asked for it.
    is_default: bool = False

    @classmethod
    def parse(cls, it: Object) -> Deployment:
        return cls(
            name=name_of(it),
            release=label(it, RELEASE),
            component=label(it, COMPONENT),
            pool=label(it, POOL),
            version=label(it, VERSION),
            app=label(it, NAME),
            client_key=annotation(it, "tandem-client-key"),
            namespace=text(it, "metadata", "namespace"),
            replicas=int(at(it, "spec", "replicas", default=1)),
            num_ready=at(it, "status", "readyReplicas", default=0),
            spec=PodSpec.parse(at(it, "spec", "template", "spec", default={})),
            conditions=conditions(it),
            is_paused=bool(at(it, "spec", "paused")),
            is_observed=at(it, "status", "observedGeneration", default=0)
            >= at(it, "metadata", "generation", default=0),
            max_surge=_max_surge(it),
            is_scaled_by_us=annotation(it, SCALED_BY) == SCALER,
            is_default=_is_default(it, PodSpec.parse(at(it, "spec", "template", "spec", default={}))),
        )

    @property
    def models(self) -> tuple[str, ...]:
        """The models that its Triton loads; empty: all in its repository."""
        words = self.spec.main.words
        return tuple(word.removeprefix(LOAD_MODEL) for word in words if word.startswith(LOAD_MODEL))


def _is_default(it: Object, spec: PodSpec) -> bool:
    """Of a pool that the scaler scales from none: one, and the chart has said no number (it would have noted so).

    Whether somebody set it through `scale` the object does not tell: Kubernetes 1.35 lists no such field manager.
    """
    is_one = int(at(it, "spec", "replicas", default=1)) == 1 and GATE in spec.gates
    return is_one and annotation(it, SCALED_BY) == SCALER and not annotation(it, "tandem-replicas")


def _max_surge(it: Object) -> int:
    """As the API server fills it in: a number or a percentage, which is rounded up; a Recreate has none."""
    surge = at(it, "spec", "strategy", "rollingUpdate", "maxSurge", default=0)
    if isinstance(surge, str):
        return ceil(int(at(it, "spec", "replicas", default=1)) * int(surge.removesuffix("%")) / 100)
    return int(surge)


@dataclass(frozen=True, slots=True)
class Job:
    """`campaign`: the name in the campaign's file, empty for another's Job; `timeout_s` None: it may run for ever."""

    name: str
    release: str
    component: str
    managed_by: str
    campaign: str
    image: str
    timeout_s: int | None
    started_at: datetime | None  # or, before its first pod, made
    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, it: Object) -> Job:
        return cls(
            name=name_of(it),
            release=label(it, RELEASE),
            component=label(it, COMPONENT),
            managed_by=label(it, MANAGED_BY),
            campaign=annotation(it, CAMPAIGN),
            image=PodSpec.parse(at(it, "spec", "template", "spec", default={})).main.image,
            timeout_s=at(it, "spec", "activeDeadlineSeconds"),
            started_at=moment(at(it, "status", "startTime")) or created(it),
            conditions=conditions(it),
        )

    @property
    def is_over(self) -> bool:
        return any(is_true(self.conditions, kind) for kind in ("Complete", "Failed"))
