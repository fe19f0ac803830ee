"""`tandem cluster …`: what asks Kubernetes."""

from __future__ import annotations

import sys
from typing import Any

import click

from serving.cli.rooms import room
from serving.cli.words import JSON


@click.group()
def cluster() -> None:
    """Ask a Kubernetes cluster; nothing here changes it."""


@cluster.command()
@click.option("--namespace", "-n", help="Where Tandem is to live. Default: the context's, else 'default'.")
@click.option("--context", help="Context of the kubeconfig. Default: its current one.")
@JSON
def preflight(**options: Any) -> None:
    """Check that Tandem can be installed: exit code 1 if something required is missing."""
    sys.exit(room("serving.cluster.command").preflight(**options))
