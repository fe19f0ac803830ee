"""What could not be measured when it appeared, or was measured at a bad moment, is measured again when its pool has nothing to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.gateway.app import Gateway
from serving.gateway.fleet import candidates
from serving.gateway.fleet.curves import DEFAULT
from serving.scheduling.choice import Candidate
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until

BAD_S = 20.0  # measured at a bad moment
HURRIED_MS = 10_000  # which that is too slow for, and a busy machine is not


def measured_at_a_bad_moment(gateway: Gateway, pool: str) -> Candidate:
    candidate = gateway.candidates.of(pool, "m-fp32")
    candidate.use(Service(Curve(((1, BAD_S),))))
    return candidate


class Busy:
    """What answers after so long, until the bad moment is over."""

    seconds = 0.2

    async def __call__(self, _: bytes) -> tuple[int, dict[str, Any]]:
        await asyncio.sleep(self.seconds)
        return 200, GOOD


def test_a_model_that_failed_at_first_is_measured_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "AGAIN_S", (0.05, 0.05))
    is_ill = True

    async def infer(body: bytes) -> tuple[int, dict[str, Any]]:
        return (500, {"error": "out of memory"}) if is_ill else (200, GOOD)

    async def run() -> None:
        nonlocal is_ill
        async with gateway_of({"cpu": [triton := OddTriton(infer)]}) as gateway:
            candidate = gateway.candidates.of("cpu", "m-fp32")
            assert candidate.service.curve == DEFAULT
            before = triton.asked
            await until(lambda: triton.asked > before, "it is tried again")
            is_ill = False
            await until(lambda: candidate.service.curve != DEFAULT, "it is measured")

    asyncio.run(run())


def test_an_idle_pool_that_was_measured_at_a_bad_moment_is_measured_again_when_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "SURE_S", 0.0)

    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton()]}) as gateway:
            candidate = measured_at_a_bad_moment(gateway, "cpu")
            refused = await ask(gateway, tandem_deadline_ms=HURRIED_MS)
            assert (refused.status, refused.error) == (503, "overloaded")
            await until(lambda: candidate.service.curve.seconds(1) < BAD_S / 10, "it is measured again")
            assert (await ask(gateway, tandem_deadline_ms=HURRIED_MS)).status == 200

    asyncio.run(run())


def test_a_cheap_pool_that_was_measured_at_a_bad_moment_is_measured_again_though_a_dear_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "SURE_S", 0.0)

    async def run() -> None:
        prices = {"cheap": 0.000001, "dear": 9.0}
        async with gateway_of({"cheap": [OddTriton()], "dear": [OddTriton()]}, prices=prices) as gateway:
            candidate = measured_at_a_bad_moment(gateway, "cheap")
            spilled = await ask(gateway, tandem_deadline_ms=HURRIED_MS)
            assert (spilled.status, spilled.headers["tandem-pool"]) == (200, "dear")
            await until(lambda: candidate.service.curve.seconds(1) < BAD_S / 10, "it is measured again")

    asyncio.run(run())


def test_what_was_measured_a_moment_ago_is_not_measured_again_for_every_refusal() -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [triton := OddTriton()]}) as gateway:
            measured_at_a_bad_moment(gateway, "cpu")
            before = triton.asked
            for _ in range(5):
                assert (await ask(gateway, tandem_deadline_ms=HURRIED_MS)).status == 503
            await asyncio.sleep(2 * candidates.LOOK_S)
            assert triton.asked == before

    asyncio.run(run())


def test_a_model_that_was_measured_in_a_crowd_is_taken_for_what_its_server_says_of_executions() -> None:
    """A gateway that starts beside a busy Triton, and has work there all the time itself: it never has nothing to do."""
    slow = Busy()

    async def run() -> None:
        async with gateway_of({"cpu": [triton := OddTriton(slow, statistics=statistics(0))]}) as gateway:
            assert gateway.candidates.of("cpu", "m-fp32").service.curve.seconds(1) >= slow.seconds
            slow.seconds = 9.0
            waiting = asyncio.create_task(ask(gateway))
            asked = triton.asked_for_statistics
            await until(lambda: triton.asked_for_statistics > asked + 1, "it was asked what it did before")
            triton.statistics = statistics(9)
            await until(
                lambda: gateway.candidates.of("cpu", "m-fp32").service.curve.seconds(1) < 0.02, "what it says is taken"
            )
            waiting.cancel()

    asyncio.run(run())


def statistics(num: int) -> tuple[int, dict[str, Any]]:
    """Of so many executions of 10 ms, of one row each."""
    row = {
        "name": "m-fp32",
        "inference_stats": {"success": {"count": num, "ns": 1}, "queue": {"count": num, "ns": 0}},
        "batch_stats": [
            {
                "batch_size": 1,
                "compute_input": {"count": num, "ns": 0},
                "compute_infer": {"count": num, "ns": num * 10_000_000},
                "compute_output": {"count": num, "ns": 0},
            }
        ],
    }
    return 200, {"model_stats": [row]}
