"""What the claims suite holds: numbers with intervals, or the reason why there is none, and what follows for each claim.

Plain values, written to JSON and read again, where an unknown or a missing name is an error. Intervals are Student's t over rounds, as in
all reports (`serving/measure`); fewer than three rounds have none, and so no claim holds or fails by them. Turns of one round are never
taken for independent: a session's speed is shifted for as long as it lives.
Rule: a reading has a value or a reason, never both and never neither.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from loadtest.errors import ResultsError
from serving.documents.reader import parse_document
from serving.measure import intervals
from serving.measure.intervals import estimate
from serving.measure.machine import Machine


def median(rounds: Sequence[float], most: float = math.inf) -> Reading:
    """`most`: of a share, 1. ValueError without any."""
    found = estimate(rounds, most)
    if found is None:
        raise ValueError("no rounds, no median")
    return Reading(found.median, found.low, found.high)


def paired(ratios: Sequence[float]) -> Reading:
    """Of one ratio for each round, in which both sides took turns. ValueError without any."""
    return _around(float(np.median(ratios)), intervals.paired(ratios))


def apart(top: Sequence[float], bottom: Sequence[float]) -> Reading:
    """The ratio of the medians of two sides that did not take turns. ValueError where one has no rounds."""
    if not top or not bottom:
        raise ValueError("no rounds, no ratio")
    return _around(float(np.median(top) / np.median(bottom)), intervals.unpaired(top, bottom))


def _around(middle: float, found: intervals.Difference | None) -> Reading:
    """The interval is that of the geometric mean, widened to hold the median where need be."""
    if found is None or found.low is None or found.high is None:
        return Reading(middle)
    return Reading(middle, min(found.low, middle), max(found.high, middle))


def either(one: Reading, other: Reading) -> Reading:
    """One reading of two measurements of the same thing, as wide as both together."""
    known = [reading.value for reading in (one, other) if reading.value is not None]
    ends = [end for reading in (one, other) for end in (reading.low, reading.high) if end is not None]
    middle = float(np.median(known))
    return Reading(middle, min(ends), max(ends)) if len(ends) == 4 else Reading(middle)


NOT_MEASURED_HERE, NOT_RUN = "not measured here", "not run"
HOLDS, DOES_NOT_HOLD, DEPENDS, INCONCLUSIVE = "holds", "does not hold", "depends", "inconclusive"
TREES = "boosted-trees"  # the one model here that is no net
Side = Literal["holds", "fails", "unclear"]


@dataclass(frozen=True, slots=True)
class Reading:
    """`low` and `high`: the 95 % interval, None of fewer than three rounds. `absent`: one of the two words above, then with a reason."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    absent: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.absent is not None):
            raise ValueError("a reading has a value, or says why it has none")
        if self.value is not None and not (self.low is None or self.low <= self.value <= (self.high or self.low)):
            raise ValueError(f"{self.value} is not inside {self.low}..{self.high}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a claim. `is_judged` False: shown, but no part of the answer. `side`: of the claim's threshold."""

    model: str
    at: str  # what it is of: "batch 8"
    reading: Reading
    is_judged: bool = True
    side: Side | None = None
    unit: str = "times"


@dataclass(frozen=True, slots=True)
class EngineTime:
    """One variant of a model on one engine at one batch size, in process: seconds per batch, a median for each round of new sessions.

    `ratios`: FP32's time on the same device's plain engine over this one's, for each round the median of pairs from the same turns; empty
    for FP32 on that engine itself, and where the two never took turns.
    """

    model: str
    variant: str
    engine: str
    batch_size: int
    size_bytes: int
    rounds_s: tuple[float, ...]
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules per row, round by round, while one variant computed without a pause: of the processor or of the card, by its own counter."""

    model: str
    variant: str
    engine: str
    batch_size: int
    joules: tuple[float, ...]
    rates: tuple[float, ...]  # rows per second, in the same rounds


@dataclass(frozen=True, slots=True)
class OptionTime:
    """One variant on a card with options of its provider, or in buffers: what `arm` says. Seconds per batch, a median of all turns.

    `ratios`: a plain run's time over this one's, for each round the median of pairs from the same turns; empty for plain runs.
    """

    model: str
    variant: str
    engine: str
    batch_size: int
    arm: str
    median_s: float
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Omission:
    """`batch_size` None: all of them."""

    model: str
    variant: str
    engine: str
    batch_size: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second, read and written counted both, round by round. `reason`: why there are none. `when`: before or after the nets."""

    device: Literal["cpu", "gpu"]
    how: str
    array_bytes: int = 0
    copy: tuple[float, ...] = ()
    triad: tuple[float, ...] = ()
    reason: str | None = None
    when: Literal["before", "after"] = "before"


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One run of the simulator, compared with GPUs for the peak that are always on. Computed, not measured."""

    policy: str
    seed: int
    gpu_hours: float
    always_gpu_hours: float
    in_time_ratio: float
    always_in_time_ratio: float
    cost: float
    always_cost: float


@dataclass(frozen=True, slots=True)
class ServingRates:
    """Rows per second through gateway and Triton, and in process in the same rounds (empty: not asked for)."""

    model: str
    variant: str
    pool: str
    batch_size: int
    served: tuple[float, ...] = ()
    in_process: tuple[float, ...] = ()
    reason: str | None = None  # why there is nothing


@dataclass(frozen=True, slots=True)
class ServedRound:
    """One turn of one way to a net: rows per second. `arm`: one of ARMS in `loadtest/gpu/served_parts.py`.

    `cores`: process -> cores that it used; `instance_ratio`: the part of the turn in which the model's instance was at work, and
    `run_rows`: rows of one run of it, both as Triton counts them. None where no Triton was asked.
    """

    model: str
    variant: str
    pool: str
    batch_size: int
    arm: str
    rate: float
    cores: dict[str, float] = field(default_factory=dict)
    instance_ratio: float | None = None
    run_rows: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What the offer says and the share of it that was measured on."""

    device: Literal["cpu", "gpu"]
    offer: str
    per_hour: float  # of the cores or the card that were used
    currency: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured. `not_run`: experiment -> why it was not."""

    speeds: tuple[EngineTime, ...] = ()
    left_out: tuple[Omission, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    simulated: tuple[ScalingRun, ...] = ()
    served: tuple[ServingRates, ...] = ()
    prices: tuple[Price, ...] = ()
    energies: tuple[Energy, ...] = ()
    options: tuple[OptionTime, ...] = ()
    rounds: tuple[ServedRound, ...] = ()
    not_run: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        """What both found."""
        both: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name)
            for name in (one.name for one in dataclasses.fields(self))
            if name != "not_run"
        }
        return Findings(not_run=self.not_run | other.not_run, **both)


@dataclass(frozen=True, slots=True)
class Result:
    """A claim and what came of it. `number`: its kind; `experiment` and `threshold` are words."""

    name: str
    number: str
    says: str
    source: str
    url: str | None
    note: str | None
    experiment: str
    threshold: str
    answer: str
    numbers: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`others_ratio`: the part of the cores that other work took meanwhile."""

    name: str
    machine: Machine
    date: str
    command: str
    versions: dict[str, str]
    num_threads: int
    is_quick: bool
    is_partial: bool
    seconds: float
    others_ratio: float
    results: tuple[Result, ...]
    findings: Findings
    note: str | None = None  # what a reader must know, from the file
    version: int = 1


def to_json(report: Report) -> str:
    return json.dumps(_rounded(dataclasses.asdict(report)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str, file: str) -> Report:
    """What `to_json` wrote. Raises ResultsError."""
    return parse_document(text, file, is_json=True, error=ResultsError).values(Report)


def _rounded(value: Any) -> Any:
    """Five significant digits: more of them are noise in a file that people compare."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
