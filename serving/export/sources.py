"""What `tandem export` does, from a source to published variants. Every gate runs before anything is written.

`export_digits` trains a model and makes all its variants (torch), `export_onnx` proves a file that somebody made (no
torch). Rule: a refusal, an error or Ctrl-C leaves the repository as it was.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from serving.errors import EnvironmentFault, UserError
from serving.export import data as datasets
from serving.export import precision
from serving.export.data import Dataset
from serving.export.gates import Interface, Limits
from serving.export.progress import Progress, silent
from serving.export.proof import MAX_BATCH_SIZE, POOLS, Proof, Proven, SpeedRun, today
from serving.export.publish import publish, writing
from serving.repository import (
    LABELS_FILE,
    MODEL_FILE,
    SAMPLE_FILE,
    Record,
    Repository,
    Sample,
    Variant,
    check_model_name,
)
from serving.repository.record import nearest

_TOOLS = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy", "scikit-learn")
_T = TypeVar("_T")


def export_digits(
    repository: Path,
    *,
    limits: Limits | None = None,
    speed_run: SpeedRun | None = None,
    payload: Path | None = None,
    progress: Progress = silent,
) -> list[Variant]:
    """Train, export, quantise, gate and publish digits-fp32, -fp16 and -int8: all three, or none if one is refused.

    `payload` is where the held-out images go for load tests and `--data`, as npz.
    """
    try:
        from serving.export import digits
    except ImportError as error:
        raise EnvironmentFault(
            f"{error.name} is missing: pip install 'tandem-serving[export]', or `make models`"
        ) from None
    interface = Interface((digits.INPUT,), (digits.OUTPUT,), MAX_BATCH_SIZE)
    learn, held_out = datasets.digits()
    with writing(repository):
        net = digits.train(learn, progress)
        fp32 = _step(progress, "exporting FP32", lambda: digits.to_onnx(net))
        fp16 = _step(progress, "converting to FP16", lambda: precision.to_fp16(fp32))
        int8 = _step(progress, "quantising to INT8", lambda: precision.to_int8(fp32, learn.inputs))
        proof = Proof("digits", fp32, held_out, interface, limits or Limits(), speed_run or SpeedRun(), progress)
        proven = [
            proof.baseline(digits.run(net, held_out)),
            proof.variant("fp16", fp16),
            proof.variant("int8", int8),
        ]
        card = _digits_card(digits.LABELS, interface, held_out)
        variants = [_publish(repository, card, one) for one in proven]
    if payload is not None:
        payload.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {**held_out.inputs, "labels": held_out.labels}
        np.savez_compressed(payload, allow_pickle=False, **arrays)
    return variants


def export_onnx(
    source: Path,
    *,
    model: str,
    variant: str,
    repository: Path,
    data: Path | str = datasets.DIGITS,
    limits: Limits | None = None,
    speed_run: SpeedRun | None = None,
    progress: Progress = silent,
) -> Variant:
    """Gate a file as the fp16 or int8 of a model whose FP32 the repository has, and publish it. Needs no torch."""
    check_model_name(model)
    if variant not in POOLS:
        raise UserError(f"a file cannot be exported as variant {variant!r}{nearest(variant, tuple(POOLS))}")
    if not source.is_file():
        raise UserError(f"there is no file {source}")
    baseline = Repository(repository).variant(f"{model}-fp32")
    held_out = _held_out(data, baseline)
    with writing(repository):
        baseline.verify()
        card = _card_of(baseline, source)
        fp32 = (baseline.directory / MODEL_FILE).read_bytes()
        proof = Proof(model, fp32, held_out, card.interface, limits or Limits(), speed_run or SpeedRun(), progress)
        return _publish(repository, card, proof.variant(variant, source.read_bytes()))


@dataclass(frozen=True, slots=True)
class _Card:
    """What the variants of a model have alike. `files` are the labels and the sample request."""

    model: str
    source: str
    interface: Interface
    labels: str | None
    sample: Sample | None
    files: Mapping[str, bytes]


def _digits_card(labels: Sequence[str], interface: Interface, held_out: Dataset) -> _Card:
    """The sample is the first held-out image."""
    index = int(held_out.labels[0])
    return _Card(
        model="digits",
        source="digits: a small convolutional net trained on scikit-learn's load_digits",
        interface=interface,
        labels=LABELS_FILE,
        sample=Sample(SAMPLE_FILE, labels[index], index),
        files={LABELS_FILE: ("\n".join(labels) + "\n").encode(), SAMPLE_FILE: _request(held_out)},
    )


def _request(data: Dataset) -> bytes:
    """The first sample as a whole v2 JSON infer body."""
    tensors = [
        {"name": name, "shape": list(values[:1].shape), "datatype": "FP32", "data": values[:1].ravel().tolist()}
        for name, values in data.inputs.items()
    ]
    return (json.dumps({"inputs": tensors}) + "\n").encode()


def _card_of(baseline: Variant, source: Path) -> _Card:
    record = baseline.record
    shared = [path for path in (record.labels, record.sample.file if record.sample else None) if path is not None]
    return _Card(
        model=record.model,
        source=f"onnx: {source.name}",
        interface=Interface(record.inputs, record.outputs, record.max_batch_size),
        labels=record.labels,
        sample=record.sample,
        files={path: (baseline.directory / path).read_bytes() for path in shared},
    )


def _held_out(data: Path | str, baseline: Variant) -> Dataset:
    if data == datasets.DIGITS:
        return datasets.digits()[1]
    return datasets.read_npz(Path(data), baseline.record.inputs, baseline.record.outputs[0].shape[-1])


def _publish(repository: Path, card: _Card, proven: Proven) -> Variant:
    record = Record(
        model=card.model,
        variant=proven.variant,
        created=today(),
        source=card.source,
        toolchain=_toolchain(),
        max_batch_size=card.interface.max_batch_size,
        inputs=card.interface.inputs,
        outputs=card.interface.outputs,
        labels=card.labels,
        sample=card.sample,
        gate=proven.gate,
        pools=proven.pools,
        speed=proven.speed,
        files={},
    )
    return publish(repository, record, {MODEL_FILE: proven.model, **card.files})


def _toolchain() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for tool in _TOOLS:
        try:
            versions[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError:
            continue  # a file that came ready-made needs no torch here
    return versions


def _step(progress: Progress, step: str, work: Callable[[], _T]) -> _T:
    progress(step, 0, 1)
    result = work()
    progress(step, 1, 1)
    return result
