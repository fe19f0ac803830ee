"""A gateway that was built and never started: its table of endpoints, its apps and its documents, without any Triton."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fastapi import FastAPI

from serving.gateway.app import Gateway
from serving.gateway.http.endpoint import Endpoints
from serving.gateway.http.guard import Guard
from serving.gateway.key_watch import KeyWatch
from serving.settings import GatewaySettings

SETTINGS = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:9"], "device": "cpu"}}}


def built(*, admin_here: bool = True, keys: KeyWatch | None = None) -> Gateway:
    async def build() -> Gateway:
        gateway = Gateway(GatewaySettings.model_validate(SETTINGS), admin_here=admin_here, keys=keys)
        await gateway.stop()
        return gateway

    return asyncio.run(build())


def app_of(guard: object) -> FastAPI:
    assert isinstance(guard, Guard)
    return cast(FastAPI, guard.app)


def document_of(guard: object) -> dict[str, Any]:
    return dict(app_of(guard).state.document())


ENDPOINTS: Endpoints = built().endpoints
PATHS = list(dict.fromkeys(row.path for row in ENDPOINTS.rows))
