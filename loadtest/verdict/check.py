"""Checks a plan: runs the planned rate on the planned server here, a few times; the verdict tells its p99.

Whether it can be run here is decided first (`why_not`, pure); the runs are those of `tandem profile`, and void for the same reasons.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from loadtest.profile.load import LoadRun, LoadTarget, inputs_file, open_run
from loadtest.profile.options import ProfileOptions
from loadtest.profile.selection import inputs_for, linked, variants_of
from loadtest.profile.server import as_profiled
from loadtest.progress import Progress
from loadtest.records import RUNS, Row, read_rows
from loadtest.stack import stack
from loadtest.verdict.report import Check, Number, Source
from serving.decisions.plan.result import Plan, PricedServer
from serving.decisions.wording import rate
from serving.measure.intervals import estimate
from serving.measure.percentiles import curve

Say = Callable[[str], None]
NUM_RUNS, NUM_QUICK_RUNS = 3, 1  # three tell an interval
ANSWERS = 1_200  # of a run: a p99 is told from 1,000 on, and arrivals are random
LEAST_S, MOST_S = 8.0, 60.0  # of a run; a rate below 20/s tells no p99 within a minute
WARMUP_S = 1.0


def why_not(plan: Plan, sources: Sequence[Source]) -> str | None:
    """Why the planned rate cannot be run on this machine; None if it can."""
    if not plan.pools:
        return "nothing is planned"
    if len(plan.pools) > 1:
        return "the plan has two pools, and a check loads one"
    pool, rate_rps = plan.pools[0], plan.objective.peak_rps
    source = next((one for one in sources if one.profile is pool.chosen.profile), None)
    if source is None or source.origin != "here":
        return f"the {pool.name.upper()} server that is planned is not this machine"
    if pool.chosen.profile.provenance != "measured":
        return "the planned server's times follow a file"
    if pool.max_replicas > 1 and rate_rps > pool.chosen.max_rate.rate_rps * plan.objective.headroom_ratio:
        return f"{rate(rate_rps)} exceeds one machine like this one; {pool.max_replicas} are planned"
    return None


def run_check(plan: Plan, given: ProfileOptions, say: Say, progress: Progress, *, num_runs: int) -> Check:
    """`given`: model, repository, data and encoding as they were profiled. Raises UserError, CannotMeasure, KeyboardInterrupt."""
    chosen, rate_rps = plan.pools[0].chosen, plan.objective.peak_rps
    say(f"check: {chosen.server.label} at {rate(rate_rps)}, {num_runs} run{'' if num_runs == 1 else 's'}")
    with tempfile.TemporaryDirectory(prefix="tandem-check-") as name:
        folder = Path(name)
        variants = [v for v in variants_of(given) if v.record.variant == chosen.server.variant]
        sent = inputs_for(variants, given.data)
        repository = linked(folder / "repository", variants)
        (folder / "logs").mkdir()
        pool = chosen.server.device
        options = as_profiled(chosen.server)
        with stack(repository, folder / "logs", pool=pool, device=pool, options=options) as served:
            sent.for_batches(plan.objective.batch_size).write(inputs_file(folder))
            aim = LoadTarget(
                gateway=served.gateway.url,
                model=given.model,
                variant=chosen.server.variant,
                pool=pool,
                encoding=given.encoding,
                batch_size=plan.objective.batch_size,
                objective_s=plan.objective.latency_p99_s,
                run_s=min(max(LEAST_S, ANSWERS / rate_rps), MOST_S),
                warmup_s=WARMUP_S,
                folder=folder,
                triton_pid=served.triton.pid,
            )
            runs, rows = _runs(aim, rate_rps, num_runs, say, progress)
    return summarise(chosen, rate_rps, runs, rows)


def _runs(
    aim: LoadTarget, rate_rps: float, num_runs: int, say: Say, progress: Progress
) -> tuple[list[LoadRun], list[list[Row]]]:
    runs, rows = [], []
    for number in range(num_runs):
        run = open_run(aim, rate_rps, number, progress, f"check at {rate(rate_rps)}")
        point = run.point
        outcome = f"void: {point.void}" if point.void else "met" if point.is_met else "missed"
        say(f"check at {rate(rate_rps)}: {outcome} ({point.num_late_or_lost:,} of {point.num_due:,} late or lost)")
        file = aim.folder / RUNS / f"{number:03d}.csv"
        kept = [r for r in read_rows(file) if r.start_s >= aim.warmup_s] if file.exists() else []
        runs.append(run)
        rows.append(kept)
    return runs, rows


def summarise(chosen: PricedServer, rate_rps: float, runs: Sequence[LoadRun], rows: Sequence[Sequence[Row]]) -> Check:
    """Pure. Met: over all runs that count, at most 1 % were late or lost."""
    points = [run.point for run in runs]
    valid = [p for p in points if p.void is None]
    voids = tuple(p.void for p in points if p.void is not None)
    due = sum(p.num_due for p in valid)
    lost = sum(p.num_late_or_lost for p in valid)
    kept = [r.latency_s for p, some in zip(points, rows, strict=True) if p.void is None for r in some if r.is_ok]
    return Check(
        rate_rps=rate_rps,
        label=chosen.server.label,
        num_due=due,
        throughput_rps=sum(p.throughput_rps for p in valid) / len(valid) if valid else 0.0,
        latency_p50_s=_over([p.latency_p50_s for p in valid]),
        latency_p99_s=_over([p.latency_p99_s for p in valid]),
        late_or_lost_ratio=lost / due if due else 1.0,
        is_met=bool(due) and lost <= 0.01 * due,
        void=None if valid else (voids[0] if voids else "no run was made"),
        voids=voids,
        is_real_time=_always([p.is_real_time for p in points]),
        latency_curve=tuple(curve(np.array(kept, dtype=np.float64))),
    )


def _always(values: Sequence[bool | None]) -> bool | None:
    return None if None in values or not values else all(values)


def _over(values: Sequence[float | None]) -> Number | None:
    """None as soon as one run had too few answers for this percentile."""
    known = [value for value in values if value is not None]
    middle = estimate(known) if known and len(known) == len(values) else None
    return None if middle is None else Number(middle.median, "s", "lower", middle.low, middle.high, middle.runs)
