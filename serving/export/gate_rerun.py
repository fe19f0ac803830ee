"""Runs a model's gates again: compares each variant's answers with FP32's and holds them against the limits of the records.

The data is what was kept beside FP32, or other data that the user gives; there, a limit that was relative to FP32's value
stays relative to it. Digests are `verify`'s, which calls this. Rule: what cannot be computed again, as a framework's answers, is
said and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serving.decisions.engines import ONLY_ENGINE, PLAIN
from serving.errors import GateRefused, UserError
from serving.export import onnx_session
from serving.export.data.dataset import Dataset
from serving.export.data.npz import read_npz
from serving.export.data.reading import read
from serving.export.exported_model import Run
from serving.export.gates import file, rows
from serving.export.gates.limits import QUALITY, ROW_DIFFERENCE, RULES, NonFinite, RowsDiffer, digits
from serving.export.gates.metrics import count_non_finite
from serving.export.gates.tasks import Measurement, Rows, comparable, measure
from serving.export.large_model import read_model
from serving.export.onnx_session import Session
from serving.export.progress import Progress
from serving.export.variants.as_on_gpu import as_on_gpu, in_tf32
from serving.repository import CLASSIFICATION, GATE_DATA_FILE, Check, Variant
from serving.repository.preprocessing import from_json

# precision -> what computes it; on the plain CPU provider the file is FP32's
ONLY_ON = {variant: engine for (pool, variant), engine in ONLY_ENGINE.items() if pool == "cpu"}


# (file, precision) -> a function from one batch of inputs to all outputs, as long as the block runs; of an engine that
# another interpreter has
EngineRun = Callable[[bytes, str], AbstractContextManager[Callable[[Mapping[str, Any]], list[Any]]]]


@dataclass(frozen=True, slots=True)
class GateRun:
    """The result for one variant. Without checks and problems nothing could be run, and the notes say why."""

    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


class Rerun:
    """Reruns the gates of one model's variants; holds its data and FP32's answers on it."""

    def __init__(self, fp32: Variant, data: Path | None, engines: Mapping[str, EngineRun], progress: Progress) -> None:
        """Raises UserError for data that does not fit the model."""
        self._fp32, self._engines, self._progress = fp32, engines, progress
        self._data = _kept(fp32) if data is None else _given(fp32, data, progress)
        self._digest = self._data.digest
        self._size = fp32.record.max_batch_size
        self._reference: list[NDArray[Any]] | None = None

    def of(self, variant: Variant) -> GateRun:
        step = f"running the gate of {variant.name} again"
        self._progress(step, 0, 1)
        try:
            outcome = self._run(variant)
        except (GateRefused, UserError) as problem:
            outcome = GateRun((), (str(problem),), ())
        self._progress(step, 1, 1)
        if (outcome.checks or outcome.problems) and self._is_away(engine := _engine(variant)):
            note = f"run again on ONNX Runtime's own provider: {engine}, which serves it, is not here"
            outcome = replace(outcome, notes=(*outcome.notes, note))
        return outcome

    def _is_away(self, engine: str) -> bool:
        return engine != PLAIN["cpu"] and engine not in self._engines

    def _run(self, variant: Variant) -> GateRun:
        engine = _engine(variant)
        if variant.record.variant in ONLY_ON and self._is_away(engine):
            return GateRun((), (), (f"gate not run again: {engine} computes it, and is not here",))
        model = read_model(variant)
        file.check_file(variant.name, model, file.Interface.of(self._fp32.record))
        with self._running(variant, model, engine) as run:
            return self._outcome(variant, run)

    def _outcome(self, variant: Variant, run: Run) -> GateRun:
        answers = onnx_session.in_batches(run, self._data.inputs, self._size, variant.name)
        if count := sum(count_non_finite(values) for values in answers):
            raise NonFinite(variant.name, "its answers on the data", count)
        checks, notes = self._measured(variant, answers)
        if (recorded := variant.record.gate.check(ROW_DIFFERENCE)) is not None and self._size:
            checks.append(self._rows(variant, run, recorded))
        failed = tuple(_failure_text(check) for check in checks if not check.has_passed)
        return GateRun(tuple(checks), failed, (*self._about_data(variant), *notes))

    def _running(self, variant: Variant, model: bytes, engine: str) -> AbstractContextManager[Run]:
        """Runs FP16, TF32 and what TensorRT alone computes as the export did: rounded as on a GPU."""
        if engine in self._engines:
            return self._engines[engine](model, variant.record.variant)
        if variant.record.variant == "tf32":
            return nullcontext(Session(variant.name, in_tf32(model)).run)
        is_for_gpu = variant.record.variant == "fp16" or "tensorrt" in variant.record.needs
        return nullcontext(Session(variant.name, as_on_gpu(model) if is_for_gpu else model).run)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _measured(self, variant: Variant, answers: list[NDArray[Any]]) -> tuple[list[Check], list[str]]:
        """Returns (the recorded checks with present values, notes on what could not be computed)."""
        gate = variant.record.gate
        ours, reference = comparable(variant.record.task, answers, self._fp32_answers())
        if [a.shape for a in ours] != [r.shape for r in reference]:
            raise UserError(f"{variant.name} answers in other shapes than {self._fp32.name}")
        labels = self._data.labels if any(check.metric in QUALITY for check in gate.checks) else None
        shares = file.probability_outputs(read_model(self._fp32))
        rows_of = Rows(variant.record.task, labels, _class_names(self._fp32), self._data.inputs, probabilities=shares)
        found = {m.metric: m for m in measure(rows_of, ours, reference)}
        checks, missing = [], []
        for recorded in gate.checks:
            if recorded.metric == ROW_DIFFERENCE:
                continue
            if recorded.metric not in found or not self._is_comparable(variant, recorded):
                missing.append(recorded.metric)
            else:
                checks.append(self._check(variant, recorded, found[recorded.metric]))
        return checks, [self._why_missing(variant, missing)] if missing else []

    def _is_comparable(self, variant: Variant, recorded: Check) -> bool:
        """Says whether the metric can be measured here: FP32 was compared with its framework, which is absent; accuracy needs none."""
        return variant.record.gate.reference == "fp32" or recorded.metric in QUALITY

    def _why_missing(self, variant: Variant, metrics: list[str]) -> str:
        gate = variant.record.gate
        if own := [metric for metric in metrics if metric not in RULES]:
            return f"not measured again: {', '.join(own)}, whose function is not kept"
        if by_labels := [metric for metric in metrics if metric in QUALITY]:
            return f"not measured again: {by_labels[0]}, because the data has no labels"
        return f"not measured again: {', '.join(metrics)}, because {gate.reference} is not here"

    def _check(self, variant: Variant, recorded: Check, now: Measurement) -> Check:
        limit, beside = recorded.limit, now.reference
        if variant.record.gate.reference != "fp32":
            beside = recorded.reference  # the framework's, which cannot be asked again
            limit = limit if self._is_same_data(variant) else None
        elif not self._is_same_data(variant):
            limit = _beside(limit, recorded.reference, beside)
        value = digits(now.value)
        return replace(recorded, value=value, limit=limit, reference=None if beside is None else digits(beside))

    def _rows(self, variant: Variant, run: Run, recorded: Check) -> Check:
        difference, size = rows.largest_row_difference(variant.name, run, self._data.inputs, self._size)
        check = replace(recorded, value=digits(difference))
        if not check.has_passed:
            raise RowsDiffer(variant.name, size, f"a row changes by {difference:.2g} (at most {check.limit:g})")
        return check

    def _fp32_answers(self) -> list[NDArray[Any]]:
        if self._reference is None:
            model = read_model(self._fp32)
            self._reference = onnx_session.answers(model, self._data.inputs, self._size, self._fp32.name)
        return self._reference

    # -- data ---------------------------------------------------------------------------------------------------------

    def _is_same_data(self, variant: Variant) -> bool:
        return self._digest == variant.record.gate.dataset_digest

    def _about_data(self, variant: Variant) -> list[str]:
        if self._is_same_data(variant):
            return []
        gate = variant.record.gate
        return [
            f"run again on {self._data.num_samples} rows of {self._data.name}, not on the {gate.num_samples} of the record"
        ]


def _engine(variant: Variant) -> str:
    """Names the engine that the variant's gate is about. FP32's is about the file itself, which all others are compared with."""
    record, pool = variant.record, variant.record.pools.get("cpu")
    if record.variant == "fp32" or pool is None or not pool.is_loadable:
        return ONLY_ON.get(record.variant, PLAIN["cpu"])
    return pool.engine


def _kept(fp32: Variant) -> Dataset:
    record = fp32.record
    data = read_npz(fp32.directory / GATE_DATA_FILE, record.inputs, None)
    return Dataset(record.gate.dataset, data.inputs, data.labels)


def _given(fp32: Variant, path: Path, progress: Progress) -> Dataset:
    """Reads data as an export does, with the files beside the model."""
    record, folder = fp32.record, fp32.directory
    labels, preprocessing = _class_names(fp32), None
    if record.preprocessing:
        file = folder / record.preprocessing
        preprocessing = from_json(file.read_text(encoding="utf-8"), str(file))
    beside = {name: (folder / name).read_bytes() for name in record.files if "/" not in name and name.endswith(".json")}
    num_labels = len(labels) if labels and record.task == CLASSIFICATION else None
    return read(path, record.inputs, num_labels, preprocessing, beside, labels, progress=progress)


def _class_names(fp32: Variant) -> tuple[str, ...] | None:
    file_name = fp32.record.labels
    return tuple((fp32.directory / file_name).read_text(encoding="utf-8").splitlines()) if file_name else None


def _beside(limit: float | None, was: float | None, now: float | None) -> float | None:
    """Moves the limit so that it keeps its distance from FP32's present value."""
    if limit is None or was is None or now is None:
        return limit
    return digits(now - (was - limit))


def _failure_text(check: Check) -> str:
    side = "at least" if check.is_minimum else "at most"
    return f"{check.metric} is {check.value:.4g} now, want {side} {check.limit:.4g}"
