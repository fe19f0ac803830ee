"""How long an explicit load waits for what was exported since: as long as its server is at an export, and no longer than that."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from serving import errors
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Answer, Lost, Target
from serving.gateway.model_files import Assets
from serving.gateway.models.loading import BEFORE_S, PATIENCE_S, TAKEN_S, _Turn
from serving.scheduling.replica import Replica
from tests.local.repository import publish_digits

Rows = list[dict[str, str]]

TRIED = [{"name": "digits-int8.trial", "version": "1", "state": "LOADING"}]
LOADING = [{"name": "digits-int8", "version": "1", "state": "LOADING"}]
FP32 = [{"name": "digits-fp32.trial", "version": "1", "state": "UNLOADING"}]
OTHER = [{"name": "another-fp32", "version": "1", "state": "LOADING"}]
IDLE: Rows = []
SERVED = [{"name": "digits-int8", "version": "1", "state": "READY"}]
FAILED = [{"name": "digits-int8", "version": "1", "state": "UNAVAILABLE", "reason": "no memory"}]
FAILED_EARLIER = [{**FAILED[0], "version": "7"}]
FAILED_ANEW = [{**FAILED[0], "reason": "not a model"}]


class Scripted(Server):
    """A Triton that says what it is told to, on its idle connections perhaps that it is lost."""

    rows: Rows
    config: dict[str, Any]
    lost: Lost | None

    async def fetch(
        self, method: bytes, path: str, body: bytes = b"", *, patience_s: float | None = None, fresh: bool = False
    ) -> Answer:
        del method, body, patience_s
        if self.lost is not None and not fresh:
            raise self.lost
        if path == "/v2/repository/index":
            return Answer(200, None, json.dumps(self.rows).encode())
        return Answer(
            200, None, json.dumps(self.config if path.endswith("/config") else {"version": "2.51.0"}).encode()
        )


def scripted(digest: str) -> Scripted:
    server = Scripted(Target("http://127.0.0.1:1", asyncio.get_running_loop()), Replica("1"))
    told = {"model": "digits", "variant": "int8", "digest": digest, "gate": "passed"}
    server.config = {
        "name": "digits-int8",
        "instance_group": [{"kind": "KIND_CPU"}],
        "parameters": {f"tandem_{key}": {"string_value": value} for key, value in told.items()},
    }
    server.lost = None
    return server


def is_over(repository: Path, before: Rows, *looks: tuple[float, Rows]) -> bool:
    """Whether it is served at the last of these looks, each at so many seconds after the load was asked for."""
    publish_digits(repository, precisions=["int8"])
    exported = Assets(repository).exported("digits")["digits-int8"]

    async def run() -> bool:
        server = scripted(exported.digest)
        server.rows = before
        await server.poll("cpu")
        turn, found = _Turn("digits-int8", exported, server, 0.0), False
        for now, rows in looks:
            server.rows = rows
            await server.poll("cpu")
            found = turn.is_over(now)
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("busy", [TRIED, LOADING, FP32])
def test_it_waits_while_its_server_is_at_its_model(tmp_path: Path, busy: Rows) -> None:
    looks = [(float(now), busy) for now in range(0, 500, 5)]
    assert not is_over(tmp_path, IDLE, *looks)
    assert is_over(tmp_path, IDLE, *looks, (505.0, SERVED))


def test_it_waits_for_another_model_until_its_server_goes_on_beside_it(tmp_path: Path) -> None:
    looks = [(float(now), OTHER) for now in range(0, int(BEFORE_S + TAKEN_S) - 4, 5)]
    assert not is_over(tmp_path, IDLE, *looks)
    with pytest.raises(errors.NotReady, match="has not taken it"):
        is_over(tmp_path, IDLE, *looks, (BEFORE_S + TAKEN_S + 5, OTHER))


def test_a_server_that_takes_nothing_is_told(tmp_path: Path) -> None:
    assert not is_over(tmp_path, IDLE, (0.0, TRIED), (TAKEN_S - 1, IDLE))
    with pytest.raises(errors.NotReady, match="has not taken it"):
        is_over(tmp_path, IDLE, (0.0, TRIED), (TAKEN_S + 1, IDLE))


def test_what_loads_for_ever_is_told(tmp_path: Path) -> None:
    assert not is_over(tmp_path, IDLE, (PATIENCE_S - 1, LOADING))
    with pytest.raises(errors.NotReady, match="has not taken it"):
        is_over(tmp_path, IDLE, (PATIENCE_S + 1, LOADING))


def test_what_its_load_failed_for_is_told_while_others_load(tmp_path: Path) -> None:
    looks = [(1.0, TRIED), (2.0, FAILED + OTHER)]  # its row goes while it is tried, and comes back
    assert not is_over(tmp_path, IDLE, *looks, (3.0, FAILED + OTHER))
    with pytest.raises(errors.Internal, match="no memory"):
        is_over(tmp_path, IDLE, *looks, (TAKEN_S, FAILED + OTHER))


@pytest.mark.parametrize("again", [FAILED, FAILED_ANEW])
def test_what_failed_before_and_fails_again_is_told(tmp_path: Path, again: Rows) -> None:
    with pytest.raises(errors.Internal, match=again[0]["reason"]):
        is_over(tmp_path, FAILED, (1.0, FAILED + TRIED), (2.0, again + OTHER), (TAKEN_S, again + OTHER))


def test_what_was_tried_waits_for_what_is_before_it_until_its_failure_is_told(tmp_path: Path) -> None:
    for others in (FP32, OTHER):
        looks = [(0.0, TRIED), *((float(now), others) for now in range(1, 30, 5))]
        assert not is_over(tmp_path, IDLE, *looks)


def test_what_failed_and_is_tried_for_ever_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.Internal, match="no memory"):
        is_over(tmp_path, FAILED, (1.0, FAILED + TRIED), (PATIENCE_S + 1, FAILED + TRIED))


def test_what_failed_before_is_told_where_nobody_tries_it_again(tmp_path: Path) -> None:
    assert not is_over(tmp_path, FAILED, (TAKEN_S - 1, FAILED))
    with pytest.raises(errors.Internal, match="no memory"):
        is_over(tmp_path, FAILED, (TAKEN_S + 1, FAILED))


def test_what_failed_before_is_tried_again_for_as_long_as_that_takes(tmp_path: Path) -> None:
    assert is_over(tmp_path, FAILED, (1.0, FAILED + TRIED), (100.0, LOADING), (105.0, LOADING), (106.0, SERVED))
    assert is_over(tmp_path, FAILED, (1.0, FAILED + OTHER), (30.0, FAILED + OTHER), (31.0, SERVED))


def test_what_another_version_failed_for_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(errors.NotReady, match="has not taken it"):
        is_over(tmp_path, IDLE, (1.0, FAILED_EARLIER), (TAKEN_S + 1, FAILED_EARLIER))


# -- what is read from it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "is_read"),
    [
        (Lost("Triton closed the connection"), True),
        (Lost("nobody listens", refused=True), False),
        (Lost("no answer in time", timed_out=True), False),
        (Lost("nothing comes", silent=True), False),
    ],
)
def test_what_is_only_read_is_asked_again_where_an_idle_connection_was_gone(lost: Lost, is_read: bool) -> None:
    async def run() -> bytes:
        server = scripted("00" * 32)
        server.lost = lost
        return (await server.read(b"GET", "/v2")).body

    if is_read:
        assert json.loads(asyncio.run(run())) == {"version": "2.51.0"}
    else:
        with pytest.raises(Lost):
            asyncio.run(run())
