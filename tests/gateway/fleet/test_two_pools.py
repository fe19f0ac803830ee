"""Where requests go with a slow cheap pool and a fast dear one, and what is left when one of them is killed.

One row: 80 ms at price 1, or 20 ms at price 10. 32 rows: 1,280 ms, or 32 ms. So few rows are cheaper on the slow one, many on the fast one.
Times are long beside what a busy machine adds to them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.local.environments import Environment
from tests.gateway.conftest import SAMPLE, Reply, Running, emulated_triton, gateway_before
from tests.gateway.fleet.test_faults import load_on, server_of
from tests.gateway.http.test_infer import refused
from tests.gateway.request.test_admission import FULL, MODEL, Asked, batch, metric
from tests.local.harness import Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

FAST, SLOW = "emulated-fast", "emulated-slow"
POINTS = {SLOW: [(1, 0.08), (32, 1.28)], FAST: [(1, 0.02), (32, 0.032)]}
PRICES = {SLOW: 1.0, FAST: 10.0}


@dataclass
class Two:
    gateway: Running
    tritons: dict[str, Program]
    slow_url: str

    def serves(self, pool: str) -> bool:
        """All of it: a server that comes back loads one model after the other."""
        [server] = self.gateway.ask("/admin/status").json()["pools"][pool]["servers"]
        return bool(server["alive"] and {"digits-fp32", "digits-int8"} <= set(server["variants"]))


@pytest.fixture(scope="module")
def two(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    with (
        emulated_triton(folder / "slow", SLOW, POINTS[SLOW]) as (slow, slow_url),
        emulated_triton(folder / "fast", FAST, POINTS[FAST]) as (fast, fast_url),
        gateway_before(folder, {FAST: [fast_url], SLOW: [slow_url]}, prices=PRICES) as gateway,
    ):
        made = Two(gateway, {SLOW: slow, FAST: fast}, slow_url)
        wait_until(lambda: made.serves(SLOW) and made.serves(FAST), "both are seen")
        yield made


def where(reply: Reply) -> tuple[str, str]:
    assert reply.status == 200, reply.body
    return reply.headers["Tandem-Pool"], reply.headers["Tandem-Reason"]


@pytest.mark.thorough
def test_few_rows_go_to_the_slow_cheap_pool_and_many_to_the_fast_dear_one(two: Two) -> None:
    for _ in range(3):
        assert where(two.gateway.infer(SAMPLE)) == (SLOW, "cheapest_in_time")
        assert where(two.gateway.infer(FULL)) == (FAST, "cheapest_in_time")


def test_what_the_cheap_pool_would_answer_late_is_spilled_to_the_other(two: Two) -> None:
    good: list[tuple[str, str]] = []

    def is_answered_often() -> bool:
        """On a busy machine some are late. Three rows take 0.157 s there, and 0.021 s here."""
        reply = two.gateway.infer(batch(3), headers={"Tandem-Deadline-Ms": "150"})
        if reply.status == 200:
            good.append(where(reply))
        return len(good) == 10

    wait_until(is_answered_often, "ten are answered in time")
    assert set(good) == {(FAST, "spill")}


def test_what_only_one_pool_can_answer_in_time_is_demand_for_that_one_alone(two: Two) -> None:
    def only(pool: str) -> float:
        return metric(two.gateway, "tandem_demand_only_replicas", pool=pool)

    wait_until(lambda: only(FAST) < 0.001, "earlier demand is forgotten", limit_s=120)
    for _ in range(3):
        assert two.gateway.infer(FULL, headers={"Tandem-Deadline-Ms": "1000"}).status in (200, 503, 504)
    assert only(FAST) > 0.001
    assert only(SLOW) < only(FAST)


@pytest.mark.parametrize("pool", [FAST, SLOW])
def test_a_pin_goes_before_price_and_time(two: Two, pool: str) -> None:
    for body in (SAMPLE, FULL):
        assert where(two.gateway.infer(body, headers={"Tandem-Pool": pool})) == (pool, "pinned")


@pytest.mark.parametrize("pool", [SLOW, pytest.param(FAST, marks=pytest.mark.thorough)])
def test_no_request_is_lost_when_a_pool_is_killed_under_load(two: Two, pool: str) -> None:
    body = {SLOW: SAMPLE, FAST: FULL}[pool]
    other = {SLOW: FAST, FAST: SLOW}[pool]
    with load_on(two.gateway.port, "digits", body=body) as load:
        os.kill(server_of(two.tritons[pool]), signal.SIGKILL)
        wait_until(lambda: not two.serves(pool), "its death is noticed")
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 4, "the other answers")
    assert {answer for answer in load.answers if answer[0] != 200} == set()
    assert not load.lost
    wait_until(lambda: two.serves(pool), "it is back")
    assert two.serves(other)


@pytest.mark.thorough
def test_while_a_gpu_pool_is_away_the_other_bridges_and_then_hands_over(two: Two, tmp_path: Path) -> None:
    gpu = "emulated-gpu"
    prices = {gpu: 1.0, SLOW: 1.0}
    with (
        emulated_triton(tmp_path / "gpu", gpu, POINTS[FAST]) as (triton, gpu_url),
        gateway_before(tmp_path, {gpu: [gpu_url], SLOW: [two.slow_url]}, prices=prices) as gateway,
    ):
        here = Two(gateway, {gpu: triton}, two.slow_url)

        def is_in(*states: str) -> bool:
            return any(metric(gateway, "tandem_pool_state", pool=gpu, state=state) for state in states)

        wait_until(lambda: here.serves(gpu) and here.serves(SLOW), "both are seen")
        assert where(gateway.infer(SAMPLE)) == (gpu, "cheapest_in_time")  # it was there before: no ramp
        assert is_in("ready")
        assert gateway.ask("/admin/status").json()["pools"][gpu]["price_per_hour"] == 1.0
        with load_on(gateway.port, "digits") as load:
            server = server_of(triton)
            os.kill(triton.pid, signal.SIGSTOP)  # so that nobody starts another server yet
            try:
                os.kill(server, signal.SIGKILL)
                wait_until(lambda: is_in("waking"), "it is missed")
                assert metric(gateway, "tandem_ready_servers", pool=gpu) == 0
                assert where(gateway.infer(SAMPLE)) == (SLOW, "bridged")
                assert gateway.ask("/admin/status").json()["pools"][gpu]["share"] == 0.0
            finally:
                os.kill(triton.pid, signal.SIGCONT)
            wait_until(lambda: is_in("warming", "ready"), "it answers again")
            assert metric(gateway, "tandem_ready_servers", pool=gpu) == 1  # whatever its share of the traffic
            wait_until(lambda: is_in("ready"), "it is warm")
            wait_until(lambda: where(gateway.infer(SAMPLE)) == (gpu, "cheapest_in_time"), "it is handed over")
            assert metric(gateway, "tandem_demand_replicas", pool=SLOW) > 0
            assert metric(gateway, "tandem_demand_only_replicas", pool=SLOW) == 0
            gateway.infer(SAMPLE, headers={"Tandem-Pool": SLOW})
            assert metric(gateway, "tandem_demand_only_replicas", pool=SLOW) > 0
        assert {answer for answer in load.answers if answer[0] != 200} == set()


def test_a_gpu_pool_that_is_cold_from_the_start_is_bridged(two: Two, tmp_path: Path) -> None:
    gpu, nobody = "emulated-gpu", "http://127.0.0.1:9"
    with gateway_before(tmp_path, {gpu: [nobody], SLOW: [two.slow_url]}, prices={gpu: 1.0, SLOW: 1.0}) as gateway:
        wait_until(lambda: gateway.infer(SAMPLE).status == 200, "the slow pool is seen")
        assert where(gateway.infer(SAMPLE)) == (SLOW, "bridged")
        assert metric(gateway, "tandem_demand_replicas", pool=gpu) > 0
        assert metric(gateway, "tandem_demand_only_replicas", pool=SLOW) == 0
        assert where(gateway.infer(SAMPLE, headers={"Tandem-Pool": SLOW})) == (SLOW, "pinned")
        wait_until(lambda: metric(gateway, "tandem_pool_state", pool=gpu, state="waking"), "it is waited for")


@pytest.mark.thorough
def test_a_request_under_which_a_server_died_twice_is_refused_and_others_are_not(two: Two) -> None:
    pin = {"Tandem-Pool": SLOW}

    def died_under_it() -> bool:
        """On a busy machine the server has answered before it is killed, or was killed before it was asked."""
        wait_until(lambda: two.serves(SLOW), "it serves")
        deadly = Asked(two.gateway, FULL, pin)
        wait_until(
            lambda: deadly.reply or metric(two.gateway, "tandem_in_flight", pool=SLOW), "it is sent"
        )  # takes 1.28 s
        os.kill(server_of(two.tritons[SLOW]), signal.SIGKILL)
        if deadly.done().status == 200 or deadly.done().headers["Tandem-Error"] == "not_ready":
            return False
        assert (deadly.done().status, deadly.done().headers["Tandem-Error"]) == (503, "upstream_lost")
        return True

    for _ in range(2):
        wait_until(died_under_it, "it is killed while it works on this")
    wait_until(lambda: two.serves(SLOW), "it serves")
    again = two.gateway.infer(FULL, MODEL, pin)
    refused(again, 503, "upstream_lost", "this very request")
    assert 40 <= int(again.headers["Retry-After"]) <= 60
    assert two.gateway.infer(SAMPLE, MODEL, pin).status == 200
