"""What `tandem export SOURCE` does: reads the options, gathers model and data, and says in words what came of it.

The steps themselves are `pipeline`'s. Rule: what can be wrong about the options is said before anything long begins.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from serving.errors import UserError
from serving.export import data as datasets
from serving.export import given_data, pipeline, publish, ready_made, recipes, recording, sources
from serving.export import progress as progressing
from serving.export.data import Dataset
from serving.export.data.npz import read_arrays
from serving.export.exported import DEFAULT_OPSET, Exported, SourceOptions
from serving.export.gates import Limits, load_metric
from serving.export.pipeline import Asked, Outcome
from serving.export.progress import Progress
from serving.export.recipes import Built
from serving.export.sources import applies
from serving.export.speed import EnginePython
from serving.repository import PASSED, PRECISIONS, UNTRAINED, Repository, Variant, check_model_name

ALWAYS_JUDGED = "max_row_difference"  # the one limit that asks for no data
_SIZES = ("image_size", "max_length")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The command line's words. As it is by default: not said."""

    source: str
    repository: Path
    model: str | None = None
    variant: str | None = None
    precisions: tuple[str, ...] = ()
    data: str | None = None
    calibration: Path | None = None
    example: Path | None = None
    task: str | None = None
    opset: int | None = None
    max_batch_size: int | None = None
    max_length: int | None = None
    image_size: int | None = None
    pooling: str | None = None
    is_normalised: bool | None = None
    is_trusted: bool = False
    metric: str | None = None
    limits: Mapping[str, float] | None = None
    max_bad_ratio: float | None = None
    accepts_ungated: bool = False
    keeps_data: bool | None = None
    keeps_slow: bool = False
    queue_delay_us: int | None = None
    is_for_tensorrt: bool = False
    int8_range: str | None = None
    seconds: float = 1.0
    payload: Path | None = None


def check(options: ExportOptions) -> None:
    """What is wrong about the options by themselves, told before a framework is fetched. Raises UserError."""
    if options.variant is not None and not options.source.endswith(".onnx"):
        raise UserError("--variant says which variant a ready-made FILE.onnx is; other sources take --precision")
    if options.variant is not None and options.model is None:
        raise UserError("a file needs --model and --variant: which model's fp16 or int8 is it?")
    check_model_name(default_name(options.source) if options.model is None else options.model)
    for option, path in (("--data", options.data), ("--calibration", options.calibration)):
        if path is not None and (path == "" or not (Path(path).exists() or str(path) == datasets.DIGITS)):
            raise UserError(f"there is nothing at {option} '{path}'")
    if options.payload is not None and not _is_writable(options.payload):
        raise UserError(f"--payload {options.payload} cannot be written")
    kind = _kind(options)
    applies.refuse(kind, options)
    _check_together(options, kind)
    if options.variant is not None:
        Repository(options.repository).variant(f"{options.model}-fp32")
        return
    (recipes if recipes.is_recipe(options.source) else sources).check(options.source, _source_options(options))
    if not (options.data or options.accepts_ungated or kind in (*recipes.TRAINED, recipes.SPEED)):
        raise pipeline.NoData
    with publish.writing(options.repository):
        pass  # it can be written to, and nobody else does; `run`, which may be another process, holds it from its beginning


def _kind(options: ExportOptions) -> str:
    """Of source, as `applies` has them."""
    if options.variant is not None:
        return applies.READY_MADE
    if recipes.is_recipe(options.source):
        return options.source.partition(":")[0]
    return sources.split(options.source)[0]


def _check_together(options: ExportOptions, kind: str) -> None:
    """What an option asks for beside it, or cannot have beside it. Raises UserError."""
    has_data = options.data is not None or kind in (*recipes.TRAINED, applies.READY_MADE)
    if not has_data and (asked := [name for name in ("keeps_data", "payload") if name in applies.said(options)]):
        raise UserError(f"{applies.APPLIES[asked[0]][0]} is about the data, and there is none: give some with --data")
    if not has_data or kind == recipes.SPEED:
        judging = [f"--{limit.replace('_', '-')}" for limit in options.limits or {} if limit != ALWAYS_JUDGED]
        judging += ["--metric"] if options.metric else []
        if judging:
            why = "random weights are not judged" if kind == recipes.SPEED else "without --data nothing is judged"
            raise UserError(f"{judging[0]} does not apply: {why}; leave it off")
    if options.accepts_ungated and options.data is not None:
        raise UserError("--i-accept-ungated is for a model that there is no data for: leave off that or --data")
    if options.example is not None and (sizes := [name for name in _SIZES if getattr(options, name) is not None]):
        raise UserError(f"{applies.APPLIES[sizes[0]][0]} is for inputs that are made up, and --example gives them")
    if options.precisions and "int8" not in options.precisions:
        for name in ("calibration", "int8_range"):
            if name in applies.said(options):
                raise UserError(f"{applies.APPLIES[name][0]} is for INT8, which --precision leaves out")
    folders = [path for path in (options.data, options.calibration) if path is not None and Path(path).is_dir()]
    if options.max_bad_ratio is not None and not folders:
        raise UserError("--max-bad-images is for a folder of images, as --data or --calibration")


def _is_writable(path: Path) -> bool:
    folder = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    return folder.is_dir() and os.access(path if path.exists() else folder, os.W_OK) and not path.is_dir()


def run(options: ExportOptions, engines: Mapping[str, EnginePython]) -> int:
    """0, or 1 where a variant that was made did not pass. Raises GateRefused, UserError or EnvironmentFault."""
    check(options)
    with publish.writing(options.repository), _Shown() as shown:
        way = _whole if options.variant is None else _ready_made
        outcome = way(options, engines, shown)
    for variant in outcome.published:
        print(_sentence(variant))
    for warning in outcome.warnings:
        print(f"tandem: {warning}", file=sys.stderr)
    for precision, reason in outcome.left_out.items():
        print(f"{precision}: not made: {reason}")
    for precision, reason in outcome.refused.items():
        print(f"{precision}: not written: {reason}")
    return 1 if outcome.refused else 0


def _ready_made(options: ExportOptions, engines: Mapping[str, EnginePython], shown: Progress) -> Outcome:
    """A file as one variant of a model whose FP32 the repository has."""
    assert options.variant is not None
    assert options.model is not None
    return ready_made.export(
        Path(options.source),
        variant=options.variant,
        asked=_asked(options, options.model),
        repository=options.repository,
        data=options.data,
        max_bad_ratio=options.max_bad_ratio,
        queue_delay_us=options.queue_delay_us,
        keeps_slow=options.keeps_slow,
        engines=engines,
        progress=shown,
    )


def _whole(options: ExportOptions, engines: Mapping[str, EnginePython], shown: Progress) -> Outcome:
    """A model with all its variants."""
    asked = _asked(options, default_name(options.source) if options.model is None else options.model)
    built = _build(options, asked.model, shown)
    exported, data, calibration = built.exported, built.data, built.calibration
    _check_fit(options, exported)
    if options.data is not None:
        data = given_data.to_judge(options.data, exported, options.max_bad_ratio, shown)
    if data is not None:
        given_data.check_limits(asked.limits, exported, data)
    if options.calibration is not None:
        calibration = given_data.to_calibrate(options.calibration, exported, options.max_bad_ratio, shown)
    outcome = pipeline.export(exported, data, calibration, asked, options.repository, engines, shown)
    if options.payload is not None and data is not None:
        write_payload(options.payload, data)
    return outcome


def _build(options: ExportOptions, model: str, shown: Progress) -> Built:
    source_options = _source_options(options)
    if recipes.is_recipe(options.source):
        built = recipes.build(options.source, source_options, shown)
        return Built(options.model or built.model, built.exported, built.data, built.calibration)
    return Built(model, sources.load(options.source, source_options, shown), None, None)


def _check_fit(options: ExportOptions, exported: Exported) -> None:
    """What only the model itself could tell about the options. Raises UserError."""
    asked = applies.said(options)
    is_int8 = "int8" in exported.precisions
    unread = {
        "max_batch_size": (not exported.max_batch_size, "it is served without batches"),
        "queue_delay_us": (not exported.max_batch_size, "it is served without batches"),
        "calibration": (not is_int8, "no INT8 is made of it"),
        "int8_range": (not is_int8, "no INT8 is made of it"),
        "is_for_tensorrt": (exported.is_cpu_only, "it is for CPUs only"),
    }
    for name, (is_unread, why) in unread.items():
        if is_unread and name in asked:
            raise UserError(f"{applies.APPLIES[name][0]} does not apply to {exported.source}: {why}; leave it off")


def _source_options(options: ExportOptions) -> SourceOptions:
    return SourceOptions(
        opset=DEFAULT_OPSET if options.opset is None else options.opset,
        max_batch_size=options.max_batch_size,
        is_trusted=options.is_trusted,
        task=options.task,
        max_length=options.max_length,
        image_size=options.image_size,
        pooling=options.pooling,
        is_normalised=options.is_normalised,
        example=read_arrays(options.example) if options.example else None,
    )


def _asked(options: ExportOptions, model: str) -> Asked:
    return Asked(
        model=model,
        precisions=options.precisions or None,
        limits=Limits.chosen(options.limits or {}),
        metric=load_metric(options.metric, is_trusted=options.is_trusted) if options.metric else None,
        accepts_ungated=options.accepts_ungated,
        keeps_data=options.keeps_data is not False,
        queue_delay_us=options.queue_delay_us or 0,
        is_for_tensorrt=options.is_for_tensorrt,
        int8_range=options.int8_range or pipeline.AUTO,
        seconds=options.seconds,
    )


def default_name(source: str) -> str:
    """The public name that a source suggests: what clients may be given, in lower case, without a precision at its end."""
    if recipes.is_recipe(source):
        return recipes.public_name(source)
    kind, rest = sources.split(source)
    last = rest.rpartition(":")[2] if kind == "module" else Path(rest).name
    name = re.sub(r"\.(onnx|pkl|pickle|joblib|keras)$", "", last)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.").lower()
    for precision in PRECISIONS:
        name = name.removesuffix(f"-{precision}")
    if not name:
        raise UserError(f"'{source}' suggests no name; give one with --model")
    return name


def write_payload(path: Path, data: Dataset) -> None:
    """The gate's inputs (and labels) for load tests, as npz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(recording.npz(recording.arrays_of(data)))


class _Shown:
    """A bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> _Shown:
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, console=console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bars is None:
            progressing.lines(step, done, total)
            return
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._bars.task_ids[self._tasks[step]], completed=done, total=total)


def _sentence(variant: Variant) -> str:
    record = variant.record
    pools = "; ".join(
        f"{pool} {given.status}{f' ({given.reason})' if given.reason and given.status != PASSED else ''}"
        for pool, given in record.pools.items()
    )
    return f"{variant.name}: {_proof(variant)}; {pools}"


def _proof(variant: Variant) -> str:
    gate = variant.record.gate
    if variant.record.is_untrained:
        return UNTRAINED
    if gate.headline is None:
        return "ungated: nothing proves it"
    beside = "" if gate.headline.reference is None else f" (FP32 {gate.headline.reference:.4f})"
    return f"{gate.headline.metric} {gate.headline.value:.4f}{beside}"
