"""The scaler's metrics for Prometheus, made from its newest result at each scrape.

Rule: an unknown number is left out and never 0, because an autoscaler that finds nothing leaves things as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

import serving
from serving.cluster.scaler.state import ColdStartTotals, ScalerState
from serving.decisions.cold_start import ColdStart
from serving.decisions.sizes import WARM


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
        yield _gauges(
            "tandem_wanted_replicas",
            "Servers wanted of a pool; absent while unknown.",
            [((pool,), replicas) for pool, replicas in (scaling.replicas or {}).items()],
            "pool",
        )
        warm = {} if scaling.target is None or scaling.replicas is None else scaling.target.warm
        yield _gauges(
            "tandem_wanted_warm_nodes",
            "Nodes that are to be kept without a server.",
            [((name.removeprefix(WARM),), number) for name, number in warm.items()],
            "name",
        )
        yield _gauges(
            "tandem_scaler_demand_replicas",
            "Servers that the traffic of all gateways would keep busy.",
            [((pool,), demand.replicas) for pool, demand in (scaling.demands or {}).items()],
            "pool",
        )
        yield _gauge("tandem_scaler_holds", "1 while no number is published.", scaling.replicas is None)
        yield _gauge("tandem_scaler_keeps", "1 while no number may go down.", bool(scaling.keeps))
        known, now = scaling.gateways.known, self._now()
        heard = [((address,), max(0.0, now - it.read_at)) for address, it in known.items() if it.said is not None]
        yield _gauges("tandem_scaler_gateway_heard_seconds", "Time since a gateway last answered.", heard, "gateway")
        labels = ("pool", "direction", "reason")
        changes = CounterMetricFamily("tandem_scaler_decisions", "Changes of a wanted number.", labels=labels)
        yield _filled(changes, list(self._state.decisions.items()))
        if result.is_api_readable is not None:
            yield _gauge("tandem_scaler_api_readable", "1 while the Kubernetes API answers.", result.is_api_readable)
        if (leader := self._state.leader) is not None:
            yield _gauge("tandem_scaler_leads", "1 while this scaler, and no other, sets replicas.", leader.is_leading)
            yield _gauge("tandem_scaler_cannot_apply", "1 while replicas cannot be set.", bool(leader.problem))
        yield from _cold_starts(result.cold_starts)
        yield from _ended(self._state.totals)
        yield _gauges("tandem_build_info", "1, with the version.", [((serving.__version__,), 1)], "version")


def _gauge(name: str, text: str, is_so: bool) -> Metric:
    return GaugeMetricFamily(name, text, float(is_so))


Values = Iterable[tuple[Sequence[str], float]]  # labels, value


def _gauges(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for of, value in values:
        family.add_metric(of, value)
    return family


def _cold_starts(all_of_them: tuple[ColdStart, ...]) -> Iterator[Metric]:
    last = {it.pool: it for it in all_of_them if it.answered_at is not None}
    yield _gauges(
        "tandem_cold_start_seconds",
        "Phases of a pool's last cold start that ended in an answer.",
        [((pool, phase), took_s) for pool, it in last.items() for phase, took_s in it.phases.items()],
        *("pool", "phase"),
    )
    in_progress = Counter((it.pool,) for it in all_of_them if not it.is_over)
    yield _gauges("tandem_cold_starts_open", "Cold starts in progress.", in_progress.items(), "pool")


def _ended(of: ColdStartTotals) -> Iterator[Metric]:
    """Runs on another thread than the one that counts."""
    text = "Cold starts that came to an end: answered, or given_up."
    yield _filled(CounterMetricFamily("tandem_cold_starts", text, labels=("pool", "end")), list(of.ends.items()))
    text, labels = "Phases of all cold starts that ended in an answer.", ("pool", "phase")
    phases = HistogramMetricFamily("tandem_cold_start_phase_seconds", text, labels=labels)
    for each, phase in list(of.phases.items()):
        bounds = [("+Inf" if bound == inf else str(bound), n) for bound, n in phase.up_to]
        phases.add_metric(each, bounds, phase.sum_s)
    yield phases
