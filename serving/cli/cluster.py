"""`tandem cluster …`: what asks Kubernetes."""

from __future__ import annotations

import sys
from typing import Any

import click

from serving.cli.rooms import room
from serving.cli.words import FILE, JSON

NAMESPACE = click.option(
    "--namespace", "-n", help="Where Tandem lives, or is to live. Default: the context's, else 'default'."
)
CONTEXT = click.option("--context", help="Context of the kubeconfig. Default: its current one.")


@click.group()
def cluster() -> None:
    """Ask a Kubernetes cluster; nothing here changes it."""


@cluster.command()
@NAMESPACE
@CONTEXT
@click.option(
    "--rendered",
    type=FILE,
    metavar="FILE",
    help="Check for these objects, as `helm template` prints them ('-' reads standard input), not for the chart's default.",
)
@click.option(
    "--gpu",
    is_flag=False,
    flag_value="nvidia.com/gpu",
    metavar="[RESOURCE]",
    help="A GPU pool is wanted too, so what it needs is required. Default resource: nvidia.com/gpu.",
)
@click.option(
    "--image-pull-secret", multiple=True, metavar="NAME", help="A secret for pulling images that must be there."
)
@JSON
def preflight(**options: Any) -> None:
    """Check that Tandem can be installed: exit code 1 if something required is missing."""
    sys.exit(room("serving.cluster.command").preflight(**options))


@cluster.command()
@NAMESPACE
@CONTEXT
@click.option("--release", help="Only this release. Default: all of the namespace.")
@JSON
def status(**options: Any) -> None:
    """Say what serves now, what waits and why: exit code 1 if a release answers nothing."""
    sys.exit(room("serving.cluster.command").status(**options))
