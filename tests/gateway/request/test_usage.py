"""What a gateway counts is what servers did, and nothing of it is lost where it stops."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving import errors
from serving.errors import EnvironmentFault
from serving.gateway import background
from serving.gateway.app import Gateway
from serving.gateway.metrics import Series
from serving.gateway.request import usage as counting
from serving.gateway.request.exchange import MAX_IN_FLIGHT, Exchange
from serving.gateway.request.usage import Usage
from serving.measure import energy
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.settings import GatewaySettings
from serving.usage.bill import bill_at
from serving.usage.ledger import BYTES, HOUR_S, REQUESTS, TOKENS, Batch, Limit, Quotas
from serving.usage.stores import ProcessUsage, Servers, Slot, store_at
from tests.gateway.odd_triton import OddTriton, ask, gateway_of, until
from tests.gateway.request.test_infer_all import each, settled

SERVICE = Service(Curve(((1, 0.010), (8, 0.080))), 1, 8)
NOW = 1_800_000_000.0
STEP_S, PRICE = 10.0, 3.6
NUM_TENANTS = 400


def answer(usage: Usage, candidate: Candidate) -> None:
    usage.begin("a", 1)
    route: Any = SimpleNamespace(model="digits", usual_length=0.0)
    destination: Any = SimpleNamespace(candidate=candidate, pool="cpu")
    usage.answered("a", 1, route, destination, 4)


def test_a_request_uses_the_same_seconds_whoever_else_sends_to_its_server() -> None:
    usage = Usage(ProcessUsage(), {"cpu": 3600.0}, dict)
    candidate = Candidate(PoolQueue("cpu"), SERVICE, 1.0)
    candidate.share_with(0.5 * SERVICE.rate_rows_per_s, 1.0)  # another gateway's half, which that one counts
    answer(usage, candidate)
    assert usage.ledger.sums["a", "digits", "cpu"][1:3] == pytest.approx([0.040, 0.040])


def test_a_body_that_no_quota_lets_in_is_too_large_and_not_for_later() -> None:
    usage = Usage(ProcessUsage(), {}, dict)
    usage.ledger.quotas = {"a": Quotas((Limit(BYTES, "month", 10),))}
    with pytest.raises(errors.TooLarge, match="10 bytes per month"):
        usage.begin("a", 11)
    usage.begin("a", 10)
    with pytest.raises(errors.QuotaExceeded):
        usage.begin("a", 10)


class SlowUsage(ProcessUsage):
    """The first `add` ends when told."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.num_at_once = self.most_at_once = 0
        self.added: dict[int, float] = {}

    def add(self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers]) -> bool:
        del writer, servers
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        self.has_begun.set()
        assert self.may_end.wait(10)
        self.added.setdefault(number, sum(amounts[0] for amounts in batch.entries.values()))
        self.num_at_once -= 1
        return True


def test_what_was_counted_while_the_store_was_asked_is_kept_where_the_gateway_stops() -> None:
    store = SlowUsage()

    async def live() -> None:
        usage, candidate = Usage(store, {}, dict), Candidate(PoolQueue("cpu"), SERVICE, 1.0)
        answer(usage, candidate)
        usage.start()
        await asyncio.to_thread(store.has_begun.wait)
        answer(usage, candidate)
        asyncio.get_running_loop().call_later(0.1, store.may_end.set)
        await usage.stop()

    asyncio.run(live())
    assert store.most_at_once == 1
    assert sum(store.added.values()) == 2


class AwayUsage(SlowUsage):
    def add(self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers]) -> bool:
        super().add(writer, number, batch, servers)
        raise EnvironmentFault("it is away")


def test_a_gateway_that_stops_while_its_store_goes_away_says_what_is_lost_and_nothing_of_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, of_tasks = AwayUsage(), []

    async def live() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: of_tasks.append(context["message"]))
        usage = Usage(store, {}, dict)
        answer(usage, Candidate(PoolQueue("cpu"), SERVICE, 1.0))
        usage.start()
        await asyncio.to_thread(store.has_begun.wait)
        loop.call_later(0.1, store.may_end.set)
        await usage.stop()
        gc.collect()

    asyncio.run(live())
    assert of_tasks == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("fails", [None, 0, 3])
def test_a_request_of_many_inferences_counts_as_one_and_leaves_nothing_open(fails: int | None) -> None:
    usage = Usage(ProcessUsage(), {}, dict)
    usage.ledger.quotas = {"": Quotas((Limit(REQUESTS, "month", 2),), concurrent=1)}
    series, candidate = Series(("", "", "")), Candidate(PoolQueue("cpu"), SERVICE, 1.0)
    destination = SimpleNamespace(series=series, candidate=candidate, pool="cpu", receipt=[])
    most_open: list[int] = []

    async def infer(request: Any, _: object) -> Any:
        await settled()
        most_open.append(usage.ledger.num_open[""])
        if request.head == str(fails).encode():
            raise errors.Internal("it failed")
        return SimpleNamespace(destination=destination, began=0.0, answered=0.0, receipt=[], reason=b"")

    decisions = SimpleNamespace(log=None, note=lambda *_, **__: None)
    inference: Any = SimpleNamespace(
        closing=False,
        unresolved=series,
        usage=usage,
        decisions=decisions,
        infer=infer,
        longest_s=5.0,
        traces=None,
        sampled_below=b"",
    )
    route: Any = SimpleNamespace(
        usual_length=0.0,
        max_rows=1,
        objective_s=inf,
        destinations=[destination],
        side=None,
        name="texts",
        model="texts",
    )

    async def ask() -> int:
        exchange = Exchange(inference)
        with exchange:
            return len(await exchange.infer_all(route, each(MAX_IN_FLIGHT + 2), is_one=False))

    async def live() -> None:
        if fails is None:
            assert await ask() == MAX_IN_FLIGHT + 2
        else:
            with pytest.raises(errors.Internal):
                await ask()
        for _ in range(5):
            await settled()

    asyncio.run(live())
    assert set(most_open) == {1}
    assert usage.ledger.num_open == {"": 0}
    used = usage.ledger.used(time.time(), "", "month")
    assert used[REQUESTS] == (0 if fails == 0 else 1)


def test_joules_of_the_processor_are_kept_by_pool_and_a_counter_that_begins_anew_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = tmp_path / "rapl" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    counter = zone / "energy_uj"
    counter.write_text("5000000")
    monkeypatch.setattr(energy, "RAPL", tmp_path / "rapl")
    place = str(tmp_path / "usage.db")

    async def live() -> None:
        pools = {"cpu": [OddTriton()], "gpu": [OddTriton(kind="KIND_GPU")]}
        async with gateway_of(pools, prices={"cpu": 1.0, "gpu": 1.0}, usage={"place": place}) as gateway:
            usage = gateway.usage
            assert usage is not None
            await until(lambda: "cpu" in usage.joules, "it is read")
            for said, joules in (("9000000", 4.0), ("1000000", 4.0), ("3500000", 6.5)):
                counter.write_text(said)
                await until(lambda: usage._read["cpu"] == int(said) / 1e6, "it is read anew")  # noqa: B023
                assert usage.joules == {"cpu": pytest.approx(joules)}, "the card has no counter here"
            assert b'tandem_energy_joules_total{pool="cpu"} 6.5' in await gateway.metrics.text()
            assert (await ask(gateway)).status == 200

    asyncio.run(live())
    told = bill_at(place, {"cpu": 1.0, "gpu": 1.0}, ("model", "pool"), 0.0)
    assert told.joules == pytest.approx(6.5)
    by_pool = {line.names[1]: line.joules for line in told.lines}
    assert by_pool.get("gpu", 0.0) == 0.0
    assert sum(by_pool.values()) + told.unused_joules == pytest.approx(6.5)


class Clock:
    """`wall` may be set back."""

    def __init__(self) -> None:
        self.mono, self.wall = 0.0, NOW

    def go(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_bills_add_up_to_servers_times_hours_whatever_comes_in_between(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers go in the middle of a minute, gateways are killed, the clock is set back, a tenant is renamed and a model removed."""
    clock, place, generator = Clock(), str(tmp_path / "usage.db"), random.Random(seed)
    monkeypatch.setattr(counting, "monotonic", lambda: clock.mono)
    monkeypatch.setattr(counting, "time", SimpleNamespace(time=lambda: clock.wall))
    there = Servers(0, 0)

    def made() -> Usage:
        return Usage(store_at(place), {"gpu": PRICE}, lambda: {"gpu": there})

    async def run() -> tuple[float, float]:
        nonlocal there
        gateways, paid_s, cold_s = [made(), made()], 0.0, 0.0
        for step in range(int(HOUR_S / STEP_S)):
            if generator.random() < 0.15:
                number = generator.randrange(5)
                there = Servers(number, min(number, there.answering))
            elif generator.random() < 0.5:
                there = Servers(there.present, there.present)
            for gateway in gateways:
                gateway._look()
                await gateway._sync()
            if generator.random() < 0.05:
                gateways[generator.randrange(2)] = made()  # killed, and started again
                gateways[0]._look()
                gateways[1]._look()
            if step == 100:
                clock.wall -= 7.0
            tenant, model = "renamed" if step > 200 else "a", "old" if step < 150 else "new"
            done = model, "gpu", there.answering * STEP_S * generator.random() / 2, 0.0, 0.0
            generator.choice(gateways).ledger.end(clock.wall, tenant, 0, done)
            clock.go(STEP_S)
            paid_s += there.present * STEP_S
            cold_s += (there.present - there.answering) * STEP_S
        for gateway in gateways:
            await gateway.stop()
        return paid_s, cold_s

    paid_s, cold_s = asyncio.run(run())
    told = bill_at(place, {"gpu": PRICE}, ("tenant", "model"), NOW)
    assert {line.names for line in told.lines} == {("a", "old"), ("a", "new"), ("renamed", "new")}
    assert told.paid == pytest.approx(paid_s * PRICE / HOUR_S, rel=0.01)
    assert told.total == pytest.approx(told.paid)
    assert sum(line.cold for line in told.lines) + told.cold == pytest.approx(cold_s * PRICE / HOUR_S, rel=0.02)


def test_a_card_that_servers_share_is_paid_whole() -> None:
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    pools = {"gpu": {"urls": urls, "device": "gpu", "price_per_hour": 2.0, "servers_per_card": 2}}

    async def present() -> dict[str, Servers]:
        gateway = Gateway(GatewaySettings.model_validate({"version": 1, "pools": pools}), admin_here=True)
        return gateway._present()

    assert asyncio.run(present()) == {"gpu": Servers(4, 0)}


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_loop_has_its_turn_between_tenants_however_many_have_quotas(
    is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where quotas are others meanwhile."""
    monkeypatch.setattr(background, "SLICE_S", 0.0)
    quotas = Quotas((Limit(REQUESTS, "second", 5), Limit(TOKENS, "month", 1e6)), concurrent=3)

    async def turns() -> int:
        kept = Usage(ProcessUsage(), {}, dict)
        kept.ledger.quotas = {f"t{number}": quotas for number in range(NUM_TENANTS)}
        for tenant in kept.ledger.quotas:
            assert kept.ledger.begin(NOW, tenant, 1) is None
        ending, count = asyncio.ensure_future(kept.stop()), 0
        while not ending.done():
            await asyncio.sleep(0)
            count += 1
            if is_changed and count % (NUM_TENANTS // 2) == 0:
                kept.ledger.quotas = {f"t{number}": quotas for number in range(count, count + NUM_TENANTS)}
        ending.result()
        return count

    assert asyncio.run(turns()) > (NUM_TENANTS if is_changed else 4 * NUM_TENANTS)
