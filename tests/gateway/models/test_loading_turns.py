"""How long an explicit load waits for what was exported since: as long as its server is at an export, and no longer than that."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from serving import errors
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Answer, Target
from serving.gateway.model_files import Assets
from serving.gateway.models import loading
from serving.gateway.models.loading import Loading, ModelOnServer
from serving.gateway.threads import Threads
from serving.scheduling.replica import Replica
from tests.local.repository import publish_digits

Rows = list[dict[str, str]]

TRIED = [{"name": "digits-fp32.trial", "version": "1", "state": "LOADING"}]
LEAVING = [{"name": "digits-fp32.trial", "version": "1", "state": "UNLOADING"}]
OTHER = [{"name": "another-fp32", "version": "1", "state": "LOADING"}]
IDLE: Rows = []
SERVED = [{"name": "digits-int8", "version": "1", "state": "READY"}]
FAILED = [{"name": "digits-int8", "version": "1", "state": "UNAVAILABLE", "reason": "no memory"}]
FAILED_EARLIER = [{**FAILED[0], "version": "7"}]


class Scripted(Server):
    """A Triton whose index is another one each time that it is asked; the last one stays."""

    rows: list[Rows]
    config: dict[str, Any]

    async def fetch(
        self, method: bytes, path: str, body: bytes = b"", *, patience_s: float | None = None, fresh: bool = False
    ) -> Answer:
        del method, body, patience_s, fresh
        if path == "/v2/repository/index":
            return Answer(200, None, json.dumps(self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]).encode())
        return Answer(
            200, None, json.dumps(self.config if path.endswith("/config") else {"version": "2.51.0"}).encode()
        )


class Polled:
    """What `Loading` needs of a catalogue."""

    async def poll(self, pool: str, server: Server) -> None:
        await server.poll(pool)


def load(repository: Path, *indexes: Rows) -> None:
    publish_digits(repository, precisions=["int8"])

    async def run() -> None:
        assets, threads = Assets(repository), Threads()
        exported = assets.exported("digits")["digits-int8"]
        server = Scripted(Target("http://127.0.0.1:1", asyncio.get_running_loop()), Replica("1"))
        server.rows = list(indexes)
        told = {"model": "digits", "variant": "int8", "digest": exported.digest, "gate": "passed"}
        server.config = {
            "name": "digits-int8",
            "instance_group": [{"kind": "KIND_CPU"}],
            "parameters": {f"tandem_{key}": {"string_value": value} for key, value in told.items()},
        }
        await server.poll("cpu")
        try:
            await Loading(cast(Catalogue, Polled()), assets, threads)._until_taken(
                ModelOnServer("cpu", server, "digits-int8"), exported
            )
        finally:
            threads.stop()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes nothing is given up at the first look."""
    monkeypatch.setattr(loading, "TAKEN_S", 0.0)
    monkeypatch.setattr(loading, "UNLOAD_POLL_S", 0.0)


@pytest.mark.parametrize("busy", [TRIED, LEAVING, OTHER])
def test_it_waits_while_its_server_is_at_an_export(tmp_path: Path, busy: Rows) -> None:
    load(tmp_path, busy, busy, busy, SERVED)


def test_a_server_that_takes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.NotReady, match="has not taken it"):
        load(tmp_path, TRIED, IDLE)


def test_a_server_that_loads_something_for_ever_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PATIENCE_S", 0.0)
    with pytest.raises(errors.NotReady, match="has not taken it"):
        load(tmp_path, OTHER)


def test_what_its_load_failed_for_is_told_even_while_others_load(tmp_path: Path) -> None:
    with pytest.raises(errors.Internal, match="no memory"):
        load(tmp_path, TRIED, FAILED + OTHER)


def test_what_another_version_failed_for_is_not_told(tmp_path: Path) -> None:
    load(tmp_path, TRIED + FAILED_EARLIER, TRIED + FAILED_EARLIER, SERVED)
