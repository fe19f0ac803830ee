"""The operator's endpoints: metrics, the status of pools and models, loading and unloading.

What is counted is in `gateway/metrics.py`, how a model is loaded in `gateway/models/loading.py`. Rule: nothing here is on the clients'
listener, unless that listens on loopback alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from time import perf_counter, time
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

import serving
from serving import errors
from serving.control.edits import Change
from serving.documents.reader import parse_document
from serving.errors import EnvironmentFault, UserError
from serving.gateway.access import ANYBODY
from serving.gateway.control_watch import ControlWatch
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.history import History
from serving.gateway.http.fastapi_app import small_body
from serving.gateway.http.guard import caller_of
from serving.gateway.metrics import Metrics, PoolGauge, Rendering, rendering_for
from serving.gateway.models import account, inventory
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.request.decisions import MAX_DECISIONS, Decisions, told
from serving.gateway.request.rollouts import Rollouts
from serving.gateway.threads import Threads
from serving.scheduling.outliers import condition
from serving.scheduling.routing import decide, preference_for
from serving.usage import bill as bills
from serving.usage.bill import Bill

NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # by a proxy between, which would hold events back


class Operator:
    def __init__(
        self,
        catalogue: Catalogue,
        metrics: Metrics,
        state: State,
        loading: Loading,
        decisions: Decisions,
        history: History,
        threads: Threads,
        repository: Path | None,
        control: ControlWatch | None,
        rollouts: Rollouts,
        bill: Callable[[tuple[str, ...], float], Bill] | None,
    ) -> None:
        """`bill`: of the counts that are kept, by these names since a moment; None where none are kept."""
        self._catalogue = catalogue
        self._metrics = metrics
        self._state = state
        self._loading = loading
        self._decisions = decisions
        self._history = history
        self._threads = threads
        self._repository = repository
        self._control = control
        self._rollouts = rollouts
        self._bill = bill

    async def scrape(self, request: Request) -> Response:
        rendering = rendering_for(", ".join(request.headers.getlist("accept")))
        text = await self._metrics.text(rendering)
        return Response(text, headers={"Vary": "Accept"}, media_type=rendering.media_type)

    async def demand(self) -> Response:
        return Response(self._metrics.demand(), media_type=Rendering.TEXT_0.media_type)

    async def load(self, model: str, request: Request) -> Response:
        await self._loading.change(model, "load", await small_body(request))
        return Response()

    async def unload(self, model: str, request: Request) -> Response:
        await self._loading.change(model, "unload", await small_body(request))
        return Response()

    async def decisions(
        self,
        request_id: Annotated[str, Query(alias="id")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_DECISIONS)] = 50,
    ) -> dict[str, Any]:
        """Of one request, or of the last ones, the newest first."""
        found = self._decisions.of(request_id)[:limit] if request_id else self._decisions.last(limit)
        has_prices = any(pool.price_per_hour is not None for pool in self._metrics.pools())
        return {"version": 1, "decisions": [told(decision, has_prices=has_prices) for decision in found]}

    async def rollouts(self) -> dict[str, Any]:
        """With the evidence of each, as this gateway saw it."""
        return {"version": 1, "rollouts": [await rollout.told() for rollout in self._rollouts.by_model.values()]}

    async def change(self, request: Request) -> dict[str, Any]:
        """Of the control document, as somebody at the page wants it; it is in force within two seconds."""
        if self._control is None:
            raise errors.Unsupported("this gateway follows no control document; start it with --control")
        body, caller = await small_body(request), caller_of(request)
        text = body.decode(errors="replace")
        wanted = parse_document(text, "the body", is_json=True, error=errors.BadRequest).values(Change)
        caller.require_model(wanted.model, wanted.model)
        by = "the page" if caller is ANYBODY else f"{caller.name} at the page"
        try:
            revision = await self._threads.run(partial(self._control.edit, wanted, by))
        except UserError as error:
            raise errors.BadRequest(str(error)) from None
        except EnvironmentFault as error:
            raise errors.NotReady(str(error), retry_after_s=1.0) from None
        return {"version": 1, "revision": revision.name}

    async def cost(self, request: Request, by: str = "tenant,model", since: str = "30d") -> Response:
        """As `tandem cost` prints it; `Accept: text/csv` asks for lines alone."""
        if self._bill is None:
            raise errors.Unsupported(
                "this gateway keeps no counts: with `usage: {place: FILE or redis://HOST:PORT}` in tandem.yaml it begins to"
            )
        try:
            names, began = bills.names_of(by), bills.since_moment(since, time())
            told = await self._threads.run(partial(self._bill, names, began))
        except UserError as error:
            raise errors.BadRequest(str(error)) from None
        except EnvironmentFault as error:
            raise errors.NotReady(str(error), retry_after_s=1.0) from None
        if "text/csv" in request.headers.get("accept", ""):
            lines = StringIO()
            csv.writer(lines, lineterminator="\n").writerows(bills.csv_rows(told, names))
            return Response(lines.getvalue(), media_type="text/csv")
        return JSONResponse(bills.document(told, names, began))

    async def live(self, request: Request) -> Response:
        """Events without an end, but for the gateway's; `Accept: application/json` asks for what is kept, once."""
        if "text/event-stream" not in request.headers.get("accept", "") or request.method == "HEAD":
            return Response(self._history.told(), media_type="application/json")
        return StreamingResponse(await self._history.events(), media_type="text/event-stream", headers=NOT_KEPT)

    async def models(self) -> dict[str, Any]:
        return await self._threads.run(lambda: inventory.told(self._repository))

    async def status(self) -> dict[str, Any]:
        told, source = account.entries(self._catalogue), await self._threads.run(self._metrics.source)
        return {
            "version": 1,
            "tandem": serving.__version__,
            "closing": self._state.closing,
            "model_source": None
            if source is None
            else {key: it for key, it in asdict(source).items() if key != "stamps"},
            "control": None if self._control is None else self._control.told(),
            "usage": None if self._metrics.usage is None else self._metrics.usage.told(),
            "pools": {pool.name: self._pool(pool) for pool in self._metrics.pools()},
            **({} if self._metrics.parity is None else {"parity": self._metrics.parity.told()}),
            "models": {
                name: self._model(name, [entry for entry in told if entry.model == name])
                for name in sorted({entry.model for entry in told})
            },
        }

    def _pool(self, pool: PoolGauge) -> dict[str, Any]:
        catalogue, now = self._catalogue, perf_counter()
        return {
            "device": catalogue.device(pool.name),
            "state": pool.state,
            "since": datetime.fromtimestamp(pool.since, UTC).isoformat(timespec="seconds"),
            "share": round(pool.share, 3),
            "in_flight": pool.in_flight,
            "queued": pool.num_waiting,
            "demand_replicas": round(pool.demand_replicas, 3),
            "demand_only_replicas": round(pool.demand_only_replicas, 3),
            "demand_unseen_replicas": round(pool.demand_unseen_replicas, 3),
            "demand_shared_replicas": {name: round(it, 3) for name, it in pool.demand_shared_replicas.items()},
            "price_per_hour": pool.price_per_hour,
            "unresolved": catalogue.unresolved(pool.name),
            "digest_conflicts": {
                name: {
                    "chosen": f"sha256:{conflict.chosen}",
                    "servers": {url: f"sha256:{digest}" for url, digest in conflict.digests.items()},
                }
                for name, conflict in catalogue.conflicts[pool.name].items()
            },
            "quarantined": catalogue.quarantined(pool.name),
            "servers": [_server(server, now) for server in catalogue.pools[pool.name]],
        }

    def _model(self, name: str, told: list[account.Entry]) -> dict[str, Any]:
        pools = self._catalogue.fleet.pools
        return {
            "variants": [
                {
                    "name": v.name,
                    "variant": v.variant,
                    "pool": pool.name,
                    "device": v.device,
                    "engine": v.engine,
                    "dtype": v.dtype,
                    "digest": f"sha256:{v.digest}",
                    "speed_ratio": v.speed_ratio,
                }
                for pool in pools
                for v in pool.variants
                if v.model == name
            ],
            "public": self._public(name),
            "account": [{**asdict(entry), "expected": entry.is_expected} for entry in told],
        }

    def _public(self, model: str) -> dict[str, str] | None:
        """What the public name means now; None where nothing serves it."""
        try:
            first = decide(self._catalogue.fleet, model)[0]
        except errors.RequestError:
            return None
        return {
            "pool": first.pool,
            "variant": first.variant.variant,
            "reason": first.reason,
            "preference": preference_for(first.variant),
        }


def _server(server: Server, now: float) -> dict[str, Any]:
    health = server.replica.health
    return {
        "url": server.target.url,
        "alive": server.alive,
        "health": condition(health, now),
        "left_out_s": round(max(0.0, health.ejected_until - now), 3),
        "in_flight": server.num_in_flight,
        "triton": server.triton,
        "variants": sorted(server.variants),
        "refused": server.snapshot.refused,
        "not_loaded": {name: failure.reason for name, failure in server.snapshot.failures.items()},
        "wants_restart": server.snapshot.wants_restart or None,
        "short_of_memory": server.snapshot.short_of_memory or None,
        "without_repository": server.index_error if server.is_without_repository else None,
    }
