"""Which file of a precision passes its gate? Candidates are made and judged one after another, until one is good enough.

How candidates are made is `variants`', what passes `judge`'s. Rule: a precision that gets no file gets a reason: `refused` by
a gate, or `left_out` because it could not be made here.
"""

from __future__ import annotations

from serving.errors import GateRefused
from serving.export import pool_gates
from serving.export.job import AUTO, ExportJob
from serving.export.judge import OPENVINO, GatedCandidate, Judge
from serving.export.variants import candidates
from serving.export.variants.outcome import CalibrationMissing, NothingToQuantise, NotMade
from serving.repository.processor import has, has_bf16

MAX_CONTENDERS = 2  # INT8 files that are timed beside each other: each costs a quantisation and a gate


class VariantSearch:
    """Of one export. `refused` and `left_out`: precision -> the reason in a sentence."""

    def __init__(self, job: ExportJob, judge: Judge) -> None:
        self._job, self._judge = job, judge
        self.refused: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.warnings: list[str] = []

    def find(self, precision: str) -> GatedCandidate | None:
        """The variant that passed its gate; of several that pass, the fastest."""
        if precision == "bf16" and (reason := self._why_no_bf16()):
            self.left_out[precision] = reason
            return None
        try:
            passed = self._passing(precision) or (self._finer_int8() if precision == "int8" else [])
        except (NothingToQuantise, NotMade) as reason:
            if precision in self.refused:  # the gate's reason counts; this is why nothing else could be tried
                self.warnings.append(str(reason))
            else:
                self.left_out[precision] = str(reason)
            return None
        except CalibrationMissing as reason:
            if self._job.spec.precisions is not None:  # asked for by name: the user has to give some
                raise
            self.left_out[precision] = str(reason)
            return None
        if not passed:
            return None
        self.refused.pop(precision, None)
        return passed[0] if len(passed) == 1 else pool_gates.fastest(self._job, passed)

    def _finer_int8(self) -> list[GatedCandidate]:
        """Weights of 8 bits where this processor computes them rightly, and then with the worst layers left in FP32."""
        spec = self._job.spec
        can_be_finer = spec.int8_range == AUTO and not spec.is_for_tensorrt and has("vnni")
        passed = self._passing("int8", int8_range="full") if can_be_finer else []
        return passed or self._passing("int8", int8_range="full" if can_be_finer else None, second_try=True)

    def _passing(
        self, precision: str, *, int8_range: str | None = None, second_try: bool = False
    ) -> list[GatedCandidate]:
        """Candidates that pass, at most two: they differ in speed. Of the second try, one is enough."""
        job, spec, passed = self._job, self._job.spec, []
        making = f"making {job.name(precision)}"
        job.progress(making, 0, 1)
        for candidate in candidates.candidates(
            precision,
            job.exported.model,
            job.calibration,
            second_try=second_try,
            int8_range=int8_range or ("7bit" if spec.int8_range == AUTO else spec.int8_range),
            is_for_tensorrt=spec.is_for_tensorrt,
        ):
            job.progress(making, 1, 1)
            try:
                passed.append((candidate, self._judge.judge(candidate)))
            except GateRefused as refusal:
                self.refused[precision] = f"{refusal} ({candidate.how})" if candidate.how else str(refusal)
                continue
            if second_try or job.exported.is_untrained or len(passed) == MAX_CONTENDERS:
                break
        return passed

    def _why_no_bf16(self) -> str:
        if OPENVINO not in self._job.engines:
            return "BF16 is computed by OpenVINO, whose environment is not here: tandem environment openvino"
        if not has_bf16():
            return "this processor has neither AMX-BF16 nor AVX512-BF16, so that nothing could be proven here"
        return ""
