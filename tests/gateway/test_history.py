"""The last quarter of an hour of a gateway: what is sampled out of the counts, how it is sent, and that it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop

from serving import errors
from serving.gateway import history
from serving.gateway.history import History
from serving.gateway.metrics import BUCKETS_S, OUTCOMES, Metrics, PoolGauge
from serving.http_client import get
from tests.gateway.odd_triton import ask
from tests.gateway.request.test_surfaces import answered, stand


def alone() -> tuple[Metrics, History]:
    metrics = Metrics(lambda: [PoolGauge("cpu", "ready", 0, num_ready=2, price_per_hour=0.1)])
    return metrics, History(metrics, lambda: {"cpu": [(1.0, "ready")]})


def test_a_sample_is_what_came_since_the_one_before() -> None:
    async def scene() -> None:
        metrics, kept = alone()
        series = metrics.series("m", "fp32", "cpu")
        series.outcomes["shed"] += 2
        await kept.look()
        series.answered(0.001, 0.004, 0.006)
        metrics.series("quiet", "fp32", "cpu")
        await kept.look()
        await kept.look()
        told = json.loads(kept.told())
        first, second, third = (sample["series"] for sample in told["samples"])
        assert [row[:3] for row in first] == [["m", "fp32", "cpu"]]
        assert dict(zip(told["outcomes"], first[0][3], strict=True)) == dict.fromkeys(OUTCOMES, 0) | {"shed": 2}
        ((*_, outcomes, buckets, queue_s, backend_s),) = second
        assert sum(outcomes) == outcomes[OUTCOMES.index("ok")] == 1
        assert buckets.index(1) == BUCKETS_S.index(0.01)  # the first bound above 6 ms
        assert (queue_s, backend_s) == (0.001, 0.004)
        assert third == []
        assert sum(told["totals"][0][3]) == 3
        assert told["prices"] == {"cpu": 0.1}
        lasted = sum(sample["seconds"] for sample in told["samples"])
        assert told["server_s"]["cpu"] == pytest.approx(2 * lasted, abs=0.2)

    asyncio.run(scene())


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_SERIES", 3)
    monkeypatch.setattr(history, "KEPT_S", 10.0)

    async def scene() -> None:
        metrics, kept = alone()
        for _ in range(8):
            for number in range(9):
                metrics.series(f"m{number}", "fp32", "cpu").outcomes["ok"] += 10 - number
            await kept.look()
        told = json.loads(kept.told())
        assert len(told["samples"]) == 5  # of 2 s each
        rows = told["samples"][-1]["series"]
        assert [row[0] for row in rows] == ["m0", "m1", "others"]
        assert sum(sum(row[3]) for row in rows) == sum(range(2, 11))

    asyncio.run(scene())


def test_events_begin_with_what_is_kept_go_on_and_end_with_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVERY_S", 0.05)

    async def scene() -> None:
        async with stand(answered) as here:
            await ask(here.gateway)
            reader, writer = await asyncio.open_connection("127.0.0.1", here.http_port)
            writer.write(b"GET /admin/live HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head
            assert b"content-type: text/event-stream" in head
            await reader.readuntil(b"event: start\ndata: ")
            start: dict[str, Any] = json.loads(await reader.readuntil(b"\n\n"))
            before = sum(sum(row[3]) for row in start["totals"])
            await ask(here.gateway)
            num_ok = 0
            async with asyncio.timeout(30):
                while before + num_ok < 2:
                    await reader.readuntil(b"data: ")
                    sample = json.loads(await reader.readuntil(b"\n\n"))
                    num_ok += sum(sum(row[3]) for row in sample["series"])
                assert sample["pools"]["cpu"]["state"] == "ready"
            whole = json.loads((await get("127.0.0.1", here.http_port, "/admin/live")).body)
            assert whole["totals"][0][:3] == ["m", "fp32", "cpu"]
            here.gateway.close()
            async with asyncio.timeout(30):
                await reader.readuntil(b"\r\n0\r\n\r\n")  # the last chunk: nothing holds up a gateway that stops
            writer.close()

    uvloop.run(scene())


def test_no_more_pages_listen_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_LISTENERS", 1)

    async def scene() -> None:
        _, kept = alone()
        events = await kept.events()
        await anext(events)
        with pytest.raises(errors.Overloaded):
            await kept.events()
        await events.aclose()  # type: ignore[attr-defined]
        await kept.events()

    asyncio.run(scene())
