"""`tandem keys add`, `list`, `revoke`: the file of API keys.

`add` prints the new key, and nothing else, on stdout, so that it can be piped to where it belongs; it is shown nowhere else.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verbs
from serving.cli.lazy import room
from serving.cli.options import FILE, JSON
from serving.errors import UserError

KEYS = click.option("--keys", type=FILE, required=True, envvar="TANDEM_KEYS", help="The file of keys.")
FAR = datetime(9999, 1, 1, tzinfo=UTC)  # the last years that a date can have


@click.group(cls=Verbs)
def keys() -> None:
    """Manage API keys: who may ask the gateway for what."""


@keys.command("add")
@KEYS
@click.option("--name", required=True, help="Whose it is, for the list.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(["infer", "admin", "metrics"]),
    help="What it is for; several times for several.",
)
@click.option("--model", "models", multiple=True, help="Public name of a model that it may ask. Default: all.")
@click.option("--expires", metavar="90d|12h|2027-01-31", help="When it ends; a date at 0:00 UTC. Default: never.")
@click.option(
    "--highest-priority",
    default=3,
    show_default=True,
    type=click.IntRange(1, 5),
    help="The best Tandem-Priority that counts for it: 1, the highest, to 5.",
)
@click.option("--tenant", help="Whose share, quotas and bill its requests count to. Default: its name.")
@JSON
def add(
    keys: Path,
    name: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    expires: str | None,
    highest_priority: int,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Make a key and print it. It is shown this once: the file holds its SHA-256 alone."""
    now = datetime.now(UTC)
    added = room("serving.keys.changes").add(
        keys,
        name,
        frozenset(scopes),
        now,
        models=frozenset(models) or None,
        expires=None if expires is None else read_expiry(expires, now),
        highest_priority=highest_priority,
        tenant=tenant,
    )
    row = _row(added.key, now)
    click.echo(
        f"added to {keys}: key {row['id']} of {name}, for {', '.join(row['scopes'])} of {_models(row)}, "
        f"expires {row['expires'] or 'never'}; it is not shown again",
        err=True,
    )
    click.echo(json.dumps({"version": 1, **row, "key": added.text}) if as_json else added.text)


@keys.command("list")
@KEYS
@JSON
def list_keys(keys: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    now = datetime.now(UTC)
    rows = [_row(key, now) for key in room("serving.keys.key_file").read(keys).keys]
    if as_json:
        click.echo(json.dumps({"version": 1, "keys": rows}, indent=2))
        return
    heads = ["id", "name", "tenant", "scopes", "models", "priority", "created", "expires", "state"]
    lines = [heads]
    for row in rows:
        cells = [
            row["id"],
            row["name"],
            row["tenant"],
            ",".join(row["scopes"]),
            _models(row),
            str(row["highest_priority"]),
        ]
        lines.append([*cells, row["created"], row["expires"] or "never", row["state"]])
    click.echo(room("serving.documents.tables").columns(lines, align="<" * len(heads)))


@keys.command("revoke")
@KEYS
@click.argument("which", metavar="ID")
@JSON
def revoke(keys: Path, which: str, as_json: bool) -> None:
    """Revoke the key with this ID: a gateway that runs refuses it within about 2 s."""
    now = datetime.now(UTC)
    key = room("serving.keys.changes").revoke(keys, which, now)
    if as_json:
        click.echo(json.dumps({"version": 1, **_row(key, now)}))
        return
    click.echo(f"key {key.id} of {key.name} is revoked since {room('serving.keys.key_file').time_text(key.revoked)}")


def read_expiry(text: str, now: datetime) -> datetime:
    """Days or hours from now, or a date. Raises UserError for the past, and for what is neither."""
    try:
        if match := re.fullmatch(r"([0-9]{1,6})([dh])", text):
            at = now + timedelta(hours=int(match[1]) * (24 if match[2] == "d" else 1))
        else:
            at = datetime.fromisoformat(text)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(
            f"--expires {text!r} is neither a time from now, as 90d or 12h, nor a date, as 2027-01-31"
        ) from None
    if not now < at < FAR:
        raise UserError(f"--expires {text} would be {at.date()}, which is {'over' if at <= now else 'too far away'}")
    return at.replace(microsecond=0)


def _row(key: Any, now: datetime) -> dict[str, Any]:
    return {**room("serving.keys.key_file").without_digest(key), "state": key.state(now)}


def _models(row: dict[str, Any]) -> str:
    return "all models" if row["models"] is None else ",".join(row["models"])
