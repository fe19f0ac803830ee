"""Holds a report: runs, arms at each point of the load, and numbers as they are read. No computing here."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.records import Manifest
from serving.measure.intervals import Difference, Estimate

VERSION = 3


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `void` says why it does not count; None if it counts. Latencies of good answers to requests sent after the warm-up."""

    arm: str
    point: float  # of the load: users, or requests per second
    repeat: int
    state: str
    void: str | None
    rows: str
    started: str
    num_ok: int
    num_errors: int
    num_wrong: int | None  # good answers with another label than the true one; None where no truth is known
    throughput_rps: float
    latency_p50_s: float | None
    latency_p90_s: float | None
    latency_p99_s: float | None
    within_objective_ratio: float | None  # of all that were due; None without an objective
    lag_p99_s: float | None  # open loop: how much later than due requests were sent
    num_dropped: int
    num_others: (
        int | None
    )  # requests beyond ours that the gateway counted over the whole run; None where it does not say
    generator_cpu_ratio: float | None
    unstable: str | None  # why it was not the same from beginning to end; it counts all the same


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """What servers and machine did for one arm at one point: medians over its valid runs, None as soon as one of them does not know.

    The times are of a mean request of a run. CPU and energy are divided by the good answers of the measured seconds.
    """

    gateway_queue_s: float | None
    triton_queue_s: float | None
    triton_input_s: float | None
    triton_infer_s: float | None
    triton_output_s: float | None
    rows_per_execution: float | None
    gateway_cpu_s: float | None
    triton_cpu_s: float | None
    cpu_energy_j: float | None
    gpu_energy_j: float | None
    gpu_utilization_ratio: float | None
    gpu_power_w: float | None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm at one point of the load, over its valid runs. Ratios are per repeat against the baseline's run of the same point and repeat;
    above 1 is faster."""

    name: str
    point: float
    variant: str
    pool: str
    is_baseline: bool
    is_again: bool  # the baseline a second time
    not_run: str | None
    devices: tuple[str, ...]  # as the receipts tell
    num_runs: int
    num_void: int
    num_ok: int
    num_errors: int
    errors: dict[str, int]
    accuracy: float | None
    throughput_rps: Estimate | None
    latency_p50_s: Estimate | None
    latency_p90_s: Estimate | None
    latency_p99_s: Estimate | None
    within_objective_ratio: Estimate | None
    throughput_ratio: Difference | None  # this arm's requests per second / the baseline's
    speed_ratio: Difference | None  # the baseline's median latency / this arm's
    latency_curve: tuple[tuple[float, float], ...]  # (seconds, share of requests at or below)
    evidence: ArmEvidence | None  # None: of no valid run


@dataclass(frozen=True, slots=True)
class Report:
    """`verdict` is None where none is given: what a device costs is not known here."""

    sentence: str
    verdict: str | None
    caveats: tuple[str, ...]
    is_partial: bool
    manifest: Manifest
    arms: tuple[ArmSummary, ...]
    runs: tuple[RunSummary, ...]
    version: int = VERSION


def device_kind(device: str) -> str:
    """`cpu; name="…"` -> `cpu`"""
    return device.partition(";")[0].strip()


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def milliseconds(value_s: float) -> str:
    """Three significant digits: what the repeats of such a run agree on at best."""
    value = value_s * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
