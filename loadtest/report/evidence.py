"""Computes what the servers' counts come to for an arm, and shows it as a table. Pure.

Evidence explains a latency, it does not judge: nothing here voids a run. Rule: what was not measured is a dash and a sentence, never a
zero and never a number off a data sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from loadtest.records import Evidence, RunRecord
from loadtest.report.summaries import ArmEvidence, ArmSummary, RunSummary, milliseconds
from loadtest.report.wording import label
from serving.documents.tables import Table

PER_REQUEST = ("gateway_cpu_s", "triton_cpu_s", "cpu_energy_j", "gpu_energy_j")
AS_READ = (
    *("gateway_queue_s", "triton_queue_s", "triton_input_s", "triton_infer_s", "triton_output_s"),
    *("gpu_utilization_ratio", "gpu_power_w"),
)
DASH = "–"


def of_arm(runs: Sequence[RunRecord], valid: Sequence[RunSummary], duration_s: float) -> ArmEvidence | None:
    """`runs`: all of the campaign; `valid`: the arm's at one point, by whose files the evidence is found."""
    by_file = {run.rows: run.evidence or Evidence() for run in runs}
    counts = [(by_file[run.rows], run.throughput_rps * duration_s) for run in valid]
    if not counts:
        return None
    return ArmEvidence(
        rows_per_execution=_over([_ratio(one.num_rows, one.num_executions) for one, _ in counts]),
        **{name: _over([getattr(one, name) for one, _ in counts]) for name in AS_READ},
        **{name: _over([_ratio(getattr(one, name), num_good) for one, num_good in counts]) for name in PER_REQUEST},
    )


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _over(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


# -- as a table: a line for each measure, because there are more of them than arms -----------------------------------------

Line = tuple[str, str, Callable[[float], str]]  # what, ArmEvidence's field, how it is written


def _joules(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


SERVERS: tuple[Line, ...] = (
    ("Waiting in the gateway, ms", "gateway_queue_s", milliseconds),
    ("Waiting in Triton, ms", "triton_queue_s", milliseconds),
    ("Triton: input, ms", "triton_input_s", milliseconds),
    ("Triton: computing, ms", "triton_infer_s", milliseconds),
    ("Triton: output, ms", "triton_output_s", milliseconds),
    ("Rows computed together", "rows_per_execution", lambda value: f"{value:.2f}"),
    ("CPU of the gateway, ms", "gateway_cpu_s", milliseconds),
    ("CPU of Triton, ms", "triton_cpu_s", milliseconds),
)
MACHINE: tuple[Line, ...] = (
    ("Energy of the processor, J", "cpu_energy_j", _joules),
    ("Energy of the GPU, J", "gpu_energy_j", _joules),
    ("GPU busy", "gpu_utilization_ratio", _percent),
    ("GPU's power, W", "gpu_power_w", lambda value: f"{value:.0f}"),
)


def table(arms: Sequence[ArmSummary]) -> Table:
    """A column for each arm; measures of the servers always, those of the machine that any arm has. Empty if none is known."""
    known = [line for line in (*SERVERS, *MACHINE) if _has(arms, line[1])]
    shown = [line for line in (*SERVERS, *MACHINE) if known and (line in SERVERS or line in known)]
    rows = [(name, *(_written(arm, value, write) for arm in arms)) for name, value, write in shown]
    return Table("What the servers say", ("A request", *map(label, arms)), tuple(rows))


def _written(arm: ArmSummary, name: str, write: Callable[[float], str]) -> str:
    value = _value(arm, name)
    return DASH if value is None else write(value)


def _value(arm: ArmSummary, name: str) -> float | None:
    value: float | None = getattr(arm.evidence, name, None)
    return value


def _has(arms: Sequence[ArmSummary], *names: str) -> bool:
    return any(_value(arm, name) is not None for arm in arms for name in names)


def remarks(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """How the table is to be read, and what is missing from it."""
    sentences = [
        "Of a mean request, the median over runs. Each request of a batch counts the batch's whole time. "
        "CPU and energy are those of the measured seconds, over the good answers of these, "
        "with whatever else was asked of the same servers."
    ]
    has_cpu, has_gpu = _has(arms, "cpu_energy_j"), _has(arms, "gpu_energy_j", "gpu_utilization_ratio", "gpu_power_w")
    if has_cpu:
        sentences.append("The processor's energy is that of whole processors, with all that ran on them.")
    if has_gpu:
        sentences.append("The GPU's is that of all cards of the machine, idle ones too.")
    if not (has_cpu or has_gpu):
        sentences.append("Energy: not measured here, because neither the processor nor a card tells it.")
    elif not (has_cpu and has_gpu):
        sentences.append(f"Energy of the {'GPU' if has_cpu else 'processor'}: not measured here.")
    return tuple(sentences)
