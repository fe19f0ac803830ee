"""What came of a simulated run: how many requests were in time, what it cost, how often the GPU was started.

Latencies are kept in a histogram whose buckets are 2 % wide, so that a day at 10,000 requests a second fits. Rule: every request that
came is counted exactly once: in time, late, refused, or expired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, exp, log

WIDTH = 0.02  # of a bucket, in logarithms
SMALLEST_S = 1e-6


class Latencies:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0
        self.sum_s = 0.0

    def add(self, seconds: float, count: int) -> None:
        bucket = ceil(log(seconds / SMALLEST_S) / WIDTH) if seconds > SMALLEST_S else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += count
        self.sum_s += seconds * count

    def quantile(self, q: float) -> float | None:
        """To 2 %, never too small; None without an answer."""
        left = q * self.total
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 1e-9:
                return SMALLEST_S * exp(bucket * WIDTH)
        return None


@dataclass(slots=True)
class Moment:
    """A slice of the timeline. Servers as they were at its end; `cold`: GPU servers on their way."""

    at_s: float
    num_requests: int = 0
    num_violated: int = 0
    num_cpu: int = 0
    num_gpu: int = 0
    num_cold: int = 0


@dataclass(slots=True)
class Tally:
    """Counted while it runs."""

    num_in_time: int = 0
    num_late: int = 0
    num_refused: int = 0
    num_expired: int = 0
    num_gpu_starts: int = 0
    num_handovers: int = 0
    server_s: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)
    timeline: list[Moment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    policy: str
    duration_s: float
    num_requests: int
    num_in_time: int
    num_late: int
    num_refused: int
    num_expired: int
    cost: float
    cpu_hours: float
    gpu_hours: float
    num_gpu_starts: int
    num_handovers: int
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    reasons: tuple[tuple[str, int], ...]
    timeline: tuple[Moment, ...]

    @property
    def attainment_ratio(self) -> float:
        return self.num_in_time / self.num_requests if self.num_requests else 1.0

    @property
    def num_violations(self) -> int:
        return self.num_requests - self.num_in_time

    @property
    def cost_per_million(self) -> float | None:
        """Of those in time; the rest is worth nothing."""
        return self.cost / self.num_in_time * 1e6 if self.num_in_time else None
