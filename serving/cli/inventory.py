"""`tandem models`, `models show`, `history` and `rm`: what is in a repository, who serves it, and taking it out."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from serving.cli import control
from serving.cli.help import Verbs
from serving.cli.lazy import repository_at, room
from serving.cli.options import FILE, JSON, JSON_OR_WIDE, LOCAL_REPOSITORY, MODEL_REPOSITORY, is_wide
from serving.errors import UserError

URL = click.option(
    "--url",
    metavar="URL",
    help="A gateway that serves it, as http://127.0.0.1:8080; its admin listener, where it has one. With keys, TANDEM_API_KEY holds one. "
    "Default: each `tandem up` of this machine that serves this repository.",
)


@click.group(cls=Verbs, invoke_without_command=True)
@MODEL_REPOSITORY
@URL
@JSON_OR_WIDE
@click.pass_context
def models(context: click.Context, model_repository: Path | str | None, url: str | None, as_json: bool) -> None:
    """Show what is in a repository, a line for each model: accuracy, speed on this processor, size, age, and whether it is served."""
    if context.invoked_subcommand is not None:
        if model_repository is not None or url is not None or as_json or is_wide():
            raise UserError(f"options stand behind the word: tandem models {context.invoked_subcommand} … --json")
        return
    found = _found(repository_at(model_repository), url)
    room("serving.export.inventory_tables").show(found, as_json=as_json, is_wide=is_wide())


models.add_command(control.pin)
models.add_command(control.rollback)
models.add_command(control.rollout)


@models.command("show")
@click.argument("name")
@MODEL_REPOSITORY
@URL
@JSON_OR_WIDE
def show(name: str, model_repository: Path | str | None, url: str | None, as_json: bool) -> None:
    """Show all of a model, or of one variant: proofs, engines, pools, speed, the variants that lost, and where it is served.

    NAME is a model's, as digits, or a variant's, as digits-int8.
    """
    found = _found(repository_at(model_repository), url).of(name)
    room("serving.export.inventory_tables").show_one(found, as_json=as_json, is_wide=is_wide())


@models.command("history")
@click.argument("name")
@MODEL_REPOSITORY
@JSON_OR_WIDE
def history(name: str, model_repository: Path | str | None, as_json: bool) -> None:
    """Show the versions of a model, or of one variant, with their proofs, the newest first, and which of their files are kept."""
    versions = room("serving.export.inventory").history(repository_at(model_repository), name)
    room("serving.export.inventory_tables").show_history(name, versions, as_json=as_json, is_wide=is_wide())


@models.command("rm")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@LOCAL_REPOSITORY
@click.option("--served", "is_forced", is_flag=True, help="Also what a `tandem up` serves: it unloads it then.")
@JSON
def rm(names: tuple[str, ...], model_repository: Path | str | None, is_forced: bool, as_json: bool) -> None:
    """Take models, or single variants, out of a repository, with their earlier versions and proofs.

    What a `tandem up` of this machine serves is refused without --served. Killed at any moment, each variant is there whole or is gone.
    """
    repository = repository_at(model_repository, is_written=True)
    found = _found(repository, None, is_lenient=True)
    rows = {row.name: row.model for name in names for row in found.of(name).variants}
    rows |= {name: name.rpartition("-")[0] or name for name in names if name in found.unreadable}
    served = {entry["name"] for entry in found.account if entry["state"] in ("served", "loading", "away")}
    if (used := sorted(served & rows.keys())) and not is_forced:
        places = " and ".join(found.gateways)
        raise UserError(f"{places} serves {', '.join(used)}: stop it, or unload it with --served; nothing was removed")
    room("serving.export.publish").remove(repository, rows)
    if as_json:
        click.echo(json.dumps({"version": 1, "removed": sorted(rows)}))
        return
    for name in rows:
        click.echo(f"removed {name}")


@models.command("mirror")
@click.argument("source")
@click.argument("folder", type=FILE)
@click.option(
    "--once",
    "is_once",
    is_flag=True,
    help="Look once, and end: with 1 where something is refused, with 3 where it is away.",
)
@click.option(
    "--keep-versions",
    "num_kept",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Versions of each variant whose files are kept, the newest among them; of earlier ones the proof alone.",
)
@click.option(
    "--adopt",
    "adopts",
    is_flag=True,
    help="What FOLDER holds at the first look came from SOURCE, copied by another program.",
)
def mirror(source: str, folder: Path, is_once: bool, num_kept: int, adopts: bool) -> None:
    """Keep FOLDER like a model repository that lies in a bucket or a registry: what `--model-repository SOURCE` does by itself.

    SOURCE: s3://BUCKET/PATH, gs://BUCKET/PATH, rclone://REMOTE/PATH or oci://REGISTRY/NAME:TAG. A variant is taken once every file is what
    its gate recorded; a source that is away, or is empty, takes nothing away.
    """
    followed = room("serving.export.mirror").Mirror(
        source, folder, lambda line: click.echo(f"tandem: {line}", err=True), num_kept, adopts=adopts
    )
    state = followed.sync()
    if not is_once:
        followed.follow()
    sys.exit(3 if state.problem else 1 if state.refused else 0)


def _found(repository: Path, url: str | None, *, is_lenient: bool = False) -> Any:
    """With what gateways say. `is_lenient`: one that does not answer serves everything, as far as anybody knows."""
    has_local = importlib.util.find_spec("filelock") is not None  # not in thin images
    plans = room("serving.local.pool_plan") if has_local else None
    known, left_out = (plans.known_speeds, plans.left_out_here) if plans else (None, None)
    found = room("serving.export.inventory").models(repository, known=known, left_out=left_out)
    urls = [run.url for run in room("serving.local.runs").serving(repository)] if url is None else [url.rstrip("/")]
    told: list[str] = []
    account: list[Mapping[str, Any]] = []
    answers: list[Mapping[str, Any]] = []
    for each in urls:
        console = room("serving.local.console")
        try:
            status = console.read_status(each, os.environ.get("TANDEM_API_KEY"))
            entries = [entry for model in status["models"].values() for entry in model["account"]]
            answers += [{**it, "gateway": each} for it in _answers(status)]
        except (OSError, ValueError, LookupError) as error:
            if url is not None:
                how = "give the address of its admin listener"
                raise UserError(f"--url {url}: no gateway tells its status there ({error}); {how}") from None
            if not is_lenient:
                how = "TANDEM_API_KEY may hold a key for it"
                click.echo(
                    f"tandem: {each} serves this repository and does not tell its status ({error}); {how}", err=True
                )
                continue
            entries = [{"name": row.name, "model": row.model, "state": "served"} for row in found.variants]
        told.append(each)
        account += [{**entry, "gateway": each} for entry in entries]
    return replace(found, gateways=tuple(told), account=tuple(account), answers=tuple(answers))


def _answers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each public name is answered by: as the control document says, which may leave a version or a variant open, else the newest."""
    shares = (status.get("control") or {}).get("models", {})
    for name, model in status["models"].items():
        for share in shares.get(name, ()):
            yield {"model": name, **share}
        if not shares.get(name) and model["public"] is not None:
            variant = model["public"]["variant"]
            served = [it for it in model["account"] if it["state"] == "served" and it["variant"] == variant]
            version = max((int(it["version"]) for it in served), default=None)
            yield {"model": name, "arm": "newest", "version": version, "variant": variant, "ratio": 1.0}
