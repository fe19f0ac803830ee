"""Publishes a file that somebody else made as the FP16 or INT8 of a model whose FP32 is in the repository.

It passes the same gates as one of ours, beside that FP32, and is written alone. Rule: the baseline is verified first, so
that nothing is measured against a file that changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export import pipeline, user_data, variant_files
from serving.export.data.dataset import Dataset
from serving.export.exported_model import ExportedModel
from serving.export.gates.limits import Refusal
from serving.export.job import ExportJob, ExportSpec
from serving.export.large_model import read_model
from serving.export.load_check import Load
from serving.export.pipeline import ExportResult
from serving.export.progress import Progress
from serving.export.publish import Publication, publish_all
from serving.export.speed import EnginePython
from serving.export.variant_files import ProvenVariant, SharedFiles
from serving.export.variants import given
from serving.export.variants.candidate import Candidate
from serving.repository import GATE_DATA_FILE, PREPROCESSING_FILE, Repository, Variant, check_model_name
from serving.repository.preprocessing import from_json

VARIANTS = ("fp16", "int8")


class Slower(Refusal):
    """The file is clearly slower than FP32 at every batch size measured."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason, "publish it all the same, without default traffic, with --keep-slow")


def export(
    source: Path,
    *,
    variant: str,
    spec: ExportSpec,
    repository: Path,
    data: str | None,
    keeps_slow: bool,
    max_bad_ratio: float | None = None,
    queue_delay_us: int | None = None,
    engines: Mapping[str, EnginePython],
    progress: Progress,
    load: Load | None = None,
) -> ExportResult:
    """Call it inside `publish.writing`. `data` None: what FP32 was judged on, kept beside it. `queue_delay_us` None: FP32's."""
    check_model_name(spec.model)
    if variant not in VARIANTS:
        raise UserError(f"a file cannot be exported as variant {variant!r}{nearest(variant, VARIANTS)}")
    if not source.is_file():
        raise UserError(f"there is no file {source}")
    baseline = Repository(repository).variant(f"{spec.model}-fp32")
    exported = _exported(baseline, source)
    judging = _data(data, baseline, exported, max_bad_ratio, progress)
    user_data.check_limits(spec.limits, exported, judging)
    baseline.verify()

    def publications(_: Path, proven: Sequence[ProvenVariant]) -> list[Publication]:
        return [_publication(baseline, exported, one, queue_delay_us) for one in proven]

    job = ExportJob(spec, exported, judging, {}, engines, progress)
    proven = pipeline.prove(job, _candidate(variant, source.read_bytes()), load, publications)
    if not keeps_slow and proven.is_slower:
        raise Slower(f"{spec.model}-{variant}", proven.pools["cpu"].reason)
    return ExportResult(tuple(publish_all(repository, publications(repository, [proven]))), {}, {})


def _candidate(variant: str, model: bytes) -> Candidate:
    return Candidate(variant, model, "", given.needs_of(model) if variant == "int8" else frozenset())


def _exported(baseline: Variant, source: Path) -> ExportedModel:
    record = baseline.record
    shared = [
        path for path in record.files if "/" not in path and not path.endswith(".pbtxt") and path != GATE_DATA_FILE
    ]
    files = {path: (baseline.directory / path).read_bytes() for path in shared}
    labels = tuple(files[record.labels].decode().splitlines()) if record.labels else None
    preprocessing = from_json(files[PREPROCESSING_FILE].decode()) if record.preprocessing else None
    return ExportedModel(
        model=read_model(baseline),
        inputs=record.inputs,
        outputs=record.outputs,
        max_batch_size=record.max_batch_size,
        task=record.task,
        source=f"onnx: {source.name}",
        framework="onnx",
        run=None,
        example={},
        labels=labels,
        preprocessing=preprocessing,
        files=files,
        is_cpu_only=record.pools.get("gpu") is not None and not record.pools["gpu"].is_loadable,
        is_untrained=record.is_untrained,
    )


def _data(
    data: str | None, baseline: Variant, exported: ExportedModel, max_bad_ratio: float | None, progress: Progress
) -> Dataset:
    if data is not None:
        return user_data.to_judge(data, exported, max_bad_ratio, progress)
    kept = baseline.directory / GATE_DATA_FILE
    if not kept.is_file():
        raise UserError(f"{baseline.name} kept no data to judge on; give some with --data")
    return replace(user_data.to_judge(kept, exported), name=baseline.record.gate.dataset)


def _publication(
    baseline: Variant, exported: ExportedModel, proven: ProvenVariant, queue_delay_us: int | None
) -> Publication:
    """Puts the file beside the same files as FP32, under its version."""
    record = baseline.record
    rows = [record.warmup_file(index) for index in range(len(record.warmup))]
    files = {**exported.files, **{path: (baseline.directory / path).read_bytes() for path in rows}}
    shared = SharedFiles(files, record.labels, record.preprocessing, record.sample, record.warmup)
    made, contents = variant_files.publication(
        exported,
        proven,
        shared,
        model=record.model,
        model_version=record.model_version,
        queue_delay_us=record.queue_delay_us if queue_delay_us is None else queue_delay_us,
        fp32_digest=record.digest,
    )
    return replace(made, warmup_batch_sizes=record.warmup_batch_sizes), contents
