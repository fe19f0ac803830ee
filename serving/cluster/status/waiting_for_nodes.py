"""Is a node on its way for this pod, and how far is it? Pure: from Karpenter's NodeClaims and what was said about the pod."""

from __future__ import annotations

import re
from datetime import datetime

from serving.cluster.fields import condition
from serving.cluster.status.seen import NodeClaim, Pod, Seen

# The life of a NodeClaim in order: condition, what stands when it is not yet true.
PHASES = (
    ("Launched", "is asked of the cloud"),
    ("Registered", "is bought and boots"),
    ("Initialized", "has joined and gets ready (driver, device plugin)"),
)


def node_on_its_way(pod: Pod, seen: Seen, now: datetime) -> str | None:
    """What completes "waits: …"; None if no node is known to come for it."""
    if coming := _claim_for(pod, seen):
        return f"node {coming.node or coming.name} is on its way: it {step(coming, now)}"
    triggered = [it for it in seen.events or () if it.pod == pod.name and it.reason == "TriggeredScaleUp"]
    if triggered:
        return f"a node is on its way: {triggered[-1].message[:300]}"
    return None


def is_on_its_way(it: NodeClaim) -> bool:
    done = condition(it.conditions, "Initialized")
    return not it.is_leaving and not (done and done.is_true)


def step(it: NodeClaim, now: datetime) -> str:
    """How far it is, since when, and what its provider says if that fails."""
    for kind, doing in PHASES:
        found = condition(it.conditions, kind)
        if found and found.is_true:
            continue
        # A condition keeps its reason while it is open: AwaitingReconciliation, NodeNotFound; a message where something fails.
        says = f" ({found.reason}: {found.message})" if found and found.message and found.reason != found.kind else ""
        return f"{doing}{says}{_for(it, now)}"
    return f"is ready{_for(it, now)}"


def _for(it: NodeClaim, now: datetime) -> str:
    return f", asked for {duration((now - it.created_at).total_seconds())} ago" if it.created_at else ""


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def _claim_for(pod: Pod, seen: Seen) -> NodeClaim | None:
    """The NodeClaim that Karpenter named for it; failing that, for a GPU pod, one with such a card."""
    coming = [it for it in seen.node_claims or () if is_on_its_way(it)]
    said = [
        it.message
        for it in seen.events or ()
        if it.pod == pod.name and it.reason == "Nominated" and "nodeclaim/" in it.message
    ]
    named = {name for message in said for name in re.findall(r"nodeclaim/([^\s,]+)", message)}
    for it in coming:
        if it.name in named:
            return it
    return next((it for it in coming if any(it.gpus.get(resource) for resource in pod.gpus)), None)
