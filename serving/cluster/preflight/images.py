"""Can the cluster pull the images, and are the secrets that pods name there? Pure.

Only a pull shows that a registry lets the cluster in; what is seen here are the secrets, and pulls that failed lately.
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.cluster.preflight.facts import Facts, FailedPull, Secret
from serving.cluster.preflight.finding import Finding, State

SHOWN = 3  # images in one line
SAYS_MAX_CHARS = 200  # a registry's error page may be long


def images(facts: Facts) -> Iterator[Finding]:
    for name, secret in facts.pull_secrets.items():
        yield _pull_secret(name, secret, facts.namespace)
    for name, secret in facts.secrets.items():
        yield _secret(name, secret, facts.namespace)
    yield _pulls(facts.failed_pulls, facts.namespace)


def _pull_secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"pull secret '{name}'"
    make = f"kubectl --namespace {namespace} create secret docker-registry {name} --docker-server=... --docker-username=..."
    if secret is None:
        return _unseen(title, namespace, name)
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"it is not in '{namespace}'", make)
    if secret is Secret.OTHER_TYPE:
        fix = f"delete it and make it again: {make}"
        return Finding(title, State.MISSING, "it is not of type kubernetes.io/dockerconfigjson", fix)
    return Finding(title, State.OK, "it is there and of the right type (whether the registry accepts it, a pull shows)")


def _secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"secret '{name}'"
    if secret is None:
        return _unseen(title, namespace, name)
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"pods name it and it is not in '{namespace}'", "make it first")
    return Finding(title, State.OK, "it is there")


def _unseen(title: str, namespace: str, name: str) -> Finding:
    fix = f"have an administrator look: kubectl --namespace {namespace} get secret {name}"
    return Finding(title, State.UNKNOWN, "this user may not see secrets", fix)


def _pulls(failed: tuple[FailedPull, ...] | None, namespace: str) -> Finding:
    title = "image pulls"
    if failed is None:
        fix = f"have an administrator look: kubectl --namespace {namespace} get events"
        return Finding(title, State.UNKNOWN, "this user may not see events", fix, is_required=False)
    if not failed:
        found = "no event of the namespace tells of one that failed"
        return Finding(title, State.OK, found, is_required=False)
    told = [f"{it.image} ({it.says[:SAYS_MAX_CHARS]}{_when(it)})" for it in failed[:SHOWN]]
    fix = "is the name right, is it pushed, and do imagePullSecrets let the cluster in? Events stay for an hour or so"
    return Finding(title, State.MISSING, f"failed lately: {'; '.join(told)}", fix, is_required=False)


def _when(it: FailedPull) -> str:
    return f", {it.at:%H:%M:%S} UTC" if it.at else ""
