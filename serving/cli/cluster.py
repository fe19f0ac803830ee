"""`tandem cluster …`: verbs that talk to Kubernetes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verbs
from serving.cli.lazy import loadtest, room
from serving.cli.options import FAIL_IF, FILE, JSON, PORT, Finite
from serving.errors import UserError

NAMESPACE = click.option(
    "--namespace", "-n", help="Where Tandem is installed, or is to be. Default: the context's, else 'default'."
)
CONTEXT = click.option("--context", help="Context of the kubeconfig. Default: its current one.")


@click.group(cls=Verbs)
def cluster() -> None:
    """Inspect a Kubernetes cluster without changing it, make keys, or run a campaign in it."""


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
    "--image-pull-secret", multiple=True, metavar="NAME", help="A secret for pulling images, which must exist."
)
@JSON
def preflight(**options: Any) -> None:
    """Check that Tandem can be installed: exit code 1 if something required is missing."""
    sys.exit(room("serving.cluster.preflight.command").run(**options))


@cluster.command()
@NAMESPACE
@CONTEXT
@click.option("--release", help="Only this release. Default: all of the namespace.")
@JSON
def status(**options: Any) -> None:
    """Show what serves now, what waits and why: exit code 1 if a release answers nothing, or waits for ever."""
    sys.exit(room("serving.cluster.status.command").run(**options))


@cluster.command()
@click.option("--secret", required=True, metavar="NAME", help="The Secret; one that is there stays as it is.")
@NAMESPACE
@CONTEXT
@JSON
def keys(secret: str, context: str | None, namespace: str | None, as_json: bool) -> None:
    """Make a Secret with API keys, where there is none: `keys.json` for the gateways, `api-key` and `admin-key`."""
    sys.exit(room("serving.cluster.keys_secret").run(secret, context, namespace, as_json=as_json))


@cluster.command()
@click.argument("file", type=FILE, required=False)
@click.option(
    "--attach",
    is_flag=False,
    flag_value="",
    metavar="[JOB]",
    help="In place of FILE: follow a campaign's Job that runs, or fetch the results of one that is over. Default JOB: the only one.",
)
@NAMESPACE
@CONTEXT
@click.option("--release", help="The release whose gateway is loaded. Default: the only one of the namespace.")
@click.option("--output", type=FILE, help="Folder for the results. Default: results/<name>-<time>.")
@FAIL_IF
@click.option(
    "--timeout",
    "timeout_s",
    type=Finite(1),
    help="Seconds after which the Job is stopped, the wait for its node included. Default: by the length of its runs.",
)
@click.option("--image", help="The load test's image. Default: the one beside the gateway's.")
@click.option(
    "--key-secret", metavar="NAME/KEY", help="Secret with an API key. Default: the one of the release's own clients."
)
@click.option("--keep", is_flag=True, help="Keep the Job when it is over, and when this is interrupted.")
def campaign(file: Path | None, attach: str | None, fail_if: tuple[str, ...], **options: Any) -> None:
    """Run the campaign in FILE as a Job beside the gateway, and fetch its results."""
    running = room("serving.cluster.campaign.command")
    if attach is not None:
        names = {"release": "--release", "timeout_s": "--timeout", "image": "--image", "key_secret": "--key-secret"}
        others = {name: options[key] for key, name in names.items()}
        _nothing_but(attach, {"FILE": file, "--fail-if": fail_if, **others})
        sys.exit(running.attach(running.Options(**options), attach))
    if file is None:
        raise UserError("name a campaign's FILE, or a Job that exists already: --attach JOB")
    given = loadtest(room("loadtest.errors"), lambda: _given(file, fail_if))
    sys.exit(running.run(running.Options(**options), given))


def _nothing_but(job: str, others: Mapping[str, object]) -> None:
    """Raises UserError for options that a Job was given when it was made."""
    given = [name for name, value in others.items() if value]
    if given:
        raise UserError(
            f"--attach {job or 'JOB'} follows a Job as it was made, so it takes no {' and no '.join(given)}"
        )


def _given(file: Path, fail_if: tuple[str, ...]) -> Any:
    """The campaign's file and those that it names, checked as `campaign run` would; raises CampaignError, UserError."""
    if room("loadtest.claims.claims_file").is_claims_file(file):
        raise UserError(
            f"{file} holds claims, which are put to the test on a machine of one's own: tandem campaign run {file}"
        )
    campaign = room("loadtest.campaign_file").read_campaign(file)
    room("loadtest.report.fail_if").check(fail_if, [arm.name for arm in campaign.arms])
    data, load = campaign.payload.data, campaign.load
    if data in ("texts", "photographs") or data.endswith(".txt"):
        raise UserError(
            f"{file} sends {data}, made with files of the model that the load test's image has not; send arrays: "
            "tandem export --payload FILE writes them, and `data` names that npz"
        )
    named = [it for it in (data if data.endswith(".npz") else None, load.trace) if it]
    num_runs = len(campaign.arms) * len(load.points) * load.repeats
    return room("serving.cluster.campaign.manifests").CampaignFile(
        name=campaign.name,
        file=file.name,
        files={file.name: file.read_bytes(), **{it: (file.parent / it).read_bytes() for it in named}},
        num_processes=load.processes,
        planned_s=num_runs * load.end_s,
        num_runs=num_runs,
        fail_if=fail_if,
    )


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
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; its answers need no key.")
@click.option(
    "--port", default=9091, show_default=True, type=PORT, help="Port of /metrics, /status, /cold-starts and /health."
)
@click.option("--grpc-port", type=PORT, help="Port of KEDA's external scaler. Default: none.")
@click.option(
    "--key-file", type=FILE, help="File with the API key (scope metrics) for the gateways. Default: TANDEM_API_KEY."
)
@NAMESPACE
@CONTEXT
@click.option("--release", help="The release whose pools these are. Default: the only one of the namespace.")
@click.option(
    "--apply",
    multiple=True,
    metavar="POOL",
    help="Set the replicas of this pool's Deployment too, where no autoscaler does. Several times for several pools.",
)
@click.option(
    "--lease",
    default="tandem-scaler",
    show_default=True,
    help="With --apply: the Lease that the one of several scalers holds that sets replicas.",
)
def scaler(**options: Any) -> None:
    """Publish how many servers of each pool are wanted, for Prometheus and KEDA, or set their number, until Ctrl-C."""
    scaling = room("serving.cluster.scaler.command")
    sys.exit(scaling.run(scaling.Options(**options)))
