"""`tandem …`: what the words on the command line mean. A room is imported only when its verb runs, so that each installs alone.

Errors are one line on stderr that says the way out; exit codes are 0 good, 1 a verdict or gate failed, 2 the user's to fix,
3 the environment's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

import serving
from serving.errors import EnvironmentFault, TandemError, UserError, exit_code
from serving.settings import check_environment

FILE = click.Path(path_type=Path)
PORT = click.IntRange(1, 65535)
MODEL_REPOSITORY = click.option(
    "--model-repository",
    type=FILE,
    envvar="TANDEM_MODEL_REPOSITORY",
    help="Default: model_repo/ here, else the one that came with Tandem.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
EXTRAS = {  # package that may be missing -> extra that brings it
    "filelock": "local", "psutil": "local", "tritonclient": "local", "grpc": "local", "google": "local",
    "torch": "export", "onnx": "export", "onnxruntime": "export", "sklearn": "export", "numpy": "export",
    "locust": "loadtest", "kubernetes": "cluster",
}  # fmt: skip


def room(module: str) -> Any:
    """A module, or the message that names the extra which brings what it lacks."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        extra = "loadtest" if module.startswith("loadtest") else EXTRAS[package]
        raise UserError(
            f"this needs '{package}', which is not installed: pip install 'tandem-serving[{extra}]'"
        ) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(serving.__version__, prog_name="tandem")
def cli() -> None:
    """Serves a model on CPU and GPU in tandem, and uses a GPU exactly when it pays."""


@cli.command()
@click.option(
    "--config", type=FILE, required=True, envvar="TANDEM_CONFIG", help="tandem.yaml: pools and their Tritons."
)
@click.option("--host", default="127.0.0.1", show_default=True, envvar="TANDEM_HOST", help="Address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(1, 65535), envvar="TANDEM_PORT", help="Port."
)
@click.option(
    "--admin-host",
    default="127.0.0.1",
    show_default=True,
    envvar="TANDEM_ADMIN_HOST",
    help="Address of the admin listener.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(1, 65535),
    envvar="TANDEM_ADMIN_PORT",
    help="Port of the admin listener: metrics and status.",
)
@click.option("--insecure-no-auth", is_flag=True, help="Serve other machines although there are no API keys.")
def gateway(**options: Any) -> None:
    """Run the gateway alone, in front of Tritons that run already."""
    serve = room("serving.gateway.serve")
    sys.exit(serve.run(serve.Options(**options)))


@cli.command()
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME[=URL]",
    help="cpu, gpu, or one that runs already: cpu=http://HOST:8000.",
)
@click.option("--host", default="127.0.0.1", show_default=True, envvar="TANDEM_HOST", help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, type=PORT, envvar="TANDEM_PORT", help="Port to listen on.")
@MODEL_REPOSITORY
@click.option("--insecure-no-auth", is_flag=True, help="Serve other machines although there are no API keys.")
@click.option(
    "--no-measure",
    "may_measure",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not measure variants that are unmeasured on this processor.",
)
def up(**options: Any) -> None:
    """Serve a model repository here: embedded Triton for each pool and the gateway, until Ctrl-C."""
    local = room("serving.local.up")
    sys.exit(local.run(local.UpOptions(**options)))


@cli.command()
@click.option("--pool", default="cpu", show_default=True, help="The pool that this Triton belongs to: cpu or gpu.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; never one that clients reach."
)
@click.option("--http-port", default=8000, show_default=True, type=PORT, help="Triton's HTTP port.")
@click.option("--grpc-port", default=8001, show_default=True, type=PORT, help="Triton's gRPC port.")
@click.option("--metrics-port", default=8002, show_default=True, type=PORT, help="Triton's metrics port.")
@click.option(
    "--exit-timeout-s", default=30, show_default=True, type=click.IntRange(1), help="Longest wait for work in flight."
)
@MODEL_REPOSITORY
@click.option(
    "--ready-file", type=FILE, help="Written once everything is loaded: the names of the models, a line each."
)
@click.option(
    "--no-measure",
    "may_measure",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not measure variants that are unmeasured on this processor.",
)
def triton(**options: Any) -> None:
    """Run one embedded Triton alone, as a container does."""
    local = room("serving.local.triton")
    sys.exit(local.run(local.TritonOptions(**options)))


@cli.command()
@click.argument("engine", type=click.Choice(["cpu", "gpu"]))
def environment(engine: str) -> None:
    """Make the environment that embedded Triton runs in, as `tandem up` does by itself."""
    environments = room("serving.local.environments")
    made = environments.ensure(environments.ENGINES[engine], click.echo)
    click.echo(f"{made.folder}: ONNX Runtime {made.engine_version}")


@cli.command()
@click.argument("source")
@MODEL_REPOSITORY
@click.option("--model", help="Public name of the model; needed for a file.")
@click.option("--variant", type=click.Choice(["fp16", "int8"]), help="Which variant of the model a file is.")
@click.option("--data", help="Held-out samples (.npz), or 'digits'.", default="digits", show_default=True)
@click.option(
    "--max-drop", type=click.FloatRange(0, 1), help="Most accuracy that may be lost against FP32, 0..1. Default 0.01."
)
@click.option("--payload", type=FILE, help="Also write the held-out samples to this .npz, for load tests.")
@click.option(
    "--keep-slow",
    is_flag=True,
    help="Publish a variant that is slower than FP32 here; nothing is routed to it by default.",
)
def export(source: str, model_repository: Path | None, **options: Any) -> None:
    """Gate a model and put it into a repository.

    SOURCE is `digits` (trains it; needs the extra `export`) or FILE.onnx, which is gated against its model's FP32.
    """
    sys.exit(room("serving.export.command").run(source, _repository(model_repository), **options))


@cli.command()
@MODEL_REPOSITORY
@JSON
def models(model_repository: Path | None, as_json: bool) -> None:
    """Show what is in a repository: variants, gates, sizes, pools, speed on this processor."""
    found = room("serving.export.inventory").models(_repository(model_repository))
    room("serving.export.table").show_models(found, as_json=as_json)


@cli.command()
@MODEL_REPOSITORY
@JSON
def verify(model_repository: Path | None, as_json: bool) -> None:
    """Recompute every digest in a repository; exit code 1 if a file is not the one that was gated."""
    verification = room("serving.export.inventory").verify(_repository(model_repository))
    if not verification.checks:
        raise UserError(f"{verification.repository} holds no variant, so there is nothing to verify")
    room("serving.export.table").show_verification(verification, as_json=as_json)
    sys.exit(0 if verification.is_whole else 1)


@cli.group()
def campaign() -> None:
    """Load tests and their reports."""


@campaign.command("run")
@click.argument("file", type=FILE)
@click.option("--url", help="A gateway that runs already. Default: the one on port 8080, else one of its own.")
@click.option("--output", type=FILE, help="Folder for the results. Default: results/<name>-<time>.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(0, min_open=True),
    help="Seconds of each run, instead of the file's.",
)
@click.option("--warmup", "warmup_s", type=click.FloatRange(0), help="Seconds before each run that do not count.")
@click.option("--repeats", type=click.IntRange(1), help="How often each arm runs, instead of the file's.")
def campaign_run(**options: Any) -> None:
    """Run the campaign in FILE and write its report."""
    campaigns = room("loadtest.campaign")
    sys.exit(_loadtest(campaigns, lambda: campaigns.run(campaigns.CampaignOptions(**options))))


@campaign.command("report")
@click.argument("directory", type=FILE)
def campaign_report(directory: Path) -> None:
    """Build the report of a campaign again from its raw rows."""
    campaigns = room("loadtest.campaign")
    click.echo(_loadtest(campaigns, lambda: campaigns.report(directory)))


@cli.group()
def cluster() -> None:
    """Ask a Kubernetes cluster; nothing here changes it."""


@cluster.command()
@click.option("--namespace", "-n", help="Where Tandem is to live. Default: the context's, else 'default'.")
@click.option("--context", help="Context of the kubeconfig. Default: its current one.")
@JSON
def preflight(**options: Any) -> None:
    """Check that Tandem can be installed: exit code 1 if something required is missing."""
    sys.exit(room("serving.cluster.command").preflight(**options))


def _repository(given: Path | None) -> Path:
    path: Path = given or room("serving.repository").default_repository()
    return path


def _loadtest(campaigns: Any, work: Callable[[], Any]) -> Any:
    """Runs a verb of the load test room, whose errors are its own because it shares nothing with the server."""
    try:
        return work()
    except campaigns.CampaignError as error:
        _stop(str(error), error.exit_code)


def main() -> None:
    """The `tandem` command."""
    try:
        check_environment()
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _stop(" ".join(error.format_message().split()), 2)
    except TandemError as error:
        _stop(str(error), exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        _stop(
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", exit_code(EnvironmentFault())
        )


def _stop(message: str, code: int) -> NoReturn:
    click.echo(f"tandem: {message}", err=True)
    sys.exit(code)
