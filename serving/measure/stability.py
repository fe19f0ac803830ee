"""Was a run the same from its beginning to its end? Pure: why not, in words; None if nothing speaks against it.

A rule such as "three windows within 10 %" trips over honest noise, so here it takes two things: a change of 10 %, and that it has an order
in time. The run is cut into 15 parts with as many requests each; the mean square of steps from part to part, over the variance of the parts
(von Neumann's ratio), is near 2 for parts in any order, and near 0 for a drift. Simulated, with lognormal service of one server under
Poisson arrivals: honest runs of 300 requests are called unstable in 0, 2 and 8 % of cases at 50, 70 and 80 % of its capacity, of 1,000 in
0, 1 and 1 %; a first fifth that is twice as slow is seen in 72 % and 98 %, a rise by 30 % of 5,000 requests always. Nearer to
capacity a queue wanders for longer than such a run lasts: then it was not stable, whatever the server can.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NUM_PARTS = 15  # more see slow changes less, fewer see short ones less (tried 10 to 20)
MIN_REQUESTS = (
    300  # 20 a part: with fewer the queue of an honest run at 70 % of capacity looks like drift in over 2 % of cases
)
MAX_ORDER = 0.7
MIN_CHANGE_RATIO = 0.10  # perf_analyzer's
# A queue grows if its length follows a line so well (in standard errors of the slope), and by this share of what came. Simulated: 1 % of
# honest runs of 300 requests at 90 % of capacity, 0 at 80 %; 30 % too much is seen in 98 % of such runs, 10 % of 1,000 requests in 89 %.
MIN_SLOPE_ERRORS = 6.0
MIN_GROWTH_RATIO = 0.01
MIN_ARRIVALS = 150

FloatArray = npt.NDArray[np.float64]


def growing_reason(due_s: FloatArray, end_s: FloatArray, from_s: float, until_s: float) -> str | None:
    """Whether more came than was answered, all the time: such a rate is not carried. `end_s`: of each, inf for one that never ended."""
    num_came = int(np.count_nonzero((due_s >= from_s) & (due_s < until_s)))
    if num_came < MIN_ARRIVALS:
        return None
    times_s = np.linspace(from_s, until_s, NUM_PARTS + 1)[1:]
    waiting = np.searchsorted(np.sort(due_s), times_s) - np.searchsorted(np.sort(end_s), times_s)
    growth, errors = _line(waiting.astype(np.float64))
    if errors < MIN_SLOPE_ERRORS or growth < MIN_GROWTH_RATIO * num_came:
        return None
    return f"the queue grew to the end: {growth:,.0f} of {num_came:,} requests that came were not answered meanwhile"


def drifting_reason(latencies_s: FloatArray) -> str | None:
    """Of latencies in the order in which they were due."""
    if len(latencies_s) < MIN_REQUESTS:
        return None
    parts = np.log([max(1e-9, float(np.median(part))) for part in np.array_split(latencies_s, NUM_PARTS)])
    variance = float(np.square(parts - parts.mean()).sum())
    if not variance or float(np.square(np.diff(parts)).sum()) / variance > MAX_ORDER:
        return None
    thirds = np.exp([float(part.mean()) for part in np.array_split(parts, 3)])
    if thirds.max() / thirds.min() < 1 + MIN_CHANGE_RATIO:
        return None
    first, middle, last = (float(third) for third in thirds)
    if first > middle * (1 + MIN_CHANGE_RATIO) and max(middle, last) / min(middle, last) < 1 + MIN_CHANGE_RATIO:
        after = (middle * last) ** 0.5
        return f"its first third was {first / after:.2f} times as slow as the rest: the warm-up was not over"
    if first <= middle <= last:
        return f"it got slower: its last third took {last / first:.2f} times as long as its first"
    if first >= middle >= last:
        return f"it got faster: its first third took {first / last:.2f} times as long as its last"
    slowest, fastest = int(thirds.argmax()), int(thirds.argmin())
    names = ("first", "middle", "last")
    times = float(thirds.max() / thirds.min())
    return f"it changed meanwhile: its {names[slowest]} third took {times:.2f} times as long as its {names[fastest]}"


def _line(values: FloatArray) -> tuple[float, float]:
    """(rise from end to end of a straight line through the values, in standard errors of its slope)."""
    at = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(at @ (values - values.mean()) / (at @ at))
    left = values - values.mean() - slope * at
    error = float(np.sqrt(left @ left / (len(values) - 2) / (at @ at)))
    rise = slope * len(values)
    return rise, slope / error if error else (np.inf if slope > 0 else 0.0)
