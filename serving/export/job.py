"""One export: what is to be made of which model, judged on which data, on which engines.

Every step of the pipeline takes it. Rule: nothing here changes once the pipeline has made it, so that no step depends on
another's side effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel
from serving.export.gates.custom import Metric
from serving.export.gates.limits import Limits
from serving.export.progress import Progress, silent
from serving.export.speed import EnginePython
from serving.repository import Variant

AUTO = "auto"  # INT8 weights of 7 bits, which are right everywhere; of 8 where those do not pass and VNNI is here


DEFAULT_BUDGET_S = (
    300.0  # of the search for an INT8 that passes; long for a net of 100 MB on two cores (guess, not measured)
)


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What to make of a model, and when it is good enough. `precisions` None: all that are worth trying."""

    model: str
    precisions: tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    metric: Metric | None = None
    accepts_ungated: bool = False
    keeps_data: bool = True
    queue_delay_us: int = 0
    is_for_tensorrt: bool = False
    int8_range: str = AUTO
    seconds: float = 1.0  # of timing, per batch size
    accepts_worse: bool = False  # than the version before
    budget_s: float = DEFAULT_BUDGET_S
    fuses: bool = True  # FP16 of a transformer, in ONNX Runtime's own operators
    num_kept: int | None = None  # versions whose files are kept; None: as many as are there


@dataclass(frozen=True, slots=True, eq=False)
class ExportJob:
    """One export's inputs. `data` judges and `calibration` calibrates; no row does both."""

    spec: ExportSpec
    exported: ExportedModel
    data: Dataset | None
    calibration: Arrays | None
    engines: Mapping[str, EnginePython]
    progress: Progress = silent
    previous: Variant | None = None  # the FP32 that a new version would replace

    @property
    def inputs(self) -> Arrays:
        """The arrays that every gate and timing runs on."""
        return self.exported.example if self.data is None else self.data.inputs

    def name(self, precision: str) -> str:
        return f"{self.spec.model}-{precision}"

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.progress(what, 0, 1)
        yield
        self.progress(what, 1, 1)
