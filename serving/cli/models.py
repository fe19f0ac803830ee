"""`tandem export`, `verify`: how a model gets into a repository, and whether it is still what was proven."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.interrupts import ending_at_once
from serving.cli.lazy import go_on_with, repository_at, room
from serving.cli.options import FILE, JSON, LOCAL_REPOSITORY, MODEL_REPOSITORY, YES, duration_s
from serving.errors import EnvironmentFault, UserError
from serving.installation import how_to_add

LIMITS = {  # option -> what it limits
    "max_drop": "Most that a variant may lose against FP32 by the labels: of top-1, F1, R², nDCG@10, mAP or mIoU, by task.",
    "min_agreement": "Least likeness to FP32's answers: the share that agrees, F1, R², Kendall's tau, mAP or mIoU, by task.",
    "min_cosine_mean": "Least mean cosine of the vectors to FP32's.",
    "min_cosine_worst": "Least cosine of any vector to FP32's.",
    "min_recall_at_10": "Least share of FP32's ten nearest neighbours that must stay.",
    "max_noise_ratio": "Most noise beside FP32's numbers, as a share of their own size (root mean squares).",
    "max_absolute_error": "Largest difference of any number from FP32's.",
    "max_relative_error": "Largest difference from FP32's, as a share of its size.",
    "max_probability_difference": "Most that any probability may move.",
    "max_row_difference": "Most that a row may depend on its batch, as a share of the output's scale.",
}


TASKS = (
    *("classification", "multi-label", "regression", "embedding", "reranking", "token-classification"),
    *("question-answering", "detection", "segmentation", "anomaly", "other"),
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option per limit; defaults are stated in the record."""
    for name, says in reversed(LIMITS.items()):
        most = None if name.endswith(("_error", "_ratio")) else 1
        command = click.option(f"--{name.replace('_', '-')}", type=click.FloatRange(0, most), help=says)(command)
    return command


@click.command(cls=Verb)
@click.argument("source")
@LOCAL_REPOSITORY
@click.option("--model", help="Public name of the model. Default: what the source suggests.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "bf16", "tf32", "fp16", "int8"]),
    help="What to make beside FP32; may be given several times. Default: all that are worth trying, TF32 not among them.",
)
@click.option(
    "--variant", type=click.Choice(["fp16", "int8"]), help="SOURCE is this ready-made variant of a model that is there."
)
@click.option(
    "--data", help="Data to judge the variants on: .npz, .csv or .jsonl of texts, a folder of images, or 'digits'."
)
@click.option(
    "--calibration", type=FILE, help="Data to calibrate INT8 on, in the same forms. Default: a fifth of --data."
)
@click.option("--example", type=FILE, help="Inputs by name (.npz), for a source that has none of its own.")
@click.option("--labels", type=FILE, help="Names of the classes of a FILE.onnx, one a line.")
@click.option("--preprocessing", type=FILE, help="How images become the input of a FILE.onnx, as preprocessing.json.")
@click.option(
    "--layout",
    type=click.Choice(["NCHW", "NHWC"]),
    help="Layout of the images of a FILE.onnx. Default: what its shape says.",
)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Length of a dimension that is open, or LOW..HIGH; NAME is the graph's, height, width or INPUT:AXIS. Several times for "
    "several.",
)
@click.option(
    "--trust", "is_trusted", is_flag=True, help="Run code that comes with the model: pickles, modules, metrics."
)
@YES
@click.option(
    "--task",
    type=click.Choice(TASKS),
    help="What the model is for, and so what judges it. Default: what the source says.",
)
@click.option("--opset", type=click.IntRange(7, 22), help="ONNX operator set. Default: 18.")
@click.option(
    "--max-batch",
    "max_batch_size",
    type=click.IntRange(0, 65536),
    help="Most rows in a batch; 0: each request is one whole input. Default: 32, or the speed net's own.",
)
@click.option("--max-length", type=click.IntRange(1), help="Most tokens of a text. Default: the tokenizer's limit.")
@click.option(
    "--image-size", type=click.IntRange(1), help="Width and height of images, in pixels. Default: the model's."
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "max"]),
    help="How an embedding is pooled. Default: as the model does.",
)
@click.option(
    "--normalise/--no-normalise",
    "is_normalised",
    default=None,
    help="Make vectors of length 1, or leave them as they come.",
)
@click.option("--metric", metavar="FILE.py:NAME", help="Your own function that judges the answers; needs --trust.")
@limit_options
@click.option(
    "--max-bad-images",
    "max_bad_ratio",
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of a folder that may be unreadable. Default: 0.1.",
)
@click.option("--i-accept-ungated", "accepts_ungated", is_flag=True, help="Serve it unproven; every receipt says so.")
@click.option(
    "--worse-is-fine", "accepts_worse", is_flag=True, help="Publish a version that is worse than the one before it."
)
@click.option(
    "--keep-data/--no-keep-data",
    "keeps_data",
    default=None,
    help="Keep what it was judged on for `verify`. Default: keep.",
)
@click.option(
    "--keep-versions",
    "num_kept",
    type=click.IntRange(min=1),
    help="Newest versions whose files stay, this one among them. Default: as many as there are, 2 at least.",
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
@click.option(
    "--fuse/--no-fuse",
    "fuses",
    default=None,
    help="Fuse a transformer's FP16 into ONNX Runtime's own operators, if its answers pass. Default: fuse.",
)
@click.option(
    "--budget",
    "budget_s",
    type=duration_s,
    metavar="TIME",
    help="Longest search for an INT8 that passes, as 90s, 5m or 1h. Default: 5m.",
)
@click.option(
    "--tensorrt",
    "is_for_tensorrt",
    is_flag=True,
    help="Make INT8 for TensorRT, on the GPU pool alone, and have FP32 and FP16 computed there by TensorRT.",
)
@click.option(
    "--seconds", default=1.0, show_default=True, type=click.FloatRange(0.01), help="Of timing, per batch size."
)
@click.option("--payload", type=FILE, help="Also write the judging data to this .npz, for load tests.")
@click.option("--keep-slow", "keeps_slow", is_flag=True, help="Publish a ready-made variant that is slower than FP32.")
@JSON
def export(
    source: str,
    model_repository: Path | str | None,
    is_yes: bool,
    engine_names: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Export a model, make its variants, prove them, and put them into a repository.

    An option that the kind of source does not read is an error. Exit code 0 if the model is served, also where a variant of it was
    refused, which is told; 1 if the model itself was.

    SOURCE is hf:DIR_OR_ID, module:PKG.MOD:CALLABLE, FILE.onnx, sklearn:FILE, xgboost:FILE, lightgbm:FILE, catboost:FILE, keras:FILE,
    tensorflow:PATH, paddle:PATH, or a model that Tandem can build: digits, minilm, efficientnet-lite0, speed:NAME.
    """
    limits = {name: value for name in LIMITS if (value := options.pop(name)) is not None}
    needs = room("serving.export.sources")
    extra = needs.missing(source)
    if source.startswith("speed:") and not needs.is_here("onnx"):
        go_on_with(extra, is_yes=is_yes)  # which nets there are is known with onnx alone
    checking = room("serving.export.options")
    repository = repository_at(model_repository, is_written=True)
    asked = checking.ExportOptions(source=source, repository=repository, limits=limits or None, **options)
    checking.check(asked)
    if extra is not None:
        checking.check_files(asked)
        go_on_with(extra, is_yes=is_yes)
    if asked.kind == "paddle":
        asked = replace(asked, framework_python=_paddle(source, is_yes))
    command = room("serving.export.command")
    is_new = not repository.exists()

    def clean_up() -> None:
        room("serving.export.scratch").remove_own()
        if is_new:
            room("serving.export.publish").remove_abandoned(repository)

    with ending_at_once(clean_up):
        code = command.run(asked, _engines(engine_names), loader(), as_json=as_json)
    sys.exit(code)


def _paddle(source: str, is_yes: bool) -> Any:
    """The Python of an environment that reads this program of PaddlePaddle."""
    frameworks, checks = room("serving.local.frameworks"), room("serving.export.sources.checks")
    program, _ = checks.paddle_files(Path(source.partition(":")[2]))
    wanted = frameworks.PADDLE[program.suffix]
    return frameworks.made(wanted, is_yes=is_yes, say=lambda line: click.echo(line, err=True))


def loader() -> Any:
    """What loads a model before it is published: an embedded Triton, started for it."""
    check = room("serving.local.trial_server")
    return partial(check.load, say=lambda line: click.echo(line, err=True))


def _engines(chosen: tuple[str, ...]) -> Any:
    """The engines that are installed here, or those of them that are asked for; GPUs' ones are never left out."""
    found = room("serving.local.devices").installed()
    if missing := [name for name in chosen if name not in found]:
        raise UserError(f"--engine {missing[0]}: it is not installed here; `tandem environment {missing[0]}` makes it")
    return {name: one for name, one in found.items() if not chosen or name in (*chosen, "cuda", "tensorrt")}


@click.command(cls=Verb)
@MODEL_REPOSITORY
@click.option("--model", help="Verify this model only.")
@click.option(
    "--variant",
    "names",
    multiple=True,
    metavar="NAME",
    help="Verify this variant only, as digits-int8; may be given several times.",
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
def verify(model_repository: Path | str | None, as_json: bool, **options: Any) -> None:
    """Recompute every digest and run the gates again.

    Exit code 1 if something is not what was proven, 3 if the gates could not be run here.
    """
    verifying = room("serving.export.verify")
    engines = {} if options["digests_only"] else _answering_engines()
    progress = room("serving.export.progress").lines
    verification = verifying.verify(repository_at(model_repository), engines=engines, progress=progress, **options)
    if not verification.variants:
        raise UserError(f"{verification.repository} holds no variant, so there is nothing to verify")
    verifying.show(verification, as_json=as_json)
    if verification.has_passed and verification.lacks is not None:
        raise EnvironmentFault(
            f"the files are the ones that were gated, but no gate was run again: {verification.lacks} is not installed here: "
            f"{how_to_add('onnx')}, or say --digests-only"
        )
    sys.exit(0 if verification.has_passed else 1)


def _answering_engines() -> Any:
    """What answers beside this Python's own ONNX Runtime, where it is installed; nothing in thin images."""
    if any(importlib.util.find_spec(package) is None for package in ("onnxruntime", "numpy", "filelock")):
        return {}
    engines = room("serving.local.devices").installed()
    answering = room("serving.export.speed.process")
    return {name: partial(answering.running, engine) for name, engine in engines.items() if name == "openvino"}
