"""Makes the files beside a model: its record, labels, preprocessing, a sample request and the data that its gate ran on.

Values in, values and bytes out; `publish` writes them. Rule: nothing of the machine that exported it gets in, and a
file is the same bytes for the same content.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, spread
from serving.export.large_model import weights_of
from serving.measure.machine import versions
from serving.protocol.v2 import BINARY_ONLY
from serving.repository import (
    EMBEDDING,
    GATE_DATA_FILE,
    LABELS_FILE,
    PREPROCESSING_FILE,
    REGRESSION,
    SAMPLE_FILE,
    Gate,
    PoolGate,
    Record,
    Sample,
    Speed,
    Tensor,
)
from serving.repository.preprocessing import to_json

MAX_GATE_DATA_BYTES = 4 * 2**20  # compressed; a committed file may have 5 MB, and a re-run on this much says enough
MAX_SAMPLE_BYTES = 64 * 2**10  # a request to be looked at and sent by hand; an image of 224² has 1.5 MB as JSON
SAME_SPACE_COSINE = 0.999  # of the worst vector: neighbours keep their order; INT8's 0.99 does not promise that
_TOOLS = ("onnx", "onnxruntime", "numpy")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's first moment: the time of writing would make every file another
WARMUP_BATCH_SIZE = 8  # between one request and a full batch, where dynamic batches mostly land (guess, not measured)


@dataclass(frozen=True, slots=True)
class ProvenVariant:
    """A variant that passed its gates and is not written yet. `how` says in words how it was made."""

    variant: str
    model: bytes
    how: str
    gate: Gate
    pools: Mapping[str, PoolGate]
    speed: tuple[Speed, ...]
    needs: tuple[str, ...] = ()
    load_check: str = ""
    fused: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_slower(self) -> bool:
        """Clearly, at every batch size, and beside FP32 on every engine that it was timed with."""
        return bool(self.speed) and all(speed.ratio_high < 1 for speed in self.speed)


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files that all variants of a model have beside them, and what the record says of them."""

    files: Mapping[str, bytes]
    labels: str | None
    preprocessing: str | None
    sample: Sample | None
    warmup: tuple[Tensor, ...] = ()


def shared_files(exported: ExportedModel, data: Dataset | None, *, keeps_data: bool = True) -> SharedFiles:
    """`keeps_data` False: the row for the warm-up is of the examples, not of the data."""
    files = dict(exported.files)
    if exported.labels:
        files[LABELS_FILE] = ("\n".join(exported.labels) + "\n").encode()
    if exported.preprocessing:
        files[PREPROCESSING_FILE] = to_json(exported.preprocessing).encode()
    sample = None
    inputs = data.inputs if data else exported.example
    has_json = not any(tensor.datatype in BINARY_ONLY for tensor in (*exported.inputs, *exported.outputs))
    if has_json and (place := _first_known(inputs)) is not None:
        row = {name: values[place : place + 1] for name, values in inputs.items()}
        body = request(exported.inputs, row, has_batch=exported.max_batch_size > 0)
        if len(body) <= MAX_SAMPLE_BYTES:
            files[SAMPLE_FILE] = body
            sample = _sample(exported, data, place)
    rows = data.inputs if data is not None and keeps_data else exported.example
    warmup = _warmup(exported.inputs, rows)
    files |= {Record.warmup_file(index): _row_bytes(row) for index, (_, row) in enumerate(warmup)}
    return SharedFiles(
        files=files,
        labels=LABELS_FILE if exported.labels else None,
        preprocessing=PREPROCESSING_FILE if exported.preprocessing else None,
        sample=sample,
        warmup=tuple(tensor for tensor, _ in warmup),
    )


def _warmup(inputs: Sequence[Tensor], rows: Arrays) -> list[tuple[Tensor, NDArray[Any]]]:
    """Takes the first row of each input, as a server is given it: without the batch dimension, every length known."""
    first = {tensor.name: np.asarray(rows[tensor.name][0]) for tensor in inputs}
    return [(replace(tensor, shape=first[tensor.name].shape), first[tensor.name]) for tensor in inputs]


def _row_bytes(row: NDArray[Any]) -> bytes:
    """Encodes a row as Triton reads it from a file: text with its length before it."""
    if row.dtype.kind not in "OSU":
        return row.tobytes()
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in row.ravel().tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _first_known(inputs: Arrays) -> int | None:
    """The first row without NaN, which JSON cannot say; None where every row has one."""
    is_known = [
        np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        for values in inputs.values()
        if values.dtype.kind == "f"
    ]
    found = np.flatnonzero(np.all(is_known, axis=0)) if is_known else np.zeros(1, int)
    return int(found[0]) if found.size else None


def _sample(exported: ExportedModel, data: Dataset | None, place: int) -> Sample:
    if data is None or data.labels is None:
        return Sample(SAMPLE_FILE, None, None)
    right = np.asarray(data.labels[place])
    if right.size != 1:  # several targets, or a decision for each label
        return Sample(SAMPLE_FILE, None, None)
    if exported.task == REGRESSION:
        return Sample(SAMPLE_FILE, f"{right.item():.6g}", None)
    labels = exported.labels
    index = int(right.item())
    return Sample(SAMPLE_FILE, labels[index] if labels else str(index), index)


def request(inputs: Sequence[Tensor], arrays: Arrays, *, has_batch: bool = True) -> bytes:
    """Encodes the first row as a whole v2 JSON infer body."""
    tensors = []
    for tensor in inputs:
        row = arrays[tensor.name][:1] if has_batch else arrays[tensor.name][0]
        tensors.append({"name": tensor.name, "shape": list(row.shape), "datatype": tensor.datatype, "data": _flat(row)})
    return (json.dumps({"inputs": tensors}) + "\n").encode()


def _flat(values: NDArray[Any]) -> list[Any]:
    flat: list[Any] = values.ravel().tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in flat]


def gate_data(data: Dataset) -> bytes:
    """Encodes as npz as many rows as `MAX_GATE_DATA_BYTES` holds; `labels` beside the inputs where there are any."""
    count = data.num_samples
    while True:
        packed = npz(spread(arrays_of(data), count))
        if len(packed) <= MAX_GATE_DATA_BYTES or count == 1:
            return packed
        count = max(1, min(count - 1, count * MAX_GATE_DATA_BYTES // len(packed)))


def arrays_of(data: Dataset) -> Arrays:
    return data.inputs if data.labels is None else {**data.inputs, "labels": data.labels}


def npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, values in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def space(model: str, fp32_digest: str, variant: str, digest: str, gate: Gate, task: str) -> str | None:
    """Names the space whose vectors may be compared: FP32's, unless the variant's vectors lie too far from it."""
    if task != EMBEDDING:
        return None
    worst = gate.check("cosine_worst")
    if variant == "fp32" or (worst is not None and worst.value >= SAME_SPACE_COSINE):
        return f"{model}@{fp32_digest[:12]}"
    return f"{model}-{variant}@{digest[:12]}"


def publication(
    exported: ExportedModel,
    proven: ProvenVariant,
    shared: SharedFiles,
    *,
    model: str,
    model_version: int,
    queue_delay_us: int,
    fp32_digest: str,
    data: Dataset | None = None,
    not_made: Mapping[str, str] | None = None,
) -> tuple[Record, dict[str, bytes | Path]]:
    """Makes the variant's record, and path -> content of its files. `data`, the gate's, lies with FP32 only: one copy is enough for all."""
    size, is_fp32 = exported.max_batch_size, proven.variant == "fp32"
    record = Record(
        model=model,
        variant=proven.variant,
        model_version=model_version,
        created=datetime.now(UTC).date().isoformat(),
        source=f"{exported.source}; {proven.how}" if proven.how else exported.source,
        task=exported.task,
        toolchain={**versions(_TOOLS), **exported.toolchain},
        max_batch_size=size,
        queue_delay_us=queue_delay_us if size else 0,
        warmup_batch_sizes=tuple(sorted({1, min(WARMUP_BATCH_SIZE, max(1, size)), max(1, size)})),
        inputs=exported.inputs,
        outputs=exported.outputs,
        labels=shared.labels,
        preprocessing=shared.preprocessing,
        needs=proven.needs,
        space=space(model, fp32_digest, proven.variant, sha256(proven.model).hexdigest(), proven.gate, exported.task),
        sample=shared.sample,
        gate=proven.gate,
        pools=proven.pools,
        speed=proven.speed,
        not_made=dict(not_made or {}) if is_fp32 else {},
        files={},
        warmup=shared.warmup,
        load_check=proven.load_check,
        fused=proven.fused,
    )
    kept: dict[str, bytes | Path] = {GATE_DATA_FILE: gate_data(data)} if data is not None and is_fp32 else {}
    if weights := weights_of(proven.model):
        kept[f"{model_version}/{weights.path.name}"] = weights.path
    return record, {record.model_file: proven.model, **shared.files, **kept}
