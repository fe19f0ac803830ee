"""Counts requests and times, and writes them for Prometheus together with the state of the pools. Built once.

On the inference path counting is one append, because an observation by prometheus_client costs 1 to 2 µs; what was appended goes into the
histograms at a scrape or every thousand requests. Rule: a scrape never holds the event loop for longer than a slice, however many models
there are: the library writes the few families of pools, and series of models are written here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, repeat
from time import time
from typing import Protocol

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

import serving
from serving.gateway.background import Slices
from serving.gateway.control_watch import ControlWatch
from serving.gateway.http.accept import preferences
from serving.gateway.http.connections import Connections
from serving.protocol.memory import Memory
from serving.repository.layout import SourceState
from serving.usage import ledger as used

# Seconds. From a tenth of what a tiny model takes (0.3 ms at one connection) to what no client waits for.
BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BOUNDS = [*(str(b) for b in BUCKETS_S), "+Inf"]
REQUESTS = "Inference requests by how they ended."
TIMED = {
    "request": "From arrival to the answer handed over.",
    "queue": "From arrival until sent to Triton.",
    "backend": "From sent to Triton until it answered.",
}
MANY_PARTS = 2000  # of some 800 bytes: what is joined of more than a megabyte lets other threads run
FAILED = frozenset({"shed", "expired", "backend_error"})  # outcomes that are no client's fault
OUTCOMES = ("ok", "client_error", "rate_limited", "shed", "expired", "cancelled", "backend_error")


class Rendering(Enum):
    """How metrics are written down: the media types that scrapers ask for."""

    TEXT_0 = "text/plain; version=0.0.4"
    TEXT_1 = "text/plain; version=1.0.0"
    OPENMETRICS_0 = "application/openmetrics-text; version=0.0.1"
    OPENMETRICS_1 = "application/openmetrics-text; version=1.0.0"

    @property
    def media_type(self) -> str:
        return f"{self.value}; charset=utf-8"

    @property
    def is_openmetrics(self) -> bool:
        return self in (Rendering.OPENMETRICS_0, Rendering.OPENMETRICS_1)


# What is named without a version is its newest; what nobody named is the text that every scraper reads.
NAMED = {rendering.value: rendering for rendering in Rendering} | {
    "text/plain": Rendering.TEXT_1,
    "application/openmetrics-text": Rendering.OPENMETRICS_1,
}


def rendering_for(accept: str) -> Rendering:
    """What an `Accept` header likes best, of equals the first; text where it names nothing that is here."""
    best, liked = Rendering.TEXT_0, 0.0
    for name, parameters, quality in preferences(accept):
        version = parameters.get("version")
        rendering = NAMED.get(name if version is None else f"{name}; version={version}")
        if rendering is not None and quality > liked:
            best, liked = rendering, quality
    return best


class Histogram:
    """`exemplars`: bucket -> the last of its observations with a trace, as OpenMetrics writes it behind the count."""

    __slots__ = ("counts", "exemplars", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total = 0.0
        self.exemplars: dict[int, str] = {}

    def observe(self, values_s: Sequence[float]) -> None:
        for bucket, count in Counter(map(bisect_left, repeat(BUCKETS_S), values_s)).items():
            self.counts[bucket] += count
        self.total += sum(values_s)

    def exemplify(self, value_s: float, trace_id: str, at: float) -> None:
        """`at`: seconds of 1970."""
        self.exemplars[bisect_left(BUCKETS_S, value_s)] = f' # {{trace_id="{trace_id}"}} {value_s!r} {at:.3f}'

    def lines(self, name: str, labels: str, *, has_exemplars: bool = False) -> str:
        """As Prometheus' text has it; `labels` without braces. Only OpenMetrics has exemplars."""
        up_to = list(accumulate(self.counts))
        rows = [f'{name}_bucket{{le="{le}",{labels}}} {count}.0\n' for le, count in zip(BOUNDS, up_to, strict=True)]
        if has_exemplars:
            for place, exemplar in self.exemplars.items():
                rows[place] = f"{rows[place][:-1]}{exemplar}\n"
        return "".join(rows) + f"{name}_count{{{labels}}} {up_to[-1]}.0\n{name}_sum{{{labels}}} {self.total!r}\n"


@dataclass(slots=True)
class Series:
    """What is counted for one (model, variant, pool). `model` is the public name or the pinned one that was asked for."""

    labels: tuple[str, str, str]
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    request: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    backend: Histogram = field(default_factory=Histogram)
    waiting: list[tuple[float, float, float]] = field(default_factory=list)  # answered, not yet in the histograms
    num_failed: int = 0  # of the outcomes, those in FAILED

    def ended(self, outcome: str) -> None:
        """Without a good answer."""
        self.outcomes[outcome] += 1
        self.num_failed += outcome in FAILED

    def answered(self, queue_s: float, backend_s: float, request_s: float) -> None:
        self.waiting.append((queue_s, backend_s, request_s))
        if len(self.waiting) >= 1024:  # bounds the memory between two scrapes
            self.settle()

    def exemplify(self, trace_id: str, queue_s: float, backend_s: float, request_s: float) -> None:
        """What `answered` was told of a request whose trace is kept."""
        at = time()
        self.queue.exemplify(queue_s, trace_id, at)
        self.backend.exemplify(backend_s, trace_id, at)
        self.request.exemplify(request_s, trace_id, at)

    def settle(self) -> None:
        """Brings what was answered into the counts."""
        waiting, self.waiting = self.waiting, []
        self.outcomes["ok"] += len(waiting)
        if waiting:
            queue_s, backend_s, request_s = zip(*waiting, strict=True)
            self.queue.observe(queue_s)
            self.backend.observe(backend_s)
            self.request.observe(request_s)

    def lines(self, *, has_exemplars: bool) -> tuple[str, ...]:
        """Of each of `_families`, as of this moment."""
        self.settle()
        model, variant, pool = map(_label, ("model", "variant", "pool"), self.labels)
        outcomes = self.outcomes.items()
        return (
            "".join(f'tandem_requests_total{{{model},outcome="{o}",{pool},{variant}}} {n}.0\n' for o, n in outcomes),
            *(
                getattr(self, name).lines(
                    f"tandem_{name}_seconds", f"{model},{pool},{variant}", has_exemplars=has_exemplars
                )
                for name in TIMED
            ),
        )


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
    # Of these, by what several pools may answer and at least one other may not, by those pools' names.
    demand_shared_replicas: Mapping[str, float] = field(default_factory=dict)
    since: float = 0.0  # when this state began, seconds of 1970
    share: float = 1.0  # of the traffic, that may go there now
    price_per_hour: float | None = None
    time_ratio: float | None = None  # what work took lately, as a multiple of what its curve says
    num_ready: int = 0  # its servers that answer and serve something
    num_contained: int = 0  # times that one was restarted because it worked on for nobody
    digest_conflicts: Mapping[tuple[str, str], bool] = field(
        default_factory=dict
    )  # (model, variant) -> whether its servers serve different files as that
    num_quarantined: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  # the same -> on how many servers it gets no requests because its answers are off


class Counts(Protocol):
    """Comparisons of one (model, variant, pool) by how they ended; `disputed`: nobody can say who was wrong."""

    alike: int
    different: int
    disputed: int


class Comparisons(Protocol):
    """What `request/parity.py` counts."""

    num_skipped: int

    @property
    def counts(self) -> Mapping[tuple[str, str, str], Counts]: ...

    def told(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True)
class RolloutGauge:
    """Of a model's rollout at the moment of a scrape. `step` is one of STEPS, `outcome` of ROLLOUT_OUTCOMES."""

    model: str
    step: str
    outcome: str
    num_compared: int
    num_skipped: int


STEPS = ("shadow", "canary", "promote", "rollback")
ROLLOUT_OUTCOMES = ("held", "promoted", "rolled_back")
POOL_STATES = ("cold", "waking", "warming", "ready", "draining", "down")


class Metrics:
    """The counts, and their text for Prometheus."""

    def __init__(
        self,
        pools: Callable[[], list[PoolGauge]],
        are_keys_readable: Callable[[], bool] | None = None,
        control: ControlWatch | None = None,
        rollouts: Callable[[], list[RolloutGauge]] = list,
        *,
        memory: Memory | None = None,
        connections: Sequence[Connections] = (),
        parity: Comparisons | None = None,
    ) -> None:
        self.parity = parity
        self.pools = pools
        self._are_keys_readable = are_keys_readable
        self._control = control
        self._rollouts = rollouts
        self._memory = memory
        self._connections = connections
        self._series: dict[tuple[str, str, str], Series] = {}
        self.usage: Usage | None = None
        self.source: Callable[[], SourceState | None] = lambda: None  # of the model repository
        self.traces: TraceCounts | None = None
        # While a scrape is made, with exemplars or without.
        self._counting: dict[bool, asyncio.Task[list[list[bytes]]]] = {}
        self.unresolved = self.series("", "", "")  # requests refused before a model was found: its name is the client's

    def series(self, model: str, variant: str, pool: str) -> Series:
        labels = (model, variant, pool)
        return self._series.setdefault(labels, Series(labels))

    async def text(self, rendering: Rendering = Rendering.TEXT_0) -> bytes:
        """All of it. Scrapes that come while one is made share its counting, and the loop has its turn every SLICE_S meanwhile."""
        has_exemplars = rendering.is_openmetrics
        if has_exemplars not in self._counting:
            self._counting[has_exemplars] = asyncio.ensure_future(self._lines(has_exemplars=has_exemplars))
        counted = await asyncio.shield(self._counting[has_exemplars])
        parts: list[bytes] = []
        for family, lines in zip(self._families(), counted, strict=True):
            parts += [_written([family], rendering), *lines]
        await asyncio.sleep(0)
        parts.append(_written([*_of_pools(self.pools()), *self._of_gateway()], rendering))
        parts.append(b"# EOF\n" if rendering.is_openmetrics else b"")
        if len(parts) < MANY_PARTS:
            return b"".join(parts)
        return await asyncio.to_thread(b"".join, parts)

    async def settled(self) -> list[Series]:
        """All that is counted, with all that was answered in the counts. The loop has its turn every SLICE_S."""
        every, slices = list(self._series.values()), Slices()
        for series in every:
            series.settle()
            await slices.rest()
        return every

    def demand(self) -> bytes:
        """What the scaler reads of all this, every second: a few lines for each pool, requests summed over models and variants."""
        pools = self.pools()
        good = {pool.name: 0 for pool in pools}
        failed = {**good, "": 0}  # without a pool: what none could take
        for series in self._series.values():
            pool = series.labels[2]
            if pool in good:
                good[pool] += series.outcomes["ok"] + len(series.waiting)
            if series.num_failed and pool in failed:
                failed[pool] += series.num_failed
        requests = CounterMetricFamily("tandem_requests", REQUESTS, labels=["pool", "outcome"])
        for outcome, by_pool in (("ok", good), ("failed", failed)):
            for pool, count in by_pool.items():
                requests.add_metric([pool, outcome], count)
        return _written([requests, *_of_pools(pools)], Rendering.TEXT_0)

    async def _lines(self, *, has_exemplars: bool) -> list[list[bytes]]:
        """Of each of `_families`, written here: the library takes 20 times as long, and the loop would stand still."""
        counted: list[list[bytes]] = [[] for _ in self._families()]
        try:
            slices = Slices()
            for family, more in self._pieces(has_exemplars=has_exemplars):
                counted[family].append(more.encode())
                await slices.rest()
        finally:
            del self._counting[has_exemplars]
        return counted

    def _pieces(self, *, has_exemplars: bool) -> Iterator[tuple[int, str]]:
        """Lines of models and tenants, each with its place in `_families`."""
        for series in list(self._series.values()):
            yield from enumerate(series.lines(has_exemplars=has_exemplars))
        last = len(_of_models()) - 2
        for pool in self.pools():
            name = _label("pool", pool.name)
            for (model, variant), number in pool.num_quarantined.items():
                labels = f"{_label('model', model)},{name},{_label('variant', variant)}"
                yield last + 1, f"tandem_quarantined_servers{{{labels}}} {float(number)}\n"
            for (model, variant), is_conflict in pool.digest_conflicts.items():
                labels = f"{_label('model', model)},{name},{_label('variant', variant)}"
                yield last, f"tandem_digest_conflict{{{labels}}} {float(is_conflict)}\n"
        if self.usage is not None:
            yield from ((last + 2 + place, line) for place, line in _tenant_lines(self.usage.ledger))

    def _families(self) -> tuple[Metric, ...]:
        """Of what may have many lines, without the counts."""
        return _of_models() if self.usage is None else (*_of_models(), *_of_tenants())

    def _of_gateway(self) -> Iterator[Metric]:
        if self._are_keys_readable is not None:
            yield GaugeMetricFamily(
                "tandem_keys_readable",
                "1 where the API keys in force are those of the file as it is now, 0 where it cannot be read.",
                float(self._are_keys_readable()),
            )
        if self._control is not None:
            number = GaugeMetricFamily(
                "tandem_control_revision",
                "Number of the control document's revision that is in force here; gateways that agree have the same digest.",
                labels=["digest"],
            )
            number.add_metric([self._control.revision.digest[:12]], self._control.revision.number)
            yield number
            yield GaugeMetricFamily(
                "tandem_control_current",
                "1 where that is the revision of the source as it is now, 0 where the source cannot be read or its document is wrong.",
                float(self._control.is_current),
            )
            yield from _of_rollouts(self._rollouts())
        if (source := self.source()) is not None:
            yield GaugeMetricFamily(
                "tandem_model_source_current",
                "1 where the bucket or registry of the model repository was read at the last look, 0 where it could not be.",
                float(source.problem is None),
            )
            yield GaugeMetricFamily(
                "tandem_model_source_refused",
                "Variants there that are not taken, because they are not whole or not what their gate recorded.",
                len(source.refused),
            )
        if self._memory is not None:
            yield GaugeMetricFamily(
                "tandem_buffered_bytes", "Memory that requests hold now, of max_buffered_bytes.", self._memory.held
            )
            yield CounterMetricFamily(
                "tandem_buffer_refusals", "Times that a request found no room there.", self._memory.num_refused
            )
        if self.usage is not None:
            if self.usage.joules:
                energy = CounterMetricFamily(
                    "tandem_energy_joules", "Of a pool's processor or card, by its own counter.", labels=["pool"]
                )
                for pool, joules in self.usage.joules.items():
                    energy.add_metric([pool], joules)
                yield energy
            yield GaugeMetricFamily(
                "tandem_usage_current",
                "1 where the place that keeps what tenants use was reached lately, 0 where it is away.",
                float(self.usage.is_current),
            )
        times = GaugeMetricFamily(
            "tandem_time_ratio",
            "What work took lately, as a multiple of what its curve says; the mean of a pool's servers.",
            labels=["pool"],
        )
        for gauge in self.pools():
            if gauge.time_ratio is not None:
                times.add_metric([gauge.name], gauge.time_ratio)
        yield times
        if self.traces is not None:
            traces = CounterMetricFamily(
                "tandem_traces", "Traces for the OpenTelemetry collector, by what became of them.", labels=["outcome"]
            )
            traces.add_metric(["sent"], self.traces.num_sent)
            traces.add_metric(["lost"], self.traces.num_lost)
            yield traces
        yield from self._of_connections()
        yield from self._of_parity()
        build = GaugeMetricFamily("tandem_build_info", "1, with the version.", labels=["version"])
        build.add_metric([serving.__version__], 1)
        yield build

    def _of_parity(self) -> Iterator[Metric]:
        if self.parity is None:
            return
        compared = CounterMetricFamily(
            "tandem_parity_comparisons",
            "Answers of a variant that another one's were compared with, by how that ended.",
            labels=["model", "variant", "pool", "outcome"],
        )
        for labels, counts in self.parity.counts.items():
            for outcome in ("alike", "different", "disputed"):
                compared.add_metric([*labels, outcome], getattr(counts, outcome))
        yield compared
        yield CounterMetricFamily(
            "tandem_parity_skipped",
            "Samples that nobody else was idle for, or that were too large.",
            self.parity.num_skipped,
        )

    def _of_connections(self) -> Iterator[Metric]:
        if not self._connections:
            return
        number = GaugeMetricFamily("tandem_connections", "Connections of a listener.", labels=["listener"])
        refused = CounterMetricFamily(
            "tandem_connection_refusals",
            "Connections that were one too many: of the listener, or of a client's address.",
            labels=["listener", "limit"],
        )
        for one in self._connections:
            number.add_metric([one.listener], one.number)
            for limit, count in one.num_refused.items():
                refused.add_metric([one.listener, limit], count)
        yield number
        yield refused


class TraceCounts(Protocol):
    """Of traces that were to be sent: those that the collector took, and those that it did not, or that there was no room for."""

    @property
    def num_sent(self) -> int: ...

    @property
    def num_lost(self) -> int: ...


class Usage(Protocol):
    """What tenants have used, as this process counted it."""

    @property
    def ledger(self) -> used.Ledger: ...

    joules: dict[str, float]  # by pool, where there is a meter

    @property
    def is_current(self) -> bool: ...

    def told(self) -> dict[str, str | None]: ...


TENANT_REFUSALS = "shed", "expired", "rate_limited"


def _of_tenants() -> tuple[Metric, ...]:
    labels = ["tenant", "model", "pool"]
    return (
        CounterMetricFamily("tandem_tenant_requests", "Requests of a tenant that were answered.", labels=labels),
        CounterMetricFamily(
            "tandem_tenant_device_seconds",
            "Seconds of servers that these took, where executions are full.",
            labels=labels,
        ),
        CounterMetricFamily("tandem_tenant_tokens", "Tokens of their texts, with padding.", labels=labels),
        CounterMetricFamily(
            "tandem_tenant_refusals",
            "Requests of a tenant that got no answer for load (shed), time (expired) or its quota (rate_limited).",
            labels=["tenant", "outcome"],
        ),
        GaugeMetricFamily(
            "tandem_tenant_quota_ratio",
            "Used of a tenant's quota, 1 where none is left, of a quota of 0 nothing; gateways do not add up, but for `concurrent`.",
            labels=["tenant", "what", "per"],
        ),
    )


def _tenant_lines(ledger: used.Ledger) -> Iterator[tuple[int, str]]:
    """Each with its place in `_of_tenants`."""
    sums, refused = ledger.sums, dict(ledger.num_refused)
    for (tenant, model, pool), amounts in sums.items():
        labels = f"{_label('model', model)},{_label('pool', pool)},{_label('tenant', tenant)}"
        yield 0, f"tandem_tenant_requests_total{{{labels}}} {amounts[used.REQUESTS]}\n"
        yield 1, f"tandem_tenant_device_seconds_total{{{labels}}} {amounts[used.DEVICE_S]}\n"
        if amounts[used.TOKENS]:
            yield 2, f"tandem_tenant_tokens_total{{{labels}}} {amounts[used.TOKENS]}\n"
    for tenant in sorted({tenant for tenant, *_ in sums} | {tenant for tenant, _ in refused}):
        for outcome in TENANT_REFUSALS:
            labels = f'outcome="{outcome}",{_label("tenant", tenant)}'
            yield 3, f"tandem_tenant_refusals_total{{{labels}}} {float(refused.get((tenant, outcome), 0))}\n"
    for tenant, what, per, ratio in ledger.quota_ratios(time()):
        yield 4, f'tandem_tenant_quota_ratio{{per="{per}",{_label("tenant", tenant)},what="{what}"}} {ratio}\n'


def _of_rollouts(rollouts: list[RolloutGauge]) -> Iterator[Metric]:
    step = GaugeMetricFamily("tandem_rollout_step", "1 for the step of a model's rollout.", labels=["model", "step"])
    outcome = GaugeMetricFamily(
        "tandem_rollout_outcome",
        "1 for what its candidate was judged to be, by this gateway.",
        labels=["model", "outcome"],
    )
    compared = CounterMetricFamily(
        "tandem_rollout_comparisons", "Requests whose answers were compared.", labels=["model"]
    )
    skipped = CounterMetricFamily(
        "tandem_rollout_skips",
        "Requests that were to be compared, and no server was idle or one was large.",
        labels=["model"],
    )
    for it in rollouts:
        for name in STEPS:
            step.add_metric([it.model, name], float(name == it.step))
        for name in ROLLOUT_OUTCOMES:
            outcome.add_metric([it.model, name], float(name == it.outcome))
        compared.add_metric([it.model], it.num_compared)
        skipped.add_metric([it.model], it.num_skipped)
    yield from (step, outcome, compared, skipped)


def _of_models() -> tuple[Metric, ...]:
    labels = ["model", "variant", "pool"]
    return (
        CounterMetricFamily("tandem_requests", REQUESTS, labels=[*labels, "outcome"]),
        *(HistogramMetricFamily(f"tandem_{name}_seconds", text, labels=labels) for name, text in TIMED.items()),
        GaugeMetricFamily(
            "tandem_digest_conflict",
            "1 while servers of a pool serve different files as one variant, of which one gets the requests, else 0.",
            labels=labels,
        ),
        GaugeMetricFamily(
            "tandem_quarantined_servers",
            "Servers on which a variant gets no requests because its answers are off.",
            labels=labels,
        ),
    )


def _of_pools(pools: list[PoolGauge]) -> list[Metric]:
    in_flight = GaugeMetricFamily(
        "tandem_in_flight", "Clients' requests that are at a Triton or on their way there.", labels=["pool"]
    )
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
    shared = GaugeMetricFamily(
        "tandem_demand_shared_replicas",
        "Of these, by traffic that just these pools may answer: more than one, and not all.",
        labels=["pool", "pools"],
    )
    ready = GaugeMetricFamily(
        "tandem_ready_servers",
        "Servers that answer this gateway and serve something; gateways do not add up.",
        labels=["pool"],
    )
    contained = CounterMetricFamily(
        "tandem_contained_restarts",
        "Restarts of servers that worked on though nobody waited, seen by this gateway; gateways do not add up.",
        labels=["pool"],
    )
    states = GaugeMetricFamily("tandem_pool_state", "1 for the state a pool is in.", labels=["pool", "state"])
    for pool in pools:
        in_flight.add_metric([pool.name], pool.in_flight)
        queued.add_metric([pool.name], pool.num_waiting)
        demand.add_metric([pool.name], pool.demand_replicas)
        only.add_metric([pool.name], pool.demand_only_replicas)
        unseen.add_metric([pool.name], pool.demand_unseen_replicas)
        for names, replicas in pool.demand_shared_replicas.items():
            shared.add_metric([pool.name, names], replicas)
        ready.add_metric([pool.name], pool.num_ready)
        contained.add_metric([pool.name], pool.num_contained)
        for state in POOL_STATES:
            states.add_metric([pool.name, state], float(state == pool.state))
    return [in_flight, queued, demand, only, unseen, shared, ready, contained, states]


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """prometheus_client calls this."""
        return self._families


def _written(families: list[Metric], rendering: Rendering) -> bytes:
    """By the library, without the end that OpenMetrics has."""
    write = openmetrics.generate_latest if rendering.is_openmetrics else generate_latest
    text: bytes = write(_Families(families))
    return text.removesuffix(b"# EOF\n")


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'
