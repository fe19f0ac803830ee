"""Options and kinds of values that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)


class RepositoryPlace(click.Path):
    """A folder as a Path, or another place (`s3://BUCKET/PATH`) as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


PORT = click.IntRange(1, 65535)


MODEL_REPOSITORY = click.option(
    "--model-repository",
    type=RepositoryPlace(path_type=Path),
    envvar="TANDEM_MODEL_REPOSITORY",
    help="Model repository: a folder, or s3://BUCKET/PATH, gs://BUCKET/PATH, rclone://REMOTE/PATH, oci://REGISTRY/NAME:TAG "
    "(docs/models.md). Default: model_repo/ here, else the one that came with Tandem.",
)


LOCAL_REPOSITORY = click.option(
    "--model-repository",
    type=RepositoryPlace(path_type=Path),
    envvar="TANDEM_MODEL_REPOSITORY",
    help="Model repository, a folder that is written. Default: model_repo/ here, else the one that came with Tandem.",
)


def _note_form(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta["form"] = value


def _is_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    if value and ctx.meta.get("form") not in (None, "json"):
        raise click.UsageError(f"--json and -o {ctx.meta['form']}: choose one")
    return value or ctx.meta.get("form") == "json"


def is_wide() -> bool:
    """Whether the verb that runs was asked for `-o wide`."""
    return click.get_current_context().meta.get("form") == "wide"


def _printing(forms: Sequence[str], says: str) -> Callable[[Any], Any]:
    form = click.option(
        "-o",
        "form",
        type=click.Choice(forms),
        is_eager=True,
        expose_value=False,
        callback=_note_form,
        help=f"How to print: {says}.",
    )
    whole = click.option("--json", "as_json", is_flag=True, callback=_is_json, help="Print one JSON object.")
    return lambda command: whole(form(command))


# `--json`, and as people know it `-o json` or `-o table`; with `-o wide` where a table leaves something out (`is_wide`).
JSON = _printing(["table", "json"], "in words and tables, or as --json")
JSON_OR_WIDE = _printing(
    ["table", "wide", "json"], "in words and tables, with what a table leaves out for want of room, or as --json"
)


YES = click.option(
    "--yes",
    "is_yes",
    is_flag=True,
    help="Make an environment for what this needs, if that is missing, without a question (0.6 GB; 6.2 GB with torch).",
)


FAIL_IF = click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 1 if this is so, as 'p99_s > 0.05' or 'ARM.throughput_rps < 100'; also if it is not known. Several times for several.",
)


class Finite(click.FloatRange):
    """A number that is one: neither nan nor inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    """Reads a time as 90s, 5m or 1h, or in seconds, for click's `type`."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds > 0):
        raise click.BadParameter(f"{text} is not a time above 0; write 90s, 5m or 1h")
    return seconds
