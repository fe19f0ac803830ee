"""Builds the gateway once, out of its settings, and hands each request to the endpoint that it belongs to.

Raw endpoints (inference) get it from the connection; everything else goes to a FastAPI app behind a guard. What lasts is made here
and handed on; only what comes and goes with the fleet (servers, queues, candidates, routes) is made by whoever keeps it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from serving.control.document import NO_CONTROL, Control, Share, Target, TenantControl
from serving.errors import UserError
from serving.gateway import endpoints
from serving.gateway.access import Access
from serving.gateway.classify.classifiers import Classifiers
from serving.gateway.classify.classify import Classify
from serving.gateway.control_watch import ControlWatch
from serving.gateway.endpoints import SCHEMAS, Handlers
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LookUp, split
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.history import History
from serving.gateway.http import v2
from serving.gateway.http.connections import Connections
from serving.gateway.http.endpoint import Endpoint, Endpoints
from serving.gateway.http.fastapi_app import build
from serving.gateway.http.guard import Guard
from serving.gateway.http.infer import Infer
from serving.gateway.http.openapi import document
from serving.gateway.http.operator import Operator
from serving.gateway.http.pages import Pages
from serving.gateway.key_watch import KeyWatch
from serving.gateway.metrics import Metrics, PoolGauge, RolloutGauge
from serving.gateway.model_files import Assets
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.openai.embeddings import Embeddings
from serving.gateway.openai.models import Models
from serving.gateway.request.access_log import AccessLog
from serving.gateway.request.dispatch import Dispatcher
from serving.gateway.request.inference import Inference
from serving.gateway.request.parity import Parity
from serving.gateway.request.rollouts import Rollouts
from serving.gateway.request.route import mixes_spaces, variants_of
from serving.gateway.request.traces import Traces
from serving.gateway.request.usage import Usage, quotas_of
from serving.gateway.scaler_page import ScalerPage
from serving.gateway.threads import Threads
from serving.measure import energy
from serving.protocol.memory import Memory
from serving.scheduling.routing import Variant
from serving.scheduling.shares import Term, Terms
from serving.settings import (
    OTEL_DISABLED,
    GatewaySettings,
    PoolSettings,
    is_loopback,
    is_otel_disabled,
    price_of_one,
)
from serving.usage.bill import Bill, bill_at
from serving.usage.ledger import Begun, Quotas, begin
from serving.usage.stores import ProcessUsage, Servers, store_at

log = logging.getLogger("tandem")


class _Tenants(NamedTuple):
    """What follows from those of a control document, `of`."""

    of: Mapping[str, TenantControl]
    terms: Terms
    quotas: Mapping[str, Quotas]
    begun: Mapping[str, Begun]


def _tenants(control: Control) -> _Tenants:
    quotas = quotas_of(control.tenants)
    begun = {name: begin(name, given) for name, given in quotas.items()}
    return _Tenants(control.tenants, _terms(control.tenants), quotas, begun)


def _terms(each: Mapping[str, Share]) -> Terms:
    return Terms({name: Term(it.weight, it.reserved_ratio) for name, it in each.items()})


class Gateway:
    """`public` and `admin` are the apps of the two listeners, for all but raw endpoints. Made inside a running event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        admin_here: bool,
        repository: Path | None = None,
        keys: KeyWatch | None = None,
        control: ControlWatch | None = None,
        look_up: LookUp = addresses.look_up,
    ) -> None:
        self._settings = settings
        self._tenants = self._prepared = _tenants(NO_CONTROL)
        self.state = State()
        self.assets = Assets(repository)
        self.catalogue = Catalogue(settings, self._fleet_changed, look_up, self.assets.loadable(), self.assets.spaces())
        self.candidates = Candidates(settings, self.catalogue)
        self.dispatcher = Dispatcher(self.catalogue, self.candidates)
        self._keys = keys
        self._control = control
        self.memory = Memory(settings.limits.max_buffered_bytes)
        self.connections = tuple(Connections(listener, settings.limits) for listener in ("clients", "operator"))
        self.grpc_connections = Connections("grpc", settings.limits)
        counted = (*self.connections, self.grpc_connections)
        readable = None if keys is None else lambda: keys.is_readable
        ratio = settings.parity_ratio
        self.parity = Parity(ratio, self.catalogue, self.candidates) if ratio else None
        self.metrics = Metrics(
            self._pool_gauges,
            readable,
            control,
            self._rollout_gauges,
            memory=self.memory,
            connections=counted,
            parity=self.parity,
        )
        self.scaler = ScalerPage(settings.scaler, look_up)
        changes = self.candidates.changes
        self.history = History(
            self.metrics, lambda: {name: list(it) for name, it in changes.items()}, lambda: self.scaler.told
        )
        self.access = Access() if keys is None else keys.access
        self.threads = Threads()
        self.usage = self._make_usage()
        self.access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        self.metrics.usage, self.metrics.source = self.usage, self.assets.source
        self.traces = self.metrics.traces = self._make_traces()
        self.loading = Loading(self.catalogue, self.assets, self.threads)
        self.inference = Inference(
            self.catalogue,
            self.candidates,
            self.dispatcher,
            self.metrics,
            self.access,
            settings.limits,
            self.memory,
            self.parity,
            self.usage,
            self.access_log,
            self.traces,
        )
        store = None if control is None else control.store
        prices = {name: price_of_one(pool) or 0.0 for name, pool in settings.pools.items()}
        copied = () if self.usage is None else (self.usage.copied,)
        self.rollouts = Rollouts(self.catalogue, self.candidates, self.inference.routes, prices, store, *copied)
        self.inference.routes.side_of = self.rollouts.side
        self.infer = Infer(self.inference, settings.limits, self.threads)
        self.embeddings = Embeddings(self.inference, self.assets, self.threads, settings)
        classifiers = Classifiers(self.assets, self.threads)
        self.classify = Classify(self.inference, classifiers, self.threads, settings.limits)
        rows = endpoints.table(
            Handlers(
                health=v2.Health(self.catalogue, self.state, list(settings.models), names_models=keys is None),
                models=v2.Models(self.catalogue),
                infer=self.infer,
                openai_models=Models(lambda: self.catalogue.fleet, self.assets, self.threads),
                embeddings=self.embeddings,
                classify=self.classify,
                operator=Operator(
                    self.catalogue,
                    self.metrics,
                    self.state,
                    self.loading,
                    self.inference.decisions,
                    self.history,
                    self.threads,
                    repository,
                    control,
                    self.rollouts,
                    None if settings.usage is None else self._bill,
                ),
                pages=Pages(),
            )
        )
        self.endpoints = Endpoints(rows)
        public, admin = endpoints.on_public(rows, admin_here=admin_here), endpoints.on_admin(rows)
        self.public = self._app("Tandem", public, [])
        self.admin = self._app("Tandem admin", admin, public)
        if control is not None:
            self.state.is_informed = lambda: control.is_informed
            self.state.unanswered = control.unanswered = self.inference.routes.unanswered
            self._control_changed()

    def start(self) -> None:
        self.catalogue.start()
        self.dispatcher.start()
        self.history.start()
        self.scaler.start()
        if self._keys is not None:
            self._keys.start()
        if self._control is not None:
            self._control.start(self._control_changed, self._require_served, self._require_answers, self._prepare)
            self.rollouts.start(self._control.tell_lacks)
        if self.usage is not None:
            self.usage.start()
        if self.access_log is not None:
            self.access_log.start()
        if self.traces is not None:
            self.traces.start()

    def close(self) -> None:
        """From now on not ready, and every answer closes its connection; requests are still served."""
        self.state.closing = True
        self.inference.closing = True
        self.history.close()

    async def stop(self) -> None:
        if self._keys is not None:
            await self._keys.stop()
        if self._control is not None:
            self._control.stop()
            await self.rollouts.stop()
        if self.parity is not None:
            await self.parity.stop()
        if self.usage is not None:
            await self.usage.stop()
        if self.access_log is not None:
            await self.access_log.stop()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.stop)
        await self.history.stop()
        await self.scaler.stop()
        await self.dispatcher.stop()
        await self.candidates.stop()
        await self.catalogue.stop()
        self.threads.stop()

    def _app(self, title: str, here: list[Endpoint], elsewhere: list[Endpoint]) -> Guard:
        """Of a listener, for all that is not raw. Its documents describe `elsewhere`, too."""
        app = build(here, has_triton_words=self._settings.triton_words)
        app.state.document = partial(document, title, here, elsewhere, SCHEMAS, has_keys=self._keys is not None)
        return Guard(app, self.endpoints, self.access, lambda: self.catalogue.fleet)

    def _fleet_changed(self) -> None:
        self.candidates.update()
        self.inference.routes.forget()
        self.dispatcher.fleet_changed()
        if self._control is not None:
            self._control.try_again()

    def _control_changed(self) -> None:
        """Another revision is in force: from now on all requests go by it, and those that have begun end as they began."""
        assert self._control is not None
        watch = self._control
        if watch.control is not None:
            self.rollouts.follow(watch.control, watch.change, watch.revision, watch.decided_here)
        self.inference.routes.follow(self._control.control, self._control.revision)
        control = self._control.control or NO_CONTROL
        made = (it for it in (self._tenants, self._prepared) if it.of is control.tenants)
        tenants = next(made, None) or _tenants(control)
        self._tenants = tenants._replace(begun={})  # what begins later begins anew
        models = _terms(control.models)
        for queue in self.candidates.queues.values():
            queue.share_by(tenants.terms, models)
        if self.usage is not None:
            self.usage.ledger.follow(tenants.quotas, tenants.begun)

    def _prepare(self, control: Control) -> None:
        """On a thread: of thousands of tenants that takes longer than the event loop may stand still."""
        self._prepared = _tenants(control)

    def _require_served(self, control: Control) -> None:
        """Raises UserError for a document by which a model that is served here would not be any more."""
        fleet = self.catalogue.fleet
        for name, model in control.models.items():
            if not (variants := variants_of(fleet, name)):
                continue
            for target in model.targets:
                if not _is_served(target, variants):
                    raise UserError(f"no pool serves {target} of '{name}'")
            if mixes_spaces(fleet, name, model):
                raise UserError(
                    f"'{name}' is an embedding model, and vectors of two versions cannot be compared: go by the steps shadow and promote"
                )

    def _require_answers(self, control: Control) -> None:
        """Raises UserError for a document by which a model that is served here would have no answer; an arm that is left is enough."""
        for name, model in control.models.items():
            targets, variants = model.targets, variants_of(self.catalogue.fleet, name)
            if targets and variants and not any(_is_served(target, variants) for target in targets):
                raise UserError(f"no pool serves {targets[0]} of '{name}'")

    def _make_usage(self) -> Usage | None:
        """None: nobody asks for counts, which would cost every request a microsecond. Raises UserError."""
        kept = self._settings.usage
        if kept is None and self._control is None:
            return None
        prices = {name: price_of_one(pool) or 0.0 for name, pool in self._settings.pools.items()}
        store = ProcessUsage() if kept is None else store_at(kept.place)
        is_closed = kept is not None and kept.if_away == "closed"
        meters = {} if kept is None else _meters(self._settings.pools)
        return Usage(store, prices, self._present, is_closed_while_away=is_closed, meters=meters)

    def _bill(self, by: tuple[str, ...], since: float) -> Bill:
        """On a thread. Raises EnvironmentFault."""
        assert self._settings.usage is not None
        prices = {name: price_of_one(pool) for name, pool in self._settings.pools.items()}
        return bill_at(self._settings.usage.place, prices, by, since)

    def _make_traces(self) -> Traces | None:
        """None: none are sent. Raises UserError."""
        otel = self._settings.otel
        if otel is None:
            return None
        if is_otel_disabled():
            log.warning("%s=true: no request is traced, whatever otel in tandem.yaml says", OTEL_DISABLED)
            return None
        try:
            from serving.gateway.request.spans import Spans  # its packages are an extra, and take 0.3 s to import
        except ImportError as error:
            raise UserError(
                f"otel.endpoint needs OpenTelemetry's packages ({error}): pip install 'tandem-serving[otel]'"
            ) from None
        has_prices = any(pool.price_per_hour is not None for pool in self._settings.pools.values())
        return Traces(otel, Spans(otel.endpoint, has_prices=has_prices))

    def _present(self) -> dict[str, Servers]:
        """Servers of each pool, for the bills: where several share a card all of its, because all of it is paid."""
        found = {}
        for name, servers in self.catalogue.pools.items():
            each = self._settings.pools[name].servers_per_card
            numbers = len(servers), self.candidates.num_answering(name)
            found[name] = Servers(*(-(-number // each) * each for number in numbers))
        return found

    def _rollout_gauges(self) -> list[RolloutGauge]:
        return [it.gauge for it in self.rollouts.by_model.values()]

    def _pool_gauges(self) -> list[PoolGauge]:
        now = perf_counter()
        return [self._gauge(pool.name, now) for pool in self.catalogue.fleet.pools]

    def _gauge(self, pool: str, now: float) -> PoolGauge:
        return PoolGauge(
            name=pool,
            state=self.candidates.state(pool),
            in_flight=self.catalogue.in_flight(pool),
            num_waiting=self.dispatcher.num_waiting(pool),
            demand_replicas=self.candidates.demands[pool].replicas(now),
            demand_only_replicas=self.candidates.only_demands[pool].replicas(now),
            demand_unseen_replicas=self.candidates.unseen_demands[pool].replicas(now),
            demand_shared_replicas={
                names: by_pool[pool].replicas(now)
                for names, by_pool in self.candidates.shared_demands.items()
                if pool in by_pool
            },
            since=self.candidates.since(pool),
            share=self.candidates.share(pool),
            price_per_hour=price_of_one(self._settings.pools[pool]),
            time_ratio=self.candidates.queues[pool].time_ratio,
            num_ready=self.candidates.num_answering(pool),
            num_contained=self.catalogue.num_contained[pool],
            digest_conflicts=self.catalogue.digest_conflicts(pool),
            num_quarantined=self.catalogue.num_quarantined(pool),
        )


def _is_served(target: Target, variants: Sequence[Variant]) -> bool:
    return any(
        target.variant in (None, v.variant) and (target.version is None or v.has(str(target.version))) for v in variants
    )


def _meters(pools: Mapping[str, PoolSettings]) -> dict[str, energy.Counter]:
    """Of pools that alone have this machine's processor or card."""
    here = {
        name: pool for name, pool in pools.items() if pool.urls and all(is_loopback(split(url)[0]) for url in pool.urls)
    }
    found = {}
    for device, counter in (("cpu", energy.of_processor), ("gpu", energy.of_card)):
        names = [name for name, pool in here.items() if pool.device == device]
        if len(names) == 1 and (meter := counter()) is not None:
            found[names[0]] = meter
    return found
