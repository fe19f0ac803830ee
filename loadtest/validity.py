"""May a run be compared? Pure: why not, the gravest reason first.

A run that measured its generator, another variant or a server that was restarted says nothing about the arm; it is told, and not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from loadtest.records import ArmRecord, Load, Row, RunRecord
from loadtest.report.summaries import device_kind, milliseconds
from serving.measure.percentiles import between_ranks
from serving.measure.stability import MIN_ARRIVALS, MIN_REQUESTS, drifting_reason, growing_reason

# Above this the generator, not the server, may set the throughput of a closed loop (Locust's own warning is at the same place).
BUSY_GENERATOR = 0.9
# Of an open loop: a generator that lags more, or leaves out more, has measured itself. MLPerf's and wrk2's rules are of this kind; a guess.
MAX_LAG_RATIO = 0.05  # p99 of the lag, of the objective
LEAST_SENT_RATIO = 0.99  # sent, or dropped when it was due
DROPPED = "dropped"  # the error of a request that was never sent


def sent_in_window(rows: Sequence[Row], load: Load) -> list[Row]:
    """Requests that were to be sent after the warm-up and before the end. Their answers may come later: users wait for their last one."""
    begin_s, end_s = load.warmup_s, load.end_s
    return [r for r in rows if begin_s <= r.start_s < end_s]


def throughput_rps(rows: Sequence[Row], load: Load) -> float:
    """Good answers that came within the window, whenever they were sent, per second: no edge is counted twice or lost."""
    begin_s, end_s = load.warmup_s, load.end_s
    return sum(1 for r in rows if r.is_ok and begin_s <= r.start_s + r.latency_s < end_s) / load.duration_s


def void_reason(run: RunRecord, arm: ArmRecord, load: Load, rows: Sequence[Row]) -> str | None:
    """Why a run must not be compared, the gravest first; None if it may."""
    if run.state != "done":
        return run.reason or run.state
    sent = sent_in_window(rows, load)
    good = [r for r in sent if r.is_ok]
    if (reason := generator_fault(run, load, sent)) is not None:
        return reason
    if not good:
        return f"no successful request ({_count(Counter(r.error for r in sent)) or 'none was sent'})"
    if not throughput_rps(rows, load):
        return f"no answer arrived within the {load.duration_s:g} measured seconds; make the run longer"
    if not run.is_reachable_after:
        return "the gateway was not ready after the run"
    for what, asked, told in (
        ("variant", arm.variant, [r.variant for r in good]),
        ("pool", arm.pool, [r.pool for r in good]),
    ):
        others = Counter(value or "nothing" for value in told if value != asked)
        if others:
            return f"asked for {what} {asked}, but receipts show {_count(others)}"
    if arm.pool == "gpu" and any(device_kind(r.device) == "cpu" for r in good):
        return "the receipts of the gpu pool say that a CPU did the work"
    if run.gateway_counted is not None and run.gateway_counted < sum(1 for r in rows if r.status):
        return f"the gateway was restarted during the run: it counted {run.gateway_counted} of {len(rows)} requests"
    num_ok = sum(1 for r in rows if r.is_ok)
    if run.triton_counted is not None and run.triton_counted < num_ok:
        return f"Triton or its model was restarted during the run: it counted {run.triton_counted} of {num_ok} requests"
    return None


def unstable_reason(rows: Sequence[Row], load: Load) -> str | None:
    """Of one run with all its rows, the warm-up's too. Of an open loop the gravest first: a queue that grows without end."""
    end_s = load.end_s
    due = [row for row in rows if row.start_s < end_s]
    if len(due) < min(MIN_ARRIVALS, MIN_REQUESTS):
        return None
    if load.kind == "open":
        starts_s = np.array([row.start_s for row in due], dtype=np.float64)
        ends_s = np.array([row.start_s + row.latency_s if row.status else np.inf for row in due], dtype=np.float64)
        if (reason := growing_reason(starts_s, ends_s, load.warmup_s, load.end_s)) is not None:
            return reason
    good = sorted((row.start_s, row.latency_s) for row in due if row.is_ok and row.start_s >= load.warmup_s)
    return drifting_reason(np.array([latency_s for _, latency_s in good], dtype=np.float64))


def generator_fault(run: RunRecord, load: Load, rows: Sequence[Row]) -> str | None:
    """Why an open loop measured its generator and not the server; `rows` are those that were due in the measured time.

    What was dropped when it was due, because too many waited for their answers, is the server's doing: due, and not in time.
    """
    if load.kind == "closed" or run.num_scheduled is None or load.objective_s is None:
        return None
    if len(rows) < LEAST_SENT_RATIO * run.num_scheduled:
        return f"the generator came to {len(rows):,} of {run.num_scheduled:,} requests that were due"
    if run.generator_cpu_ratio is not None and run.generator_cpu_ratio > BUSY_GENERATOR:
        return f"the generator used {run.generator_cpu_ratio:.0%} of a core; give it more processes, or send less"
    lag_s = lag_p99_s(r.lag_s for r in rows)
    if lag_s is not None and is_late(lag_s, load.objective_s):
        return (
            f"the generator sent one in a hundred requests more than {milliseconds(lag_s)} ms late, which is over "
            f"{MAX_LAG_RATIO:.0%} of the objective of {milliseconds(load.objective_s)} ms"
        )
    return None


def lag_p99_s(lags_s: Iterable[float]) -> float | None:
    """Of how late requests went out. None of nothing."""
    lags = np.fromiter(lags_s, np.float64)
    return between_ranks(lags, 0.99) if len(lags) else None


def is_late(lag_s: float, objective_s: float) -> bool:
    """Whether a generator with this lag at p99 has measured itself: one rule for campaigns and for `make prove`."""
    return lag_s > MAX_LAG_RATIO * objective_s


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({num:,})" for name, num in sorted(counts.items(), key=lambda item: -item[1]))
