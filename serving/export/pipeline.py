"""From an exported model to proven variants in a repository: what is checked, judged, made, timed and published, in which order.

`VariantSearch` has candidates of a precision made and judged until one passes. The other steps are files: `gates.graph`, `judge`,
`pool_gates` (which times), `load_check`, `publish`. Rules: everything runs before anything is written, so that a refusal, an error or
Ctrl-C leaves the repository as it was; a precision that gets no file gets a reason, `refused` by a gate, or `left_out` because none
could be made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from serving import __version__
from serving.errors import GateRefused, UserError
from serving.export import load_check, onnx_session, pool_gates, variant_files, variants
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, num_rows
from serving.export.gates.graph import check_graph
from serving.export.job import AUTO, ExportJob, ExportSpec
from serving.export.judge import OPENVINO, GatedCandidate, Judge
from serving.export.load_check import Load, NotServed, Publications
from serving.export.options import NoData
from serving.export.progress import Progress, silent
from serving.export.publish import Publication, next_version, publish_all
from serving.export.recipes.packages import cache_dir
from serving.export.speed import EnginePython
from serving.export.variant_files import ProvenVariant
from serving.export.variants import given
from serving.export.variants.attempts import Attempts
from serving.export.variants.candidate import CalibrationMissing, Candidate, NothingToQuantise, NotMade
from serving.measure.machine import has_bf16, has_instructions, processor_key
from serving.repository import OTHER, Repository, Variant, check_model_name

WHOLE_SHARE = (
    0.6  # of the budget, for files of INT8 throughout: then layers are left in FP32, which more nets pass (guess)
)
_MASK_DIMENSIONS = 3  # of a row: classes, height, width
MAX_CONTENDERS = 2  # INT8 files that are timed beside each other: each costs a quantisation and a gate


class VariantSearch:
    """The search of one export. `refused` and `left_out`: precision -> the reason in a sentence."""

    def __init__(self, job: ExportJob, judge: Judge) -> None:
        self._job, self._judge = job, judge
        self._attempts = Attempts(None, 0)
        self.refused: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.warnings: list[str] = []

    def find(self, precision: str) -> GatedCandidate | None:
        """Returns the variant that passed its gate, or the fastest of several; None where none did."""
        if precision == "bf16" and (reason := self._why_no_bf16()):
            self.left_out[precision] = reason
            return None
        if precision == "int8":
            folder = _attempts_folder(self._job)
            self._attempts = Attempts(folder, self._job.spec.budget_s, lambda line: self._job.progress(line, 0, 0))
            self._attempts.share = WHOLE_SHARE
        try:
            passed = self._passing(precision) or (self._finer_int8() if precision == "int8" else [])
        except (NothingToQuantise, NotMade) as reason:
            if precision in self.refused:  # the gate's reason counts; this is why nothing else could be tried
                self.warnings.append(str(reason))
            else:
                self.left_out[precision] = str(reason)
            return None
        except CalibrationMissing as missing:
            told = CalibrationMissing(missing.reason, num_rows(self._job.data.inputs if self._job.data else {}))
            if self._job.spec.precisions is not None:  # asked for by name: the user has to give some
                raise told from None
            self.left_out[precision] = str(told)
            return None
        if not passed:
            if precision == "int8" and self._attempts.refusals:
                self.refused[precision] = self._why_no_int8()
            return None
        self.refused.pop(precision, None)
        return passed[0] if len(passed) == 1 else pool_gates.fastest(self._job, passed)

    def _finer_int8(self) -> list[GatedCandidate]:
        """Tries weights of 8 bits where this processor computes them rightly, then leaves the worst layers in FP32."""
        spec = self._job.spec
        if self._job.exported.quantised is not None:
            return []
        can_be_finer = spec.int8_range == AUTO and not spec.is_for_tensorrt and has_instructions("vnni")
        passed = self._passing("int8", int8_range="full") if can_be_finer else []
        self._attempts.share = 1.0
        return passed or self._passing("int8", int8_range="full" if can_be_finer else None, second_try=True)

    def _passing(
        self, precision: str, *, int8_range: str | None = None, second_try: bool = False
    ) -> list[GatedCandidate]:
        """Returns candidates that pass, at most two, because they differ in speed; one of the second try is enough."""
        job, passed = self._job, []
        making, not_fused = f"making {job.name(precision)}", ""
        job.progress(making, 0, 1)
        for candidate in self._candidates(precision, int8_range, second_try=second_try):
            job.progress(making, 1, 1)
            if not_fused := candidate.not_fused or not_fused:
                self.warnings.append(f"{job.name(precision)} is not fused: {not_fused}")
                candidate = replace(candidate, how=f"{candidate.how}; not fused: {not_fused}")
            try:
                passed.append((candidate, self._judge.judge(candidate)))
            except (GateRefused, onnx_session.CannotRun) as refusal:
                if candidate.fused:
                    not_fused = str(refusal)
                elif isinstance(refusal, onnx_session.CannotRun):
                    raise
                self.refused[precision] = f"{refusal} ({candidate.how})" if candidate.how else str(refusal)
                if candidate.key:
                    self._attempts.note(candidate.key, candidate.how, candidate.model, str(refusal))
                continue
            if candidate.key:
                self._attempts.note(candidate.key, candidate.how, candidate.model, None)
            if second_try or precision == "fp16" or job.exported.is_untrained or len(passed) == MAX_CONTENDERS:
                break
        return passed

    def _candidates(self, precision: str, int8_range: str | None, *, second_try: bool) -> Iterator[Candidate]:
        job, spec = self._job, self._job.spec
        if precision == "int8" and job.exported.quantised is not None:
            made = job.exported.quantised
            return iter([Candidate("int8", made, "quantised by its maker, taken as it is", given.needs_of(made))])
        return variants.candidates(
            precision,
            job.exported.model,
            job.calibration,
            second_try=second_try,
            int8_range=int8_range or ("7bit" if spec.int8_range == AUTO else spec.int8_range),
            is_for_tensorrt=spec.is_for_tensorrt,
            attempts=self._attempts,
            fuses=spec.fuses
            and not spec.is_for_tensorrt,  # TensorRT fuses by itself, and knows none of these operators
        )

    def _why_no_int8(self) -> str:
        """The last refusal, which is of the file that kept most in FP32, with what breaks and what would help."""
        attempts, spec = self._attempts, self._job.spec
        how, refusal = list(attempts.refusals.items())[-1]
        words = [f"{refusal} ({how})", f"{len(attempts.refusals)} files were tried in {attempts.elapsed_s:.0f} s"]
        if attempts.num_left_out:
            words.append(
                f"the budget of {spec.budget_s:g} s ended before {attempts.num_left_out} more: give a longer --budget"
            )
        if attempts.losses:
            total = sum(attempts.losses.values()) or 1.0
            worst = sorted(attempts.losses, key=lambda name: -attempts.losses[name])[:3]
            parts = ", ".join(f"{name} ({attempts.losses[name] / total:.0%})" for name in worst)
            words.append(f"most of what INT8 adds to the answers comes from {parts}")
        exported = self._job.exported
        if exported.task == OTHER and any(len(one.shape) == _MASK_DIMENSIONS for one in exported.outputs):
            words.append("if its answer is a mask, --task segmentation judges by masks, whose edges may move")
        if not has_instructions("vnni") and not spec.is_for_tensorrt:
            words.append("a processor with VNNI can have weights of 8 bits, which this one cannot")
        return "; ".join([*words, "a file of quantisation-aware training is taken as it is, by --variant int8"])

    def _why_no_bf16(self) -> str:
        if OPENVINO not in self._job.engines:
            return (
                "BF16 is computed by OpenVINO, which is not here (tandem environment openvino) or left out by --engine"
            )
        if not has_bf16():
            return "this processor has neither AMX-BF16 nor AVX512-BF16, so that nothing could be proven here"
        return ""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export. `refused` and `left_out`: variant -> the reason in a sentence."""

    published: tuple[Variant, ...]
    refused: Mapping[str, str]  # made, and a gate said no
    left_out: Mapping[str, str]  # not made here
    warnings: tuple[str, ...] = ()


def export(
    exported: ExportedModel,
    data: Dataset | None,
    calibration: Arrays | None,
    spec: ExportSpec,
    repository: Path,
    engines: Mapping[str, EnginePython],
    progress: Progress = silent,
    load: Load | None = None,
) -> ExportResult:
    """Call it inside `publish.writing`. Raises GateRefused where FP32 itself does not pass, UserError for what cannot be asked.

    `load`: a server that is to load everything before it is published; None: nobody has one, and the record says so.
    """
    check_model_name(spec.model)
    if (exact := given.without_rounding(exported.model)) is not None:
        precisions = tuple(dict.fromkeys((*exported.precisions, "int8")))
        exported = replace(exported, model=exact, quantised=exported.model, precisions=precisions)
    if data is None and not (spec.accepts_ungated or exported.is_untrained):
        raise NoData
    precisions = spec.precisions or exported.precisions
    if data is not None and calibration is None and variants.calibrates(exported.model, precisions):
        data, calibration = data.divided()
    job = ExportJob(spec, exported, data, calibration, engines, progress, _before(repository, spec.model))
    precisions, left_out = _precisions(job)

    with job.step("checking the exported graph"):
        check_graph(job.name("fp32"), exported, spec.limits, job.inputs)
    judge = Judge(job)
    gated = [judge.baseline()]
    search = VariantSearch(job, judge)
    for precision in precisions[1:]:
        if found := search.find(precision):
            gated.append(found)
    proven, timing = pool_gates.place(job, judge, gated)
    served = load_check.check(job, judge, proven, load, lambda place, them: _publications(place, job, them, {}))

    refused, left_out = {**search.refused, **served.refused}, {**left_out, **search.left_out}
    publications = _publications(repository, job, served.variants, {**left_out, **refused})
    written = publish_all(repository, publications, spec.num_kept)
    warnings = (
        *exported.notes,
        *search.warnings,
        *judge.warnings,
        *timing.warnings,
        *served.warnings,
        *_outdated(repository, written),
    )
    return ExportResult(tuple(written), refused, left_out, warnings)


def _before(repository: Path, model: str) -> Variant | None:
    """The FP32 that an export would replace. One whose record cannot be read proves nothing."""
    known, _ = Repository(repository).readable()
    return next((one for one in known if one.name == f"{model}-fp32"), None)


def _attempts_folder(job: ExportJob) -> Path | None:
    """Where the attempts at an INT8 of this net are remembered, by all that decides about them; code of the user's nobody can name."""
    if job.spec.metric is not None or job.data is None:
        return None
    calibration = "" if not job.calibration else Dataset("calibration", job.calibration, None).digest
    exported, spec = job.exported, job.spec
    about = [sha256(exported.model).hexdigest(), calibration, job.data.digest, repr(spec.limits), exported.task]
    about += [repr(exported.labels), str(exported.max_batch_size), onnx_session.VERSION, processor_key(), __version__]
    return cache_dir() / "int8" / sha256("\n".join(about).encode()).hexdigest()[:32]


def prove(job: ExportJob, candidate: Candidate, load: Load | None, publications: Publications) -> ProvenVariant:
    """Proves one file that somebody else made, beside the FP32 of `job`. Raises GateRefused; writes nothing."""
    judge = Judge(job)
    gated = [judge.baseline(), (candidate, judge.judge(candidate))]
    proven, _ = pool_gates.place(job, judge, gated)
    served = load_check.check(job, judge, proven[1:], load, publications)
    if served.variants:
        return served.variants[0]
    raise NotServed(job.name(candidate.precision), served.refused[candidate.precision])


def _precisions(job: ExportJob) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Returns (what is made, FP32 first because everything is compared with it; what is left out, each with its reason)."""
    offered, wanted = job.exported.precisions, job.spec.precisions
    if (
        wanted is not None and "fp16" in offered
    ):  # what a card can compute in FP16 it can in TF32, which is tried by name alone
        offered = (*offered, "tf32")
    if wanted is None and job.data is None and not job.exported.is_untrained:
        return offered[:1], dict.fromkeys(
            offered[1:], "there is no data to prove it on; --precision makes it all the same"
        )
    if wanted is None:
        return offered, {}
    if missing := [precision for precision in dict.fromkeys(wanted) if precision not in offered]:
        raise UserError(f"{job.exported.source} cannot be made in {', '.join(missing)}; it can in {', '.join(offered)}")
    return tuple(dict.fromkeys(("fp32", *wanted))), {}


def _publications(
    repository: Path, job: ExportJob, proven: Sequence[ProvenVariant], not_made: Mapping[str, str]
) -> list[Publication]:
    """Makes record and files of each variant for that repository. `not_made`: for FP32's record."""
    spec, exported = job.spec, job.exported
    shared = variant_files.shared_files(exported, job.data, keeps_data=spec.keeps_data)
    version = next_version(repository, spec.model, exported.model)
    fp32_digest = sha256(exported.model).hexdigest()
    return [
        variant_files.publication(
            exported,
            one,
            shared,
            model=spec.model,
            model_version=version,
            queue_delay_us=spec.queue_delay_us,
            fp32_digest=fp32_digest,
            data=job.data if spec.keeps_data else None,
            not_made=not_made,
        )
        for one in proven
    ]


def _outdated(repository: Path, written: Sequence[Variant]) -> list[str]:
    """Warns of each variant of an earlier version that this export did not make anew."""
    new = written[0].record
    return [
        f"{old.name} is still of version {old.record.model_version} and is served no more: "
        f"export it again with --precision {old.record.variant}, or remove its folder"
        for old in Repository(repository).readable()[0]
        if old.record.model == new.model and old.record.model_version < new.model_version
    ]
