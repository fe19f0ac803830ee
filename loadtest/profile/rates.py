"""The most requests per second that one server answers in time: a search of open-loop runs, each of which is kept, the void ones too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.profile.load import Aim, LoadRun, open_run
from loadtest.profile.options import Pace
from loadtest.progress import Progress
from loadtest.report.summaries import milliseconds, number
from serving.decisions.profile import LoadPoint, MaxRate
from serving.measure import search
from serving.measure.intervals import searched

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


def plan(alone_s: float, pace: Pace) -> search.Search:
    """Pure. `alone_s`: the median of one request at a time, which tells where to begin."""
    floor_rps = max(LEAST_RPS, FLOOR_RATIO / alone_s)
    start_rps = max(floor_rps, search.START_RATIO / alone_s)
    return search.Search(start_rps, floor_rps, pace.precision_ratio, pace.num_repeats, pace.max_runs)


def max_rate(
    aim: Aim, label: str, alone_s: float, pace: Pace, load: list[LoadPoint], progress: Progress, say: Say
) -> MaxRate:
    """Adds every run to `load`. Raises KeyboardInterrupt, CannotMeasure."""
    title = f"{label}, batch {aim.batch_size}, p99 within {milliseconds(aim.objective_s)} ms"
    if alone_s > aim.objective_s:
        say(f"{title}: cannot be met: half of all requests take more than {milliseconds(alone_s)} ms one at a time")
        return MaxRate(aim.objective_s, aim.batch_size, 0.0, None, None)

    def run(rate_rps: float) -> search.Outcome:
        seen = open_run(aim, rate_rps, len(load), progress, f"{title}: {number(rate_rps)}/s")
        load.append(seen.point)
        say(f"{title}: {number(rate_rps)}/s: {_told(seen)}")
        return outcome(seen.point)

    found = search.find(plan(alone_s, pace), run)
    told = searched(found.estimates, pace.precision_ratio)
    return MaxRate(
        objective_s=aim.objective_s,
        batch_size=aim.batch_size,
        rate_rps=found.rate_rps,
        low_rps=told.low if told else None,
        high_rps=told.high if told else None,
        runs=found.estimates,
        is_bounded_by_generator=found.is_bounded_by_generator,
    )


def outcome(point: LoadPoint) -> search.Outcome:
    if point.void:
        return "void"
    return "met" if point.is_met else "missed"


def _told(seen: LoadRun) -> str:
    point = seen.point
    if point.void:
        return f"void: {point.void}"
    why = f"; {seen.growing}" if seen.growing else ""
    return f"{outcome(point)} ({point.num_late_or_lost:,} of {point.num_due:,} late or lost{why})"
