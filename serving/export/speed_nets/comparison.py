"""The table model x variant x engine: its rows, and how it is written for programs and for people.

Values only; `compare` measures. Rule: whatever the numbers depend on stands above them: processor, card, threads, date, command.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from serving.cores import usable_cores
from serving.measure.machine import this_machine
from serving.repository import Speed, processor_key

VERSION = 1
FASTER, SLOWER, NO_GAIN, BASE = "faster", "slower", "no clear gain", "FP32"


@dataclass(frozen=True, slots=True)
class Row:
    """One variant on one engine at one batch size. `ratio`: FP32's time on the same device / this one's; above 1 is faster."""

    model: str
    variant: str
    engine: str
    engine_version: str
    batch_size: int
    size_bytes: int
    ratio: float
    ratio_low: float
    ratio_high: float
    latency_s: float
    rate_per_s: float  # rows: images, texts
    verdict: str

    @classmethod
    def of(cls, model: str, variant: str, size_bytes: int, speed: Speed) -> Self:
        return cls(
            model=model,
            variant=variant,
            engine=speed.engine,
            engine_version=speed.engine_version,
            batch_size=speed.batch_size,
            size_bytes=size_bytes,
            ratio=speed.ratio,
            ratio_low=speed.ratio_low,
            ratio_high=speed.ratio_high,
            latency_s=speed.latency_s,
            rate_per_s=float(f"{speed.batch_size / speed.latency_s:.4g}"),
            verdict=_verdict(variant, speed),
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    model: str
    variant: str
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class Host:
    """`card`: name and driver; None where there is none."""

    processor: str
    processor_key: str
    num_cores: int
    card: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    machine: Host
    measured: str  # ISO date
    command: str
    num_threads: int
    seconds: float  # per batch size and entrant
    num_rounds: int
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        machine = self.machine
        lines = [
            f"Processor: {machine.processor} ({machine.processor_key}), {machine.num_cores} cores, {self.num_threads} "
            f"threads. Card: {machine.card or 'none'}. {self.measured}, `{self.command}`.",
            "",
            "In process, without a server. Untrained nets: speed only. The ratio is FP32's time over the variant's on the "
            "same device, with its 95 % interval.",
            "",
            "| model | variant | engine | batch | MB | rows/s | times FP32 | |",
            "| --- | --- | --- | ---: | ---: | ---: | --- | --- |",
            *(_line(row) for row in self.rows),
        ]
        if self.left_out:
            told = (f"- {out.model} {out.variant} on {out.engine}: {out.reason}" for out in self.left_out)
            lines += ["", "Not timed:", "", *told]
        if self.warnings:
            lines += ["", "Timed less than wished:", "", *(f"- {warning}" for warning in self.warnings)]
        return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    ratio = f"{row.ratio:.2f} ({row.ratio_low:.2f}..{row.ratio_high:.2f})" if row.verdict != BASE else "1"
    return (
        f"| {row.model} | {row.variant} | {row.engine} {row.engine_version} | {row.batch_size} "
        f"| {row.size_bytes / 1e6:.0f} | {row.rate_per_s:.4g} | {ratio} | {row.verdict} |"
    )


def _verdict(variant: str, speed: Speed) -> str:
    if variant == "fp32" and speed.engine == speed.baseline_engine:
        return BASE
    if speed.ratio_low > 1:
        return FASTER
    return SLOWER if speed.ratio_high < 1 else NO_GAIN


def this_host() -> Host:
    machine = this_machine()
    return Host(machine.processor, processor_key(), usable_cores(), machine.cards[0] if machine.cards else None)
