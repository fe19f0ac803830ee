"""`tandem run SOURCE`: exports a model, has it served here, and prints a request to it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import repository_at, room
from serving.cli.models import export
from serving.cli.options import PORT
from serving.errors import EnvironmentFault, UserError

POLL_S = 0.2
SEEN_S = 120.0  # from the export to the answer of a pool that has proven and loaded it (guess, not measured)


@click.command(cls=Verb, context_settings={"ignore_unknown_options": True})
@click.option("--port", default=8080, show_default=True, type=PORT, help="Where to serve it, if nothing serves it yet.")
@click.argument("words", metavar="SOURCE [OPTIONS OF EXPORT]…", nargs=-1, required=True, type=click.UNPROCESSED)
def run(port: int, words: tuple[str, ...]) -> None:
    """Export SOURCE with all its proofs, serve it in the background, and print a request to it.

    SOURCE and its options are those of `tandem export`. Where a `tandem up` serves that model repository already, it takes the model
    in; else one is started, which goes on until `tandem stop`. Exit code 1 if the model was refused: nothing is served then.
    """
    with export.make_context("tandem export", list(words)) as context:
        asked = context.params
    if asked["as_json"]:
        raise UserError("--json is for `tandem export`; what is served then is told by `tandem status --json`")
    repository = repository_at(asked["model_repository"]).absolute()
    name = asked["model"] or room("serving.export.options").default_name(asked["source"])
    runs, processes = room("serving.local.runs"), room("serving.local.processes")
    if not runs.serving(repository):  # told before an export of minutes
        room("serving.ports").require_free("127.0.0.1", port, "--port")
    tandem = [sys.executable, "-m", "serving"]
    if code := processes.hand_over([*tandem, "export", *words], os.environ):
        sys.exit(code)
    if not runs.serving(repository):
        up = [*tandem, "up", "--detach", "--port", str(port), "--model-repository", str(repository), "--try", name]
        sys.exit(processes.hand_over(up, os.environ))
    _served(runs.serving(repository)[-1], repository, name)


def _served(run: Any, repository: Path, name: str) -> None:
    """Waits until the model's newest files are served by one that runs already, and prints a request."""
    console = room("serving.local.console")
    variants = [it for it in room("serving.repository").Repository(repository).readable()[0] if it.record.model == name]
    wanted = {f"sha256:{it.digest}" for it in variants}
    key, until_s, why = os.environ.get("TANDEM_API_KEY"), time.monotonic() + SEEN_S, "not loaded yet"
    while time.monotonic() < until_s:
        try:
            model = console.read_status(run.url, key)["models"].get(name, {"variants": [], "account": []})
        except (OSError, ValueError) as error:
            how = "TANDEM_API_KEY may hold a key for it"
            raise EnvironmentFault(
                f"{run.public_url} does not tell whether it serves {name} ({error}); {how}"
            ) from None
        if served := {it["digest"] for it in model["variants"]} & wanted:
            here = [it for it in variants if f"sha256:{it.digest}" in served]
            click.echo(f"{name} is served: {run.public_url}\n\ntry it:")
            click.echo(f"  {console.curl_command(run.public_url, here, wants_key=key is not None)}")
            if right := console.expected_answer(here):
                click.echo(f"  ({right})")
            return
        why = "; ".join(f"{it['name']}: {it['reason']}" for it in model["account"] if it.get("reason")) or why
        time.sleep(POLL_S)
    raise EnvironmentFault(f"{run.public_url} does not serve {name} after {SEEN_S:.0f} s: {why}; see tandem logs")
