"""Can the cluster pull the images, and are the secrets that pods name there? Pure.

Only a pull shows that a registry lets the cluster in; what is seen here are the secrets, and pulls that failed lately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from serving.cluster.objects.namespace import Event
from serving.cluster.preflight.facts import Facts, Secret
from serving.cluster.preflight.finding import Finding, State, unseen

IMAGE = re.compile(r'"([^"\s]+)"')  # the kubelet quotes it: Failed to pull image "x", Back-off pulling image "x"
SHOWN = 3  # images in one line
SAYS_MAX_CHARS = 200  # a registry's error page may be long


def images(facts: Facts) -> Iterator[Finding]:
    for name, secret in facts.pull_secrets.items():
        yield _pull_secret(name, secret, facts.namespace)
    for name, secret in facts.secrets.items():
        yield _secret(name, secret, facts.namespace)
    yield _pulls(facts.cluster.events, facts.namespace)


def _pull_secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"pull secret '{name}'"
    make = f"kubectl --namespace {namespace} create secret docker-registry {name} --docker-server=... --docker-username=..."
    if secret is None:
        return unseen(title, "secrets", f"--namespace {namespace} get secret {name}")
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"it is not in '{namespace}'", make)
    if secret is Secret.OTHER_TYPE:
        fix = f"delete it and make it again: {make}"
        return Finding(title, State.MISSING, "it is not of type kubernetes.io/dockerconfigjson", fix)
    return Finding(title, State.OK, "it is there and of the right type (whether the registry accepts it, a pull shows)")


def _secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"secret '{name}'"
    if secret is None:
        return unseen(title, "secrets", f"--namespace {namespace} get secret {name}")
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"pods name it and it is not in '{namespace}'", "make it first")
    return Finding(title, State.OK, "it is there")


def _pulls(events: tuple[Event, ...] | None, namespace: str) -> Finding:
    title = "image pulls"
    if events is None:
        return unseen(title, "events", f"--namespace {namespace} get events", is_required=False)
    failed = failed_pulls(events)
    if not failed:
        found = "no event of the namespace tells of one that failed"
        return Finding(title, State.OK, found, is_required=False)
    named = [f"{image} ({it.message[:SAYS_MAX_CHARS]}{_when(it)})" for image, it in list(failed.items())[:SHOWN]]
    fix = "is the name right, is it pushed, and do imagePullSecrets let the cluster in? Events stay for an hour or so"
    return Finding(title, State.MISSING, f"failed lately: {'; '.join(named)}", fix, is_required=False)


def failed_pulls(events: Iterable[Event]) -> dict[str, Event]:
    """The newest failure of each image that says why: "Back-off pulling", which comes again and again, does not."""
    found: dict[str, Event] = {}
    for it in events:
        image = IMAGE.search(it.message)
        if it.reason not in ("Failed", "BackOff") or not image or "image" not in it.message:
            continue
        before = found.get(image[1])
        if before is None or _weight(it) > _weight(before):
            found[image[1]] = it
    return found


def _weight(it: Event) -> tuple[bool, float]:
    return it.message.startswith("Failed"), it.at_s


def _when(it: Event) -> str:
    return f", {it.at:%H:%M:%S} UTC" if it.at else ""
