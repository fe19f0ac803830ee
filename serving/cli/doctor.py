"""`tandem doctor`: what this machine has and lacks for `tandem up`, and what mends it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from typing import Any

import click

import serving
from serving.cli.help import Verb
from serving.cli.lazy import EXTRAS, room
from serving.cli.options import JSON, PORT
from serving.installation import how_to_add

COLOURS = {"ok": "green", "missing": "red", "unknown": "yellow"}
FOR = {"local": "`tandem up`", "onnx": "`tandem export` of files and tables", "loadtest": "`tandem verdict`"}


@click.command(cls=Verb)
@click.option("--port", default=8080, show_default=True, type=PORT, help="The port that `tandem up` is to listen on.")
@JSON
def doctor(port: int, as_json: bool) -> None:
    """Check what `tandem up` needs here: system, Python, packages, environments, card and driver, disk, files, ports.

    Says what is wrong and how to mend it. Changes and fetches nothing. Exit code 3: something that is needed is missing.
    """
    lists = room("serving.documents.findings")
    found = [*_packages(lists)]
    if not lists.lacks_required(found):
        local = room("serving.local.doctor")
        found += local.findings(local.collect(port))
    is_good = not lists.lacks_required(found)
    if as_json:
        listed = [dataclasses.asdict(it) for it in found]
        versions = {"tandem": serving.__version__, "python": platform.python_version()}
        click.echo(json.dumps({"version": 1, "is_good": is_good, "versions": versions, "findings": listed}, indent=1))
    else:
        click.echo(f"tandem {serving.__version__}, Python {platform.python_version()} ({sys.executable})")
        for it in found:
            state, _, rest = it.line.partition(" ")
            click.echo(f"{click.style(state, fg=COLOURS[state])} {rest}")
        click.echo("`tandem up` can serve here" if is_good else "mend what is missing, then look again: tandem doctor")
    sys.exit(0 if is_good else 3)


def _packages(lists: Any) -> Iterator[Any]:
    """Of each extra that a verb needs, by the modules that it brings."""
    for extra, what in FOR.items():
        modules = [module for module, brings in EXTRAS.items() if brings == extra]
        lacking = [module for module in modules if importlib.util.find_spec(module) is None]
        name, is_required = f"packages for {what}", extra == "local"
        if lacking:
            found = f"{', '.join(lacking)} not installed"
            yield lists.Finding(name, lists.State.MISSING, found, how_to_add(extra), is_required)
        else:
            yield lists.Finding(name, lists.State.OK, "installed", is_required=is_required)
