"""From Deployments, pods, nodes and Karpenter's NodeClaims to what the scaler needs of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from serving.cluster.fields import at, condition, conditions, created, label, moment, name_of
from serving.cluster.scaler.reads import Object
from serving.decisions.cold_start import Server

POOL, RELEASE = "tandem-pool", "app.kubernetes.io/instance"  # labels that the chart sets


class SeveralReleases(ValueError):
    """More than one Deployment of a pool; the text says which."""


def replicas(deployments: Iterable[Object], pools: Collection[str]) -> dict[str, int]:
    """What each pool was last told to run, a pod on its way included. Raises SeveralReleases."""
    found: dict[str, int] = {}
    names: dict[str, str] = {}
    for it in deployments:
        pool = label(it, POOL)
        if pool not in pools:
            continue
        if pool in found:
            raise SeveralReleases(f"{names[pool]} and {name_of(it)} are both of pool '{pool}'; name one with --release")
        found[pool], names[pool] = int(at(it, "spec", "replicas", default=1)), name_of(it)
    return found


def is_there_to_stay(pod: Object) -> bool:
    return at(pod, "metadata", "deletionTimestamp") is None and at(pod, "status", "phase") not in (
        "Succeeded",
        "Failed",
    )


def node_of(pod: Object) -> str | None:
    name = at(pod, "spec", "nodeName")
    return None if name is None else str(name)


def server(pod: Object, node: Object | None, claims: Iterable[Object]) -> Server:
    """With the node it got, if anybody may see it; of a node that Karpenter bought the claim tells when."""
    name = node_of(pod)
    claim = next((it for it in claims if name is not None and at(it, "status", "nodeName") == name), None)
    running = [
        moment(at(it, "state", "running", "startedAt")) for it in at(pod, "status", "containerStatuses", default=())
    ]
    return Server(
        name=name_of(pod),
        created_at=_seconds(created(pod)),
        node_created_at=_made(claim) or _made(node),
        node_ready_at=None if node is None else _since(node, "Ready"),
        scheduled_at=_since(pod, "PodScheduled"),
        started_at=_seconds(max((when for when in running if when is not None), default=None)),
        ready_at=_since(pod, "Ready"),
    )


def _made(it: Object | None) -> float | None:
    return None if it is None else _seconds(created(it))


def _since(it: Object, kind: str) -> float | None:
    found = condition(conditions(it), kind)
    return _seconds(found.since) if found is not None and found.is_true else None


def _seconds(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()
