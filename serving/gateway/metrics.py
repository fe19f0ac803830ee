"""Everything the gateway counts, in one object that is built once.

On the inference path counting is one append, because prometheus_client's own observation would cost 1 to 2 µs each; what was
appended is counted at a scrape or every thousand requests, and the library turns the counts into text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

import serving

# Seconds. From a tenth of what a tiny model takes (0.3 ms at one connection) to what no client waits for.
BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BOUNDS = [*(str(b) for b in BUCKETS_S), "+Inf"]
OUTCOMES = ("ok", "client_error", "rate_limited", "shed", "expired", "cancelled", "backend_error")


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, value_s)] += 1
        self.total += value_s

    def cumulative(self) -> list[tuple[str, float]]:
        total, rows = 0, []
        for bound, count in zip(BOUNDS, self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


@dataclass(slots=True)
class Series:
    """What is counted for one (model, variant, pool). `model` is the public name or the pinned one that was asked for."""

    labels: tuple[str, str, str]
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    request: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    backend: Histogram = field(default_factory=Histogram)
    waiting: list[tuple[float, float, float]] = field(default_factory=list)  # answered, not yet in the histograms

    def answered(self, queue_s: float, backend_s: float, request_s: float) -> None:
        self.waiting.append((queue_s, backend_s, request_s))
        if len(self.waiting) >= 1024:  # bounds the memory between two scrapes
            self.settle()

    def settle(self) -> None:
        """Brings what was answered into the counts."""
        waiting, self.waiting = self.waiting, []
        self.outcomes["ok"] += len(waiting)
        for queue_s, backend_s, request_s in waiting:
            self.queue.observe(queue_s)
            self.backend.observe(backend_s)
            self.request.observe(request_s)


@dataclass(frozen=True, slots=True)
class PoolGauge:
    """A pool's state at the moment of a scrape. `state` is one of POOL_STATES."""

    name: str
    state: str
    in_flight: int
    num_waiting: int = 0  # in the gateway's own queue
    demand_replicas: float = 0.0  # servers that this gateway's traffic would keep busy there
    demand_only_replicas: float = 0.0  # of these, by what no other pool may answer
    demand_unseen_replicas: float = 0.0  # of these, at most, by what came while this gateway had never seen the pool
    since: float = 0.0  # when this state began, seconds of 1970
    share: float = 1.0  # of the traffic, that may go there now
    price_per_hour: float | None = None
    num_ready: int = 0  # its servers that answer and serve something


POOL_STATES = ("cold", "waking", "warming", "ready", "draining", "down")


class Metrics:
    """The counts, and their text for Prometheus."""

    def __init__(
        self, pools: Callable[[], list[PoolGauge]], are_keys_readable: Callable[[], bool] | None = None
    ) -> None:
        self.pools = pools
        self._are_keys_readable = are_keys_readable
        self._series: dict[tuple[str, str, str], Series] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.unresolved = self.series("", "", "")  # requests refused before a model was found: its name is the client's

    def series(self, model: str, variant: str, pool: str) -> Series:
        labels = (model, variant, pool)
        return self._series.setdefault(labels, Series(labels))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """prometheus_client calls this at a scrape."""
        labels = ["model", "variant", "pool"]
        requests = CounterMetricFamily(
            "tandem_requests", "Inference requests by how they ended.", labels=[*labels, "outcome"]
        )
        families = {
            "request": HistogramMetricFamily(
                "tandem_request_seconds", "From arrival to the answer handed over.", labels=labels
            ),
            "queue": HistogramMetricFamily("tandem_queue_seconds", "From arrival until sent to Triton.", labels=labels),
            "backend": HistogramMetricFamily(
                "tandem_backend_seconds", "From sent to Triton until it answered.", labels=labels
            ),
        }
        for series in self._series.values():
            series.settle()
            for outcome, count in series.outcomes.items():
                requests.add_metric([*series.labels, outcome], count)
            for name, family in families.items():
                histogram: Histogram = getattr(series, name)
                family.add_metric(list(series.labels), histogram.cumulative(), histogram.total)
        yield requests
        yield from families.values()
        in_flight = GaugeMetricFamily("tandem_in_flight", "Requests that Triton is working on.", labels=["pool"])
        queued = GaugeMetricFamily("tandem_queued", "Requests that wait in this gateway's queue.", labels=["pool"])
        demand = GaugeMetricFamily(
            "tandem_demand_replicas",
            "Servers that this gateway's traffic would keep busy, were it all in this pool; gateways add up.",
            labels=["pool"],
        )
        only = GaugeMetricFamily(
            "tandem_demand_only_replicas",
            "Of these, by traffic that no other pool may answer, or not in time.",
            labels=["pool"],
        )
        unseen = GaugeMetricFamily(
            "tandem_demand_unseen_replicas",
            "Of these, an upper bound by traffic that came while this gateway had never seen the pool.",
            labels=["pool"],
        )
        ready = GaugeMetricFamily(
            "tandem_ready_servers",
            "Servers that answer this gateway and serve something; gateways do not add up.",
            labels=["pool"],
        )
        states = GaugeMetricFamily("tandem_pool_state", "1 for the state a pool is in.", labels=["pool", "state"])
        for pool in self.pools():
            in_flight.add_metric([pool.name], pool.in_flight)
            queued.add_metric([pool.name], pool.num_waiting)
            demand.add_metric([pool.name], pool.demand_replicas)
            only.add_metric([pool.name], pool.demand_only_replicas)
            unseen.add_metric([pool.name], pool.demand_unseen_replicas)
            ready.add_metric([pool.name], pool.num_ready)
            for state in POOL_STATES:
                states.add_metric([pool.name, state], float(state == pool.state))
        yield in_flight
        yield queued
        yield demand
        yield only
        yield unseen
        yield ready
        yield states
        if self._are_keys_readable is not None:
            yield GaugeMetricFamily(
                "tandem_keys_readable",
                "1 where the API keys in force are those of the file as it is now, 0 where it cannot be read.",
                float(self._are_keys_readable()),
            )
        build = GaugeMetricFamily("tandem_build_info", "1, with the version.", labels=["version"])
        build.add_metric([serving.__version__], 1)
        yield build
