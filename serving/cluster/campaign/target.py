"""Which release does a campaign load, at which address, with which image and key? Pure: the namespace's objects in, Target out.

The chart's values lie in a secret of Helm's that few may read, so what can be is read off the objects that were made of them, and the
rest is asked of the user. Rule: an image that is only guessed is printed before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.cluster.objects.fields import COMPONENT, GATEWAY, LOADTEST, RELEASE, there_are
from serving.cluster.objects.namespace import NetworkPolicy, Service
from serving.cluster.objects.pods import Deployment, Job
from serving.cluster.snapshot import ClusterSnapshot
from serving.errors import EnvironmentFault, UserError

VARIABLE = "TANDEM_API_KEY"


@dataclass(frozen=True, slots=True)
class KeyReference:
    """Where an API key is stored; never its value."""

    secret: str
    key: str


@dataclass(frozen=True, slots=True)
class Target:
    release: str
    name: str  # label app.kubernetes.io/name of its objects
    url: str
    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...]
    key: KeyReference | None
    needs_policy: bool  # a NetworkPolicy of the release keeps all of its pods from sending, and none lets this one


def target(snapshot: ClusterSnapshot, release: str | None, image: str | None, key: KeyReference | None) -> Target:
    """Raises UserError, EnvironmentFault."""
    namespace = snapshot.namespace
    gateway = _gateway(snapshot.deployments or (), namespace, release)
    if not gateway.num_ready:
        raise EnvironmentFault(
            f"no gateway of release '{gateway.release}' in namespace '{namespace}' is ready; tandem cluster status says why"
        )
    main = gateway.spec.main
    wants_key = any(it.startswith("--keys") for it in main.words)
    key = key or (_client_key(gateway) if wants_key else None)
    if wants_key and key is None:
        raise UserError(
            f"release '{gateway.release}' asks for API keys, and names no secret with one (auth.client.existingSecret); "
            "give --key-secret NAME/KEY"
        )
    return Target(
        release=gateway.release,
        name=gateway.app,
        url=_url(snapshot.services, gateway.release, namespace),
        image=image or _image(snapshot.jobs or (), gateway),
        pull_policy=main.pull_policy or "IfNotPresent",
        pull_secrets=gateway.spec.pull_secrets,
        key=key,
        needs_policy=_needs_policy(snapshot.network_policies or (), gateway.release),
    )


def _gateway(deployments: Sequence[Deployment], namespace: str, release: str | None) -> Deployment:
    gateways = [it for it in deployments if it.component == GATEWAY]
    names = sorted({it.release for it in gateways})
    if not names:
        raise UserError(
            f"no Tandem with a gateway in namespace '{namespace}': give another --namespace, or install it (docs/kubernetes.md)"
        )
    if release is None and len(names) > 1:
        raise UserError(f"several releases in namespace '{namespace}': give --release, {there_are(names)}")
    if release is not None and release not in names:
        raise UserError(f"no release '{release}' with a gateway in namespace '{namespace}'; {there_are(names)}")
    return next(it for it in gateways if it.release == (release or names[0]))


def _url(services: Sequence[Service] | None, release: str, namespace: str) -> str:
    for it in services or ():
        if (it.component, it.release) == (GATEWAY, release) and "http" in it.ports:
            return f"http://{it.name}:{it.ports['http']}"
    why = "this user may not see services" if services is None else "it has none with a port named http"
    raise EnvironmentFault(
        f"the gateway's Service of release '{release}' in namespace '{namespace}' is not found: {why}"
    )


def _image(jobs: Iterable[Job], gateway: Deployment) -> str:
    """As the chart's own load test has it, where there is one; else the gateway's with the other name."""
    for it in jobs:
        if (it.component, it.release) == (LOADTEST, gateway.release) and it.image:
            return it.image
    image = gateway.spec.main.image
    folder, slash, last = image.rpartition("/")
    name, _, tag = last.partition("@")[0].partition(":")
    tag = gateway.version if "@" in last or not tag else tag  # another image has another digest
    if not re.search(r"\bgateway\b", name) or not tag:
        raise UserError(f"the load test's image cannot be told from the gateway's, {image}: give --image")
    return f"{folder}{slash}{re.sub(r'gateway', LOADTEST, name)}:{tag}"


def _client_key(gateway: Deployment) -> KeyReference | None:
    """The one of the chart's own clients (auth.client)."""
    secret, _, key = gateway.client_key.partition("/")
    return KeyReference(secret, key) if secret and key else None


def _needs_policy(policies: Iterable[NetworkPolicy], release: str) -> bool:
    closing = [it for it in policies if it.limits_egress and _selects_us(it, release)]
    return bool(closing) and not any(it.allows_egress for it in closing)


def _selects_us(policy: NetworkPolicy, release: str) -> bool:
    labels = policy.match_labels
    return (
        labels.get(RELEASE, release) == release
        and labels.get(COMPONENT, LOADTEST) == LOADTEST
        and "tandem-loadtest" not in labels
    )
