"""`tandem cluster keys`: makes a Secret with API keys where there is none, so that an install needs no key before (the chart has a hook).

It is written by server-side apply, the only way in which the API server asks for the right to create *this* Secret, so that a Role needs
to name no other. Rule: a Secret that is there is never changed. A run has a field manager of its own and forces nothing, so that of two
at once the second meets a conflict; and no key is printed.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

import click

from serving.cluster.client import APPLY_PATCH, Client, WriteError
from serving.cluster.objects.fields import Object, at
from serving.cluster.scaler.cluster_state import connect
from serving.errors import UserError
from serving.keys.changes import new_key
from serving.keys.key import ADMIN, INFER, METRICS
from serving.keys.key_file import render

FILE = "keys.json"  # what gateways read
# Entry with a key in plain -> what the key is for.
KEYS: Mapping[str, tuple[str, ...]] = {"api-key": (INFER, METRICS), "admin-key": (INFER, ADMIN, METRICS)}
CONFLICT = 409


def run(secret: str, context: str | None, namespace: str | None, *, as_json: bool = False) -> int:
    """Exit code 0: there is a Secret with all that a release needs. Raises TandemError."""
    client = connect(context, namespace)
    is_made = make(client, secret)
    if as_json:
        told = {"namespace": client.namespace, "secret": secret, "is_made": is_made, "entries": [FILE, *KEYS]}
        click.echo(json.dumps({"version": 1, **told}, indent=1))
        return 0
    place = f"secret {secret} of namespace {client.namespace}"
    if is_made:
        scopes = "; ".join(f"{entry}: {', '.join(of)}" for entry, of in KEYS.items())
        click.echo(f"{place} is made: {FILE} for the gateways, and two keys ({scopes})")
    else:
        click.echo(f"{place} is there already and stays as it is")
    return 0


def make(client: Client, secret: str) -> bool:
    """Whether it was made now. Raises UserError where the one that is there lacks an entry."""
    path = f"/api/v1/namespaces/{client.namespace}/secrets/{quote(secret, safe='')}"
    if _is_complete(client, path, secret):
        return False
    query = f"?fieldManager=tandem-keys-{secrets.token_hex(8)}"
    try:
        client.write("PATCH", path + query, f"to make secret {secret}", _secret(secret), APPLY_PATCH)
    except WriteError as error:
        if error.status == CONFLICT and _is_complete(client, path, secret):
            return False
        raise
    return True


def _is_complete(client: Client, path: str, secret: str) -> bool:
    entries = client.find(path, f"secret {secret}", lambda it: frozenset(at(it, "data", default={})))
    if entries is None:
        return False
    if missing := sorted({FILE, *KEYS} - entries):
        raise UserError(
            f"secret {secret} of namespace {client.namespace} is there without {missing[0]}; add it, or delete the secret so that "
            "keys are made anew"
        )
    return True


def _secret(name: str) -> Object:
    """Without the release's label `app.kubernetes.io/instance`: Argo CD would take the Secret for a part of its application that Git lacks,
    and prune it."""
    now = datetime.now(UTC)
    made = {entry: new_key(entry, frozenset(scopes), now) for entry, scopes in KEYS.items()}
    entries = {FILE: render(it.key for it in made.values()), **{entry: it.text.encode() for entry, it in made.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "tandem"}},
        "type": "Opaque",
        "data": {entry: base64.b64encode(text).decode() for entry, text in entries.items()},
    }
