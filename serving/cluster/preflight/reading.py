"""From the server's JSON to the values of `facts`. Pure; a field that is absent or null is no error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from serving.cluster.api import Object
from serving.cluster.fields import amounts, at, condition, conditions, moment, name_of, one_line
from serving.cluster.gpus import gpus, is_gpu, sign_of_gpu
from serving.cluster.preflight.facts import FailedPull, LimitRange, Node, NodePool, Quota, StorageClass
from serving.cluster.preflight.requirements import Container, Pods
from serving.cluster.taints import taints

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
IMAGE = re.compile(r'"([^"\s]+)"')  # the kubelet quotes it: Failed to pull image "x", Back-off pulling image "x"


def node(it: Object) -> Node:
    ready = condition(conditions(it), "Ready")
    return Node(
        name=name_of(it),
        is_ready=bool(ready and ready.is_true),
        is_cordoned=bool(at(it, "spec", "unschedulable")),
        capacity={key: count for key, count in gpus(amounts(it, "status", "capacity")).items() if count},
        allocatable=gpus(amounts(it, "status", "allocatable")),
        sign_of_gpu=sign_of_gpu(at(it, "metadata", "labels", default={})),
        taints=taints(it),
    )


def node_pool(it: Object) -> NodePool:
    ready = condition(conditions(it), "Ready")
    return NodePool(
        name=name_of(it),
        is_ready=bool(ready and ready.is_true),
        sign_of_gpu=_sign(it),
        trouble="" if ready is None or ready.is_true else f"{ready.reason}: {ready.message}",
    )


def _sign(it: Object) -> str | None:
    limits = [key for key in at(it, "spec", "limits", default={}) if is_gpu(key)]
    if limits:
        return f"limits.{limits[0]}"
    spec = at(it, "spec", "template", "spec", default={})
    taints = [str(each.get("key", "")) for each in at(spec, "taints", default=())]
    if any(is_gpu(key) for key in taints):
        return f"taint {next(key for key in taints if is_gpu(key))}"
    for each in at(spec, "requirements", default=()):
        key, values = str(each.get("key", "")), at(each, "values", default=())
        if "gpu" in key and each.get("operator") != "DoesNotExist":
            return f"requirement {key}"
        if found := next((sign for value in values if (sign := sign_of_gpu({key: str(value)}))), None):
            return f"requirement {found}"
    return None


def storage_class(it: Object) -> StorageClass:
    marked = at(it, "metadata", "annotations", default={}).get(DEFAULT_CLASS)
    return StorageClass(name_of(it), marked == "true", str(it.get("provisioner", "")))


def quota(it: Object) -> Quota:
    return Quota(
        name=name_of(it),
        hard=amounts(it, "status", "hard") or amounts(it, "spec", "hard"),  # a new one has no status yet
        used=amounts(it, "status", "used"),
        is_scoped=bool(at(it, "spec", "scopes") or at(it, "spec", "scopeSelector")),
    )


def limit_ranges(it: Object) -> tuple[LimitRange, ...]:
    return tuple(
        LimitRange(
            name=name_of(it),
            kind=str(each.get("type", "")),
            least=amounts(each, "min"),
            most=amounts(each, "max"),
            default={**amounts(each, "max"), **amounts(each, "default")},  # absent defaults are the maximum
            ratio=amounts(each, "maxLimitRequestRatio"),
        )
        for each in at(it, "spec", "limits", default=())
    )


def sums(pods: Iterable[Object]) -> dict[str, Decimal]:
    """What these pods take of a quota."""
    summed: dict[str, Decimal] = {}
    for it in pods:
        if at(it, "status", "phase") in ("Succeeded", "Failed"):
            continue
        containers = [(each, True) for each in at(it, "spec", "initContainers", default=())]
        containers += [(each, False) for each in at(it, "spec", "containers", default=())]
        read = tuple(
            Container("", is_init, amounts(each, "resources", "requests"), amounts(each, "resources", "limits"))
            for each, is_init in containers
        )
        for key, value in Pods("", 1, read).sums().items():
            summed[key] = summed.get(key, Decimal(0)) + value
    return summed


def failed_pulls(events: Iterable[Object]) -> tuple[FailedPull, ...]:
    """The newest failure of each image. Events go after an hour, by a cluster's default."""
    found: dict[str, FailedPull] = {}
    for it in events:
        says = one_line(it.get("message"))
        image = IMAGE.search(says)
        if it.get("reason") not in ("Failed", "BackOff") or not image or "image" not in says:
            continue
        when = moment(at(it, "lastTimestamp") or at(it, "eventTime") or at(it, "metadata", "creationTimestamp"))
        before = found.get(image[1])
        # "Failed to pull" says why; "Back-off pulling", which comes again and again, does not.
        if before is None or (says.startswith("Failed"), _s(when)) > (before.says.startswith("Failed"), _s(before.at)):
            found[image[1]] = FailedPull(image[1], says, when)
    return tuple(found.values())


def _s(when: object) -> float:
    return when.timestamp() if hasattr(when, "timestamp") else 0.0
