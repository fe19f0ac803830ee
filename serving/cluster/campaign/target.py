"""Which release is loaded, at which address, with which image and key? Pure: the namespace's objects in, Target out.

The chart's values lie in a secret of Helm's that few may read, so what can be is read off the objects that were made of them, and the
rest is asked of the user. Rule: an image that is only guessed is printed before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.cluster.api import Object
from serving.cluster.fields import at, label, name_of
from serving.cluster.status.reading import COMPONENT, RELEASE, VERSION
from serving.cluster.status.snapshot import GATEWAY
from serving.errors import EnvironmentFault, UserError

LOADTEST = "loadtest"  # the component that the chart's NetworkPolicy lets reach the gateway
VARIABLE = "TANDEM_API_KEY"
CLIENT_KEY = "tandem-client-key"  # annotation of the gateway's Deployment: SECRET/KEY of auth.client


@dataclass(frozen=True, slots=True)
class Key:
    """Where an API key lies: never its value."""

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
    key: Key | None
    needs_policy: bool  # a NetworkPolicy of the release keeps all of its pods from sending, and none lets this one


@dataclass(frozen=True, slots=True)
class Objects:
    """Of the namespace, with part-of=tandem. None: this user may not see them."""

    deployments: Sequence[Object]
    services: Sequence[Object] | None
    jobs: Sequence[Object] | None
    policies: Sequence[Object] | None


def target(seen: Objects, namespace: str, release: str | None, image: str | None, key: Key | None) -> Target:
    """Raises UserError, EnvironmentFault."""
    gateway = _gateway(seen.deployments, namespace, release)
    of = label(gateway, RELEASE)
    if not at(gateway, "status", "readyReplicas", default=0):
        raise EnvironmentFault(
            f"no gateway of release '{of}' in namespace '{namespace}' is ready; tandem cluster status says why"
        )
    spec = at(gateway, "spec", "template", "spec", default={})
    main: Object = (at(spec, "containers", default=()) or ({},))[0]
    words = [*at(main, "command", default=()), *at(main, "args", default=())]
    wants_key = any(str(it).startswith("--keys") for it in words)
    key = key or (_key(gateway) if wants_key else None)
    if wants_key and key is None:
        raise UserError(
            f"release '{of}' asks for API keys, and names no secret with one (auth.client.existingSecret); give --key-secret NAME/KEY"
        )
    return Target(
        release=of,
        name=label(gateway, "app.kubernetes.io/name"),
        url=_url(seen.services, of, namespace),
        image=image or _image(seen.jobs or (), of, str(main.get("image", "")), label(gateway, VERSION)),
        pull_policy=str(main.get("imagePullPolicy") or "IfNotPresent"),
        pull_secrets=tuple(str(it.get("name")) for it in at(spec, "imagePullSecrets", default=())),
        key=key,
        needs_policy=_needs_policy(seen.policies or (), of),
    )


def _gateway(deployments: Sequence[Object], namespace: str, release: str | None) -> Object:
    gateways = [it for it in deployments if label(it, COMPONENT) == GATEWAY]
    names = sorted({label(it, RELEASE) for it in gateways})
    there = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
    if not names:
        raise UserError(
            f"no Tandem with a gateway in namespace '{namespace}': give another --namespace, or install it (docs/kubernetes.md)"
        )
    if release is None and len(names) > 1:
        raise UserError(f"several releases in namespace '{namespace}': give --release, {there}")
    if release is not None and release not in names:
        raise UserError(f"no release '{release}' with a gateway in namespace '{namespace}'; {there}")
    return next(it for it in gateways if label(it, RELEASE) == (release or names[0]))


def _url(services: Sequence[Object] | None, release: str, namespace: str) -> str:
    for it in services or ():
        if (label(it, COMPONENT), label(it, RELEASE)) != (GATEWAY, release):
            continue
        for port in at(it, "spec", "ports", default=()):
            if port.get("name") == "http":
                return f"http://{name_of(it)}:{port['port']}"
    why = "this user may not see services" if services is None else "it has none with a port named http"
    raise EnvironmentFault(
        f"the gateway's Service of release '{release}' in namespace '{namespace}' is not found: {why}"
    )


def _image(jobs: Iterable[Object], release: str, gateway: str, version: str) -> str:
    """As the chart's own load test has it, where there is one; else the gateway's with the other name."""
    for it in jobs:
        containers = at(it, "spec", "template", "spec", "containers", default=())
        if (label(it, COMPONENT), label(it, RELEASE)) == (LOADTEST, release) and containers:
            return str(containers[0]["image"])
    folder, slash, last = gateway.rpartition("/")
    name, _, tag = last.partition("@")[0].partition(":")
    tag = version if "@" in last or not tag else tag  # another image has another digest
    if not re.search(r"\bgateway\b", name) or not tag:
        raise UserError(f"the load test's image cannot be told from the gateway's, {gateway}: give --image")
    return f"{folder}{slash}{re.sub(r'gateway', LOADTEST, name)}:{tag}"


def _key(gateway: Object) -> Key | None:
    """The one of the chart's own clients (auth.client)."""
    secret, _, key = str(at(gateway, "metadata", "annotations", default={}).get(CLIENT_KEY, "")).partition("/")
    return Key(secret, key) if secret and key else None


def _needs_policy(policies: Iterable[Object], release: str) -> bool:
    chosen = [at(it, "spec", default={}) for it in policies if _selects_us(it, release)]
    closed = [it for it in chosen if "Egress" in at(it, "policyTypes", default=())]
    return bool(closed) and not any(at(it, "egress") for it in closed)


def _selects_us(policy: Object, release: str) -> bool:
    wanted = at(policy, "spec", "podSelector", "matchLabels", default={})
    return (
        wanted.get(RELEASE, release) == release
        and wanted.get(COMPONENT, LOADTEST) == LOADTEST
        and ("tandem-loadtest" not in wanted)
    )
