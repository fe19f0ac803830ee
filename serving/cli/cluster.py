"""`tandem cluster …`: what asks Kubernetes."""

from __future__ import annotations

import sys
from typing import Any

import click

from serving.cli.rooms import room
from serving.cli.words import FILE, JSON, PORT

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


@cluster.command()
@click.option(
    "--config",
    type=FILE,
    required=True,
    envvar="TANDEM_CONFIG",
    help="The gateways' tandem.yaml: pools, prices, bounds.",
)
@click.option(
    "--gateways",
    multiple=True,
    required=True,
    metavar="URL",
    help="http://HOST:PORT of the gateways' metrics; every address of the name is one gateway. Several times for several names.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; what it answers wants no key."
)
@click.option("--port", default=9091, show_default=True, type=PORT, help="Port of /metrics, /status, /cold-starts and /health.")
@click.option("--grpc-port", type=PORT, help="Port of KEDA's external scaler. Default: none.")
@click.option(
    "--key-file", type=FILE, help="File with the API key (scope metrics) for the gateways. Default: TANDEM_API_KEY."
)
@NAMESPACE
@CONTEXT
@click.option("--release", help="The release whose pools these are. Default: the only one of the namespace.")
def scaler(**options: Any) -> None:
    """Say how many servers of each pool are wanted, to Prometheus and KEDA, until Ctrl-C."""
    scaling = room("serving.cluster.scaler.command")
    sys.exit(scaling.run(scaling.Options(**options)))
