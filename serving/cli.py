"""`tandem …`: what the words on the command line mean. A room is imported only when its verb runs, so that each installs alone.

Errors are one line on stderr that says the way out; exit codes are 0 good, 1 a verdict or gate failed, 2 the user's to fix,
3 the environment's.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

import serving
from serving.errors import EnvironmentFault, TandemError, UserError, exit_code
from serving.settings import check_environment

FILE = click.Path(path_type=Path)
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


def _stop(message: str, code: int) -> None:
    click.echo(f"tandem: {message}", err=True)
    sys.exit(code)
