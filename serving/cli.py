"""`tandem …`: what the words on the command line mean. A room is imported only when its verb runs, so that each installs alone.

Errors are one line on stderr that says the way out; exit codes are 0 good, 1 a verdict or gate failed, 2 the user's to fix,
3 the environment's.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from collections.abc import Callable
from functools import partial
from math import isfinite
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
# The names of the policies in planning/simulate/setting.py.
SIMULATED = ("tandem", "cpu-only", "gpu-always", "no-bridge", "hold", "oracle")
EXTRAS = {  # package that may be missing -> extra that brings it
    "filelock": "local", "psutil": "local", "tritonclient": "local", "grpc": "local", "google": "local",
    "torch": "export", "transformers": "export", "onnxscript": "export", "keras": "keras",
    "onnx": "onnx", "onnxruntime": "onnx", "sklearn": "onnx", "numpy": "onnx", "PIL": "onnx", "tokenizers": "onnx",
    "skl2onnx": "onnx", "onnxmltools": "onnx", "sympy": "onnx",
    "locust": "loadtest", "kubernetes": "cluster",
}  # fmt: skip

LOADTEST_TOO = ("numpy", "psutil")  # of these, what that extra brings as well


class Finite(click.FloatRange):
    """A number that is one: neither nan nor inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def room(module: str) -> Any:
    """A module, or the message that names the extra which brings what it lacks."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (fault := lacking(error, module)) is None:
            raise
        raise fault from None


def lacking(error: ModuleNotFoundError, module: str = "") -> UserError | None:
    """The message for a package that an extra brings; None for one that none does."""
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        return None
    extra = "loadtest" if module.startswith("loadtest") and package in LOADTEST_TOO else EXTRAS[package]
    return UserError(f"this needs '{package}', which is not installed: pip install 'tandem-serving[{extra}]'")


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
@click.option(
    "--emulate",
    multiple=True,
    metavar="NAME=FILE",
    help="For proofs: a pool whose times follow a file; its name begins with 'emulated'. Not in packages and images.",
)
@click.option(
    "--config",
    type=FILE,
    help="A tandem.yaml: prices, objectives, limits. Its pools need neither urls, if they are started here, nor a device.",
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
@click.option("--instances", type=click.IntRange(1, 64), help="Of every model, which compute side by side. Default: 1.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Of each instance. Default: the cores, shared out; 1 on a GPU."
)
@click.option(
    "--queue-delay-us",
    type=click.IntRange(0, 10_000_000),
    help="Longest wait for fuller batches. Default: as each model was exported.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 65536),
    help="Rows of a batch. Default, and most: what each model was exported for.",
)
@click.option(
    "--engine",
    type=click.Choice(["cpu", "openvino", "cuda"]),
    help="That computes everything, to compare engines. Default: for each variant the one that is fastest here.",
)
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
@click.argument("engine", type=click.Choice(["cpu", "gpu", "openvino"]))
def environment(engine: str) -> None:
    """Make the environment that an engine runs in: `cpu` and `gpu` as `tandem up` does by itself, `openvino` beside them."""
    environments = room("serving.local.environments")
    made = environments.ensure(environments.ENGINES[engine], click.echo)
    click.echo(f"{made.folder}: ONNX Runtime {made.engine_version}")


LIMITS = {  # option -> what it limits
    "max_drop": "Most top-1 accuracy that may be lost against FP32.",
    "min_agreement": "Least share of answers that must be FP32's.",
    "min_cosine_mean": "Least mean cosine of the vectors to FP32's.",
    "min_cosine_worst": "Least cosine of any vector to FP32's.",
    "min_recall_at_10": "Least share of FP32's ten nearest neighbours that must stay.",
    "max_absolute_error": "Largest difference of any number from FP32's.",
    "max_relative_error": "Largest difference from FP32's, as a share of its size.",
    "max_probability_difference": "Most that any probability may move.",
    "max_row_difference": "Most that a row may depend on its batch, as a share of the output's scale.",
}


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option per limit; defaults are stated in the record."""
    for name, says in reversed(LIMITS.items()):
        most = None if name.endswith("_error") else 1
        command = click.option(f"--{name.replace('_', '-')}", type=click.FloatRange(0, most), help=says)(command)
    return command


@cli.command()
@click.argument("source")
@MODEL_REPOSITORY
@click.option("--model", help="Public name of the model. Default: what the source suggests.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "bf16", "fp16", "int8"]),
    help="What to make beside FP32; may be given several times. Default: all that are worth trying.",
)
@click.option(
    "--variant", type=click.Choice(["fp16", "int8"]), help="SOURCE is this ready-made variant of a model that is there."
)
@click.option("--data", help="What to judge on: .npz, .csv or .jsonl of texts, a folder of images, or 'digits'.")
@click.option(
    "--calibration", type=FILE, help="What to calibrate INT8 on, in the same forms. Default: a fifth of --data."
)
@click.option("--example", type=FILE, help="Inputs by name (.npz), for a source that has none of its own.")
@click.option(
    "--trust", "is_trusted", is_flag=True, help="Run code that comes with the model: pickles, modules, metrics."
)
@click.option(
    "--yes",
    "is_yes",
    is_flag=True,
    help="Make an environment for what the source needs, if that is missing (0.6 GB; 6.2 GB with torch).",
)
@click.option("--task", type=click.Choice(["classification", "embedding", "other"]), help="Default: the source's own.")
@click.option("--opset", type=click.IntRange(7, 21), help="ONNX operator set. Default: 18.")
@click.option(
    "--max-batch", "max_batch_size", type=click.IntRange(1, 65536), help="Rows. Default: 32, or the speed net's own."
)
@click.option("--max-length", type=click.IntRange(1), help="Tokens. Default: the tokenizer's.")
@click.option("--image-size", type=click.IntRange(1), help="Pixels of both edges. Default: the model's.")
@click.option("--pooling", type=click.Choice(["mean", "cls", "max"]), help="Of an embedding. Default: the model's.")
@click.option("--normalise/--no-normalise", "is_normalised", default=None, help="Vectors of length 1, or as they come.")
@click.option("--metric", metavar="FILE.py:NAME", help="A function of yours that judges the answers; needs --trust.")
@limit_options
@click.option(
    "--max-bad-images",
    "max_bad_ratio",
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of a folder that may be unreadable. Default: 0.1.",
)
@click.option("--i-accept-ungated", "accepts_ungated", is_flag=True, help="Serve it unproven; every receipt says so.")
@click.option(
    "--keep-data/--no-keep-data",
    "keeps_data",
    default=None,
    help="Keep what it was judged on for `verify`. Default: keep.",
)
@click.option(
    "--queue-delay-us", type=click.IntRange(0, 10_000_000), help="Wait for fuller batches. Default: 0, or FP32's."
)
@click.option(
    "--engine",
    "engine_names",
    multiple=True,
    type=click.Choice(["cpu", "openvino"]),
    help="Engine to consider on the CPU pool; several times for several. Default: all that are installed.",
)
@click.option(
    "--int8-range",
    type=click.Choice(["auto", "7bit", "full"]),
    help="Of weights. full needs VNNI wherever it runs; auto takes it where 7 bits do not pass and VNNI is here. "
    "Default: auto.",
)
@click.option("--tensorrt", "is_for_tensorrt", is_flag=True, help="Ask for TensorRT on the GPU pool.")
@click.option(
    "--seconds", default=1.0, show_default=True, type=click.FloatRange(0.01), help="Of timing, per batch size."
)
@click.option("--payload", type=FILE, help="Also write the judging data to this .npz, for load tests.")
@click.option("--keep-slow", "keeps_slow", is_flag=True, help="Publish a ready-made variant that is slower than FP32.")
def export(
    source: str, model_repository: Path | None, is_yes: bool, engine_names: tuple[str, ...], **options: Any
) -> None:
    """Export a model, make its variants, prove them, and put them into a repository.

    An option that the kind of source does not read is an error.

    SOURCE is hf:DIR_OR_ID, module:PKG.MOD:CALLABLE, FILE.onnx, sklearn:FILE, keras:FILE, or a model that Tandem can build:
    digits, minilm, efficientnet-lite0, speed:NAME.
    """
    limits = {name: value for name in LIMITS if (value := options.pop(name)) is not None}
    needs = room("serving.export.frameworks")
    extra = needs.missing(source)
    if not needs.is_here("onnx"):
        _go_on_with(extra, is_yes)
    command = room("serving.export.command")
    repository = _repository(model_repository)
    asked = command.ExportOptions(source=source, repository=repository, limits=limits or None, **options)
    command.check(asked)
    _go_on_with(extra, is_yes)
    sys.exit(command.run(asked, _engines(engine_names)))


def _go_on_with(extra: str | None, is_yes: bool) -> None:
    """In an environment that has the source's framework, where this one lacks it."""
    if extra is not None:
        frameworks = room("serving.local.frameworks")
        python = frameworks.ensure(extra, is_yes=is_yes, say=lambda line: click.echo(line, err=True))
        sys.exit(frameworks.run_there(python, sys.argv[1:]))


def _engines(chosen: tuple[str, ...]) -> Any:
    """The engines that are installed here, or those of them that are asked for; GPUs' ones are never left out."""
    found = room("serving.local.engines").installed()
    if missing := [name for name in chosen if name not in found]:
        raise UserError(f"--engine {missing[0]}: it is not installed here; `tandem environment {missing[0]}` makes it")
    return {name: one for name, one in found.items() if not chosen or name in (*chosen, "cuda", "tensorrt")}


@cli.command()
@MODEL_REPOSITORY
@JSON
def models(model_repository: Path | None, as_json: bool) -> None:
    """Show what is in a repository: variants, gates, sizes, pools, speed on this processor."""
    found = room("serving.export.inventory").models(_repository(model_repository))
    room("serving.export.table").show_models(found, as_json=as_json)


@cli.command()
@MODEL_REPOSITORY
@click.option("--model", help="This model alone.")
@click.option(
    "--variant",
    "names",
    multiple=True,
    metavar="NAME",
    help="This variant alone, as digits-int8; several times for several.",
)
@click.option("--data", type=FILE, help="Run the gates again on this, instead of on what was kept beside the model.")
@click.option("--digests-only", is_flag=True, help="Do not run the gates again.")
@click.option(
    "--server",
    type=click.Choice(["tandem", "nvidia"]),
    default="tandem",
    show_default=True,
    help="nvidia: also refuse what only Tandem's own backend computes as it should.",
)
@JSON
def verify(model_repository: Path | None, as_json: bool, **options: Any) -> None:
    """Recompute every digest and run the gates again; exit code 1 if something is not what was proven."""
    verifying = room("serving.export.verify")
    engines = {} if options["digests_only"] else _answering_engines()
    progress = room("serving.export.progress").lines
    verification = verifying.verify(_repository(model_repository), engines=engines, progress=progress, **options)
    if not verification.variants:
        raise UserError(f"{verification.repository} holds no variant, so there is nothing to verify")
    room("serving.export.table").show_verification(verification, as_json=as_json)
    sys.exit(0 if verification.has_passed else 1)


def _answering_engines() -> Any:
    """What answers beside this Python's own ONNX Runtime, where it is installed; nothing in thin images."""
    if any(importlib.util.find_spec(package) is None for package in ("onnxruntime", "numpy", "filelock")):
        return {}
    engines = room("serving.local.engines").installed()
    answering = room("serving.export.speed.answering")
    return {name: partial(answering.running, engine) for name, engine in engines.items() if name == "openvino"}


@cli.command()
@click.argument("scenario", type=FILE)
@click.option(
    "--trace", type=FILE, help="Arrivals from a CSV: a column TIMESTAMP (Azure's LLM traces), or seconds first."
)
@click.option("--copies", default=1, show_default=True, type=click.IntRange(1), help="Each arrival so often.")
@click.option("--jitter", "jitter_s", type=Finite(0, 86_400), help="Most seconds that a copy comes later. Default: 1.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "bursts", "daily"]),
    help="What to make where there is no trace. Default: poisson.",
)
@click.option(
    "--rate", "rate_rps", type=Finite(0, min_open=True), help="A second, on average, of bursts too. Default: 10."
)
@click.option(
    "--duration",
    "duration_s",
    type=Finite(0, 31 * 86_400, min_open=True),
    help="Seconds, a month at most. Default: 3600.",
)
@click.option("--burst-times", type=Finite(1), help="The rate in a burst, as a multiple of that outside. Default: 5.")
@click.option(
    "--burst-every",
    "burst_every_s",
    type=Finite(0, min_open=True),
    help="Seconds from the start of a burst to that of the next, on average. Default: 600.",
)
@click.option(
    "--burst-lasting",
    "burst_lasting_s",
    type=Finite(0, min_open=True),
    help="Seconds of a burst, on average. Default: 60.",
)
@click.option("--swing", type=Finite(0, 1), help="Of a day, as a share of its mean. Default: 0.8.")
@click.option(
    "--per-second",
    type=click.IntRange(1),
    help="Requests of a second that are looked at while nothing changes, each for its like. Default: all, 100 above two million.",
)
@click.option(
    "--noise",
    "noise_ratio",
    type=Finite(0, 10),
    help="Coefficient of variation of execution times, lognormal, in both pools instead of the file's.",
)
@click.option("--objective", "objective_s", type=Finite(0, min_open=True), help="Seconds, instead of the file's.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(SIMULATED), help="This alone; may be given several times."
)
@click.option("--seed", default=1, show_default=True, type=int, help="Of arrivals, cold starts and noise.")
@click.option("--picture", type=FILE, help="Also draw the run over time into this SVG file.")
@JSON
def simulate(**options: Any) -> None:
    """Replay a trace through the code that decides, for the pools in SCENARIO, beside other policies; a what-if."""
    replay = room("serving.replay.command")
    sys.exit(replay.run(replay.SimulateOptions.of(**options)))


@cli.command()
@click.argument("model")
@MODEL_REPOSITORY
@click.option(
    "--variant", "variants", multiple=True, help="This alone, as int8; several times for several. Default: all."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(["cpu", "openvino", "cuda"]),
    help="Measure on this engine; several times for several. Default: the one that is fastest for each variant here.",
)
@click.option(
    "--p99",
    metavar="TIMES",
    help="Objectives, as 20ms,50ms: the highest rate is searched for each. Default: one that all variants could meet.",
)
@click.option(
    "--batch-size", "batch_sizes", default="1,8", show_default=True, metavar="ROWS", help="Rows of a request, as 1,8."
)
@click.option(
    "--rate-batch-size", "rate_batch_sizes", metavar="ROWS", help="The same for the search. Default: the smallest."
)
@click.option("--settings", metavar="IxT", help="Instances × threads of Triton, as 1x2,2x1. Default: as it is served.")
@click.option(
    "--data", help="What to send: an .npz of the model's inputs, 'digits' or 'random'. Default: what its gate saw."
)
@click.option(
    "--encoding",
    type=click.Choice(["binary", "json"]),
    default="binary",
    show_default=True,
    help="Of the requests of the search; the ladder has both.",
)
@click.option("--pool", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="Where to run it.")
@click.option("--emulate", metavar="NAME=FILE", help="For proofs: a pool whose times follow a file, as of `tandem up`.")
@click.option("--quick", "is_quick", is_flag=True, help="A first impression, in a minute and a half.")
@click.option("--seconds", type=Finite(0.5, 600), help="Of each run of the search. Default: 4; 2 if quick.")
@click.option(
    "--no-search", "has_search", is_flag=True, flag_value=False, default=True, help="The ladder without rates."
)
@click.option(
    "--no-cold-start", "has_cold_start", is_flag=True, flag_value=False, default=True, help="Leave out cold starts."
)
@click.option("--output", type=FILE, help="The profile's file. Default: results/profile-MODEL-DATE.json.")
@JSON
def profile(
    p99: str | None,
    batch_sizes: str,
    rate_batch_sizes: str | None,
    settings: str | None,
    emulate: str | None,
    **options: Any,
) -> None:
    """Measure MODEL here: what a request costs on every rung from the bare engine to the gateway, and the most a server carries in time."""
    profiling = room("loadtest.profile.command")
    most = 65536  # rows, as `export --max-batch` takes them
    options["objectives_s"] = profiling.times_s(p99, "--p99") if p99 else ()
    options["batch_sizes"] = profiling.whole_numbers(batch_sizes, "--batch-size", most)
    if rate_batch_sizes:
        options["rate_batch_sizes"] = profiling.whole_numbers(rate_batch_sizes, "--rate-batch-size", most)
    if settings:
        options["settings"] = profiling.shapes(settings, "--settings")
    if emulate:
        options["pool"], options["emulate"] = profiling.emulation(emulate, "--emulate")
    sys.exit(_loadtest(profiling, lambda: profiling.run(profiling.ProfileOptions(**options))))


@cli.command()
@click.option(
    "--profile",
    "profiles",
    type=FILE,
    multiple=True,
    required=True,
    help="Of `tandem profile`, or with published figures; several times for several machines.",
)
@click.option("--rate", "rate_rps", type=Finite(0, 1e7, min_open=True), help="Requests per second, around the clock.")
@click.option("--rates", type=FILE, help="A day instead: a CSV with lines of hours a day,requests per second.")
@click.option("--p99", required=True, metavar="TIME", help="The 99th percentile that is wanted, as 20ms.")
@click.option("--model", help="Which, if the profiles are of several.")
@click.option("--batch-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Rows of a request.")
@click.option("--max-price", "max_price_per_hour", type=Finite(0, min_open=True), help="An hour, at the highest rate.")
@click.option(
    "--minimise",
    type=click.Choice(["price", "energy"]),
    default="price",
    show_default=True,
    help="energy: with one kind of server, by the joules in the profiles.",
)
@click.option(
    "--prices",
    multiple=True,
    metavar="FILE",
    help="Price lists; a later one adds machines or replaces those of its names. 'shipped' is the one that comes with Tandem, the default.",
)
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="POOL=NAME",
    help="The machine of the list that stands for a pool's, as cpu=c7a.xlarge. Default: the one that fits the profile's.",
)
@click.option(
    "--min-replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Fewest servers of the pool that is always there.",
)
@click.option("--max-replicas", type=click.IntRange(1, 10_000), help="Most servers of a pool that can be had.")
@click.option(
    "--headroom",
    "headroom_ratio",
    default=0.7,
    show_default=True,
    type=Finite(0, 1, min_open=True),
    help="Share of a server's highest rate that is planned with.",
)
@click.option(
    "--gateway-per-hour",
    default=0.0,
    show_default=True,
    type=Finite(0),
    help="What the gateway costs, to count it in the plan's prices.",
)
@click.option("--output", type=FILE, help="Folder for tandem.yaml, values.yaml of the chart and plan.json.")
@JSON
def plan(**options: Any) -> None:
    """Plan from profiles and prices: variants, machines, how many, their settings and costs, and from which rate on a GPU pays.

    Exit code 1: there is no such plan, and what keeps it from being possible.
    """
    planning = room("serving.plan.command")
    sys.exit(planning.run(planning.PlanOptions(**options, command=shlex.join(["tandem", *sys.argv[1:]]))))


FAIL_IF = click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 1 if this is so, as 'p99_s > 0.05' or 'ARM.throughput_rps < 100'; also if it is not known. Several times for several.",
)


@cli.command()
@click.argument("model")
@click.option("--rate", "rate_rps", type=Finite(0, min_open=True), help="Requests per second, around the clock.")
@click.option("--rates", type=FILE, help="A day instead: a CSV with lines of hours a day,requests per second.")
@click.option("--p99", required=True, metavar="TIME", help="The 99th percentile that is wanted, as 20ms.")
@MODEL_REPOSITORY
@click.option(
    "--profile",
    "profiles",
    type=FILE,
    multiple=True,
    help="Of another machine, or of this one, which is then not measured again; several times for several.",
)
@click.option("--prices", multiple=True, metavar="FILE", help="Price lists, as of `tandem plan`.")
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="POOL=NAME",
    help="The machine of the list that stands for a pool's, as cpu=c7a.xlarge. Default: the one that fits the profile's.",
)
@click.option("--data", help="What to send, as of `tandem profile`. Default: what the model's gate saw.")
@click.option("--batch-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Rows of a request.")
@click.option(
    "--min-replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Fewest servers of the pool that is always there.",
)
@click.option(
    "--headroom",
    "headroom_ratio",
    default=0.7,
    show_default=True,
    type=Finite(0, 1, min_open=True),
    help="Share of a server's highest rate that is planned with.",
)
@click.option("--max-price", "max_price_per_hour", type=Finite(0, min_open=True), help="An hour, at the highest rate.")
@click.option("--quick", "is_quick", is_flag=True, help="A first impression: too few runs for an answer.")
@click.option(
    "--no-measure",
    "may_measure",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Judge by the profiles that are given, and measure nothing.",
)
@click.option(
    "--no-check", "has_check", is_flag=True, flag_value=False, default=True, help="Do not run the planned rate."
)
@click.option("--output", type=FILE, help="A new folder. Default: results/verdict-MODEL-DATE.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help='Exit code 1 if it is so, as "p99_s > 0.05"; several times for several.',
)
@JSON
def verdict(**options: Any) -> None:
    """Does the GPU pay for MODEL at this rate and p99? Measures this machine, plans, checks the plan by a run, and reports.

    Exit code 1: nothing meets the objective, or a --fail-if holds.
    """
    judging = room("loadtest.verdict.command")
    asked = judging.VerdictOptions(**options, command=shlex.join(["tandem", *sys.argv[1:]]))
    sys.exit(_loadtest(judging, lambda: judging.run(asked)))


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
    type=Finite(0, min_open=True),
    help="Seconds of each run, instead of the file's.",
)
@click.option("--warmup", "warmup_s", type=Finite(0), help="Seconds before each run that do not count.")
@click.option("--repeats", type=click.IntRange(1), help="How often each arm runs, instead of the file's.")
@click.option(
    "--model-repository",
    type=FILE,
    envvar="TANDEM_MODEL_REPOSITORY",
    help="What a gateway of its own serves, and where the model's tokenizer and preprocessing lie. Default: as `tandem up`.",
)
@click.option(
    "--only", multiple=True, metavar="NAME", help="This claim alone, of a file of claims; several times for several."
)
@click.option("--quick", "is_quick", is_flag=True, help="Short times and few sizes, to try a file of claims.")
@FAIL_IF
def campaign_run(only: tuple[str, ...], is_quick: bool, fail_if: tuple[str, ...], **options: Any) -> None:
    """Run the campaign in FILE and write its report; or put the claims in FILE to the test."""
    campaigns = room("loadtest.campaign")
    if room("loadtest.claims.claims_file").is_claims_file(options["file"]):
        if fail_if:
            raise UserError("--fail-if is for a load test, and does nothing for a file of claims")
        claims = room("loadtest.claims.command")
        sys.exit(
            _loadtest(campaigns, lambda: claims.run(claims.ClaimsOptions.of(only=only, is_quick=is_quick, **options)))
        )
    if only or is_quick:
        raise UserError("--only and --quick are for a file of claims (kind: claims), and do nothing for a load test")
    sys.exit(_loadtest(campaigns, lambda: campaigns.run(campaigns.CampaignOptions(**options, fail_if=fail_if))))


@campaign.command("report")
@click.argument("directory", type=FILE)
@FAIL_IF
def campaign_report(directory: Path, fail_if: tuple[str, ...]) -> None:
    """Build the report of a campaign again from its raw rows."""
    campaigns = room("loadtest.campaign")
    sys.exit(_loadtest(campaigns, lambda: campaigns.report_again(directory, fail_if)))


@cli.command()
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@JSON
def compare(**options: Any) -> None:
    """Compare two reports, of campaigns or verdicts, with intervals: exit code 1 if something got clearly worse."""
    comparing = room("loadtest.compare_command")
    sys.exit(_loadtest(room("loadtest.errors"), lambda: comparing.run(comparing.CompareOptions(**options))))


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
    except ModuleNotFoundError as error:
        if (fault := lacking(error)) is None:
            raise
        _stop(str(fault), exit_code(fault))
    except OSError as error:
        _stop(
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", exit_code(EnvironmentFault())
        )


def _stop(message: str, code: int) -> NoReturn:
    click.echo(f"tandem: {message}", err=True)
    sys.exit(code)
