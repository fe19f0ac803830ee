"""`tandem completion`: what a shell sources, so that Tab completes verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from serving.cli.help import Verb
from serving.errors import UserError


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL reads to complete verbs, options and their values. Redirect it into the shell's folder for completions."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UserError(f"there is no completion for {shell}")
    click.echo(kind(context.find_root().command, {}, "tandem", "_TANDEM_COMPLETE").source())
