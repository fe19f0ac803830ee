"""Builds the report of a campaign from its rows: numbers and one plain sentence, all of which `report.json` holds.

Everything is computed from the rows and the manifest, without chance, so that a report built again is the same. Pure but for `build`,
which reads, and `write`. Deliberately not here: which runs count (`validity.py`), how it is
said and how it looks (`report/`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadtest import records
from loadtest.errors import ResultsError
from loadtest.records import ArmRecord, Load, Manifest, Row, RunRecord
from loadtest.report.evidence import of_arm
from loadtest.report.summaries import ArmSummary, Report, RunSummary
from loadtest.report.wording import caveats, sentence, verdict
from loadtest.validity import DROPPED, lag_p99_s, sent_in_window, throughput_rps, unstable_reason, void_reason
from serving.measure.intervals import Difference, Estimate, estimate, of_medians, paired
from serving.measure.percentiles import curve, percentile

REPORT = "report.json"
ROW_STEP_S = 1e-6  # rows are written to the microsecond
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


def build(directory: Path) -> Report:
    """Reads a results directory. Raises ResultsError."""
    manifest = records.read_manifest(directory)
    rows = {run.rows: _read(directory / run.rows) for run in manifest.runs}
    return summarise(manifest, rows)


def write(directory: Path, report: Report) -> Path:
    records.write_json(directory / REPORT, asdict(report))
    return directory / REPORT


def describe(run: RunRecord, directory: Path, manifest: Manifest) -> str:
    """One run in a line, for the progress display."""
    arm = next(arm for arm in manifest.arms if arm.name == run.arm)
    summary = summarise_run(run, arm, manifest.load, _read(directory / run.rows))
    if summary.void:
        return f"{summary.state if summary.state == 'interrupted' else 'void'}: {summary.void}"
    unstable = f", unstable: {summary.unstable}" if summary.unstable else ""
    median = "" if summary.latency_p50_s is None else f", p50 {summary.latency_p50_s * 1000:.2f} ms"
    return f"{summary.throughput_rps:,.0f} requests/s{median}, {summary.num_errors} errors{unstable}"


def _read(path: Path) -> list[Row]:
    """No file: the run ended before its first row."""
    try:
        return records.read_rows(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error}.") from error


# -- one run ----------------------------------------------------------------------------------------------------------


def summarise_run(run: RunRecord, arm: ArmRecord, load: Load, rows: Sequence[Row]) -> RunSummary:
    sent = sent_in_window(rows, load)
    good = [r for r in sent if r.is_ok]
    judged = [r.correct for r in good if r.correct is not None]
    latencies = _latencies(good)
    quantiles = {name: percentile(latencies, q) for name, q in PERCENTILES.items()}
    return RunSummary(
        arm=run.arm,
        point=run.point,
        repeat=run.repeat,
        state=run.state,
        void=void_reason(run, arm, load, rows),
        rows=run.rows,
        started=run.started,
        num_ok=len(good),
        num_errors=len(sent) - len(good),
        num_wrong=len(judged) - sum(judged) if judged else None,
        throughput_rps=throughput_rps(rows, load),
        latency_p50_s=quantiles["p50"],
        latency_p90_s=quantiles["p90"],
        latency_p99_s=quantiles["p99"],
        within_objective_ratio=_within(run, load, sent),
        lag_p99_s=lag_p99_s(r.lag_s for r in sent) if load.kind == "open" else None,
        num_dropped=sum(1 for r in sent if r.error == DROPPED),
        num_others=_num_others(run, rows),
        generator_cpu_ratio=run.generator_cpu_ratio,
        unstable=unstable_reason(rows, load) if run.state == "done" else None,
    )


def _num_others(run: RunRecord, rows: Sequence[Row]) -> int | None:
    """All that was sent may have come there, also what had no answer."""
    if run.gateway_counted is None:
        return None
    return max(0, run.gateway_counted - sum(1 for row in rows if row.error != DROPPED))


def _within(run: RunRecord, load: Load, sent: Sequence[Row]) -> float | None:
    num_due = len(sent) if run.num_scheduled is None else run.num_scheduled
    if load.objective_s is None or not num_due:
        return None
    return sum(1 for r in sent if r.is_ok and r.latency_s <= load.objective_s) / num_due


def _latencies(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    return np.array([r.latency_s for r in rows], dtype=np.float64)


# -- arms -------------------------------------------------------------------------------------------------------------


def summarise(manifest: Manifest, rows: Mapping[str, Sequence[Row]]) -> Report:
    """`rows` by the file name that the manifest gives each run."""
    by_name = {arm.name: arm for arm in manifest.arms}
    runs = tuple(summarise_run(run, by_name[run.arm], manifest.load, rows[run.rows]) for run in manifest.runs)
    arms = agreeing([_arm(arm, at, manifest, runs, rows) for at in manifest.load.points for arm in manifest.arms])
    is_partial = manifest.is_interrupted or len(manifest.runs) < manifest.num_planned
    remarks = caveats(manifest, arms, runs)
    return Report(sentence(arms, manifest.load), verdict(arms), remarks, is_partial, manifest, arms, runs)


def agreeing(arms: Sequence[ArmSummary]) -> tuple[ArmSummary, ...]:
    """With every ratio to the baseline as the quotient of the two numbers that the table shows."""
    base = {arm.point: arm for arm in arms if arm.is_baseline}
    return tuple(
        replace(
            arm,
            throughput_ratio=of_medians(arm.throughput_ratio, arm.throughput_rps, base[arm.point].throughput_rps),
            speed_ratio=of_medians(arm.speed_ratio, base[arm.point].latency_p50_s, arm.latency_p50_s),
        )
        for arm in arms
    )


def _arm(
    arm: ArmRecord, at: float, manifest: Manifest, runs: Sequence[RunSummary], rows: Mapping[str, Sequence[Row]]
) -> ArmSummary:
    here = [run for run in runs if run.point == at]
    own = [run for run in here if run.arm == arm.name]
    valid = [run for run in own if run.void is None]
    baseline = {run.repeat: run for run in here if run.arm == manifest.baseline and run.void is None}
    sent = [row for run in valid for row in sent_in_window(rows[run.rows], manifest.load)]
    good = [row for row in sent if row.is_ok]
    judged = [row.correct for row in good if row.correct is not None]
    pairs = [(run, baseline[run.repeat]) for run in valid if run.repeat in baseline and arm.name != manifest.baseline]
    return ArmSummary(
        name=arm.name,
        point=at,
        variant=arm.variant,
        pool=arm.pool,
        is_baseline=arm.name == manifest.baseline,
        is_again=arm.is_again,
        not_run=arm.not_run,
        devices=tuple(sorted({row.device for row in good})),
        num_runs=len(valid),
        num_void=sum(1 for run in own if run.void and run.state != "interrupted"),
        num_ok=len(good),
        num_errors=len(sent) - len(good),
        errors=dict(sorted(Counter(row.error for row in sent if row.error).items())),
        accuracy=sum(judged) / len(judged) if judged else None,
        throughput_rps=estimate([run.throughput_rps for run in valid]),
        latency_p50_s=_over([run.latency_p50_s for run in valid]),
        latency_p90_s=_over([run.latency_p90_s for run in valid]),
        latency_p99_s=_over([run.latency_p99_s for run in valid]),
        within_objective_ratio=_over([run.within_objective_ratio for run in valid], most=1.0),
        throughput_ratio=_throughput_ratio(pairs, manifest.load),
        speed_ratio=_speed_ratio(pairs),
        latency_curve=tuple(curve(_latencies(good))),
        evidence=of_arm(manifest.runs, valid, manifest.load.duration_s),
    )


Pairs = Sequence[tuple[RunSummary, RunSummary]]  # an arm's run, and the baseline's of the same repeat


def _throughput_ratio(pairs: Pairs, load: Load) -> Difference | None:
    fewest = min((run.throughput_rps * load.duration_s for pair in pairs for run in pair), default=1.0)
    return paired([run.throughput_rps / base.throughput_rps for run, base in pairs], step_ratio=1 / fewest)


def _speed_ratio(pairs: Pairs) -> Difference | None:
    """None as soon as one run had too few requests for a median."""
    medians = [(run.latency_p50_s, base.latency_p50_s) for run, base in pairs]
    known = [(own, base) for own, base in medians if own and base]
    if not known or len(known) < len(medians):
        return None
    return paired([base / own for own, base in known], ROW_STEP_S / min(min(pair) for pair in known))


def _over(values: Sequence[float | None], most: float = math.inf) -> Estimate | None:
    """None as soon as one run had too few requests for this percentile."""
    known = [value for value in values if value is not None]
    return estimate(known, most) if len(known) == len(values) else None
