"""Every gate of a model's variants in one place: the same FP32 file, data and limits for all of them.

What a precision may run on is a table here. Making files and writing them is not. Rule: a variant leaves here proven, with
its record's numbers, or as the exception that says which gate refused it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export import gates, speed
from serving.export.data import Dataset
from serving.export.gates import Interface, Limits
from serving.export.progress import Progress
from serving.repository import NOT_ALLOWED, PASSED, Gate, PoolGate, Speed, processor_key

MAX_BATCH_SIZE = 32  # guess, not measured: where a small net's throughput stops growing

_UNTIMED = "right answers; not timed on a GPU yet, so FP32 goes first there"
BASELINE_POOLS = {
    "cpu": PoolGate(PASSED, "cpu", "the baseline"),
    "gpu": PoolGate(PASSED, "cuda", "the baseline"),
}
# Where a precision may run, and the engine that its file for the other pool asks for, so that it cannot load there.
POOLS: Mapping[str, Mapping[str, PoolGate]] = {
    "fp16": {
        "cpu": PoolGate(
            NOT_ALLOWED, "cuda", "ONNX Runtime has few FP16 kernels for CPUs: it would run slower than FP32"
        ),
        "gpu": PoolGate(PASSED, "cuda", _UNTIMED),
    },
    "int8": {
        "cpu": PoolGate(PASSED, "cpu", "replaced by what the speed gate says"),
        "gpu": PoolGate(NOT_ALLOWED, "tensorrt", "ONNX Runtime's CUDA provider has no INT8 kernels, only TensorRT has"),
    },
}


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """How speed is measured. One thread, because the generated configurations give an instance one."""

    batch_sizes: tuple[int, ...] = (1, 8, MAX_BATCH_SIZE)
    num_threads: int = 1
    seconds: float = 1.0  # per batch size
    keep_slow: bool = False

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise UserError(f"batch sizes are {list(self.batch_sizes)}, want at least one, each 1 or more")
        if self.num_threads < 1 or not self.seconds > 0:
            raise UserError("speed is measured with 1 thread or more, for more than 0 seconds")


@dataclass(frozen=True, slots=True)
class Proven:
    """A variant that passed its gates and is not written yet."""

    variant: str
    model: bytes
    gate: Gate
    pools: Mapping[str, PoolGate]
    speed: tuple[Speed, ...]


class Proof:
    """One model's gates: the same FP32 file, data and limits for every variant."""

    def __init__(
        self,
        model: str,
        fp32: bytes,
        data: Dataset,
        interface: Interface,
        limits: Limits,
        speed_run: SpeedRun,
        progress: Progress,
    ) -> None:
        self._model = model
        self._fp32 = fp32
        self._data = data
        self._interface = interface
        self._limits = limits
        self._speed_run = speed_run
        self._progress = progress
        self._reference = gates.run(f"{model}-fp32", fp32, data, interface)

    def baseline(self, framework: NDArray[Any]) -> Proven:
        """FP32 beside the framework that it was exported from; it is what speed is measured against."""
        gate = self._accuracy("fp32", self._fp32, framework)
        measurements = [replace(m, ratio=1.0, ratio_low=1.0, ratio_high=1.0) for m in self._measure("fp32", self._fp32)]
        return Proven("fp32", self._fp32, gate, BASELINE_POOLS, self._speeds(measurements))

    def variant(self, variant: str, model: bytes) -> Proven:
        gate = self._accuracy(variant, model, self._reference)
        pools = dict(POOLS[variant])
        if pools["cpu"].status == NOT_ALLOWED:
            return Proven(variant, model, gate, pools, ())
        measurements = self._measure(variant, model)
        status, reason = gates.judge_speed(
            f"{self._model}-{variant}", processor_key(), measurements, keep_slow=self._speed_run.keep_slow
        )
        pools["cpu"] = PoolGate(status, pools["cpu"].engine, reason)
        return Proven(variant, model, gate, pools, self._speeds(measurements))

    def _accuracy(self, variant: str, model: bytes, reference: NDArray[Any]) -> Gate:
        name = f"{self._model}-{variant}"
        self._progress(f"proving {name}", 0, 1)
        gates.check_file(name, model, self._interface)
        gate = gates.check_accuracy(name, model, reference, self._data, self._interface, self._limits)
        self._progress(f"proving {name}", 1, 1)
        return gate

    def _measure(self, variant: str, model: bytes) -> list[speed.Measurement]:
        run, step = self._speed_run, f"timing {self._model}-{variant}"
        measurements = []
        for done, size in enumerate(run.batch_sizes):
            self._progress(step, done, len(run.batch_sizes))
            measurements += speed.compare(
                self._fp32,
                model,
                batch_sizes=(size,),
                num_threads=run.num_threads,
                seconds=run.seconds,
                inputs=self._data.inputs,
            )
        self._progress(step, len(run.batch_sizes), len(run.batch_sizes))
        return measurements

    def _speeds(self, measurements: Sequence[speed.Measurement]) -> tuple[Speed, ...]:
        return tuple(
            Speed(
                processor=processor_key(),
                engine="cpu",
                engine_version=ort.__version__,
                batch_size=m.batch_size,
                num_threads=self._speed_run.num_threads,
                ratio=round(m.ratio, 4),
                ratio_low=round(m.ratio_low, 4),
                ratio_high=round(m.ratio_high, 4),
                latency_s=_nanoseconds(m.latency_s),
                fp32_latency_s=_nanoseconds(m.fp32_latency_s),
                measured=today(),
            )
            for m in measurements
        )


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _nanoseconds(seconds: float) -> float:
    """Rounded to what a clock tells."""
    return round(seconds, 9)
