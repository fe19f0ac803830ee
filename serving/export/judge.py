"""Judges whether FP32 and each file made of it are good enough on every engine that will compute them.

What is compared, and the limits, are in `gates`; which files there are is decided in `pipeline`. Rule: an answer counts only
if it was computed as a server would compute it. FP16 is rounded as on a GPU, because ONNX Runtime's CPU provider computes it in
FP32, and so are the factors of TF32; BF16 runs on OpenVINO; an engine whose answers were not compared gets no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from serving.errors import EnvironmentFault, GateRefused, UserError
from serving.export import onnx_session
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, Run
from serving.export.gates import accuracy, previous
from serving.export.gates.file import Interface, check_file, row_limit
from serving.export.gates.limits import ROUGH_ROWS, ROW_DIFFERENCE, TypeNotProven
from serving.export.job import ExportJob
from serving.export.onnx_session import Session
from serving.export.speed.kernels import problems
from serving.export.speed.process import profiled, running
from serving.export.speed.results import NAMES
from serving.export.variants.as_on_gpu import as_on_gpu, in_tf32
from serving.export.variants.candidate import Candidate
from serving.export.variants.graph import num_products_in
from serving.measure.machine import card_name, processor_key
from serving.repository import Gate, Previous

PLAIN, OPENVINO, CUDA, AS_ON_GPU = "cpu", "openvino", "cuda", "a GPU's stand-in"
PROVIDER = "CUDAExecutionProvider"

GatedCandidate = tuple[Candidate, Gate]


class Judge:
    """The judge of one export. `wrong_on`: (precision, engine) pairs whose answers did not pass, so that the engine gets no file."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._gates_on_openvino: dict[bytes, Gate] = {}  # of files that run on two engines
        self.wrong_on: set[tuple[str, str]] = set()
        self.warnings: list[str] = []

    def baseline(self) -> GatedCandidate:
        """Judges FP32 beside the framework that it came from, or beside itself where there is none. Raises GateRefused."""
        job, exported = self._job, self._job.exported
        candidate = Candidate("fp32", exported.model, "")
        self._reference = onnx_session.answers(exported.model, job.inputs, exported.max_batch_size)
        if exported.run is None or job.data is None:
            gate = self._judge(candidate, self._reference, "fp32", PLAIN)
        else:
            with job.step(f"running {exported.framework}"):
                theirs = onnx_session.in_batches(exported.run, job.inputs, exported.max_batch_size)
            gate = self._judge(candidate, theirs, exported.framework, PLAIN)
        self._also_on_openvino(candidate)
        return candidate, replace(gate, previous=self._beside_previous())

    def _beside_previous(self) -> Previous | None:
        """Compares the new FP32 with the version that it would replace. Raises Worse."""
        job, exported = self._job, self._job.exported
        old = job.previous
        if old is None or job.data is None or exported.is_untrained or old.record.is_untrained:
            return None
        spec = job.spec
        with job.step(f"comparing with version {old.record.model_version}"):
            found = previous.compare(
                old,
                exported.model,
                self._reference,
                job.data,
                task=exported.task,
                names=exported.labels,
                limits=spec.limits,
                metric=spec.metric,
            )
        if found is None:
            return None
        if found.previous is None:
            self.warnings.append(f"not compared with version {old.record.model_version}: {found.why}")
        elif not spec.accepts_worse:
            previous.refuse_if_worse(job.name("fp32"), found.previous)
        return found.previous

    def judge(self, candidate: Candidate) -> Gate:
        """Judges a candidate beside FP32, computed as a server that may have this file would compute it. Raises GateRefused."""
        if candidate.precision == "bf16":
            return self._judge(candidate, self._reference, "fp32", OPENVINO)
        if candidate.precision in ("fp16", "tf32") or "tensorrt" in candidate.needs:
            is_there = candidate.precision in ("fp16", "tf32") and CUDA in self._job.engines
            gate = self._judge(candidate, self._reference, "fp32", CUDA if is_there else AS_ON_GPU)
            if is_there:
                self._prove_type(candidate)
            return gate
        gate = self._judge(candidate, self._reference, "fp32", PLAIN)
        self._also_on_openvino(candidate)
        return gate

    def _prove_type(self, candidate: Candidate) -> None:
        """Raises TypeNotProven where the card's own profile shows that it is not computed there, or not in its precision."""
        name = self._job.name(candidate.precision)
        with self._job.step(f"proving on {CUDA} in which types {name} computes"):
            few = {key: values[:1] for key, values in self._job.inputs.items()}
            ran = profiled(self._job.engines[CUDA], candidate.model, candidate.precision, few)
        if found := problems(
            ran, candidate.precision, PROVIDER, num_products_in(candidate.model, onnx.TensorProto.FLOAT)
        ):
            raise TypeNotProven(name, found)

    def gate_on(self, engine: str, gated: GatedCandidate) -> Gate:
        """Returns the gate that this engine's own answers passed, if they were judged apart. FP32's is beside its framework."""
        candidate, gate = gated
        if engine != OPENVINO or candidate.precision == "fp32":
            return gate
        return self._gates_on_openvino.get(candidate.model, gate)

    def answers(self, candidate: Candidate, engine: str, inputs: Arrays) -> list[NDArray[Any]]:
        """Computes the answers of the engine that a CPU pool will use, as the gate did."""
        size = self._job.exported.max_batch_size
        if engine == PLAIN:
            return onnx_session.answers(candidate.model, inputs, size, self._job.name(candidate.precision))
        with running(self._job.engines[engine], candidate.model, candidate.precision, num_threads=1) as run:
            return onnx_session.in_batches(run, inputs, size)

    def row_limit(self, candidate: Candidate, engine: str, gate: Gate) -> float:
        """How far a row may differ on a server, whose threads are others: as far as its gate lets it depend on its batch."""
        own = ROUGH_ROWS if engine != PLAIN or self._job.exported.is_untrained else row_limit(candidate.model)
        check = gate.check(ROW_DIFFERENCE)
        return own if check is None or check.limit is None else max(own, check.limit)

    def _also_on_openvino(self, candidate: Candidate) -> None:
        """An engine that computes this file wrongly does not get it; the others may be right all the same."""
        if OPENVINO not in self._job.engines:
            return
        try:
            self._gates_on_openvino[candidate.model] = self._judge(candidate, self._reference, "fp32", OPENVINO)
            self.wrong_on.discard((candidate.precision, OPENVINO))
        except (GateRefused, UserError, EnvironmentFault) as reason:
            self.wrong_on.add((candidate.precision, OPENVINO))
            self.warnings.append(f"{candidate.precision} is not served by {OPENVINO}: {reason}")

    def _judge(self, candidate: Candidate, reference: Sequence[NDArray[Any]], name: str, engine: str) -> Gate:
        full_name = self._job.name(candidate.precision)
        with self._job.step(f"proving {full_name}{'' if engine == PLAIN else f' on {engine}'}"):
            check_file(full_name, candidate.model, Interface.of(self._job.exported))
            if engine == PLAIN:
                gate = self._gate(full_name, candidate.model, reference, name, None)
            elif engine == AS_ON_GPU:
                rounded = in_tf32 if candidate.precision == "tf32" else as_on_gpu
                stand_in = Session(full_name, rounded(candidate.model))
                gate = self._gate(full_name, candidate.model, reference, name, stand_in.run)
            else:
                with running(self._job.engines[engine], candidate.model, candidate.precision, num_threads=1) as run:
                    gate = self._gate(full_name, candidate.model, reference, name, run)
        return replace(gate, judged_on=self._judged_on(engine), calibration=self._calibration(candidate))

    def _judged_on(self, engine: str) -> str:
        """Names the library that computes the answers, and the processor or card."""
        if engine in (PLAIN, AS_ON_GPU):
            how = ", rounded as on a GPU" if engine == AS_ON_GPU else ""
            return f"ONNX Runtime {onnx_session.VERSION}, its CPU provider on {processor_key()}{how}"
        device = card_name() if engine == CUDA else processor_key()
        return f"{NAMES[engine]} by ONNX Runtime {self._job.engines[engine].version} on {device}"

    def _calibration(self, candidate: Candidate) -> str:
        rows = self._job.calibration
        if not candidate.is_calibrated or not rows:
            return ""
        data = Dataset("calibration", rows, None)
        return f"{data.num_samples} rows, SHA-256 {data.digest[:12]}, none of which judged"

    def _gate(
        self, full_name: str, model: bytes, reference: Sequence[NDArray[Any]], name: str, run: Run | None
    ) -> Gate:
        job, spec, size = self._job, self._job.spec, self._job.exported.max_batch_size
        if job.exported.is_untrained:
            return accuracy.untrained(full_name, model, self._reference, job.inputs, size, run)
        if job.data is None:
            return accuracy.ungated(full_name, model, job.inputs, size, run)
        task, names = job.exported.task, job.exported.labels
        return accuracy.judge(
            full_name, model, reference, name, job.data, task, size, spec.limits, spec.metric, run, names
        )
