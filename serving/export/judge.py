"""Is a model's FP32, and is each file made of it, good enough on every engine that is to compute it?

What is compared and how far it may go is `gates`'; which files there are is the pipeline's. Rule: no answer counts that was
computed otherwise than a server would. FP16 is rounded as on a GPU, because ONNX Runtime's CPU provider computes it in FP32;
BF16 runs on OpenVINO; and an engine whose answers were not looked at gets no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from serving.errors import EnvironmentFault, GateRefused, UserError
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, Run
from serving.export.gates import accuracy, file, session
from serving.export.gates.custom import Metric
from serving.export.gates.file import row_limit
from serving.export.gates.limits import ROUGH_ROWS, ROW_DIFFERENCE, Limits
from serving.export.gates.session import Session
from serving.export.progress import Progress
from serving.export.speed import EnginePython
from serving.export.speed.answering import running
from serving.export.variants import as_on_gpu
from serving.export.variants.outcome import Candidate
from serving.repository import Gate

PLAIN, OPENVINO, CUDA, AS_ON_GPU = "cpu", "openvino", "cuda", "a GPU's stand-in"

GatedCandidate = tuple[Candidate, Gate]


class Judge:
    """Of one model. `wrong_on`: (precision, engine) that may not have its file, because its answers there did not pass."""

    def __init__(
        self,
        model: str,
        exported: ExportedModel,
        data: Dataset | None,
        limits: Limits,
        metric: Metric | None,
        engines: Mapping[str, EnginePython],
        progress: Progress,
    ) -> None:
        self._model, self._exported, self._data = model, exported, data
        self._limits, self._metric = limits, metric
        self._engines, self._progress = engines, progress
        self._on_openvino: dict[bytes, Gate] = {}  # of files that run on two engines, the other's gate
        self.inputs: Arrays = data.inputs if data is not None else exported.example
        self.wrong_on: set[tuple[str, str]] = set()
        self.warnings: list[str] = []

    def baseline(self) -> GatedCandidate:
        """FP32 beside the framework that it came from, or beside itself where there is none. Raises GateRefused."""
        exported, size = self._exported, self._exported.max_batch_size
        candidate = Candidate("fp32", exported.model, "")
        self._reference = session.answers(exported.model, self.inputs, size)
        if exported.run is None or self._data is None:
            gate = self._judge(candidate, self._reference, "fp32", PLAIN)
        else:
            self._step(f"asking {exported.framework}")
            theirs = session.in_batches(exported.run, self.inputs, size)
            self._step(f"asking {exported.framework}", done=True)
            gate = self._judge(candidate, theirs, exported.framework, PLAIN)
        self._also_on_openvino(candidate)
        return candidate, gate

    def made(self, candidate: Candidate) -> Gate:
        """Beside FP32, computed as a server that may have this file would compute it. Raises GateRefused."""
        if candidate.precision == "bf16":
            return self._judge(candidate, self._reference, "fp32", OPENVINO)
        if candidate.precision == "fp16" or "tensorrt" in candidate.needs:
            is_there = candidate.precision == "fp16" and CUDA in self._engines
            return self._judge(candidate, self._reference, "fp32", CUDA if is_there else AS_ON_GPU)
        gate = self._judge(candidate, self._reference, "fp32", PLAIN)
        self._also_on_openvino(candidate)
        return gate

    def on(self, engine: str, judged: GatedCandidate) -> Gate:
        """The gate that this engine's own answers passed, where they were looked at apart. FP32's is beside its framework."""
        candidate, gate = judged
        if engine != OPENVINO or candidate.precision == "fp32":
            return gate
        return self._on_openvino.get(candidate.model, gate)

    def answers(self, candidate: Candidate, engine: str, inputs: Arrays) -> list[NDArray[Any]]:
        """Of the engine that a CPU pool is to have it on, as the gate computed them."""
        size = self._exported.max_batch_size
        if engine == PLAIN:
            return session.answers(candidate.model, inputs, size, f"{self._model}-{candidate.precision}")
        with running(self._engines[engine], candidate.model, candidate.precision, num_threads=1) as run:
            return session.in_batches(run, inputs, size)

    def row_limit(self, candidate: Candidate, engine: str, gate: Gate) -> float:
        """How far a row may differ on a server, whose threads are others: as far as its gate lets it depend on its batch."""
        own = ROUGH_ROWS if engine != PLAIN or self._exported.is_untrained else row_limit(candidate.model)
        check = gate.check(ROW_DIFFERENCE)
        return own if check is None or check.limit is None else max(own, check.limit)

    def _also_on_openvino(self, candidate: Candidate) -> None:
        """An engine that computes this file wrongly does not get it; the others may be right all the same."""
        if OPENVINO not in self._engines:
            return
        try:
            self._on_openvino[candidate.model] = self._judge(candidate, self._reference, "fp32", OPENVINO)
            self.wrong_on.discard((candidate.precision, OPENVINO))
        except (GateRefused, UserError, EnvironmentFault) as reason:
            self.wrong_on.add((candidate.precision, OPENVINO))
            self.warnings.append(f"{candidate.precision} is not served by {OPENVINO}: {reason}")

    def _judge(self, candidate: Candidate, reference: Sequence[NDArray[Any]], name: str, engine: str) -> Gate:
        full_name = f"{self._model}-{candidate.precision}"
        where = "" if engine == PLAIN else f" on {engine}"
        self._step(f"proving {full_name}{where}")
        file.check_file(full_name, candidate.model, file.Interface.of(self._exported))
        if engine == PLAIN:
            gate = self._gate(full_name, candidate.model, reference, name, None)
        elif engine == AS_ON_GPU:
            stand_in = Session(full_name, as_on_gpu.as_on_gpu(candidate.model))
            gate = self._gate(full_name, candidate.model, reference, name, stand_in.run)
        else:
            with running(self._engines[engine], candidate.model, candidate.precision, num_threads=1) as run:
                gate = self._gate(full_name, candidate.model, reference, name, run)
        self._step(f"proving {full_name}{where}", done=True)
        return gate

    def _gate(
        self, full_name: str, model: bytes, reference: Sequence[NDArray[Any]], name: str, run: Run | None
    ) -> Gate:
        size = self._exported.max_batch_size
        if self._exported.is_untrained:
            return accuracy.untrained(full_name, model, self._reference, self.inputs, size, run)
        if self._data is None:
            return accuracy.ungated(full_name, model, self.inputs, size, run)
        task, limits = self._exported.task, self._limits
        return accuracy.judge(full_name, model, reference, name, self._data, task, size, limits, self._metric, run)

    def _step(self, what: str, *, done: bool = False) -> None:
        self._progress(what, int(done), 1)
