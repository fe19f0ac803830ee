"""What did the servers do during a run? Differences of what they count, and what the machine's meters rose by, pure.

How they are read is `meters.py`'s. Rule: what cannot be known is None, never a guess: a counter that fell (the server began anew), a
meter that is not there or does not cover the measured seconds.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from loadtest.records import Evidence

# Names of what is metered. Rising ones are integrated, the others averaged.
GATEWAY_CPU_S, TRITON_CPU_S, CPU_J, GPU_J = "gateway_cpu_s", "triton_cpu_s", "cpu_j", "gpu_j"
GPU_RATIO, GPU_W = "gpu_ratio", "gpu_w"


class Counters(NamedTuple):
    """Of one model, as Triton counts since it was loaded. Times are of every request: each of a batch counts the batch's whole time."""

    num_requests: int
    num_rows: int
    num_executions: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


class Queue(NamedTuple):
    """What the gateway's queue came to since it started."""

    seconds: float
    num_requests: float


class Reading(NamedTuple):
    """What could be read at one moment."""

    at: float  # seconds of 1970
    values: Mapping[str, float]


class Window(NamedTuple):
    """The measured seconds, of 1970."""

    start: float
    end: float


class Scrape(NamedTuple):
    """What the servers said before a run, or after it."""

    triton: Mapping[str, Counters] | None = None  # of each server by its URL: a sum would hide one that began anew
    queue: Queue | None = None


def counters(answer: Any) -> Counters | None:
    """Out of `/v2/models/M/stats`."""
    try:
        models = answer["model_stats"]
        sums = [[*_counted(model), *_times(model["inference_stats"])] for model in models]
    except (TypeError, KeyError, ValueError):
        return None
    return Counters(*map(sum, zip(*sums, strict=True))) if sums else None


def _counted(model: Mapping[str, Any]) -> tuple[int, int, int]:
    success = int(model["inference_stats"]["success"]["count"])
    return success, int(model["inference_count"]), int(model["execution_count"])


def _times(stats: Mapping[str, Any]) -> list[int]:
    return [int(stats[name]["ns"]) for name in ("queue", "compute_input", "compute_infer", "compute_output")]


def complete(asked: Mapping[str, Counters | None]) -> dict[str, Counters] | None:
    """Of several servers; None as soon as one did not answer."""
    known = {url: counted for url, counted in asked.items() if counted is not None}
    return known if known and len(known) == len(asked) else None


_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of one metric out of Prometheus's text."""
    found = []
    for match in _SAMPLE.finditer(text):
        if match["name"] == name:
            try:
                value = float(match["value"])
            except ValueError:
                continue
            if math.isfinite(value):  # exporters say NaN for what a card does not tell
                found.append((dict(_LABEL.findall(match["labels"] or "")), value))
    return found


def queue_of(text: str, model: str, variant: str, pool: str) -> Queue | None:
    """Out of the gateway's /metrics; None before the first such request."""
    wanted = {"model": model, "variant": variant, "pool": pool}
    sums, counts = (
        [value for labels, value in samples(text, f"tandem_queue_seconds_{part}") if labels == wanted]
        for part in ("sum", "count")
    )
    return Queue(sum(sums), sum(counts)) if sums and counts else None


# -- differences ---------------------------------------------------------------------------------------------------------


def rise(readings: Sequence[Reading], name: str, window: Window) -> float | None:
    """How much a counter rose within the window, on straight lines between readings."""
    known = [(reading.at, reading.values[name]) for reading in readings if name in reading.values]
    if any(later < earlier for (_, earlier), (_, later) in pairwise(known)):
        return None
    ends = [_at(known, moment) for moment in window]
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _at(known: Sequence[tuple[float, float]], moment: float) -> float | None:
    index = bisect_left(known, moment, key=lambda point: point[0])
    if index == len(known) or (index == 0 and known[0][0] > moment):
        return None
    (x1, y1) = known[index]
    (x0, y0) = known[max(0, index - 1)]
    return y1 if x1 == x0 else y0 + (y1 - y0) * (moment - x0) / (x1 - x0)


def mean(readings: Sequence[Reading], name: str, window: Window) -> float | None:
    values = [r.values[name] for r in readings if name in r.values and window.start <= r.at <= window.end]
    return fmean(values) if values else None


def evidence(before: Scrape, after: Scrape, readings: Sequence[Reading], window: Window | None) -> Evidence:
    """`window` None: the generator did not tell when it measured."""
    counted = _counters_between(before.triton, after.triton)
    metered = _metered(readings, window)
    return replace(Evidence(**counted), gateway_queue_s=_queued(before.queue, after.queue), **metered)


def _counters_between(before: Mapping[str, Counters] | None, after: Mapping[str, Counters] | None) -> dict[str, Any]:
    if before is None or after is None or before.keys() != after.keys():
        return {}
    rises = [[b - a for a, b in zip(before[url], after[url], strict=True)] for url in before]
    rose = Counters(*map(sum, zip(*rises, strict=True)))
    if min(map(min, rises)) < 0 or not rose.num_requests:
        return {}
    each_s = [ns / 1e9 / rose.num_requests for ns in rose[3:]]
    return {
        "num_requests": rose.num_requests,
        "num_rows": rose.num_rows,
        "num_executions": rose.num_executions,
        **dict(zip(("triton_queue_s", "triton_input_s", "triton_infer_s", "triton_output_s"), each_s, strict=True)),
    }


def _queued(before: Queue | None, after: Queue | None) -> float | None:
    if before is None or after is None:
        return None
    seconds, num_requests = after.seconds - before.seconds, after.num_requests - before.num_requests
    return seconds / num_requests if num_requests > 0 and seconds >= 0 else None


def _metered(readings: Sequence[Reading], window: Window | None) -> dict[str, Any]:
    if window is None:
        return {}
    power_w = mean(readings, GPU_W, window)
    gpu_j = rise(readings, GPU_J, window)  # the card's own counter, else what its power comes to
    if gpu_j is None and power_w is not None:
        gpu_j = power_w * (window.end - window.start)
    return {
        "gateway_cpu_s": rise(readings, GATEWAY_CPU_S, window),
        "triton_cpu_s": rise(readings, TRITON_CPU_S, window),
        "cpu_energy_j": rise(readings, CPU_J, window),
        "gpu_utilization_ratio": mean(readings, GPU_RATIO, window),
        "gpu_power_w": power_w,
        "gpu_energy_j": gpu_j,
    }
