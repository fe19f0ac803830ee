"""Why a request went where it went: the id that every surface gives back, and what is remembered under it."""

from __future__ import annotations

import json
import re
from time import perf_counter
from typing import Any

import pytest
import uvloop

from serving.gateway.app import Gateway
from serving.gateway.request import decisions, dispatch
from serving.gateway.request.decisions import Decisions
from serving.gateway.request.exchange import identity
from serving.http_client import get
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.odd_triton import OddTriton, ask, gateway_of
from tests.gateway.request.test_surfaces import Ask, answered, on_every_surface, stand

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("traceparent", "is_traced"),
    [
        (TRACEPARENT, True),
        (TRACEPARENT[:-1] + "0", False),
        (TRACEPARENT[:-2] + "ab", True),
        (f"01-{TRACE}-00f067aa0ba902b7-01-more", True),
    ],
)
def test_the_id_is_that_of_the_trace(traceparent: str, is_traced: bool) -> None:
    assert identity({b"traceparent": traceparent.encode()}) == (TRACE.encode(), b"00f067aa0ba902b7", is_traced)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        TRACE,
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE[:-1]}\r-00f067aa0ba902b7-01",
    ],
)
def test_of_no_trace_an_id_is_made(traceparent: str) -> None:
    made, parent, is_traced = identity({b"traceparent": traceparent.encode()})
    assert TRACE.encode() not in made
    assert not is_traced
    assert not parent


def test_made_ids_are_hexadecimal_and_all_different() -> None:
    made = [identity({})[0] for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in made)


def test_every_surface_gives_the_id_back_and_the_decision_is_found_by_it() -> None:
    async def scene(ask: Ask) -> None:
        async with stand(answered) as here:
            told = await ask(here, "m", {"traceparent": TRACEPARENT}, True)
            assert told.headers["tandem-request-id"] == TRACE
            made = (await ask(here, "m", {}, True)).headers["tandem-request-id"]
            found = await explained(here.http_port, TRACE)
            assert [(d["id"], d["pool"], d["variant"], d["outcome"]) for d in found] == [(TRACE, "cpu", "fp32", "ok")]
            assert found[0]["actual_s"] > 0
            assert [c["verdict"] for c in found[0]["candidates"]] == ["chosen"]
            assert [d["id"] for d in await explained(here.http_port, made)] == [made]
            assert [d["id"] for d in await explained(here.http_port, "", limit=1)] == [made]
            assert await explained(here.http_port, "0" * 32) == []

    on_every_surface(scene)


async def explained(port: int, request_id: str, limit: int = 50) -> list[dict[str, Any]]:
    answer = await get("127.0.0.1", port, f"/admin/decisions?id={request_id}&limit={limit}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = json.loads(answer.body)["decisions"]
    return found


def believe(gateway: Gateway, pool: str, seconds: float) -> None:
    gateway.candidates.of(pool, "m-fp32").use(Service(Curve(((1, seconds),))))


def last(gateway: Gateway, *, has_prices: bool = True) -> dict[str, Any]:
    return decisions.told(gateway.inference.decisions.last(1)[0], has_prices=has_prices)


def test_each_candidate_is_told_with_its_time_its_price_and_its_verdict() -> None:
    async def scene() -> None:
        async with gateway_of(
            {"cpu": [OddTriton()], "gpu": [OddTriton(kind="KIND_GPU")]}, prices={"cpu": 0.36, "gpu": 3.6}
        ) as gateway:
            believe(gateway, "cpu", 20.0)
            believe(gateway, "gpu", 10.0)
            await ask(gateway, traceparent=TRACEPARENT)
            told = last(gateway)
            assert (told["pool"], told["reason"]) == ("cpu", "cheapest_in_time")
            assert told["predicted_s"] == pytest.approx(20.0)
            assert told["price_per_million"] == pytest.approx(2000)  # 20 s of 0.36 an hour
            assert [(c["pool"], c["verdict"]) for c in told["candidates"]] == [("cpu", "chosen"), ("gpu", "dearer")]
            assert [c["price_per_million"] for c in told["candidates"]] == pytest.approx([2000, 10000])
            assert told["candidates"][1]["predicted_s"] == pytest.approx(10.0)
            believe(gateway, "cpu", 20.0)  # what was learnt is forgotten
            believe(gateway, "gpu", 10.0)
            await ask(gateway, traceparent=TRACEPARENT, tandem_deadline_ms=15_000)
            told = last(gateway)
            assert (told["pool"], told["reason"]) == ("gpu", "spill")
            assert [(c["pool"], c["verdict"]) for c in told["candidates"]] == [("cpu", "late"), ("gpu", "chosen")]
            believe(gateway, "gpu", 10.0)
            refused = await ask(gateway, traceparent=TRACEPARENT, tandem_deadline_ms=5000)
            assert refused.status == 503
            told = last(gateway)
            assert (told["pool"], told["outcome"], told["actual_s"]) == (None, "shed", None)
            assert "within 5000 ms" in told["error"]
            assert [c["verdict"] for c in told["candidates"]] == ["late", "late"]
            await ask(gateway, traceparent=TRACEPARENT, tandem_pool="gpu")
            assert last(gateway)["reason"] == "pinned"

    uvloop.run(scene())


@pytest.mark.parametrize(
    ("ago_s", "told"), [(0.0, rb"within (50000) ms, however"), (20.0, rb"within 50000 ms, of which (\d+) ms are left")]
)
def test_who_is_refused_hears_of_the_deadline_and_of_what_is_left_where_that_is_much_less(
    ago_s: float, told: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            believe(gateway, "cpu", 55.0)
            monkeypatch.setattr(dispatch, "perf_counter", lambda: perf_counter() + ago_s)  # since it came
            refused = await ask(gateway, traceparent=TRACEPARENT, tandem_deadline_ms=50_000)
            [ms] = re.findall(told, refused.body)
            assert 20_000 < int(ms) <= 50_000 - ago_s * 1000

    uvloop.run(scene())


def test_without_prices_none_is_told() -> None:
    async def scene() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            await ask(gateway)
            told = last(gateway, has_prices=False)
            assert told["price_per_million"] is None
            assert {c["price_per_million"] for c in told["candidates"]} == {None}

    uvloop.run(scene())


def test_candidates_are_forecast_for_traced_requests_always_and_for_others_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "FORECAST_EVERY_S", 3600.0)

    async def scene() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            await ask(gateway)
            for headers, number in (({}, 0), ({"traceparent": TRACEPARENT}, 1), ({}, 0)):
                await ask(gateway, **headers)
                assert len(last(gateway)["candidates"]) == number

    uvloop.run(scene())


def test_an_answer_that_is_an_error_has_an_id_and_a_decision() -> None:
    async def fails(body: bytes) -> tuple[int, Any]:
        return 500, {"error": "out of memory"}

    async def scene() -> None:
        async with gateway_of({"cpu": [triton := OddTriton()]}) as gateway:
            triton.infer = fails
            reply = await ask(gateway)
            (found,) = gateway.inference.decisions.of(reply.headers["tandem-request-id"])
            told = decisions.told(found, has_prices=False)
            assert (told["outcome"], told["pool"], told["actual_s"]) == ("backend_error", "cpu", None)
            assert "out of memory" in told["error"]

    uvloop.run(scene())


def test_only_the_last_are_kept() -> None:
    async def scene() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            gateway.inference.decisions = Decisions(3)
            ids = [(await ask(gateway)).headers["tandem-request-id"] for _ in range(5)]
            assert [d.request_id.decode() for d in gateway.inference.decisions.last(9)] == ids[:1:-1]
            assert gateway.inference.decisions.of(ids[0]) == []

    uvloop.run(scene())
