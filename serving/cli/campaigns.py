"""`tandem campaign run` and `report`, `tandem compare`: load tests and their reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb, Verbs
from serving.cli.lazy import complete_for_load, loadtest, room
from serving.cli.options import FAIL_IF, FILE, JSON, YES, Finite
from serving.errors import UserError


@click.group(cls=Verbs)
def campaign() -> None:
    """Run load tests and build their reports."""


@campaign.command("run")
@click.argument("file", type=FILE)
@click.option("--url", help="A gateway that runs already. Default: the one on port 8080, else one of its own.")
@click.option("--output", type=FILE, help="Folder for the results. Default: results/<name>-<time>.")
@click.option(
    "--duration",
    "duration_s",
    type=Finite(0, min_open=True),
    help="Seconds of each run, instead of the file's.",
)
@click.option("--warmup", "warmup_s", type=Finite(0), help="Seconds before each run that do not count.")
@click.option("--repeats", type=click.IntRange(1), help="How often each arm runs, instead of the file's.")
@click.option(
    "--model-repository",
    type=FILE,
    envvar="TANDEM_MODEL_REPOSITORY",
    help="What a gateway of its own serves, and where the model's tokenizer and preprocessing lie. Default: as `tandem up`.",
)
@click.option(
    "--from-log",
    "--from-traces",
    "replayed",
    type=FILE,
    help="Send what a gateway's access log, or its OpenTelemetry traces, have of the model, when it came and with as many rows, instead of "
    "the file's load.",
)
@click.option(
    "--only", multiple=True, metavar="NAME", help="This claim alone, of a file of claims; several times for several."
)
@click.option("--quick", "is_quick", is_flag=True, help="Short times and few sizes, to try a file of claims.")
@FAIL_IF
@YES
@JSON
def campaign_run(
    is_yes: bool, only: tuple[str, ...], is_quick: bool, fail_if: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Run the campaign in FILE and write its report; or put the claims in FILE to the test."""
    complete_for_load(is_yes=is_yes)
    campaigns = room("loadtest.campaign")
    if room("loadtest.claims.claims_file").is_claims_file(options["file"]):
        if fail_if:
            raise UserError("--fail-if is for a load test, and does nothing for a file of claims")
        if as_json:
            raise UserError("--json is for a load test; claims are in claims.json of their results")
        if options.pop("replayed") is not None:
            raise UserError("--from-log and --from-traces are for a load test, and do nothing for a file of claims")
        claims = room("loadtest.claims.command")
        sys.exit(
            loadtest(campaigns, lambda: claims.run(claims.ClaimsOptions.of(only=only, is_quick=is_quick, **options)))
        )
    if only or is_quick:
        raise UserError("--only and --quick are for a file of claims (kind: claims), and do nothing for a load test")
    if options["model_repository"] is not None:  # told before a folder for the results is made
        room("serving.repository").Repository(options["model_repository"]).ungated()
    sys.exit(
        loadtest(
            campaigns, lambda: campaigns.run(campaigns.CampaignOptions(**options, fail_if=fail_if, as_json=as_json))
        )
    )


@campaign.command("report")
@click.argument("directory", type=FILE)
@FAIL_IF
@JSON
def campaign_report(directory: Path, fail_if: tuple[str, ...], as_json: bool) -> None:
    """Build the report of a campaign again from its raw rows."""
    campaigns = room("loadtest.campaign")
    sys.exit(loadtest(campaigns, lambda: campaigns.report_again(directory, fail_if, as_json=as_json)))


@click.command(cls=Verb)
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@JSON
def compare(**options: Any) -> None:
    """Compare two reports, of campaigns or verdicts, with intervals: exit code 1 if something got clearly worse."""
    compare = room("loadtest.compare")
    sys.exit(loadtest(room("loadtest.errors"), lambda: compare.run(compare.CompareOptions(**options))))
