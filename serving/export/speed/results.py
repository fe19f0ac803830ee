"""The results of a contest: speeds for the record, which engine is best, and whether a variant is worth having.

Holds the times and computes from them; `decisions/engines.py` decides, as it does where models are served. Rule: every
ratio is of two that ran in the same turns, and none is given where the turns were too few for an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.decisions.engines import BASELINE, PLAIN, POOL, Gain, best_at, best_engine, clear_ratio, gains, mean_ratio
from serving.measure.intervals import paired
from serving.repository import NOT_USEFUL, PASSED, PoolGate, Speed

NAMES = {
    "cpu": "ONNX Runtime's own provider",
    "openvino": "OpenVINO",
    "cuda": "ONNX Runtime's CUDA provider",
    "tensorrt": "TensorRT",
}

WIDE = 1.1  # a gain of less than a tenth is not worth more rounds: intervals on a quiet machine have this width

Key = tuple[str, str]  # variant, engine


@dataclass(frozen=True, slots=True)
class Entrant:
    """A file to be timed on an engine. `variant` also says the precision where it is the engine's: bf16's file is FP32's."""

    variant: str
    engine: str
    model: Path
    cuda: tuple[tuple[str, str], ...] = ()  # options of the CUDA provider; without, its own
    has_buffers: bool = False  # batches run in buffers that stay where they are

    @property
    def key(self) -> Key:
        return self.variant, self.engine

    def __str__(self) -> str:
        return f"{self.variant} on {self.engine}"


@dataclass(frozen=True)
class Results:
    """`times`: batch size -> per round, entrant -> seconds per run, float64 [turns], the same turns for all of a round.

    `left_out`: who did not run, and why. `crashed`: those of them whose worker died or took too long, which may be otherwise
    another time. `warnings`: where it was less than it should have been.
    """

    times: Mapping[int, Sequence[Mapping[Key, NDArray[Any]]]]
    versions: Mapping[str, str]  # engine -> ONNX Runtime's
    processors: Mapping[str, str]  # pool -> the processor's key, or the card's name
    num_threads: int
    measured: str  # ISO date
    left_out: Mapping[Key, str] = field(default_factory=dict)
    crashed: frozenset[Key] = frozenset()
    warnings: tuple[str, ...] = ()
    _known: dict[tuple[Key, Key, int], Speed | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def entrants(self) -> tuple[Key, ...]:
        """Those that were timed."""
        return tuple(dict.fromkeys(key for rounds in self.times.values() for one in rounds for key in one))

    def speeds(self, variant: str, engine: str) -> tuple[Speed, ...]:
        """Speeds beside FP32 on the pool's plain engine, and beside FP32 on another, at the batch sizes where that is clearly faster."""
        plain = PLAIN[POOL[engine]]
        rows = self._rows(variant, engine, plain)
        if variant == BASELINE:
            return rows
        fp32 = self._fp32(POOL[engine])
        for size in sorted(self.times):
            best = best_at(size, fp32, plain)
            if best is not None:
                rows += self._rows(variant, engine, best.engine, sizes=[size])
        return rows

    def undecided(self) -> list[str]:
        """Names those whose interval holds 1, so that nobody knows whether they are faster, and is wide, so that more rounds may tell."""
        rows = [
            (key, row)
            for key in self.entrants
            for row in self.speeds(*key)
            if key[1] != row.baseline_engine or key[0] != BASELINE
        ]
        return [
            f"{variant} on {engine} at batch {row.batch_size} ({row.ratio_low:.2f}..{row.ratio_high:.2f})"
            for (variant, engine), row in rows
            if row.ratio_low < 1 < row.ratio_high and row.ratio_high > WIDE * row.ratio_low
        ]

    def best_engine(self, variant: str, pool: str = "cpu") -> str | None:
        """Names the best engine; None where it was timed on none of the pool's."""
        return best_engine(self._by_engine(variant, pool), PLAIN[pool], is_baseline=variant == BASELINE)

    def gains(self, variant: str, pool: str = "cpu") -> tuple[Gain, ...]:
        """Gains of its best engine, beside FP32 on FP32's best engine at each batch size."""
        engine = self.best_engine(variant, pool)
        return gains(self.speeds(variant, engine), self._fp32(pool), PLAIN[pool]) if engine else ()

    def fastest(self, variants: Iterable[str], pool: str = "cpu") -> str | None:
        """The variant whose best engine is fastest over all batch sizes; None where none was timed."""
        means = {variant: self._mean(variant, pool) for variant in variants}
        return max((v for v, mean in means.items() if mean > 0), key=lambda v: means[v], default=None)

    def verdict(self, variant: str, pool: str = "cpu") -> PoolGate:
        """Picks its best engine, and says whether it beats FP32's best one: clearly at some batch size, and clearly worse at none."""
        engine = self.best_engine(variant, pool)
        if engine is None:
            why = "; ".join(f"{name}: {reason}" for (which, name), reason in self.left_out.items() if which == variant)
            reason = f"not timed{f' ({why})' if why else ''}"
            if variant == BASELINE:
                return PoolGate(PASSED, PLAIN[pool], f"the baseline; {reason}")
            return PoolGate(NOT_USEFUL, PLAIN[pool], reason)
        if variant == BASELINE:
            return PoolGate(PASSED, engine, self._baseline_reason(engine, pool))
        beside_best = self.gains(variant, pool)
        status = PASSED if clear_ratio(beside_best) is not None else NOT_USEFUL
        where = f"with {NAMES[engine]} on {self.processors[pool]}"
        reason = f"{_words(beside_best)}{_whose(beside_best, PLAIN[pool])}, {where}: {describe(beside_best)}"
        if any(gain.baseline_engine != PLAIN[pool] for gain in beside_best):
            plain = gains(self.speeds(variant, engine), {}, PLAIN[pool])
            reason += f"; beside FP32 on {NAMES[PLAIN[pool]]}: {describe(plain)}"
        return PoolGate(status, engine, reason)

    def _baseline_reason(self, engine: str, pool: str) -> str:
        plain = PLAIN[pool]
        others = {name: gains(rows, {}, plain) for name, rows in self._fp32(pool).items() if name != plain and rows}
        if engine in others:
            times = f"{mean_ratio(others[engine]):.2g}x as fast on {NAMES[engine]} as on {NAMES[plain]}"
            return f"the baseline; {times}: {describe(others[engine])}"
        others_text = "; ".join(
            f"not clearly faster on {NAMES[name]}: {describe(found)}" for name, found in others.items()
        )
        return f"the baseline; {others_text}" if others_text else "the baseline"

    def _mean(self, variant: str, pool: str) -> float:
        engine = self.best_engine(variant, pool)
        return mean_ratio(gains(self.speeds(variant, engine), {}, PLAIN[pool])) if engine else 0.0

    def _fp32(self, pool: str) -> dict[str, tuple[Speed, ...]]:
        return self._by_engine(BASELINE, pool)

    def _by_engine(self, variant: str, pool: str) -> dict[str, tuple[Speed, ...]]:
        """Engine -> its speeds beside FP32 on the plain one."""
        engines = [engine for which, engine in self.entrants if which == variant and POOL[engine] == pool]
        return {engine: self._rows(variant, engine, PLAIN[pool]) for engine in engines}

    def _rows(
        self, variant: str, engine: str, baseline_engine: str, sizes: Sequence[int] | None = None
    ) -> tuple[Speed, ...]:
        found = (
            self._speed((variant, engine), (BASELINE, baseline_engine), size) for size in sizes or sorted(self.times)
        )
        return tuple(speed for speed in found if speed is not None)

    def _speed(self, key: Key, baseline: Key, batch_size: int) -> Speed | None:
        """None where the two did not run side by side often enough."""
        pair = (key, baseline, batch_size)
        if pair not in self._known:
            self._known[pair] = self._measure(key, baseline, batch_size)
        return self._known[pair]

    def _measure(self, key: Key, baseline: Key, batch_size: int) -> Speed | None:
        rounds = [one for one in self.times[batch_size] if key in one and baseline in one]
        found = paired([float(np.median(one[baseline] / one[key])) for one in rounds])
        if found is None or found.low is None or found.high is None:
            return None
        return Speed(
            processor=self.processors[POOL[key[1]]],
            engine=key[1],
            engine_version=self.versions[key[1]],
            baseline_engine=baseline[1],
            batch_size=batch_size,
            num_threads=self.num_threads,
            ratio=_digits(found.ratio),
            ratio_low=_digits(found.low),
            ratio_high=_digits(found.high),
            latency_s=_median(rounds, key),
            fp32_latency_s=_median(rounds, baseline),
            measured=self.measured,
        )


def describe(found: Iterable[Gain]) -> str:
    return ", ".join(
        f"batch {gain.batch_size} {gain.ratio:.2f}x ({gain.ratio_low:.2f}..{gain.ratio_high:.2f})" for gain in found
    )


def _words(found: Sequence[Gain]) -> str:
    if clear_ratio(found) is not None:
        return "faster than FP32"
    losses = [gain.ratio_high < 1 for gain in found]
    if found and all(losses):
        return "slower than FP32"
    return "slower than FP32 at some batch size" if any(losses) else "no clear gain over FP32"


def _whose(found: Sequence[Gain], plain: str) -> str:
    """Which engine runs FP32 best, where it is not the plain one alone."""
    best = sorted({gain.baseline_engine for gain in found} - {plain})
    return f" on its best engine ({', '.join(NAMES[engine] for engine in best)})" if best else ""


def _median(rounds: Sequence[Mapping[Key, NDArray[Any]]], key: Key) -> float:
    """Seconds, rounded to what a clock tells."""
    return max(1e-9, round(float(np.median(np.concatenate([one[key] for one in rounds]))), 9))


def _digits(value: float) -> float:
    """Four significant digits: more of them is noise in a record that people read."""
    return float(f"{value:.4g}") if math.isfinite(value) else value
