"""Runs `tandem export SOURCE`: checks the options, loads model and data, hands them to the pipeline, prints what came of it.

The steps themselves are in `pipeline`, the checks of options in `options`.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from serving.errors import UserError
from serving.export import pipeline, publish, ready_made, recipes, sources, user_data, variant_files
from serving.export.data.dataset import Dataset
from serving.export.data.npz import read_arrays
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates.custom import load_metric
from serving.export.gates.limits import Limits
from serving.export.job import AUTO, DEFAULT_BUDGET_S, ExportSpec
from serving.export.load_check import Load
from serving.export.options import SIZES, ExportOptions, check, default_name, source_options
from serving.export.pipeline import ExportResult
from serving.export.progress import Progress, lines
from serving.export.recipes import RecipeModel
from serving.export.sources import checks
from serving.export.sources.graphs import examples
from serving.export.speed import EnginePython
from serving.repository import PASSED, STAND_IN, UNTRAINED, Gate, PoolGate, Variant
from serving.repository.preprocessing import ImagePreprocessing


def run(
    options: ExportOptions, engines: Mapping[str, EnginePython], load: Load | None = None, *, as_json: bool = False
) -> int:
    """Returns 0 where the model was published, even if a variant was refused. Raises GateRefused, UserError or EnvironmentFault.

    `load`: has a server load everything before it is published; None: no server can.
    """
    check(options)
    model = default_name(options.source) if options.model is None else options.model
    with publish.writing(options.repository, model), _shown() as progress:
        export = _whole if options.variant is None else _ready_made
        outcome = export(options, _spec(options, model), engines, progress, load)
    if as_json:
        print(json.dumps(_as_json(model, options.repository, outcome), indent=1))
        return 0
    for variant in outcome.published:
        print(_sentence(variant))
    for warning in outcome.warnings:
        print(f"tandem: {warning}", file=sys.stderr)
    for precision, reason in outcome.left_out.items():
        print(f"{precision}: not made: {reason}")
    for precision, reason in outcome.refused.items():
        print(f"{precision}: not written: {reason}")
    return 0


def _as_json(model: str, repository: Path, outcome: ExportResult) -> dict[str, Any]:
    return {
        "version": 1,
        "model": model,
        "repository": str(repository),
        "published": [
            {
                "name": variant.name,
                "digest": variant.digest,
                "proof": _proof(variant),
                "pools": {pool: given.status for pool, given in variant.record.pools.items()},
            }
            for variant in outcome.published
        ],
        "refused": dict(outcome.refused),
        "left_out": dict(outcome.left_out),
        "warnings": list(outcome.warnings),
    }


def _ready_made(
    options: ExportOptions, spec: ExportSpec, engines: Mapping[str, EnginePython], progress: Progress, load: Load | None
) -> ExportResult:
    """Exports a file as one variant of a model whose FP32 is in the repository."""
    assert options.variant is not None
    return ready_made.export(
        Path(options.source),
        variant=options.variant,
        spec=spec,
        repository=options.repository,
        data=options.data,
        max_bad_ratio=options.max_bad_ratio,
        queue_delay_us=options.queue_delay_us,
        keeps_slow=options.keeps_slow,
        engines=engines,
        progress=progress,
        load=load,
    )


def _whole(
    options: ExportOptions, spec: ExportSpec, engines: Mapping[str, EnginePython], progress: Progress, load: Load | None
) -> ExportResult:
    """Exports a model with all its variants."""
    built = _build(options, spec.model, progress)
    exported, data, calibration = built.exported, built.data, built.calibration
    _check_fit(options, exported)
    if options.data is not None:
        data = user_data.to_judge(options.data, exported, options.max_bad_ratio, progress)
    if data is not None:
        user_data.check_limits(spec.limits, exported, data)
    if options.calibration is not None:
        calibration = user_data.to_calibrate(options.calibration, exported, options.max_bad_ratio, progress)
    outcome = pipeline.export(exported, data, calibration, spec, options.repository, engines, progress, load)
    if options.payload is not None and data is not None:
        write_payload(options.payload, data)
    return outcome


def _build(options: ExportOptions, model: str, progress: Progress) -> RecipeModel:
    how = _with_rows(source_options(options), options)
    if options.kind in recipes.KINDS:
        built = recipes.build(options.source, how, progress)
        return RecipeModel(options.model or built.model, built.exported, built.data, built.calibration)
    return RecipeModel(model, sources.load(options.source, how, progress), None, None)


_TRIED = {"onnx", "tensorflow", "paddle", "module", *checks.TABLES}  # sources that are tried on rows of the data


def _with_rows(source: SourceOptions, options: ExportOptions) -> SourceOptions:
    """Tries a source on rows of the given data where it can; what is made up is for sources without data."""
    is_sized = any(getattr(options, name) is not None for name in SIZES)
    if source.example is not None or options.data is None or is_sized or options.kind not in _TRIED:
        return source
    if Path(options.data).is_dir() and isinstance(source.preprocessing, ImagePreprocessing):
        return replace(
            source, example=user_data.first_images(Path(options.data), source.preprocessing), example_name="--data"
        )
    if not zipfile.is_zipfile(options.data):
        return source
    rows = examples.first_rows(read_arrays(Path(options.data)))
    return replace(source, example=rows, example_name="--data", is_from_data=True)


def _check_fit(options: ExportOptions, exported: ExportedModel) -> None:
    """Raises UserError for options that this model does not read."""
    given = checks.non_defaults(options)
    is_int8 = "int8" in exported.precisions
    unread = {
        "max_batch_size": (not exported.max_batch_size, "it is served without batches"),
        "queue_delay_us": (not exported.max_batch_size, "it is served without batches"),
        "calibration": (not is_int8, "no INT8 is made of it"),
        "int8_range": (not is_int8, "no INT8 is made of it"),
        "budget_s": (not is_int8, "no INT8 is made of it"),
        "is_for_tensorrt": (exported.is_cpu_only, "it is for CPUs only"),
    }
    for name, (is_unread, why) in unread.items():
        if is_unread and name in given and getattr(options, name) != 0:  # --max-batch 0 asks for just that
            raise UserError(f"{checks.OPTIONS[name][0]} does not apply to {exported.source}: {why}; leave it off")


def _spec(options: ExportOptions, model: str) -> ExportSpec:
    return ExportSpec(
        model=model,
        precisions=options.precisions or None,
        limits=Limits.chosen(options.limits or {}),
        metric=load_metric(options.metric, is_trusted=options.is_trusted) if options.metric else None,
        accepts_ungated=options.accepts_ungated,
        accepts_worse=options.accepts_worse,
        keeps_data=options.keeps_data is not False,
        num_kept=options.num_kept,
        queue_delay_us=options.queue_delay_us or 0,
        is_for_tensorrt=options.is_for_tensorrt,
        int8_range=options.int8_range or AUTO,
        fuses=options.fuses is not False,
        seconds=options.seconds,
        budget_s=DEFAULT_BUDGET_S if options.budget_s is None else options.budget_s,
    )


def write_payload(path: Path, data: Dataset) -> None:
    """Writes the gate's inputs (and labels) as npz, for load tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(variant_files.npz(variant_files.arrays_of(data)))


def _sentence(variant: Variant) -> str:
    record = variant.record
    pools = "; ".join(f"{pool} {given.status}{_why(given)}" for pool, given in record.pools.items())
    return f"{variant.name}: {_proof(variant)}; {pools}"


def _why(given: PoolGate) -> str:
    return f" ({given.reason})" if given.reason and (given.status != PASSED or STAND_IN in given.reason) else ""


def _proof(variant: Variant) -> str:
    gate = variant.record.gate
    if variant.record.is_untrained:
        return UNTRAINED
    if gate.headline is None:
        return "ungated: nothing proves it"
    beside = "" if gate.headline.reference is None else f" (FP32 {gate.headline.reference:.4f})"
    return f"{gate.headline.metric} {gate.headline.value:.4f}{beside}{_beside_previous(gate)}"


def _beside_previous(gate: Gate) -> str:
    if gate.previous is None:
        return ""
    first, version = gate.previous.checks[0], gate.previous.version
    if first.reference is not None:
        return f", version {version} {first.reference:.4f} on the same rows"
    return f", {first.metric} with version {version} {first.value:.4f}"


@contextmanager
def _shown() -> Iterator[Progress]:
    """Shows a bar for each step on a terminal, prints a line elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines
        return
    tasks: dict[str, TaskID] = {}
    with RichProgress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as bars:

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield show
