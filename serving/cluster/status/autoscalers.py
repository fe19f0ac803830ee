"""What does a HorizontalPodAutoscaler aim at, how far is it, and is it well? Pure, from the server's JSON."""

from __future__ import annotations

from serving.cluster.api import Object
from serving.cluster.fields import Condition, at, conditions, name_of
from serving.cluster.gpus import follows_scaler
from serving.cluster.status.snapshot import Autoscaler


def autoscaler(it: Object) -> Autoscaler:
    current = at(it, "status", "currentMetrics", default=())
    return Autoscaler(
        name=name_of(it),
        target=str(at(it, "spec", "scaleTargetRef", "name", default="")),
        min_replicas=at(it, "spec", "minReplicas", default=1),
        max_replicas=at(it, "spec", "maxReplicas", default=0),
        metrics=tuple(_metric(each, current) for each in at(it, "spec", "metrics", default=())),
        conditions=conditions(it),
        follows_scaler=follows_scaler(it),
    )


def trouble(found: tuple[Condition, ...]) -> str:
    """Why an autoscaler does nothing, or no more; empty if it is well. At 0 replicas it is `ScalingDisabled` by design."""
    for it in found:
        if it.kind in ("AbleToScale", "ScalingActive") and not it.is_true and it.reason != "ScalingDisabled":
            return f"{it.reason}: {it.message}"
    limited = next((it for it in found if it.kind == "ScalingLimited" and it.is_true), None)
    return f"{limited.reason}: {limited.message}" if limited and limited.reason == "TooManyReplicas" else ""


def _metric(it: Object, current: tuple[Object, ...]) -> str:
    name, target = _name(it), _body(it).get("target") or {}
    there = next((_body(each).get("current") or {} for each in current if _name(each) == name), {})
    for key, unit in (("averageUtilization", "%"), ("averageValue", " each"), ("value", "")):
        if (aim := target.get(key)) is not None:
            # A server without a value says 0 or leaves the field out; at 0 replicas some write a huge negative number.
            now = there.get(key)
            return f"{name} {'unknown' if now is None or str(now).startswith('-') else f'{now}{unit}'} of {aim}{unit}"
    return name


def _body(it: Object) -> Object:
    """A metric's own part stands under its type's name: Resource -> resource, ContainerResource -> containerResource."""
    kind = str(it.get("type", ""))
    found: Object = it.get(kind[:1].lower() + kind[1:]) or {}
    return found


def _name(it: Object) -> str:
    body = _body(it)
    return str(body.get("name") or at(body, "metric", "name", default=""))
