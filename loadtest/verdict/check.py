"""Does the plan hold? The rate asked for, really run here on the planned server, a few times; its p99 is what the verdict tells.

Whether it can be run here is decided first (`why_not`, pure); the runs are those of `tandem profile`, and void for the same reasons.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from loadtest.profile.inputs import inputs_for
from loadtest.profile.load import Aim, Seen, inputs_file, open_run
from loadtest.profile.options import ProfileOptions
from loadtest.profile.places import linked, variants_of
from loadtest.profile.server import as_profiled
from loadtest.progress import Progress
from loadtest.records import RUNS, Row, read_rows
from loadtest.stack import stack
from loadtest.verdict.amounts import rate
from loadtest.verdict.report import Check, Number, Source
from serving.decisions.plan.result import Plan, Priced
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
    pool, wanted = plan.pools[0], plan.objective.peak_rps
    source = next((one for one in sources if one.profile is pool.chosen.profile), None)
    if source is None or source.origin != "here":
        return f"the {pool.name.upper()} server that is planned is not this machine"
    if pool.chosen.profile.provenance != "measured":
        return "the planned server's times follow a file"
    if pool.max_replicas > 1 and wanted > pool.chosen.max_rate.rate_rps * plan.objective.headroom_ratio:
        return f"{rate(wanted)} exceeds one machine like this one; {pool.max_replicas} are planned"
    return None


def run_check(
    plan: Plan, given: ProfileOptions, say: Say, progress: Progress, *, num_runs: int, run_s: float | None = None
) -> Check:
    """`given`: model, repository, data and encoding as they were profiled. Raises UserError, CannotMeasure, KeyboardInterrupt."""
    chosen, wanted = plan.pools[0].chosen, plan.objective.peak_rps
    say(f"check: {chosen.server.label} at {rate(wanted)}, {num_runs} run{'' if num_runs == 1 else 's'}")
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
            aim = Aim(
                gateway=served.gateway.url,
                model=given.model,
                variant=chosen.server.variant,
                pool=pool,
                encoding=given.encoding,
                batch_size=plan.objective.batch_size,
                objective_s=plan.objective.latency_p99_s,
                run_s=run_s or min(max(LEAST_S, ANSWERS / wanted), MOST_S),
                warmup_s=WARMUP_S,
                folder=folder,
                triton_pid=served.triton.pid,
            )
            seen, rows = _runs(aim, wanted, num_runs, say, progress)
    return told(chosen, wanted, seen, rows)


def _runs(aim: Aim, wanted: float, num_runs: int, say: Say, progress: Progress) -> tuple[list[Seen], list[list[Row]]]:
    seen, rows = [], []
    for number in range(num_runs):
        one = open_run(aim, wanted, number, progress, f"check at {rate(wanted)}")
        point = one.point
        outcome = f"void: {point.void}" if point.void else "met" if point.is_met else "missed"
        say(f"check at {rate(wanted)}: {outcome} ({point.num_late_or_lost:,} of {point.num_due:,} late or lost)")
        file = aim.folder / RUNS / f"{number:03d}.csv"
        kept = [r for r in read_rows(file) if r.start_s >= aim.warmup_s] if file.exists() else []
        seen.append(one)
        rows.append(kept)
    return seen, rows


def told(chosen: Priced, wanted: float, seen: Sequence[Seen], rows: Sequence[Sequence[Row]]) -> Check:
    """Pure. Met: over all runs that count, at most 1 % were late or lost."""
    points = [one.point for one in seen]
    valid = [p for p in points if p.void is None]
    voids = tuple(p.void for p in points if p.void is not None)
    due = sum(p.num_due for p in valid)
    lost = sum(p.num_late_or_lost for p in valid)
    kept = [r.latency_s for p, some in zip(points, rows, strict=True) if p.void is None for r in some if r.is_ok]
    return Check(
        rate_rps=wanted,
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


def _always(said: Sequence[bool | None]) -> bool | None:
    return None if None in said or not said else all(said)


def _over(values: Sequence[float | None]) -> Number | None:
    """None as soon as one run had too few answers for this percentile."""
    known = [value for value in values if value is not None]
    found = estimate(known) if known and len(known) == len(values) else None
    return None if found is None else Number(found.median, "s", "lower", found.low, found.high, found.runs)
