"""Options and kinds of values that several verbs share."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)


PORT = click.IntRange(1, 65535)


MODEL_REPOSITORY = click.option(
    "--model-repository",
    type=FILE,
    envvar="TANDEM_MODEL_REPOSITORY",
    help="Model repository. Default: model_repo/ here, else the one that came with Tandem.",
)


def _note_form(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta["form"] = value


def _is_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    if value and ctx.meta.get("form") == "table":
        raise click.UsageError("--json and -o table: choose one")
    return value or ctx.meta.get("form") == "json"


def JSON(command: Any) -> Any:  # noqa: N802 - beside the options that are values
    """`--json`, and as people know it `-o json` or `-o table`."""
    form = click.option(
        "-o",
        "form",
        type=click.Choice(["table", "json"]),
        is_eager=True,
        expose_value=False,
        callback=_note_form,
        help="How to print: in words and tables, or as --json.",
    )
    whole = click.option("--json", "as_json", is_flag=True, callback=_is_json, help="Print one JSON object.")
    return whole(form(command))


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
