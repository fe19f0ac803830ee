"""Tenants before a real Triton: one that floods it keeps no other from its answers, and quotas hold over kills of gateways and of Redis."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadtest.arrivals import Arrivals, schedule
from loadtest.sending.link import Request
from loadtest.sending.sender import infer, open_loop
from serving.gateway.request.access_log import AccessLog
from serving.gateway.request.exchange import identity
from serving.keys.changes import add
from serving.ports import free_ports
from serving.settings import AccessLogSettings
from serving.usage.ledger import REQUESTS
from serving.usage.stores import store_at
from tests.gateway.conftest import SAMPLE, Reply, Running, emulated_triton, gateway_before
from tests.gateway.grpc.http2 import Connection
from tests.local.harness import wait_until
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.triton]

CURVE = [(1, 0.04), (8, 0.2), (32, 0.8)]  # 40 rows a second
# Three full executions: one that runs, one behind it, and as much again for a machine that stands still meanwhile.
FLOOD_RPS, SMALL_RPS, FOR_S, DEADLINE_S = 160.0, 5.0, 8.0, 2.4


def keys_of(folder: Path, *tenants: str) -> tuple[Path, dict[str, str]]:
    folder.mkdir(exist_ok=True)
    file = folder / "keys.json"
    now = datetime.now(UTC)
    return file, {it: add(file, it, frozenset({"infer", "metrics"}), now, tenant=it).text for it in tenants}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.campaigns  # eight seconds of load, judged by what is answered in time
def test_a_key_at_four_times_the_capacity_leaves_another_its_five_a_second(tmp_path: Path) -> None:
    file, texts = keys_of(tmp_path, "flood", "small")
    with (
        emulated_triton(tmp_path / "triton", "emulated", CURVE) as (_, url),
        gateway_before(tmp_path, {"emulated": [url]}, "--keys", str(file)) as gateway,
    ):
        due = sorted(
            (at, tenant)
            for seed, (tenant, rate) in enumerate((("flood", FLOOD_RPS), ("small", SMALL_RPS)))
            for at in schedule(Arrivals("poisson", rate), FOR_S, seed)
        )
        kinds = {"flood": 0, "small": 1}

        def request(tenant: str) -> Request:
            deadline = {"Tandem-Deadline-Ms": f"{DEADLINE_S * 1000:g}"}
            return infer(f"http://{gateway.url}", "digits", SAMPLE, bearer(texts[tenant]) | deadline, kinds[tenant])

        by_tenant = {tenant: request(tenant) for tenant in texts}
        shots = open_loop([by_tenant[tenant] for _, tenant in due], [at for at, _ in due]).shots
    small = [shot for shot in shots if shot.kind == 1]
    flood = [shot for shot in shots if shot.kind == 0]
    answered = [shot for shot in small if shot.is_answered]
    assert len(answered) >= 0.97 * len(small), [shot for shot in small if not shot.is_answered]
    assert sum(shot.is_answered for shot in flood) >= 0.6 * (FOR_S * 40 - len(small)), "what is left is theirs"
    assert all(shot.is_answered or shot.is_honest for shot in shots)


def control(folder: Path, quotas: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "control.yaml"
    file.write_text(f"version: 1\ntenants: {{a: {{quotas: {quotas}}}}}\n")
    return file


@contextlib.contextmanager
def held(folder: Path, triton: str, place: str, quotas: str, **more: str) -> Iterator[tuple[Running, dict[str, str]]]:
    keys, known = folder.parent / "keys.json", folder.parent / "texts.json"
    if not keys.exists():
        known.write_text(json.dumps(keys_of(folder.parent, "a", "b")[1]))
    texts: dict[str, str] = json.loads(known.read_text())
    options = "--keys", str(keys), "--control", str(control(folder, quotas))
    usage = {"place": place, **more}
    with gateway_before(folder, {"cpu": [triton]}, *options, prices={"cpu": 0.36}, usage=usage) as gateway:
        yield gateway, texts


def num_kept(place: str, tenant: str) -> float:
    """Requests of this month that the store has."""
    with contextlib.closing(store_at(place)) as store:
        totals = store.totals(time.time())
        return sum(it[REQUESTS] for window, it in totals.items() if (window.tenant, window.per) == (tenant, "month"))


def num_answered(place: str) -> float:
    """Requests of all tenants that the store has."""
    with contextlib.closing(store_at(place)) as store:
        return sum(it[REQUESTS] for it in store.entries(0.0).values())


def require_kept(gateway: Running, key: str, place: str) -> None:
    """It has told the store what is new, and has heard what that had to tell the time before."""
    before = num_answered(place)
    assert ask(gateway, key).status == 200
    wait_until(lambda: num_answered(place) > before, "it is in the store")


def ask(gateway: Running, key: str) -> Reply:
    return gateway.infer(SAMPLE, headers=bearer(key))


@pytest.fixture(params=["file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "usage.db")
        return
    server = RedisServer(tmp_path)
    yield server.url
    server.kill()


def test_a_quota_is_429_until_its_window_ends_and_outlives_a_killed_gateway(
    digits: str, place: str, tmp_path: Path
) -> None:
    quotas = "{requests: {per: month, limit: 12}}"
    with held(tmp_path / "one", digits, place, quotas) as (gateway, texts):
        assert [ask(gateway, texts["a"]).status for _ in range(8)] == [200] * 8
        wait_until(lambda: num_kept(place, "a") == 8, "they are in the store")
        assert [ask(gateway, texts["a"]).status for _ in range(2)] == [200] * 2
        gateway.program.process.kill()
    with held(tmp_path / "two", digits, place, quotas) as (gateway, texts):
        statuses = [ask(gateway, texts["a"]).status for _ in range(8)]
        num_more = statuses.count(200)
        assert 2 <= num_more <= 4, "ten of twelve were used, of which the last two may be lost"
        before = datetime.now(UTC)
        refused = ask(gateway, texts["a"])
        after = datetime.now(UTC)
        assert (refused.status, refused.headers["Tandem-Error"]) == (429, "quota_exceeded")
        ends = datetime(before.year + before.month // 12, before.month % 12 + 1, 1, tzinfo=UTC)
        late_s, early_s = ((ends - at).total_seconds() for at in (before, after))
        assert early_s - 1 <= float(refused.headers["Retry-After"]) <= late_s + 1
        assert ask(gateway, texts["b"]).status == 200


def asked_until(gateway: Running, key: str, counts: list[int], is_over: Callable[[int], bool]) -> None:
    """One request after the other; `counts` are their statuses. Where the gateway is killed it ends."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while not counts or not is_over(counts[-1]):
            counts.append(ask(gateway, key).status)


@pytest.mark.campaigns
def test_what_was_kept_of_a_gateway_that_is_killed_amid_requests_counts_to_the_request(
    digits: str, place: str, tmp_path: Path
) -> None:
    quotas, limit = "{requests: {per: month, limit: 500}}", 500
    before: list[int] = []
    after: list[int] = []
    with held(tmp_path / "one", digits, place, quotas) as (gateway, texts):
        clients = [
            threading.Thread(target=asked_until, args=(gateway, texts["a"], before, lambda status: status == 429))
            for _ in range(2)
        ]
        for client in clients:
            client.start()
        wait_until(lambda: num_kept(place, "a") >= 100, "counts are kept")
        gateway.program.process.kill()
        for client in clients:
            client.join()
    kept = num_kept(place, "a")
    assert 100 <= kept <= len(before) + len(clients), "those that nobody heard the answer of, too"
    with held(tmp_path / "two", digits, place, quotas) as (gateway, texts):
        asked_until(gateway, texts["a"], after, lambda status: status != 200)
    assert after == [200] * int(limit - kept) + [429]


@pytest.mark.campaigns
def test_what_a_redis_that_keeps_nothing_loses_when_it_is_killed_amid_requests_counts_on(
    digits: str, tmp_path: Path
) -> None:
    limit, is_enough = 100_000, threading.Event()
    statuses: list[int] = []
    redis = RedisServer(tmp_path, "--appendonly", "no")
    try:
        with held(tmp_path / "one", digits, redis.url, f"{{requests: {{per: month, limit: {limit}}}}}") as (
            gateway,
            texts,
        ):
            sent = gateway, texts["a"], statuses, lambda _: is_enough.is_set()
            client = threading.Thread(target=asked_until, args=sent)
            client.start()
            wait_until(lambda: num_kept(redis.url, "a") >= 100, "counts are kept")
            num_lost = num_kept(redis.url, "a")  # at least: what came next came when the gateway had heard of these
            wait_until(lambda: num_kept(redis.url, "a") > num_lost, "and those after them")
            redis.kill()
            number = len(statuses)
            wait_until(lambda: len(statuses) > number + 10, "requests go on")
            redis.start()
            wait_until(lambda: num_kept(redis.url, "a") > 0, "counts are kept again")
            is_enough.set()
            client.join()
            for _ in range(2):  # after the second the gateway has heard of the first
                kept = num_kept(redis.url, "a")
                statuses.append(ask(gateway, texts["a"]).status)
                wait_until(lambda: num_kept(redis.url, "a") > kept, "this one is kept")  # noqa: B023
            assert set(statuses) == {200}
            assert num_kept(redis.url, "a") <= len(statuses) - num_lost, "those of before are lost there"
            assert round(limit * metric(gateway, texts["b"], "tandem_tenant_quota_ratio{")) == len(statuses)
    finally:
        redis.kill()


def test_two_gateways_hold_one_quota_together(digits: str, place: str, tmp_path: Path) -> None:
    quotas = "{requests: {per: month, limit: 10}}"
    with (
        held(tmp_path / "one", digits, place, quotas) as (one, texts),
        held(tmp_path / "two", digits, place, quotas) as (two, _),
    ):
        assert [ask(one, texts["a"]).status for _ in range(9)] == [200] * 9
        wait_until(lambda: metric(two, texts["b"], "tandem_tenant_quota_ratio{") >= 0.9, "the other one has heard")
        assert [ask(two, texts["a"]).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("place", ["redis", "file"], indirect=True)
def test_two_gateways_let_no_more_in_a_second_together_than_one_would(digits: str, place: str, tmp_path: Path) -> None:
    """Whichever of them is asked: in turns at first, then one alone."""
    quotas, limit = "{requests: {per: second, limit: 20}}", 20
    with (
        held(tmp_path / "one", digits, place, quotas) as (one, texts),
        held(tmp_path / "two", digits, place, quotas) as (two, _),
    ):
        for gateway in 3 * (one, two):  # until each has heard of the other
            require_kept(gateway, texts["b"], place)
        for asked in ((one, two), (two,)):
            sent: Counter[int] = Counter()
            counts: Counter[int] = Counter()

            def is_used(
                asked: tuple[Running, ...] = asked, sent: Counter[int] = sent, counts: Counter[int] = counts
            ) -> bool:
                for gateway in asked:
                    second = int(time.time())
                    sent[second] += 1
                    counts[second] += ask(gateway, texts["a"]).status == 200
                whole = sorted(sent)[1:-1]
                return len(whole) > 2 and counts[whole[-1]] >= 0.8 * min(limit, sent[whole[-1]])

            wait_until(is_used, "all of it is used, wherever requests come")
            assert max(counts.values()) <= limit + 2, "two may have begun in the second before, as the client sees it"


def metric(gateway: Running, key: str, name: str) -> float:
    lines = gateway.ask("/metrics", headers=bearer(key)).body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


@pytest.mark.parametrize(("if_away", "status"), [("open", 200), ("closed", 503)])
def test_a_store_that_is_away_is_told_and_opens_or_closes_as_set(
    digits: str, tmp_path: Path, if_away: str, status: int
) -> None:
    redis = RedisServer(tmp_path)
    quotas = "{requests: {per: month, limit: 6}}"
    try:
        with held(tmp_path / "one", digits, redis.url, quotas, if_away=if_away) as (gateway, texts):
            assert [ask(gateway, texts["a"]).status for _ in range(3)] == [200] * 3
            redis.kill()
            wait_until(lambda: metric(gateway, texts["b"], "tandem_usage_current") == 0.0, "it is told")
            assert [ask(gateway, texts["a"]).status for _ in range(2)] == [status] * 2
            assert ask(gateway, texts["b"]).status == 200, "who has no quota needs no store"
            redis.start()
            wait_until(lambda: metric(gateway, texts["b"], "tandem_usage_current") == 1.0, "it is back")
            rest = [ask(gateway, texts["a"]).status for _ in range(4)]
            assert rest.count(200) == (1 if if_away == "open" else 3), (
                "nothing was counted twice, and nothing forgotten"
            )
    finally:
        redis.kill()


def test_messages_of_one_tenant_over_grpc_leave_memory_for_anothers(digits: str, tmp_path: Path) -> None:
    file, texts = keys_of(tmp_path, "a", "b")
    port, mebibyte = free_ports(1)[0], 2**20
    options = "--keys", str(file), "--grpc-port", str(port)
    limits = {"max_body_bytes": 4 * mebibyte, "max_buffered_bytes": 16 * mebibyte}
    with (
        gateway_before(tmp_path, {"cpu": [digits]}, *options, limits=limits) as gateway,
        contextlib.ExitStack() as held,
    ):
        for number in range(6):
            connection = held.enter_context(Connection(port))
            stream = connection.begin(
                "/inference.GRPCInferenceService/ModelInfer", authorization=f"Bearer {texts['a']}"
            )
            size = 4 * mebibyte - 1024
            sent = connection.send(stream, b"\0" + size.to_bytes(4) + bytes(size - 1))
            assert sent > size or number >= 2, "all but its last byte"
        assert metric(gateway, texts["b"], "tandem_buffered_bytes") <= 12 * mebibyte


def test_what_tenants_used_adds_up_in_the_file(digits: str, tmp_path: Path) -> None:
    place = tmp_path / "usage.db"
    with held(tmp_path / "one", digits, str(place), "{}") as (gateway, texts):
        for tenant, number in (("a", 3), ("b", 1)):
            assert [ask(gateway, texts[tenant]).status for _ in range(number)] == [200] * number
        used = [("a", "digits", "cpu", 3.0, 3.0 * len(SAMPLE)), ("b", "digits", "cpu", 1.0, len(SAMPLE))]
        query = "SELECT tenant, model, pool, sum(requests), sum(bytes) FROM entries GROUP BY 1, 2, 3"
        with contextlib.closing(sqlite3.connect(place)) as database:
            wait_until(lambda: sorted(database.execute(query)) == used, "they are in the file")


def test_the_access_log_has_a_line_for_each_inference_without_keys_and_bodies(digits: str, tmp_path: Path) -> None:
    file, texts = keys_of(tmp_path, "a")
    written = tmp_path / "access.jsonl"
    log = {"path": str(written), "sample_ratio": 1.0}
    with gateway_before(tmp_path, {"cpu": [digits]}, "--keys", str(file), access_log=log) as gateway:
        good = ask(gateway, texts["a"])
        wrong = SAMPLE.replace(b'"FP32"', b'"FP64"')
        assert gateway.infer(wrong, headers=bearer(texts["a"])).status == 400
        wait_until(lambda: written.exists() and written.read_text().count("\n") == 2, "both are written")
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert lines[0]["id"] == good.headers["Tandem-Request-Id"]
    seen = {
        name: lines[0][name] for name in ("tenant", "model", "variant", "pool", "rows", "bytes", "priority", "outcome")
    }
    assert seen == {
        "tenant": "a",
        "model": "digits",
        "variant": good.headers["Tandem-Variant"],
        "pool": "cpu",
        "rows": 1,
        "bytes": len(SAMPLE),
        "priority": 3,
        "outcome": "ok",
    }
    assert lines[0]["queue_s"] >= 0
    assert lines[0]["backend_s"] > 0
    assert (lines[1]["outcome"], lines[1]["bytes"]) == ("client_error", len(SAMPLE))
    assert "pool" not in lines[1]
    assert texts["a"] not in written.read_text()
    assert texts["a"][4:16] not in written.read_text()


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.1, 5, 50), (1.0, 200, 200)])
def test_the_access_log_samples_by_the_id_of_the_request(ratio: float, least: int, most: int) -> None:
    log = AccessLog(AccessLogSettings(path="-", sample_ratio=ratio))
    ids = [identity({})[0] for _ in range(200)]
    taken = [one for one in ids if log.takes(one)]
    assert least <= len(taken) <= most
    again = AccessLog(AccessLogSettings(path="-", sample_ratio=ratio))
    assert [one for one in ids if again.takes(one)] == taken


def test_an_access_log_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        log = AccessLog(AccessLogSettings(path=str(tmp_path / "missing" / "access.jsonl")))
        log.start()
        for _ in range(200):
            if caplog.records:
                break
            await asyncio.sleep(0.05)
        await log.stop()

    with caplog.at_level(logging.ERROR, logger="tandem"):
        asyncio.run(run())
    assert "missing/access.jsonl" in caplog.text
