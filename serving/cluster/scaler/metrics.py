"""The scaler's metrics for Prometheus, made from its newest result at each scrape.

Rule: an unknown number is left out and never 0, because an autoscaler that finds nothing leaves things as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

import serving
from serving.cluster.scaler.state import ColdStartTotals, ScalerState
from serving.decisions.cold_start import ColdStart


class Metrics:
    def __init__(self, state: ScalerState, now: Callable[[], float]) -> None:
        self._state, self._now = state, now
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and text; OpenMetrics where a client asks for it."""
        encoder, kind = choose_encoder(accept)
        return kind, encoder(self._registry)

    def collect(self) -> Iterator[Metric]:
        """prometheus_client calls this at a scrape."""
        result, scaling = self._state.result, self._state.result.scaling
        wanted = GaugeMetricFamily(
            "tandem_wanted_replicas",
            "Servers wanted of a pool; absent while unknown.",
            labels=["pool"],
        )
        for pool, replicas in (scaling.replicas or {}).items():
            wanted.add_metric([pool], replicas)
        yield wanted
        demand = GaugeMetricFamily(
            "tandem_scaler_demand_replicas",
            "Servers that the traffic of all gateways would keep busy.",
            labels=["pool"],
        )
        for pool, of_pool in (scaling.demands or {}).items():
            demand.add_metric([pool], of_pool.replicas)
        yield demand
        yield _gauge("tandem_scaler_holds", "1 while no number is published.", scaling.replicas is None)
        yield _gauge("tandem_scaler_keeps", "1 while no number may go down.", bool(scaling.keeps))
        heard = GaugeMetricFamily(
            "tandem_scaler_gateway_heard_seconds", "Time since a gateway last answered.", labels=["gateway"]
        )
        for address, gateway in scaling.gateways.known.items():
            if gateway.said is not None:
                heard.add_metric([address], max(0.0, self._now() - gateway.read_at))
        yield heard
        decisions = CounterMetricFamily(
            "tandem_scaler_decisions", "Changes of a wanted number.", labels=["pool", "direction", "reason"]
        )
        for labels, count in list(self._state.decisions.items()):
            decisions.add_metric(list(labels), count)
        yield decisions
        if result.is_api_readable is not None:
            yield _gauge("tandem_scaler_api_readable", "1 while the Kubernetes API answers.", result.is_api_readable)
        yield from _cold_starts(result.cold_starts)
        yield from _ended(self._state.totals)
        build = GaugeMetricFamily("tandem_build_info", "1, with the version.", labels=["version"])
        build.add_metric([serving.__version__], 1)
        yield build


def _gauge(name: str, text: str, is_so: bool) -> Metric:
    return GaugeMetricFamily(name, text, float(is_so))


def _cold_starts(all_of_them: tuple[ColdStart, ...]) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "tandem_cold_start_seconds",
        "Phases of a pool's last cold start that ended in an answer.",
        labels=["pool", "phase"],
    )
    last = {it.pool: it for it in all_of_them if it.answered_at is not None}
    for pool, it in last.items():
        for phase, took_s in it.phases.items():
            seconds.add_metric([pool, phase], took_s)
    yield seconds
    in_progress = GaugeMetricFamily("tandem_cold_starts_open", "Cold starts in progress.", labels=["pool"])
    for pool, number in Counter(it.pool for it in all_of_them if not it.is_over).items():
        in_progress.add_metric([pool], number)
    yield in_progress


def _ended(of: ColdStartTotals) -> Iterator[Metric]:
    """Runs on another thread than the one that counts."""
    ends = CounterMetricFamily(
        "tandem_cold_starts", "Cold starts that came to an end: answered, or given_up.", labels=["pool", "end"]
    )
    for labels, count in list(of.ends.items()):
        ends.add_metric(list(labels), count)
    yield ends
    phases = HistogramMetricFamily(
        "tandem_cold_start_phase_seconds",
        "Phases of all cold starts that ended in an answer.",
        labels=["pool", "phase"],
    )
    for labels, phase in list(of.phases.items()):
        phases.add_metric(
            list(labels), [("+Inf" if bound == inf else str(bound), n) for bound, n in phase.up_to], phase.sum_s
        )
    yield phases
