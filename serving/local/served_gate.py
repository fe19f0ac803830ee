"""Does each variant answer here as its gate saw? Asked of the server that just loaded it, on its processor or card, by rows that were kept.

What computes a file is another library, processor or card than what judged it, and has been seen to be wrong: INT8 that saturates without
VNNI, a card that computes FP16 in FP32. So FP32 is held against the labels of the kept rows, and the other variants against FP32's answers
here, row by row as gates compare (`serving/export/gates/likeness.py`). Refused is what is off beyond what its gate allows and recorded, by
evidence that is wrong in one of a hundred starts at most, were it just within that. It takes BUDGET_S for a variant. Rule: what cannot be
judged, as rows that are not kept, is served and not said to be judged.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import EnvironmentFault
from serving.export.gates import likeness
from serving.measure.anytime import log_evidence
from serving.repository import CLASSIFICATION, GATE_DATA_FILE, Record, Tensor, Variant

MAX_ROWS = (
    256  # a classifier that is wrong in 5 % is seen by them; more take longer than they tell (guess, not measured)
)
BUDGET_S = 2.0  # of a variant; what a batch takes comes on top
ANSWER_S = 30.0  # that a batch may take; one that hangs would keep all others from being served (guess, not measured)
BATCH = 8  # rows at once: what is usual, and soon over
SURE = math.log(100)
FP32, LABELS = "fp32", "labels"

Arrays = Mapping[str, NDArray[Any]]
Infer = Callable[[str, Sequence[Tensor], Arrays, Sequence[Tensor]], Awaitable[list[NDArray[Any]]]]


@dataclass(frozen=True, slots=True)
class Judged:
    """`problem` None: its answers are right. `num_rows` 0: nothing was kept to judge it by."""

    name: str
    num_rows: int
    took_s: float
    problem: str | None = None


@dataclass(slots=True)
class _Reference:
    """FP32's answers here to some of the kept rows, all outputs [n, …]."""

    record: Record
    inputs: Arrays
    labels: NDArray[Any] | None
    answers: list[NDArray[Any]]


class ServedGate:
    """`infer`: asks a loaded model; raises EnvironmentFault."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer
        self._references: dict[str, _Reference] = {}  # by public name

    def can_judge(self, variant: Variant) -> bool:
        """Whether anything was kept to judge it by."""
        record, against = variant.record, self._references.get(variant.record.model)
        if record.variant == FP32:
            return GATE_DATA_FILE in record.files
        return against is not None and against.record.model_version == record.model_version

    async def judge(self, variants: Mapping[str, Variant], configs: Mapping[str, str]) -> list[Judged]:
        """Of models that are loaded with these configurations (JSON), FP32 first. `variants`: of the repository, by Triton's name."""
        known = [variants[name] for name in configs if name in variants]
        order = sorted(known, key=lambda it: (it.record.variant != FP32, it.name))
        return [await self._judge(variant, json.loads(configs[variant.name])) for variant in order]

    async def _judge(self, variant: Variant, config: Mapping[str, Any]) -> Judged:
        record, began_s = variant.record, time.monotonic()
        before = self._references.get(record.model)
        try:
            problem, num_rows = await self._problem(variant, int(config["max_batch_size"]))
        except (EnvironmentFault, OSError, ValueError, zipfile.BadZipFile):
            problem, num_rows = None, 0  # rows that it does not take as they were kept
        if problem is not None and record.variant == FP32:
            self._references.pop(record.model, None)
            if before is not None and before.record.digest != record.digest:  # what is served still
                self._references[record.model] = before
        return Judged(variant.name, num_rows, time.monotonic() - began_s, problem)

    async def _problem(self, variant: Variant, max_batch_size: int) -> tuple[str | None, int]:
        record = variant.record
        if record.variant == FP32:
            reference = await self._ask_reference(variant, max_batch_size)
            if reference is None:
                return None, 0
            self._references[record.model] = reference
            return self._against_labels(reference)
        against = self._references.get(record.model)
        if against is None or against.record.model_version != record.model_version:
            return None, 0
        answers = await self._answers(record, against.inputs, max_batch_size)
        num_rows = min(len(answers[0]), len(against.answers[0])) if answers else 0
        if not num_rows:
            return None, 0
        ours, theirs = ([values[:num_rows] for values in outputs] for outputs in (answers, against.answers))
        losses = likeness.losses(record.task, ours, theirs)
        return _refusal(losses, likeness.most(record.task, record.gate), "FP32's here"), num_rows

    async def _ask_reference(self, variant: Variant, max_batch_size: int) -> _Reference | None:
        record = variant.record
        if GATE_DATA_FILE not in record.files:
            return None
        rows = some_rows(variant.directory / GATE_DATA_FILE, MAX_ROWS)
        if not {tensor.name for tensor in record.inputs} <= rows.keys():
            return None
        # In any order, so that those within the budget are spread as well.
        order = np.random.default_rng(0).permutation(len(rows[record.inputs[0].name]))
        rows = {name: values[order] for name, values in rows.items() if len(values) == len(order)}
        inputs = {tensor.name: rows[tensor.name] for tensor in record.inputs}
        answers = await self._answers(record, inputs, max_batch_size)
        return _Reference(record, inputs, rows.get(LABELS), answers) if answers else None

    def _against_labels(self, reference: _Reference) -> tuple[str | None, int]:
        record, labels = reference.record, reference.labels
        num_rows = len(reference.answers[0])
        if bad := sum(int(np.size(v) - np.isfinite(v).sum()) for v in reference.answers if v.dtype.kind == "f"):
            return f"{bad} of its numbers are NaN or infinite", num_rows
        recorded = record.gate.check("top1")
        if labels is None or labels.ndim != 1 or recorded is None or record.task != CLASSIFICATION:
            return None, num_rows
        scores = next((v for v in reference.answers if v.dtype.kind == "f"), None)
        if scores is None or scores.reshape(num_rows, -1).shape[1] < 2:
            return None, num_rows
        losses = (scores.reshape(num_rows, -1).argmax(axis=1) != labels[:num_rows]).astype(np.float64)
        return _refusal(losses.tolist(), 1 - recorded.value + likeness.most(record.task), "the labels"), num_rows

    async def _answers(self, record: Record, inputs: Arrays, max_batch_size: int) -> list[NDArray[Any]]:
        """All outputs of as many of the rows as the budget is for, one batch at least."""
        num_rows, until_s = len(next(iter(inputs.values()))), time.monotonic() + BUDGET_S
        parts: list[list[NDArray[Any]]] = []
        step = min(BATCH, max_batch_size) or 1
        for start in range(0, num_rows - step + 1 if num_rows >= step else 1, step):
            batch = {name: values[start : start + step] for name, values in inputs.items()}
            if not max_batch_size:
                batch = {name: values[0] for name, values in batch.items()}
            async with asyncio.timeout(ANSWER_S):  # its TimeoutError is an OSError
                found = await self._infer(record.name, record.inputs, batch, record.outputs)
            parts.append(found if max_batch_size else [values[None] for values in found])
            if time.monotonic() > until_s:
                break
        shapes = {tuple(values.shape[1:] for values in part) for part in parts}
        if len(shapes) > 1:  # of any length: those of the first batch
            parts = parts[:1]
        return [np.concatenate(values) for values in zip(*parts, strict=True)]


def _refusal(losses: Sequence[float], limit: float, of: str) -> str | None:
    limit = min(limit, 0.9)
    if log_evidence(np.asarray(losses), limit, above=True) < SURE:
        return None
    mean = sum(losses) / len(losses)
    return f"on this machine its answers to {len(losses)} rows that its gate kept are off from {of} by {mean:.1%}, more than {limit:.1%}"


def some_rows(path: Path, num_rows: int) -> dict[str, NDArray[Any]]:
    """Of each array of an npz, spread evenly, because data is often sorted by label. No more of it is held: kept photographs may be
    hundreds of megabytes.
    """
    found: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(path) as file:
        for member in file.namelist():
            with file.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read_header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, is_fortran, dtype = read_header(stream)
                if is_fortran or not shape or dtype.hasobject:
                    continue
                size, parts, at = math.prod(shape[1:]) * dtype.itemsize, list[bytes](), 0
                for row in np.linspace(0, shape[0] - 1, min(num_rows, shape[0])).astype(int).tolist():
                    for _ in range(at, row):
                        stream.read(size)
                    parts.append(stream.read(size))
                    at = row + 1
                rows = np.frombuffer(b"".join(parts), dtype).reshape(len(parts), *shape[1:])
                found[member.removesuffix(".npy")] = rows
    return found
