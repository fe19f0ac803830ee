"""The options of `tandem export`, and every refusal that needs neither the model nor its framework.

They are checked before a framework of gigabytes is fetched, so nothing here may import one, nor onnx. Rule: what a file on
disk says by itself (settings, names of weights, data) is checked here; what needs the model is checked where it is loaded.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.documents.reader import read_text
from serving.errors import UserError
from serving.export import publish, recipes, sources
from serving.export.data import folders, texts
from serving.export.data import reading as digits
from serving.export.data.dataset import ClassNames
from serving.export.data.npz import LABELS, check_labels, read_arrays
from serving.export.data.reading import KINDS
from serving.export.dimensions import read_dims
from serving.export.exported_model import DEFAULT_OPSET, SourceOptions
from serving.export.gates.custom import check_metric
from serving.export.gates.limits import option
from serving.export.sources import checks
from serving.repository import PRECISIONS, Repository, check_model_name
from serving.repository.preprocessing import Preprocessing
from serving.repository.preprocessing import from_json as preprocessing_from_json


class NoData(UserError):
    """There is no data to judge on, and --i-accept-ungated was not given."""

    def __init__(self) -> None:
        super().__init__(
            "there is no data to judge the variants on: give some with --data, "
            "or serve them unproven, and marked so, with --i-accept-ungated"
        )


ALWAYS_JUDGED = "max_row_difference"  # the one limit that asks for no data
SIZES = ("image_size", "max_length")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of the command line. A field with its default was not given."""

    source: str
    repository: Path
    model: str | None = None
    variant: str | None = None
    precisions: tuple[str, ...] = ()
    data: str | None = None
    calibration: Path | None = None
    example: Path | None = None
    labels: Path | None = None
    preprocessing: Path | None = None
    layout: str | None = None
    dims: tuple[str, ...] = ()
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
    accepts_worse: bool = False
    budget_s: float | None = None
    keeps_data: bool | None = None
    num_kept: int | None = None
    keeps_slow: bool = False
    queue_delay_us: int | None = None
    is_for_tensorrt: bool = False
    int8_range: str | None = None
    fuses: bool | None = None
    seconds: float = 1.0
    payload: Path | None = None
    framework_python: Path | None = None  # no option: whoever calls makes its environment
    kind: str = field(init=False)  # of source, as `applies` has them

    def __post_init__(self) -> None:
        """Raises UserError for a source that nothing reads."""
        if self.variant is not None:
            kind = checks.READY_MADE
        elif recipes.is_recipe(self.source):
            kind = self.source.partition(":")[0]
        else:
            kind = sources.split(self.source)[0]
        object.__setattr__(self, "kind", kind)


def check(options: ExportOptions) -> None:
    """Raises UserError for options that are wrong by themselves or together."""
    if options.variant is not None and not options.source.endswith(".onnx"):
        raise UserError("--variant says which variant a ready-made FILE.onnx is; other sources take --precision")
    if options.variant is not None and options.model is None:
        raise UserError("a file needs --model and --variant: which model's fp16 or int8 is it?")
    model = check_model_name(default_name(options.source) if options.model is None else options.model)
    for spelled, path in (("--data", options.data), ("--calibration", options.calibration)):
        if path is not None and (path == "" or not (Path(path).exists() or str(path) == digits.DIGITS)):
            raise UserError(f"there is nothing at {spelled} '{path}'")
    if options.payload is not None and not _is_writable(options.payload):
        raise UserError(f"--payload {options.payload} cannot be written")
    checks.refuse(options.kind, options)
    _check_together(options)
    if options.variant is not None:
        Repository(options.repository).variant(f"{options.model}-fp32")
        return
    (recipes if options.kind in recipes.KINDS else sources).check(options.source, source_options(options))
    if not (options.data or options.accepts_ungated or options.kind in recipes.KINDS):
        raise NoData
    publish.check_replaceable(options.repository, [f"{model}-{precision}" for precision in PRECISIONS])
    with publish.writing(options.repository, model):
        pass  # it can be written to, and nobody else does; `run`, which may be another process, holds it from its beginning


def check_files(options: ExportOptions) -> None:
    """Raises UserError for files of data that are wrong by themselves. Called where a framework has to be fetched first."""
    labels = _labels(options)
    for path in (options.data, options.calibration):
        if path is None or str(path) == digits.DIGITS:
            continue
        _check_data(Path(path), labels)
    if options.metric is not None:
        check_metric(options.metric, is_trusted=options.is_trusted)


def _check_data(path: Path, labels: tuple[str, ...] | None) -> None:
    """Raises UserError for broken data. `labels` None: only the model knows its classes."""
    classes = ClassNames(labels, len(labels) if labels else None)
    if path.is_dir():
        if not any(file.suffix.lower() in folders.SUFFIXES for file in path.rglob("*")):
            raise UserError(f"{path} holds no image")
        if labels is not None:
            folders.listed(path, classes)
    elif path.suffix in (".csv", ".jsonl"):
        for where, row in texts.rows_of(path):
            texts.line(where, row if labels is not None else {**row, "label": None}, classes)
    elif path.suffix == ".npz" or zipfile.is_zipfile(path):
        arrays = read_arrays(path)
        if labels is not None and LABELS in arrays:
            check_labels(f"{path}: labels", arrays[LABELS], len(labels), labels)
    else:
        raise UserError(f"{path} cannot be read: its kind is unknown; give {KINDS}")


def _labels(options: ExportOptions) -> tuple[str, ...] | None:
    """Reads the names of the classes from a transformers folder that states them."""
    config = Path(options.source.removeprefix("hf:")).expanduser() / "config.json"
    if options.kind != "hf" or not config.is_file() or options.task not in (None, "classification"):
        return None
    names = json.loads(config.read_text(encoding="utf-8")).get("id2label")
    if not isinstance(names, dict) or not names:
        return None
    return tuple(str(names[key]) for key in sorted(names, key=lambda key: (len(key), key)))


def _check_together(options: ExportOptions) -> None:
    """Raises UserError for options that need another one, or exclude each other."""
    kind = options.kind
    has_data = options.data is not None or kind in (*recipes.TRAINED, checks.READY_MADE)
    if not has_data and (
        useless := [name for name in ("keeps_data", "payload") if name in checks.non_defaults(options)]
    ):
        raise UserError(f"{checks.OPTIONS[useless[0]][0]} is about the data, and there is none: give some with --data")
    if not has_data or kind == recipes.SPEED:
        judging = [option(limit) for limit in options.limits or {} if limit != ALWAYS_JUDGED]
        judging += ["--metric"] if options.metric else []
        if judging:
            why = "random weights are not judged" if kind == recipes.SPEED else "without --data nothing is judged"
            raise UserError(f"{judging[0]} does not apply: {why}; leave it off")
    if options.accepts_worse and not has_data:
        raise UserError("--worse-is-fine is about a comparison on the data, and there is none: give some with --data")
    if options.accepts_ungated and options.data is not None:
        raise UserError("--i-accept-ungated is for a model that there is no data for: leave off that or --data")
    if options.example is not None and (sizes := [name for name in SIZES if getattr(options, name) is not None]):
        raise UserError(f"{checks.OPTIONS[sizes[0]][0]} is for inputs that are made up, and --example gives them")
    if options.max_batch_size == 0 and kind not in ("onnx", "tensorflow", "module"):
        raise UserError(f"--max-batch 0 is for FILE.onnx and module:, and {checks.KINDS.get(kind, kind)} has batches")
    if options.precisions and "int8" not in options.precisions:
        for name in ("calibration", "int8_range", "budget_s"):
            if name in checks.non_defaults(options):
                raise UserError(f"{checks.OPTIONS[name][0]} is for INT8, which --precision leaves out")
    if options.fuses is not None and options.is_for_tensorrt:
        raise UserError(f"{checks.OPTIONS['fuses'][0]} is for the CUDA provider: TensorRT fuses by itself")
    if options.fuses is not None and options.precisions and "fp16" not in options.precisions:
        raise UserError(f"{checks.OPTIONS['fuses'][0]} is for FP16, which --precision leaves out")
    folders = [path for path in (options.data, options.calibration) if path is not None and Path(path).is_dir()]
    if options.max_bad_ratio is not None and not folders:
        raise UserError("--max-bad-images is for a folder of images, as --data or --calibration")


def _is_writable(path: Path) -> bool:
    folder = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    return folder.is_dir() and os.access(path if path.exists() else folder, os.W_OK) and not path.is_dir()


def source_options(options: ExportOptions) -> SourceOptions:
    example = read_arrays(options.example) if options.example else None
    return SourceOptions(
        opset=DEFAULT_OPSET if options.opset is None else options.opset,
        max_batch_size=options.max_batch_size,
        is_trusted=options.is_trusted,
        task=options.task,
        max_length=options.max_length,
        image_size=options.image_size,
        pooling=options.pooling,
        is_normalised=options.is_normalised,
        example=example,
        labels=None if options.labels is None else read_labels(options.labels),
        preprocessing=None if options.preprocessing is None else _read_preprocessing(options.preprocessing),
        layout=options.layout,
        dims=read_dims(options.dims) or None,
        framework_python=options.framework_python,
    )


def read_labels(path: Path) -> tuple[str, ...]:
    """Reads a file with the name of one class per line, as Triton does. Raises UserError."""
    labels = tuple(line.strip() for line in read_text(path, "--labels").splitlines())
    if not labels or "" in labels:
        where = f"line {labels.index('') + 1} is empty" if labels else "it is empty"
        raise UserError(f"--labels {path}: want the name of one class a line; {where}")
    return labels


def _read_preprocessing(path: Path) -> Preprocessing:
    return preprocessing_from_json(read_text(path, "--preprocessing"), f"--preprocessing {path}")


def default_name(source: str) -> str:
    """Derives the public name from a source: letters that clients may be given, in lower case, without a precision at the end."""
    if recipes.is_recipe(source):
        return recipes.public_name(source)
    kind, rest = sources.split(source)
    last = rest.rpartition(":")[2] if kind == "module" else Path(rest).name
    name = re.sub(r"\.(onnx|pkl|pickle|joblib|keras|tflite|h5|hdf5|ubj|json|txt|cbm)$", "", last)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.").lower()
    for precision in PRECISIONS:
        name = name.removesuffix(f"-{precision}")
    if not name:
        raise UserError(f"'{source}' suggests no name; give one with --model")
    return name
