"""Builds the gateway once, out of its settings, and hands each request to the path it belongs to.

Inference goes straight to `infer.py`; everything else to the FastAPI app of `control.py`. What lasts is made here and handed on; only
what comes and goes with the fleet (servers, queues, candidates, routes) is made by whoever keeps it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from time import perf_counter

from serving import errors
from serving.gateway.access import Access
from serving.gateway.assets import Assets
from serving.gateway.classify.classifiers import Classifiers
from serving.gateway.classify.classify import PREFIX, Classify
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LookUp
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.http.client import Receive, Scope, Send
from serving.gateway.http.control import add_admin, build_admin, build_public
from serving.gateway.http.guard import App, Guard
from serving.gateway.http.infer import Infer
from serving.gateway.key_watch import KeyWatch
from serving.gateway.metrics import Metrics, PoolGauge
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.openai import embeddings
from serving.gateway.openai.models import add_openai
from serving.gateway.request.dispatch import Dispatch
from serving.gateway.request.inference import Inference
from serving.gateway.responses import error_response
from serving.gateway.threads import Threads
from serving.settings import GatewaySettings


class Gateway:
    """The ASGI app that clients reach; `admin` is the one of the admin listener. Made inside a running event loop."""

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
        self.catalogue = Catalogue(settings, self._fleet_changed, look_up, self.assets.loadable())
        self.candidates = Candidates(settings, self.catalogue)
        self.dispatch = Dispatch(self.catalogue, self.candidates)
        self._keys = keys
        self.metrics = Metrics(self._pool_gauges, None if keys is None else lambda: keys.is_readable)
        self.access = Access() if keys is None else keys.access
        self.preparing = Threads()
        self.loading = Loading(self.catalogue, self.assets, self.preparing)
        self.inference = Inference(self.catalogue, self.candidates, self.dispatch, self.metrics, settings.limits)
        self.infer = Infer(self.inference, self.access, settings.limits, self.preparing)
        self.embeddings = embeddings.Embeddings(self.inference, self.access, self.assets, self.preparing, settings)
        classifiers = Classifiers(self.assets, self.preparing)
        self.classify = Classify(self.inference, self.access, classifiers, self.preparing, settings.limits)
        required = list(settings.models)
        public = build_public(self.catalogue, self.state, required, admin_here=admin_here, has_keys=keys is not None)
        add_openai(public, lambda: self.catalogue.fleet, self.assets, self.preparing)
        if admin_here:
            add_admin(public, public, self.catalogue, self.metrics, self.state, self.loading, has_keys=keys is not None)
        admin = build_admin(
            public, self.catalogue, self.metrics, self.state, self.loading, required, has_keys=keys is not None
        )
        self._public = self._guarded(public)
        self.admin = self._guarded(admin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (handler := self._handler(scope["method"], scope["path"])) is None:
            await self._public(scope, receive, send)
            return
        try:
            await handler(scope, receive, send)
        except Exception:  # or else uvicorn's own answer, which has no form that a client of ours reads
            logging.getLogger(__name__).exception("a request at %s failed", scope["path"])
            error = errors.Internal("the gateway failed on this request; its log says why")
            await error_response(send, error, [], path=scope["path"], close=True)

    def _handler(self, method: str, path: str) -> App | None:
        """What answers as raw ASGI, if it is not the app of `control.py`."""
        if method == "POST" and path.endswith("/infer"):
            return self.infer
        if path.startswith(PREFIX):
            return self.classify
        return self.embeddings if method == "POST" and path == embeddings.PATH else None

    def start(self) -> None:
        self.catalogue.start()
        self.dispatch.start()
        if self._keys is not None:
            self._keys.start()

    def close(self) -> None:
        """From now on not ready, and every answer closes its connection; requests are still served."""
        self.state.closing = True
        self.inference.closing = True

    async def stop(self) -> None:
        if self._keys is not None:
            await self._keys.stop()
        await self.dispatch.stop()
        await self.candidates.stop()
        await self.catalogue.stop()
        self.preparing.stop()

    def _guarded(self, app: App) -> Guard:
        return Guard(app, self.access, lambda: self.catalogue.fleet)

    def _fleet_changed(self) -> None:
        self.candidates.update()
        self.inference.routes.forget()
        self.dispatch.fleet_changed()

    def _pool_gauges(self) -> list[PoolGauge]:
        now = perf_counter()
        return [self._gauge(pool.name, now) for pool in self.catalogue.fleet.pools]

    def _gauge(self, pool: str, now: float) -> PoolGauge:
        return PoolGauge(
            name=pool,
            state=self.candidates.state(pool),
            in_flight=self.catalogue.in_flight(pool),
            num_waiting=self.dispatch.num_waiting(pool),
            demand_replicas=self.candidates.demands[pool].replicas(now),
            demand_only_replicas=self.candidates.only_demands[pool].replicas(now),
            demand_unseen_replicas=self.candidates.unseen_demands[pool].replicas(now),
            since=self.candidates.since(pool),
            share=self.candidates.share(pool),
            price_per_hour=self._settings.pools[pool].price_per_hour,
            num_ready=self.candidates.num_answering(pool),
            digest_conflicts=self.catalogue.digest_conflicts(pool),
        )
