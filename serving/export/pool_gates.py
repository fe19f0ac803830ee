"""Decides which pools may run a file, and on which engine: by what computes its precision, and by its speed beside FP32.

Timing itself is `speed`'s. Rule: a pool that may not run a variant is told an engine that no such server has, so that it
cannot load there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from serving.decisions.engines import ONLY_ENGINE
from serving.export import variant_files
from serving.export.job import ExportJob
from serving.export.judge import GatedCandidate, Judge
from serving.export.large_model import write_model
from serving.export.scratch import scratch, writing_into
from serving.export.speed import Entrant, Results, contest
from serving.export.speed.contest import MIN_ROUNDS, NUM_ROUNDS
from serving.export.variant_files import ProvenVariant
from serving.export.variants.candidate import Candidate
from serving.repository import NOT_ALLOWED, PASSED, STAND_IN, UNGATED, UNTRAINED, PoolGate

TENSORRT = "tensorrt"
# (variant, pool) -> the engine that such a server lacks, and why the pool may not run it
NOT_ALLOWED_ON: Mapping[tuple[str, str], tuple[str, str]] = {
    ("fp16", "cpu"): ("cuda", "ONNX Runtime has few FP16 kernels for CPUs: it would run slower than FP32"),
    ("int8", "gpu"): (TENSORRT, "on a card only TensorRT computes INT8, from a file of its own: --tensorrt"),
    ("tf32", "cpu"): ("cuda", "processors have no TF32: it would be FP32"),
    ("bf16", "gpu"): (TENSORRT, "OpenVINO computes it, on processors only; FP16 is what a GPU gets"),
}
_TENSORRT_ONLY = "made by --tensorrt for a card; processors compute its integers otherwise: export without --tensorrt"
_ACCEPTED = "accepted without data: nothing proves it"
# Where an interval holds 1 and is wide, more rounds may decide. As long as a usual contest of four files takes; a guess, not measured.
SETTLE_S = 60.0
_CPU_ONLY = "GPU providers have no kernels for it: a CPU model"
# precision -> the engines that compute it as what it is
_ENGINES = {
    "fp32": ("cpu", "openvino", "cuda"),
    "bf16": ("openvino",),
    "tf32": ("cuda",),
    "fp16": ("cuda",),
    "int8": ("cpu", "openvino"),
}


def refusal(variant: str, pool: str, needs: Set[str] = frozenset(), *, is_cpu_only: bool = False) -> PoolGate | None:
    """Says why this pool may not run the variant; None where it may. `needs`: as its candidate has them."""
    if TENSORRT in needs and pool == "cpu":
        return PoolGate(NOT_ALLOWED, TENSORRT, _TENSORRT_ONLY)
    if (variant, pool) in NOT_ALLOWED_ON and TENSORRT not in needs:
        return PoolGate(NOT_ALLOWED, *NOT_ALLOWED_ON[variant, pool])
    if pool == "gpu" and is_cpu_only:
        return PoolGate(NOT_ALLOWED, TENSORRT, _CPU_ONLY)
    return None


def engines(variant: str, needs: Set[str], *, is_cpu_only: bool) -> list[str]:
    """Lists the engines that a variant may be timed on. Files for TensorRT are timed on none."""
    if TENSORRT in needs:
        return []
    return [engine for engine in _ENGINES[variant] if not (is_cpu_only and engine == "cuda")]


def place(job: ExportJob, judge: Judge, gated: Sequence[GatedCandidate]) -> tuple[list[ProvenVariant], Results]:
    """Times all files beside each other. Each comes back with its gates for the pools."""
    with scratch("export") as folder:
        entrants = [
            Entrant(candidate.precision, engine, _write(folder, candidate))
            for candidate, _ in gated
            for engine in _engines_of(job, judge, candidate)
        ]
        results = _contest(job, entrants)
    return [_proven(job, judge, one, results) for one in gated], results


def fastest(job: ExportJob, passed: Sequence[GatedCandidate]) -> GatedCandidate:
    """Picks the fastest of several INT8 files that passed, on ONNX Runtime's own provider."""
    with scratch("export") as folder:
        files = {f"int8 {number}": _write(folder, one, number) for number, (one, _) in enumerate(passed)}
        base = _write(folder, Candidate("fp32", job.exported.model, ""))
        entrants = [Entrant("fp32", "cpu", base), *(Entrant(name, "cpu", file) for name, file in files.items())]
        winner = _contest(job, entrants, is_short=True).fastest(files)
    return passed[list(files).index(winner)] if winner else passed[0]


def _contest(job: ExportJob, entrants: Sequence[Entrant], *, is_short: bool = False) -> Results:
    """`is_short`: only ranks our own files, so that the interval does not matter."""
    largest = max(1, job.exported.max_batch_size)
    middle = min(variant_files.WARMUP_BATCH_SIZE, largest)
    return contest(
        entrants,
        engines={entrant.engine: job.engines[entrant.engine] for entrant in entrants},
        batch_sizes=sorted({1, middle} if is_short else {1, middle, largest}),
        num_rounds=MIN_ROUNDS if is_short else NUM_ROUNDS,
        settle_s=0.0 if is_short else SETTLE_S,
        inputs=job.inputs,
        seconds=job.spec.seconds,
        progress=job.progress,
    )


def _engines_of(job: ExportJob, judge: Judge, candidate: Candidate) -> list[str]:
    """Lists the installed engines that may run the candidate and gave the right answers."""
    allowed = engines(candidate.precision, candidate.needs, is_cpu_only=job.exported.is_cpu_only)
    return [
        engine for engine in allowed if engine in job.engines and (candidate.precision, engine) not in judge.wrong_on
    ]


def _proven(job: ExportJob, judge: Judge, gated: GatedCandidate, results: Results) -> ProvenVariant:
    candidate, variant = gated[0], gated[0].precision
    pools = {pool: _pool_gate(job, candidate, pool, results) for pool in ("cpu", "gpu")}
    return ProvenVariant(
        variant=variant,
        model=candidate.model,
        how="" if variant == "fp32" else candidate.how,
        gate=judge.gate_on(pools["cpu"].engine, gated),
        pools=pools,
        speed=tuple(row for key in results.entrants if key[0] == variant for row in results.speeds(*key)),
        needs=tuple(sorted(candidate.needs)),
        fused=candidate.fused,
    )


def _pool_gate(job: ExportJob, candidate: Candidate, pool: str, results: Results) -> PoolGate:
    variant, is_for_tensorrt = candidate.precision, job.spec.is_for_tensorrt
    if refused := refusal(variant, pool, candidate.needs, is_cpu_only=job.exported.is_cpu_only):
        return refused
    if pool == "gpu" and (is_for_tensorrt or "cuda" not in job.engines):
        engine = ONLY_ENGINE.get((pool, variant), TENSORRT if is_for_tensorrt else "cuda")
        gate = PoolGate(
            PASSED, engine, f"the baseline; {STAND_IN}" if variant == "fp32" else f"{STAND_IN}: FP32 goes first"
        )
    else:
        gate = results.verdict(variant, pool)
    if job.exported.is_untrained:
        return replace(gate, reason=f"{UNTRAINED}; {gate.reason}")
    return replace(gate, status=UNGATED, reason=_ACCEPTED) if job.data is None else gate


def _write(folder: Path, candidate: Candidate, number: int = 0) -> Path:
    """Writes the candidate's file, once; BF16's and TF32's is FP32's."""
    name = "fp32" if candidate.precision in ("bf16", "tf32") else candidate.precision
    path = folder / f"{name}-{number}.onnx"
    if not path.exists():
        with writing_into(folder):
            write_model(path, candidate.model)
    return path
