"""The `tandem` command: all verbs, and what its exit codes are.

0 good, 1 a verdict or gate failed, 2 the user's to fix, 3 the environment's. What a verb's words mean is in the files beside this one.
"""

from __future__ import annotations

import io
import os
import sys

import click

import serving
from serving.cli import (
    campaigns,
    cluster,
    completion,
    control,
    cost,
    decisions,
    doctor,
    explain,
    inventory,
    keys,
    models,
    run,
    runs,
    serve,
)
from serving.cli.help import Verbs
from serving.cli.lazy import lacking, stop
from serving.environment import check_environment, reach_loopback_directly
from serving.errors import EnvironmentFault, TandemError, exit_code


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(serving.__version__, prog_name="tandem")
def cli() -> None:
    """Serves a model on CPU and GPU in tandem, and uses a GPU exactly when it pays."""


for verb in (
    serve.gateway,
    run.run,
    serve.up,
    runs.status,
    runs.logs,
    runs.stop,
    serve.triton,
    doctor.doctor,
    serve.environment,
    models.export,
    inventory.models,
    models.verify,
    explain.explain,
    decisions.simulate,
    decisions.profile,
    decisions.plan,
    decisions.verdict,
    campaigns.campaign,
    campaigns.compare,
    cost.cost,
    keys.keys,
    control.apply,
    control.diff,
    control.history,
    control.undo,
    cluster.cluster,
    completion.completion,
):
    cli.add_command(verb)


def main() -> None:
    """The `tandem` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without µ or ≤ shows `?` there, and nothing fails for it
        sys.stdout.reconfigure(errors="replace")
    try:
        check_environment()
        reach_loopback_directly()
        cli.main(prog_name="tandem", standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except click.exceptions.NoArgsIsHelpError as error:  # a group alone: what it has is told, and nothing was done
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        sys.exit(2)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        stop(" ".join(error.format_message().split()), 2)
    except TandemError as error:
        stop(str(error), exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (fault := lacking(error)) is None:
            raise
        stop(str(fault), exit_code(fault))
    except OSError as error:
        stop(
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", exit_code(EnvironmentFault())
        )
