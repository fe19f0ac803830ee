"""Which engines there are, which pool each computes in, which variants only one can compute, and which is the fastest by what was timed.

An engine is a way to run an ONNX file; an engine that is installed has a Python of its own. Nothing here looks whether one is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.repository import Speed

BASELINE = "fp32"
PLAIN = {"cpu": "cpu", "gpu": "cuda"}  # pool -> ONNX Runtime's own provider there
POOL = {"cpu": "cpu", "openvino": "cpu", "cuda": "gpu", "tensorrt": "gpu"}
# Computed as what they are by one engine of a pool alone: FP32's file in BF16 or TF32, and INT8 on a card.
ONLY_ENGINE = {("cpu", "bf16"): "openvino", ("gpu", "tf32"): "cuda", ("gpu", "int8"): "tensorrt"}


@dataclass(frozen=True, slots=True)
class EnginePython:
    """An engine that is installed: `python` has its build of ONNX Runtime, of this version."""

    engine: str
    python: Path
    version: str


Speeds = Mapping[str, Sequence[Speed]]  # of one variant: engine -> its measurements


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast as FP32 on `baseline_engine`, which runs FP32 best at this batch size."""

    batch_size: int
    ratio: float
    ratio_low: float
    ratio_high: float
    baseline_engine: str


def here(speeds: Iterable[Speed], *, processor: str, versions: Mapping[str, str]) -> dict[str, tuple[Speed, ...]]:
    """Engine -> what was measured on this processor with the engines (name -> version) that are installed here."""
    found: dict[str, tuple[Speed, ...]] = {}
    for speed in speeds:
        is_here = speed.processor == processor and versions.get(speed.engine) == speed.engine_version
        if is_here and speed.baseline_engine in versions:
            found[speed.engine] = (*found.get(speed.engine, ()), speed)
    return found


def best_engine(speeds: Speeds, plain: str, *, is_baseline: bool = False) -> str | None:
    """The engine that is fastest over all batch sizes, by the mean of its ratios; None if none was measured.

    The plain one unless another is clearly faster. `is_baseline`: the variant is FP32 itself.
    """
    by_engine = {engine: _against(rows, plain) for engine, rows in speeds.items()}
    if is_baseline:
        sizes = {size for gains in by_engine.values() for size in gains}
        by_engine[plain] = {size: Gain(size, 1.0, 1.0, 1.0, plain) for size in sizes}
    others = {engine: gains for engine, gains in by_engine.items() if gains and engine != plain}
    if not by_engine.get(plain):
        return max(others, key=lambda engine: mean_ratio(others[engine].values()), default=None)
    better = {engine: score for engine, gains in others.items() if (score := _score(gains, by_engine[plain])) > 1}
    return max(better, key=lambda engine: better[engine], default=plain)


def gains(speeds: Sequence[Speed], fp32: Speeds, plain: str) -> tuple[Gain, ...]:
    """One engine's measurements of a variant beside FP32 on the engine that runs FP32 best at each batch size.

    Where the two did not run side by side, the interval is the widest that their own allow.
    """
    found = []
    for size, gain in sorted(_against(speeds, plain).items()):
        best = best_at(size, fp32, plain)
        if best is None:
            found.append(gain)
        elif (direct := _against(speeds, best.engine).get(size)) is not None:
            found.append(direct)
        else:
            low, high = gain.ratio_low / best.ratio_high, gain.ratio_high / best.ratio_low
            found.append(Gain(size, gain.ratio / best.ratio, low, high, best.engine))
    return tuple(found)


def best_at(batch_size: int, fp32: Speeds, plain: str) -> Speed | None:
    """FP32 on the engine that is clearly faster than the plain one at this batch size; None where the plain one is best."""
    rows = [row for rows in fp32.values() for row in rows if row.batch_size == batch_size]
    better = [row for row in rows if row.baseline_engine == plain and row.engine != plain and row.ratio_low > 1]
    return max(better, key=lambda row: row.ratio, default=None)


def clear_ratio(gains: Iterable[Gain]) -> float | None:
    """The largest gain whose whole interval lies above 1; None if there is none, or a clear loss beside it."""
    known = list(gains)
    if any(gain.ratio_high < 1 for gain in known):
        return None
    return max((gain.ratio for gain in known if gain.ratio_low > 1), default=None)


def mean_ratio(gains: Iterable[Gain]) -> float:
    """Over the batch sizes: twice as fast at one and half as fast at another is as fast."""
    return _mean(gain.ratio for gain in gains)


def _against(speeds: Sequence[Speed], baseline_engine: str) -> dict[int, Gain]:
    """Batch size -> the ratio to FP32 on this engine."""
    return {
        row.batch_size: Gain(row.batch_size, row.ratio, row.ratio_low, row.ratio_high, baseline_engine)
        for row in speeds
        if row.baseline_engine == baseline_engine
    }


def _mean(ratios: Iterable[float]) -> float:
    """The geometric one; 0 of nothing."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 0.0


def _score(other: Mapping[int, Gain], plain: Mapping[int, Gain]) -> float:
    """How many times as fast as on the plain engine, over the sizes that both were measured at; 0 if that is not clear:
    with the lower ends of its intervals against the upper ends of the plain one's.
    """
    sizes = sorted(other.keys() & plain.keys())
    if not sizes or _mean(other[size].ratio_low for size in sizes) <= _mean(plain[size].ratio_high for size in sizes):
        return 0.0
    return mean_ratio(other[size] for size in sizes) / mean_ratio(plain[size] for size in sizes)
