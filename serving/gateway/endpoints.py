"""The table of HTTP endpoints: which path is answered by whom, on which listener, and which scope a key needs.

Dispatch, keys, the OpenAPI document and docs/endpoints.md follow from it, and nothing is served that is not in it. Its rows are of
`http/endpoint.py`. gRPC has its own (`grpc/service.py`). Rule: the first row whose path matches counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serving.gateway.access import ADMIN, INFER, METRICS
from serving.gateway.classify import operations as of_classify
from serving.gateway.classify.classify import Classify
from serving.gateway.http import operations as of
from serving.gateway.http import v2
from serving.gateway.http.endpoint import BOTH, CLIENTS, GET, OPEN, OPERATOR, POST, Endpoint, Json
from serving.gateway.http.infer import Infer
from serving.gateway.http.operator import Operator
from serving.gateway.http.pages import Pages
from serving.gateway.models.metadata import NOT_OFFERED
from serving.gateway.openai import models as openai
from serving.gateway.openai import operations as of_openai
from serving.gateway.openai.embeddings import Embeddings

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"
REPOSITORY = "/v2/repository/models/{model}"
EITHER = (*GET, *POST)
SCHEMAS: Json = of.SCHEMAS | of_openai.SCHEMAS | of_classify.SCHEMAS


class Handlers(NamedTuple):
    health: v2.Health
    models: v2.Models
    infer: Infer
    openai_models: openai.Models
    embeddings: Embeddings
    classify: Classify
    operator: Operator
    pages: Pages


def table(by: Handlers) -> tuple[Endpoint, ...]:
    health, models, operator, pages = by.health, by.models, by.operator, by.pages
    return (
        *(Endpoint(POST, f"{path}/infer", INFER, by.infer, of.INFER, is_raw=True) for path in (MODEL, VERSION)),
        Endpoint(POST, "/v1/embeddings", INFER, by.embeddings, of_openai.EMBEDDINGS, is_raw=True),
        Endpoint(POST, "/v1/classify/{model}", INFER, by.classify, of_classify.CLASSIFY, is_raw=True),
        Endpoint(GET, "/v1/models", INFER, by.openai_models.models, of_openai.MODELS),
        Endpoint(GET, "/v1/models/{model}", INFER, by.openai_models.model, of_openai.MODEL),
        Endpoint(GET, "/v2", INFER, models.server, of.SERVER),
        Endpoint(GET, "/v2/", INFER, models.server, None),
        Endpoint(POST, "/v2/repository/index", INFER, models.index, of.INDEX),
        Endpoint(GET, "/v2/models/stats", INFER, models.all_statistics, of.ALL_STATISTICS),
        Endpoint(GET, MODEL, INFER, models.metadata, of.METADATA),
        Endpoint(GET, VERSION, INFER, models.metadata, of.METADATA),
        Endpoint(GET, f"{MODEL}/config", INFER, models.config, of.CONFIG),
        Endpoint(GET, f"{VERSION}/config", INFER, models.config, of.CONFIG),
        Endpoint(GET, f"{MODEL}/stats", INFER, models.statistics, of.STATISTICS),
        Endpoint(GET, f"{VERSION}/stats", INFER, models.statistics, of.STATISTICS),
        Endpoint(GET, f"{MODEL}/ready", INFER, models.ready, of.MODEL_READY),
        Endpoint(GET, f"{VERSION}/ready", INFER, models.ready, of.MODEL_READY),
        Endpoint(GET, "/health/live", OPEN, health.live, of.LIVE, BOTH),
        Endpoint(GET, "/health/ready", OPEN, health.ready, of.READY, BOTH),
        Endpoint(GET, "/v2/health/live", OPEN, health.live, of.LIVE_NOW, BOTH),
        Endpoint(GET, "/v2/health/ready", OPEN, health.ready_now, of.READY_NOW, BOTH),
        Endpoint(GET, "/metrics", METRICS, operator.scrape, of.METRICS, OPERATOR),
        Endpoint(GET, "/metrics/demand", METRICS, operator.demand, of.DEMAND, OPERATOR),
        Endpoint(GET, "/admin/status", ADMIN, operator.status, of.STATUS, OPERATOR),
        Endpoint(GET, "/admin/models", ADMIN, operator.models, of.CATALOGUE, OPERATOR),
        Endpoint(GET, "/admin/live", ADMIN, operator.live, of.LIVE_COUNTS, OPERATOR),
        Endpoint(GET, "/admin/rollouts", ADMIN, operator.rollouts, of.ROLLOUTS, OPERATOR),
        Endpoint(POST, "/admin/control", ADMIN, operator.change, of.CHANGE, OPERATOR),
        Endpoint(GET, "/admin/cost", ADMIN, operator.cost, of.COST, OPERATOR),
        Endpoint(GET, "/admin/decisions", ADMIN, operator.decisions, of.DECISIONS, OPERATOR),
        Endpoint(POST, f"{REPOSITORY}/load", ADMIN, operator.load, of.LOAD, OPERATOR),
        Endpoint(POST, f"{REPOSITORY}/unload", ADMIN, operator.unload, of.UNLOAD, OPERATOR),
        Endpoint(GET, "/", OPEN, pages.home, of.HOME, OPERATOR),
        Endpoint(GET, "/docs", OPEN, pages.docs, of.DOCS, OPERATOR),
        Endpoint(GET, "/ui/{name}", OPEN, pages.file, of.FILE, OPERATOR),
        Endpoint(GET, "/openapi.json", OPEN, pages.openapi, of.OPENAPI, OPERATOR),
        # What does nothing but refuse.
        *(Endpoint(POST, f"{REPOSITORY}/{verb}", ADMIN, v2.refuse_load, None) for verb in ("load", "unload")),
        Endpoint(EITHER, f"{MODEL}/trace/setting", ADMIN, v2.refuse("trace"), None),
        Endpoint(EITHER, "/v2/logging", ADMIN, v2.refuse("logging"), None),
        *(Endpoint(EITHER, f"/v2/{what}/{{rest:path}}", ADMIN, v2.refuse(what), None) for what in NOT_OFFERED),
    )


def on_public(rows: Sequence[Endpoint], *, admin_here: bool) -> list[Endpoint]:
    """Of the listener for clients. `admin_here`: clients are the operator's own, because only this machine reaches it."""
    return [row for row in rows if row.listener in (CLIENTS, BOTH) or admin_here]


def on_admin(rows: Sequence[Endpoint]) -> list[Endpoint]:
    """Of the operator's listener."""
    return [row for row in rows if row.listener in (OPERATOR, BOTH)]
