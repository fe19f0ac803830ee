"""The scaler's numbers for the console: what cannot be shown is a problem that is told, and nothing else."""

from __future__ import annotations

import asyncio
import json

import pytest

from serving.gateway import scaler_page
from serving.gateway.scaler_page import ScalerPage
from tests.cluster.servers import answering, nobody, silent

POOL = {"wanted": 1, "ready": None, "nodes": 1, "per_hour": 0.5, "spent": 0.0}


def told(authority: str) -> dict[str, object]:
    page = ScalerPage(f"http://{authority}")
    asyncio.run(page.look())
    found: dict[str, object] = json.loads(page.told)
    assert b"\n" not in page.told
    return found


def test_what_it_says_is_passed_on_in_one_line() -> None:
    said = {"version": 1, "pools": {"gpu": POOL}}
    with answering(200, json.dumps(said, indent=1).encode()) as authority:
        assert told(authority) == said


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"{}"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"pools": {"gpu": 1}}'),
        (200, json.dumps({"pools": {"gpu": {**POOL, "nodes": "<b>many"}}}).encode()),
        (200, b" " * (scaler_page.MAX_BYTES + 1)),
    ],
)
def test_what_cannot_be_shown_is_a_problem(status: int, body: bytes) -> None:
    with answering(status, body) as authority:
        assert list(told(authority)) == ["problem"]


@pytest.mark.parametrize("server", [nobody, silent])
def test_who_says_nothing_is_told_and_keeps_nobody(server: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler_page, "LIMIT_S", 0.2)
    with server() as authority:  # type: ignore[operator]
        assert authority in str(told(authority)["problem"])


def test_without_a_scaler_nothing_is_asked() -> None:
    async def scene() -> None:
        page = ScalerPage(None)
        page.start()
        assert page.told == b"null"
        await page.stop()

    asyncio.run(scene())
