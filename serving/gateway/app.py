"""Builds the gateway once, out of its settings, and hands each request to the endpoint that it belongs to.

Raw endpoints (inference) get it from the connection; everything else goes to a FastAPI app behind a guard. What lasts is made here
and handed on; only what comes and goes with the fleet (servers, queues, candidates, routes) is made by whoever keeps it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

from serving.gateway import endpoints
from serving.gateway.access import Access
from serving.gateway.classify.classifiers import Classifiers
from serving.gateway.classify.classify import Classify
from serving.gateway.endpoints import SCHEMAS, Handlers
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LookUp
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
from serving.gateway.metrics import Metrics, PoolGauge
from serving.gateway.model_files import Assets
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.openai.embeddings import Embeddings
from serving.gateway.openai.models import Models
from serving.gateway.request.dispatch import Dispatcher
from serving.gateway.request.inference import Inference
from serving.gateway.threads import Threads
from serving.protocol.memory import Memory
from serving.settings import GatewaySettings, price_of_one


class Gateway:
    """`public` and `admin` are the apps of the two listeners, for all but raw endpoints. Made inside a running event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        admin_here: bool,
        repository: Path | None = None,
        keys: KeyWatch | None = None,
        look_up: LookUp = addresses.look_up,
    ) -> None:
        self._settings = settings
        self.state = State()
        self.assets = Assets(repository)
        self.catalogue = Catalogue(settings, self._fleet_changed, look_up, self.assets.loadable(), self.assets.spaces())
        self.candidates = Candidates(settings, self.catalogue)
        self.dispatcher = Dispatcher(self.catalogue, self.candidates)
        self._keys = keys
        self.memory = Memory(settings.limits.max_buffered_bytes)
        self.connections = tuple(Connections(listener, settings.limits) for listener in ("clients", "operator"))
        self.grpc_connections = Connections("grpc", settings.limits)
        counted = (*self.connections, self.grpc_connections)
        readable = None if keys is None else lambda: keys.is_readable
        self.metrics = Metrics(self._pool_gauges, readable, memory=self.memory, connections=counted)
        self.history = History(self.metrics, lambda: {name: list(it) for name, it in self.candidates.changes.items()})
        self.access = Access() if keys is None else keys.access
        self.threads = Threads()
        self.loading = Loading(self.catalogue, self.assets, self.threads)
        self.inference = Inference(
            self.catalogue,
            self.candidates,
            self.dispatcher,
            self.metrics,
            self.access,
            settings.limits,
            self.memory,
        )
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
                ),
                pages=Pages(),
            )
        )
        self.endpoints = Endpoints(rows)
        public, admin = endpoints.on_public(rows, admin_here=admin_here), endpoints.on_admin(rows)
        self.public = self._app("Tandem", public, [])
        self.admin = self._app("Tandem admin", admin, public)

    def start(self) -> None:
        self.catalogue.start()
        self.dispatcher.start()
        self.history.start()
        if self._keys is not None:
            self._keys.start()

    def close(self) -> None:
        """From now on not ready, and every answer closes its connection; requests are still served."""
        self.state.closing = True
        self.inference.closing = True
        self.history.close()

    async def stop(self) -> None:
        if self._keys is not None:
            await self._keys.stop()
        await self.history.stop()
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
            num_ready=self.candidates.num_answering(pool),
            num_contained=self.catalogue.num_contained[pool],
            digest_conflicts=self.catalogue.digest_conflicts(pool),
        )
