"""`tandem …`: what the words on the command line mean. A file for each kind of verb; `command.py` holds them together."""

from serving.cli.command import cli, main

__all__ = ["cli", "main"]
