"""What do the servers' counts come to for an arm, and how is that shown? Pure.

Evidence explains a latency, it does not judge: nothing here voids a run. Rule: what was not measured is a dash and a sentence, never a
zero and never a number off a data sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from loadtest.records import Evidence, RunRecord
from loadtest.summaries import ArmEvidence, ArmSummary, RunSummary, milliseconds

PER_REQUEST = ("gateway_cpu_s", "triton_cpu_s", "cpu_energy_j", "gpu_energy_j")
AS_READ = (
    *("gateway_queue_s", "triton_queue_s", "triton_input_s", "triton_infer_s", "triton_output_s"),
    *("gpu_utilization_ratio", "gpu_power_w"),
)
DASH = "–"


def of_arm(runs: Sequence[RunRecord], valid: Sequence[RunSummary], duration_s: float) -> ArmEvidence | None:
    """`runs`: all of the campaign; `valid`: the arm's at one point, by whose files the evidence is found."""
    by_file = {run.rows: run.evidence or Evidence() for run in runs}
    seen = [(by_file[run.rows], run.throughput_rps * duration_s) for run in valid]
    if not seen:
        return None
    return ArmEvidence(
        rows_per_execution=_over([_ratio(one.num_rows, one.num_executions) for one, _ in seen]),
        **{name: _over([getattr(one, name) for one, _ in seen]) for name in AS_READ},
        **{name: _over([_ratio(getattr(one, name), num_good) for one, num_good in seen]) for name in PER_REQUEST},
    )


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _over(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


# -- as a table ----------------------------------------------------------------------------------------------------------

Column = tuple[str, str, Callable[[float], str]]  # title, ArmEvidence's field, how it is written


def _joules(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


SERVERS: tuple[Column, ...] = (
    ("Gateway queue ms", "gateway_queue_s", milliseconds),
    ("Triton queue ms", "triton_queue_s", milliseconds),
    ("Input ms", "triton_input_s", milliseconds),
    ("Compute ms", "triton_infer_s", milliseconds),
    ("Output ms", "triton_output_s", milliseconds),
    ("Rows at once", "rows_per_execution", lambda value: f"{value:.2f}"),
    ("Gateway CPU ms", "gateway_cpu_s", milliseconds),
    ("Triton CPU ms", "triton_cpu_s", milliseconds),
)
MACHINE: tuple[Column, ...] = (
    ("CPU J", "cpu_energy_j", _joules),
    ("GPU J", "gpu_energy_j", _joules),
    ("GPU busy", "gpu_utilization_ratio", _percent),
    ("GPU W", "gpu_power_w", lambda value: f"{value:.0f}"),
)


def columns(arms: Sequence[ArmSummary]) -> list[Column]:
    """Those of the servers always; of the machine those that any arm has."""
    known = [column for column in MACHINE if any(_value(arm, column[1]) is not None for arm in arms)]
    return [*SERVERS, *known]


def cells(arm: ArmSummary, shown: Sequence[Column]) -> list[str]:
    return [DASH if (value := _value(arm, name)) is None else write(value) for _, name, write in shown]


def _value(arm: ArmSummary, name: str) -> float | None:
    value: float | None = getattr(arm.evidence, name, None)
    return value


def is_known(arms: Sequence[ArmSummary]) -> bool:
    return any(_value(arm, name) is not None for arm in arms for _, name, _ in (*SERVERS, *MACHINE))


def remarks(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """How the table is to be read, and what is missing from it."""
    said = [
        'Means of a request, in medians over runs. Triton counts a batch\'s whole time for each of its requests; "rows at once" is '
        "how many rows it computed together. CPU and energy are of the measured seconds, per good answer."
    ]
    has_cpu_j, has_gpu = (
        any(_value(arm, name) is not None for arm in arms for name in names)
        for names in (("cpu_energy_j",), ("gpu_energy_j", "gpu_utilization_ratio", "gpu_power_w"))
    )
    if has_cpu_j:
        said.append("CPU J is of whole processors, with a load generator on the same machine.")
    if has_gpu:
        said.append("GPU J is of all cards of the machine, idle ones too.")
    missing = [
        what for what, has in (("The processor's energy", has_cpu_j), ("A GPU's load and energy", has_gpu)) if not has
    ]
    said += [f"{what}: not measured here." for what in missing]
    return tuple(said)
