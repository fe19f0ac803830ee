"""Open-loop runs through the gateway, pinned to a variant and a pool: what one says, and the search for the highest rate met in time.

Runs are campaigns' runs: Locust's processes, Poisson arrivals, latency from when a request was due, and the same reasons to be void but for
one: a generator that lags makes answers late, never early, so that a run that met its objective all the same counts; one that missed counts
only if it would have missed without the lag too. No objective goes along with a request, so that the gateway refuses nothing that would be
late: late answers are counted here. Every run of a search is kept, including the void ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from loadtest.arrivals import schedule
from loadtest.campaign_file import Arm, Campaign
from loadtest.errors import CannotMeasure
from loadtest.evidence.counts import Scrape, evidence
from loadtest.evidence.meters import watching
from loadtest.one_run import INPUTS, PendingRun, generate, generator_cpu_ratio, is_real_time, measured_window
from loadtest.processes import family
from loadtest.profile.options import Encoding, Pace
from loadtest.progress import Progress
from loadtest.records import RUNS, ArmRecord, Evidence, Load, Payload, Row, RunRecord, read_rows
from loadtest.report.summaries import milliseconds, number
from loadtest.target import Gateway
from loadtest.validity import generator_fault, is_late, lag_p99_s, sent_in_window, throughput_rps, void_reason
from serving.decisions.profile import LoadPoint, MaxRate
from serving.measure import search
from serving.measure.intervals import searched
from serving.measure.percentiles import percentile
from serving.measure.stability import growing_reason

MAX_LATE_RATIO = 0.01  # p99 within the objective is one in a hundred beyond it
# A lag of more, of the objective, sends what should come one by one in heaps, which a server may not carry (a guess).
MAX_LAG_RATIO = 0.25
MIN_DUE = 200  # of a run: with fewer, one late answer more or less decides (1 % is two)
MAX_LONGER = 4.0  # a run of few requests is made longer by so much at most
# Waiting together: what is due beyond is dropped. At the rate that is just carried, rate × objective wait at most, in time; several times
# that is a queue that has no hope, and would have to be waited for after the run.
WAITING_RATIO, MIN_WAITING, MAX_WAITING = 4.0, 32, 512


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Whom a search loads, and how; what it sends lies in `folder` (`inputs_file`)."""

    gateway: str
    model: str
    variant: str
    pool: str
    encoding: Encoding
    batch_size: int
    objective_s: float
    run_s: float
    warmup_s: float
    folder: Path
    triton_pid: int | None = None  # where its end is to be noticed


@dataclass(frozen=True, slots=True)
class LoadRun:
    """`growing`: why the rate was not carried although few answers were late so far, None if nothing says so."""

    point: LoadPoint
    growing: str | None


def inputs_file(folder: Path) -> Path:
    """Where runs look for what they send; makes the folder."""
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    return folder / RUNS / INPUTS


def run_s(rate_rps: float, least_s: float) -> float:
    """Longer where few requests are due."""
    return min(max(least_s, MIN_DUE / rate_rps), least_s * MAX_LONGER)


def open_run(aim: LoadTarget, rate_rps: float, place: int, progress: Progress, title: str) -> LoadRun:
    """`place`: how many came before it. Raises KeyboardInterrupt; CannotMeasure where the generator does not start, or Triton ended."""
    before = tritons(aim, "before", rate_rps)
    load = _load(aim, rate_rps)
    arm = Arm("searched", aim.variant, aim.pool)
    campaign = Campaign(
        "profile", aim.model, (arm,), arm.name, load, Payload(INPUTS, aim.encoding, aim.batch_size), None
    )
    planned = PendingRun(arm, rate_rps, place + 1, load.seed + place, f"{RUNS}/{place:03d}.csv")
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    gateway = Gateway(aim.gateway, has_key=True)
    with watching(gateway, aim.model, aim.variant, aim.pool) as readings:
        state, reason = generate(campaign, planned, aim.gateway, aim.folder, progress, title)
    if state == "interrupted":
        raise KeyboardInterrupt
    if state == "done" and tritons(aim, "in", rate_rps) != before:
        state, reason = "failed", "Triton was restarted during the run"
    if state == "failed" and not (aim.folder / planned.rows).exists():
        raise CannotMeasure(f"the load cannot be sent: {reason}")
    file = aim.folder / planned.rows
    record = RunRecord(
        arm=arm.name,
        point=rate_rps,
        repeat=planned.repeat,
        rows=planned.rows,
        seed=planned.seed,
        started=started,
        state=state,
        reason=reason,
        is_reachable_after=gateway.is_ready(),
        generator_cpu_ratio=generator_cpu_ratio(file),
        num_scheduled=_num_due(load, rate_rps, planned.seed),
        evidence=evidence(Scrape(), Scrape(), readings, measured_window(file, load.warmup_s, load.end_s)),
    )
    return judge_run(record, load, aim, read_rows(file) if file.exists() else [], is_real_time(file))


def tritons(aim: LoadTarget, when: str, rate_rps: float) -> set[tuple[int, int]]:
    """By number and start; `tandem triton` starts another where one crashed. A server that ended missed nothing. Raises CannotMeasure."""
    if aim.triton_pid is None:
        return set()
    members = family(aim.triton_pid)
    if not members:
        raise CannotMeasure(f"Triton ended {when} the run of {number(rate_rps)}/s")
    return {(member.pid, member.started_ticks) for member in members if member.program == "tritonserver"}


def _load(aim: LoadTarget, rate_rps: float) -> Load:
    waiting = math.ceil(WAITING_RATIO * rate_rps * aim.objective_s)
    return Load(
        warmup_s=aim.warmup_s,
        duration_s=run_s(rate_rps, aim.run_s),
        repeats=1,
        seed=1,
        kind="open",
        rate_rps=(rate_rps,),
        objective_s=aim.objective_s,
        max_in_flight=min(max(waiting, MIN_WAITING), MAX_WAITING),
    )


def _num_due(load: Load, rate_rps: float, seed: int) -> int:
    return sum(1 for at in schedule(load.at(rate_rps), load.end_s, seed) if at >= load.warmup_s)


def judge_run(
    run: RunRecord, load: Load, aim: LoadTarget, rows: Sequence[Row], is_punctual: bool | None = None
) -> LoadRun:
    """Pure. `is_punctual`: whether the generator went before all other work.

    A run without one good answer is no fault of its own, if all that was due went out: the server missed.
    """
    assert run.num_scheduled is not None
    sent = sent_in_window(rows, load)
    late_or_lost = run.num_scheduled - sum(1 for row in sent if row.is_ok and row.latency_s <= aim.objective_s)
    growing = queue_growth(rows, load)
    is_met = late_or_lost <= MAX_LATE_RATIO * run.num_scheduled and growing is None
    punctual = [row._replace(lag_s=0.0) for row in rows]
    fault = generator_fault(run, load, sent_in_window(punctual, load)) if run.state == "done" else None
    void = fault or void_reason(run, ArmRecord(run.arm, aim.variant, aim.pool), load, punctual)
    if void and fault is None and run.state == "done" and not any(row.is_ok for row in sent):
        void = None
    if void is None and not is_met:
        void = lag_fault(sent, run.num_scheduled, aim.objective_s)
    latencies = np.array([row.latency_s for row in sent if row.is_ok])
    answered_rps = throughput_rps(rows, load)
    point = LoadPoint(
        rate_rps=run.point,
        batch_size=aim.batch_size,
        num_due=run.num_scheduled,
        throughput_rps=answered_rps,
        latency_p50_s=percentile(latencies, 0.50),
        latency_p99_s=percentile(latencies, 0.99),
        num_late_or_lost=max(0, late_or_lost),
        objective_s=aim.objective_s,
        is_met=is_met and void is None,
        void=void,
        is_real_time=is_punctual,
        joules_per_request=joules_per_answer(run.evidence, aim.pool, answered_rps * load.duration_s),
    )
    return LoadRun(point, growing)


def queue_growth(rows: Sequence[Row], load: Load) -> str | None:
    """A server whose queue grows to the end would miss in a longer run."""
    starts_s = np.array([row.start_s for row in rows])
    ends_s = np.array([row.start_s + row.latency_s if row.status else np.inf for row in rows])
    return growing_reason(starts_s, ends_s, load.warmup_s, load.end_s)


def lag_fault(sent: Sequence[Row], num_due: int, objective_s: float) -> str | None:
    """Why a run that missed may have missed because of its generator."""
    lag_s = lag_p99_s(row.lag_s for row in sent)
    if lag_s is None or not is_late(lag_s, objective_s):
        return None
    late_anyway = num_due - sum(1 for row in sent if row.is_ok and row.latency_s - row.lag_s <= objective_s)
    if late_anyway > MAX_LATE_RATIO * num_due and lag_s <= MAX_LAG_RATIO * objective_s:
        return None
    return (
        f"the generator sent one in a hundred requests more than {milliseconds(lag_s)} ms late, so that it may be the one that missed "
        f"the objective of {milliseconds(objective_s)} ms"
    )


def joules_per_answer(found: Evidence | None, pool: str, num_answers: float) -> float | None:
    """Joules per good answer. A card's without its processor's, where only the card tells them; the other way round is no answer."""
    if found is None or num_answers <= 0:
        return None
    parts_j = {"cpu": (found.cpu_energy_j,), "gpu": (found.gpu_energy_j, found.cpu_energy_j)}.get(pool, (None,))
    if not parts_j[0]:
        return None
    return sum(part_j or 0.0 for part_j in parts_j) / num_answers


Say = Callable[[str], None]
LEAST_RPS = 0.2  # a run of 20 s then has four requests: below, nothing is a rate
FLOOR_RATIO = 0.05  # of what one request at a time would allow: a server that misses there always misses
# Where nobody names an objective: a round time, at least 20 ms, in which every variant has room for a queue (a guess).
ROUND_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
OBJECTIVE_MEDIANS = 4.0


def default_objective_s(medians_s: Sequence[float]) -> float:
    """Pure. The last where all are too short."""
    wanted_s = OBJECTIVE_MEDIANS * max(medians_s, default=0.0)
    return next((one for one in ROUND_S if one >= wanted_s), ROUND_S[-1])


def search_plan(alone_s: float, pace: Pace) -> search.Search:
    """Pure. `alone_s`: the median of one request at a time, which tells where to begin."""
    floor_rps = max(LEAST_RPS, FLOOR_RATIO / alone_s)
    start_rps = max(floor_rps, search.START_RATIO / alone_s)
    return search.Search(start_rps, floor_rps, pace.precision_ratio, pace.num_repeats, pace.max_runs)


def max_rate(
    aim: LoadTarget, label: str, alone_s: float, pace: Pace, load: list[LoadPoint], progress: Progress, say: Say
) -> MaxRate:
    """Adds every run to `load`. Raises KeyboardInterrupt, CannotMeasure."""
    title = f"{label}, batch {aim.batch_size}, p99 within {milliseconds(aim.objective_s)} ms"
    if alone_s > aim.objective_s:
        say(f"{title}: cannot be met: half of all requests take more than {milliseconds(alone_s)} ms one at a time")
        return MaxRate(aim.objective_s, aim.batch_size, 0.0, None, None)

    def run(rate_rps: float) -> search.RunOutcome:
        run = open_run(aim, rate_rps, len(load), progress, f"{title}: {number(rate_rps)}/s")
        load.append(run.point)
        say(f"{title}: {number(rate_rps)}/s: {_outcome_text(run)}")
        return outcome(run.point)

    found = search.find(search_plan(alone_s, pace), run)
    interval = searched(found.estimates, pace.precision_ratio)
    return MaxRate(
        objective_s=aim.objective_s,
        batch_size=aim.batch_size,
        rate_rps=found.rate_rps,
        low_rps=interval.low if interval else None,
        high_rps=interval.high if interval else None,
        runs=found.estimates,
        is_bounded_by_generator=found.is_bounded_by_generator,
    )


def outcome(point: LoadPoint) -> search.RunOutcome:
    if point.void:
        return "void"
    return "met" if point.is_met else "missed"


def _outcome_text(run: LoadRun) -> str:
    point = run.point
    if point.void:
        return f"void: {point.void}"
    why = f"; {run.growing}" if run.growing else ""
    return f"{outcome(point)} ({point.num_late_or_lost:,} of {point.num_due:,} late or lost{why})"
