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


JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


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
