"""`tandem up`, `gateway`, `triton`, `environment`: what serves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from serving.cli.control import store_at
from serving.cli.help import Verb
from serving.cli.lazy import followed, on_stderr, room
from serving.cli.options import FILE, JSON, MODEL_REPOSITORY, PORT, RepositoryPlace

HOST = click.option(
    "--host", default="127.0.0.1", show_default=True, envvar="TANDEM_HOST", help="Address to listen on."
)
NO_AUTH = click.option("--insecure-no-auth", is_flag=True, help="Serve other machines although there are no API keys.")
GRPC_PORT = click.option(
    "--grpc-port", type=PORT, envvar="TANDEM_GRPC_PORT", help="Port of the v2 protocol over gRPC. Default: none."
)
CONTROL = click.option(
    "--control",
    metavar="PLACE",
    envvar="TANDEM_CONTROL",
    help="The control document: FILE, redis://HOST:PORT or configmap:NAME (docs/rollouts.md).",
)
KEYS = click.option("--keys", type=FILE, envvar="TANDEM_KEYS", help="API keys, as `tandem keys` writes them.")
ALLOWED_HOSTS = click.option(
    "--allowed-hosts",
    default="",
    metavar="NAME,…",
    callback=lambda _context, _option, value: tuple(name.strip() for name in value.split(",") if name.strip()),
    envvar="TANDEM_ALLOWED_HOSTS",
    help="Names that lead here beside localhost, such as a proxy's, with commas between them; adds to those of tandem.yaml.",
)
NO_MEASURE = click.option(
    "--no-measure",
    "may_measure",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not measure variants that are unmeasured on this processor.",
)


@click.command(cls=Verb)
@click.option(
    "--config", type=FILE, required=True, envvar="TANDEM_CONFIG", help="tandem.yaml: pools and their Tritons."
)
@HOST
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
@GRPC_PORT
@KEYS
@click.option(
    "--model-repository",
    type=RepositoryPlace(path_type=Path),
    envvar="TANDEM_MODEL_REPOSITORY",
    help="Where preprocessing, tokenizers and labels of the served models lie: needed for /v1/embeddings and /v1/classify.",
)
@CONTROL
@NO_AUTH
@ALLOWED_HOSTS
@click.option("--ready-file", type=FILE, help="File that is made once the gateway listens on all its ports.")
@click.option(
    "--shared-port",
    is_flag=True,
    help="Let other gateways of this user listen on --port and --grpc-port, too; the system shares connections out (SO_REUSEPORT).",
)
def gateway(control: str | None, **options: Any) -> None:
    """Run the gateway alone, in front of Tritons that run already."""
    serve = room("serving.gateway.serve")
    options["model_repository"] = followed(options["model_repository"])
    store = None if control is None else store_at(control)
    sys.exit(serve.run(serve.Options(**options, control=store)))


@click.command(cls=Verb)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME[=URL]",
    help="cpu, gpu, or one that runs already: cpu=http://HOST:8000.",
)
@click.option(
    "--emulate",
    multiple=True,
    metavar="NAME=FILE",
    help="For proofs: a pool whose times follow a file; its name begins with 'emulated'. Not in packages and images.",
)
@click.option(
    "--config",
    type=FILE,
    help="A tandem.yaml with prices, objectives and limits. Its pools need no device, and no urls if they are started here.",
)
@HOST
@click.option("--port", default=8080, show_default=True, type=PORT, envvar="TANDEM_PORT", help="Port to listen on.")
@click.option(
    "--grpc-port",
    type=PORT,
    envvar="TANDEM_GRPC_PORT",
    help="Port of the v2 protocol over gRPC. Default: the one after --port, where that is free.",
)
@click.option(
    "--gateways",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Gateway processes on --port, one for each core that requests should fill; each has limits and metrics of its own.",
)
@MODEL_REPOSITORY
@click.option(
    "--allow-missing",
    is_flag=True,
    help="Be ready without the models that Triton could not load, as `allow_missing` in the file.",
)
@click.option(
    "--triton-words",
    is_flag=True,
    help="Give Triton's name and its words for errors to clients that look at texts, as `triton_words` in the file.",
)
@KEYS
@CONTROL
@NO_AUTH
@ALLOWED_HOSTS
@NO_MEASURE
@click.option(
    "--try", "tried", metavar="MODEL", help="Model whose request is printed. Default: the first that has one."
)
@click.option(
    "--detach", "-d", "is_detached", is_flag=True, help="Serve in the background: the prompt is back when it serves."
)
def up(is_detached: bool, **options: Any) -> None:
    """Serve a model repository here: embedded Triton for each pool and the gateway, until Ctrl-C.

    A gateway or a pool that dies is started again, and the others go on meanwhile; one that dies at every start ends it, with the cause,
    unless another pool serves. Logs lie in ~/.local/state/tandem/runs (TANDEM_STATE moves them): at most 15 MB for each process, and
    200 MB of runs that are over.
    """
    parent = room("serving.local.detach").split() if is_detached else None
    if isinstance(parent, int):
        sys.exit(parent)
    local = room("serving.local.up")
    tellers: list[Callable[[str], object]] = [
        on_stderr
    ]  # the last one counts: once there is a log, what writes into it
    options["model_repository"] = followed(options["model_repository"], lambda line: tellers[-1](line))
    sys.exit(local.run(local.UpOptions(**options, parent=parent, hand_teller=tellers.append)))


@click.command(cls=Verb)
@click.option("--pool", default="cpu", show_default=True, help="The pool that this Triton belongs to: cpu or gpu.")
@click.option(
    "--emulate",
    type=FILE,
    help="For proofs: the file of times that this Triton follows; --pool begins with 'emulated' then. Not in packages and images.",
)
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
    "--instances", type=click.IntRange(1, 64), help="Instances of every model, which compute side by side. Default: 1."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads of each instance. Default: the cores, shared out; 1 on a GPU.",
)
@click.option(
    "--queue-delay-us",
    type=click.IntRange(0, 10_000_000),
    help="Longest wait for fuller batches, in microseconds. Default: as each model was exported.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 65536),
    help="Most rows in a batch. Default, and upper limit: what each model was exported for.",
)
@click.option(
    "--batch-buckets",
    metavar="auto|SIZE,…",
    help="Sizes of batches with buffers of their own; auto: as few as the model's speeds allow. For enable_cuda_graph. Default: none.",
)
@click.option(
    "--bucket-lengths",
    metavar="LENGTH,…",
    help="Lengths of inputs of any length that --batch-buckets have buffers for.",
)
@click.option(
    "--cuda-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of ONNX Runtime's CUDA provider, as in tandem.yaml (docs/settings.md). Default: the provider's own.",
)
@click.option(
    "--versions",
    type=click.IntRange(min=1),
    help="Newest versions of each model to serve beside each other, where they take the same inputs and give the same outputs. Default: 1.",
)
@click.option(
    "--max-memory-mb",
    type=click.IntRange(64),
    help="Memory of all its processes past which it is started anew while others answer. Default: 85 % of its container's limit, if any.",
)
@click.option(
    "--engine",
    type=click.Choice(["cpu", "openvino", "cuda"]),
    help="Compute everything on this engine, to compare engines. Default: for each variant the one that is fastest here.",
)
@click.option(
    "--otel-endpoint",
    metavar="URL",
    help="OpenTelemetry's collector, as http://HOST:4318: Triton's spans of the requests that a gateway traces. Default: none.",
)
@click.option(
    "--ready-file",
    type=FILE,
    help="File that is written once everything is loaded: the names of the models, one a line.",
)
@NO_MEASURE
def triton(**options: Any) -> None:
    """Run one embedded Triton alone, as a container does."""
    local = room("serving.local.triton")
    options["model_repository"] = followed(options["model_repository"])
    sys.exit(local.run(local.TritonOptions(**options)))


@click.command(cls=Verb)
@click.argument("engine", type=click.Choice(["cpu", "gpu", "openvino"]))
@JSON
def environment(engine: str, as_json: bool) -> None:
    """Make the environment that an engine runs in: `cpu` and `gpu` as `tandem up` does by itself, `openvino` beside them."""
    environments = room("serving.local.environments")
    made = environments.ensure(environments.ENGINES[engine], lambda line: click.echo(line, err=as_json))
    if as_json:
        click.echo(json.dumps({"version": 1, "folder": str(made.folder), "onnxruntime": made.engine_version}))
        return
    click.echo(f"{made.folder}: ONNX Runtime {made.engine_version}")
