"""What Prometheus and probes are told: an unknown number is absent and never 0."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from serving.cluster.scaler import http_server
from serving.cluster.scaler.http_server import STUCK_S, HttpServer
from serving.cluster.scaler.state import Bill, Result, ScalerState, Traffic
from serving.decisions.cold_start import ColdStart, Server
from serving.decisions.demand import Demand, Gateway, Gateways
from serving.decisions.scaling import Scaling
from serving.decisions.sizes import Change
from serving.errors import UserError
from serving.ports import free_ports
from tests.local.harness import wait_until

NOW = 5000.0
DECIDED = Scaling(
    at=NOW,
    gateways=Gateways({"10.0.0.1:9090": Gateway({}, NOW - 0.5), "10.0.0.2:9090": Gateway(None, NOW)}),
    replicas={"cpu": 2, "gpu": 0},
    demands={"cpu": Demand(1.5, 0.0, 2), "gpu": Demand(0.15, 0.0, 0)},
    holds="",
    changes=(Change("gpu", 1, 0, "does_not_pay", "…"), Change("cpu", 1, 2, "short", "…")),
)
HELD = replace(DECIDED, replicas=None, demands=None, holds="no gateway answers", changes=())
STARTED = ColdStart("gpu", 1000.0, Server("gpu-a", 1001.0, None, None, 1010.0, 1030.0, 1040.0), 1042.0, 1043.0)


class Bed:
    def __init__(self, url: str, state: ScalerState, runner: asyncio.Runner) -> None:
        self.url, self._state, self._runner = url, state, runner

    def publish(self, result: Result) -> None:
        async def publish() -> None:
            self._state.publish(result)

        self._runner.run(publish())

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def lines(self) -> set[str]:
        return {line for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")}


def test_money_counts_what_is_wanted_or_answers_from_the_first_number_on() -> None:
    with serving() as (url, state, runner):
        bed = Bed(url, state, runner)
        state.bills = {"cpu": Bill(0.5), "gpu": Bill(3.6, servers_per_card=2)}

        def fleet() -> dict[str, dict[str, object]]:
            return {
                pool: {name: it[name] for name in ("wanted", "ready", "nodes", "per_hour", "spent")}
                for pool, it in json.loads(bed.get("/fleet")[1])["pools"].items()
            }

        unknown = {"wanted": None, "ready": None, "nodes": None, "per_hour": None, "spent": 0.0}
        assert fleet() == {"cpu": unknown, "gpu": unknown}
        leaving = {"cpu": Demand(1.5, 0.0, 2), "gpu": Demand(0.0, 0.0, 3)}
        bed.publish(Result(replace(DECIDED, demands=leaving), nodes={"gpu": 2}))
        assert fleet()["cpu"] == {"wanted": 2, "ready": 2, "nodes": 0, "per_hour": 1.0, "spent": 0.0}
        assert fleet()["gpu"] == {"wanted": 0, "ready": 3, "nodes": 2, "per_hour": 7.2, "spent": 0.0}
        bed.publish(Result(replace(HELD, at=NOW + 1800)))
        bed.publish(Result(replace(DECIDED, at=NOW + 3600)))
        bed.publish(Result(replace(DECIDED, at=NOW + 7200)))
        assert fleet()["cpu"] == {"wanted": 2, "ready": 2, "nodes": None, "per_hour": 1.0, "spent": 2.0}
        assert fleet()["gpu"] == {"wanted": 0, "ready": 0, "nodes": None, "per_hour": 0.0, "spent": 7.2}


@contextmanager
def serving() -> Iterator[tuple[str, ScalerState, asyncio.Runner]]:
    async def make() -> ScalerState:
        return ScalerState(("cpu", "gpu"))

    with asyncio.Runner() as runner:
        told, port = runner.run(make()), free_ports(1)[0]
        made = HttpServer(told, "127.0.0.1", port, now=lambda: NOW)
        made.start()
        try:
            yield f"http://127.0.0.1:{port}", told, runner
        finally:
            made.stop()


@pytest.fixture
def bed() -> Iterator[Bed]:
    with serving() as made:
        yield Bed(*made)


def test_what_was_decided_is_published_with_how_it_was_known(bed: Bed) -> None:
    bed.publish(Result(DECIDED, is_api_readable=True))
    assert bed.lines() >= {
        'tandem_wanted_replicas{pool="cpu"} 2.0',
        'tandem_wanted_replicas{pool="gpu"} 0.0',
        'tandem_scaler_demand_replicas{pool="cpu"} 1.5',
        "tandem_scaler_holds 0.0",
        "tandem_scaler_keeps 0.0",
        "tandem_scaler_api_readable 1.0",
        'tandem_scaler_gateway_heard_seconds{gateway="10.0.0.1:9090"} 0.5',
        'tandem_scaler_decisions_total{direction="down",pool="gpu",reason="does_not_pay"} 1.0',
        'tandem_scaler_decisions_total{direction="up",pool="cpu",reason="short"} 1.0',
    }


@pytest.mark.parametrize("answer", [None, Result(HELD)], ids=["before the first look", "while it holds"])
def test_what_is_not_known_is_absent_and_not_nothing(bed: Bed, answer: Result | None) -> None:
    if answer is not None:
        bed.publish(Result(DECIDED))
        bed.publish(answer)
    lines = bed.lines()
    assert "tandem_scaler_holds 1.0" in lines
    assert not any(line.startswith(("tandem_wanted_replicas", "tandem_scaler_demand")) for line in lines)


def test_a_gateway_that_was_never_heard_has_no_time_since(bed: Bed) -> None:
    bed.publish(Result(DECIDED))
    assert not any("10.0.0.2" in line for line in bed.lines())


def test_decisions_are_counted_over_looks(bed: Bed) -> None:
    for _ in range(3):
        bed.publish(Result(DECIDED))
    assert 'tandem_scaler_decisions_total{direction="up",pool="cpu",reason="short"} 3.0' in bed.lines()


def test_the_last_cold_start_that_answered_is_published_by_phase(bed: Bed) -> None:
    given_up = ColdStart("gpu", 2000.0, is_given_up=True)
    bed.publish(
        Result(DECIDED, cold_starts=(replace(STARTED, decided_at=1.0), STARTED, given_up, ColdStart("cpu", 3.0)))
    )
    lines = bed.lines()
    assert 'tandem_cold_start_seconds{phase="image",pool="gpu"} 20.0' in lines
    assert 'tandem_cold_start_seconds{phase="total",pool="gpu"} 43.0' in lines
    assert 'tandem_cold_starts_open{pool="cpu"} 1.0' in lines
    assert not any("tandem_cold_start_seconds" in line and 'pool="cpu"' in line for line in lines)


def test_all_cold_starts_are_counted_once_when_they_end(bed: Bed) -> None:
    going_on = replace(STARTED, answered_at=None)
    second = replace(STARTED, decided_at=2000.0, server=None, warm_at=2001.0, answered_at=2003.0)
    given_up = ColdStart("gpu", 3000.0, is_given_up=True)
    for seen in ((), (going_on,), (STARTED,), (STARTED,), (STARTED, second), (second, given_up), (second, given_up)):
        bed.publish(Result(DECIDED, cold_starts=seen))
    lines = bed.lines()
    assert 'tandem_cold_starts_total{end="answered",pool="gpu"} 2.0' in lines
    assert 'tandem_cold_starts_total{end="given_up",pool="gpu"} 1.0' in lines
    of = "tandem_cold_start_phase_seconds"
    assert f'{of}_sum{{phase="total",pool="gpu"}} 46.0' in lines
    assert f'{of}_count{{phase="total",pool="gpu"}} 2.0' in lines
    assert f'{of}_bucket{{le="5.0",phase="total",pool="gpu"}} 1.0' in lines
    assert f'{of}_bucket{{le="45.0",phase="total",pool="gpu"}} 2.0' in lines
    assert f'{of}_count{{phase="image",pool="gpu"}} 1.0' in lines


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"])
def test_both_of_prometheus_formats_are_spoken_and_strictly(bed: Bed, accept: str) -> None:
    bed.publish(Result(DECIDED, cold_starts=(STARTED, ColdStart("cpu", 3.0)), is_api_readable=True))
    with urllib.request.urlopen(urllib.request.Request(f"{bed.url}/metrics", headers={"Accept": accept})) as answer:
        kind, text = answer.headers["Content-Type"], answer.read().decode()
    assert kind.startswith("application/openmetrics-text" if accept else "text/plain; version=0.0.4")
    families = {it.name for it in (openmetrics if accept else plain)(text)}
    assert {"tandem_wanted_replicas", "tandem_scaler_decisions", "tandem_cold_start_phase_seconds"} <= families


def test_no_more_clients_than_there_is_room_for_have_a_thread(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    before = threading.active_count()
    with ExitStack() as talks:
        others = [talks.enter_context(connected(bed)) for _ in range(8)]
        wait_until(lambda: threading.active_count() == before + 4, "the room is full")
        assert [others[-1].recv(1), threading.active_count()] == [b"", before + 4]
    wait_until(lambda: threading.active_count() == before, "all have left")
    assert bed.get("/metrics")[0] == 200


def test_one_that_trickles_is_let_go(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S", 0.3)
    with connected(bed) as talk:
        wait_until(lambda: said_a_letter(talk), "it is over")


def connected(bed: Bed) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(bed.url.rsplit(":", 1)[1])), 30)


def said_a_letter(talk: socket.socket) -> bool:
    """Whether it is over, one letter later."""
    try:
        talk.sendall(b"G")
        talk.settimeout(0.01)
        return talk.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_cold_starts_are_listed_with_what_was_seen_of_them(bed: Bed) -> None:
    bed.publish(Result(DECIDED, cold_starts=(STARTED, ColdStart("cpu", 3.0))))
    listed = json.loads(bed.get("/cold-starts")[1])
    assert listed["version"] == 1
    first, second = listed["cold_starts"]
    assert (first["server"]["name"], first["phases_s"]["warm_up"], first["is_given_up"]) == ("gpu-a", 2.0, False)
    assert (second["server"], second["answered_at"], second["phases_s"]) == (None, None, {})


def test_the_status_says_who_is_heard_and_why_others_are_not(bed: Bed) -> None:
    bed.publish(Result(replace(DECIDED, keeps="10.0.0.2:9090 not heard"), {"10.0.0.2:9090": "connection refused"}))
    status = json.loads(bed.get("/status")[1])
    assert (status["version"], status["wanted"], status["holds"]) == (1, {"cpu": 2, "gpu": 0}, "")
    assert status["keeps"] == "10.0.0.2:9090 not heard"
    assert {"replicas": 1.5, "only_replicas": 0.0, "num_ready": 2}.items() <= status["demands"]["cpu"].items()
    assert status["gateways"] == {
        "10.0.0.1:9090": {"heard_s_ago": 0.5, "is_named": True, "problem": ""},
        "10.0.0.2:9090": {"heard_s_ago": None, "is_named": True, "problem": "connection refused"},
    }
    bed.publish(Result(HELD))
    held = json.loads(bed.get("/status")[1])
    assert (held["wanted"], held["holds_s"] >= 0) == (None, True)


def test_the_status_has_each_pools_last_decision_and_what_came_of_its_requests(bed: Bed) -> None:
    up = Change("gpu", 0, 1, "pays", "pool gpu is wanted")
    bed.publish(Result(replace(DECIDED, changes=(up,)), traffic={"gpu": Traffic(45, 5)}))
    bed.publish(Result(replace(DECIDED, changes=())))  # nothing new, so what was decided stays
    status = json.loads(bed.get("/status")[1])
    (decision,) = status["decisions"].values()
    assert {"before": 0, "after": 1, "reason": "pays", "sentence": "pool gpu is wanted"}.items() <= decision.items()
    assert abs(decision["decided_at"] - time.time()) < 60
    assert (status["traffic"], status["holds_s"]) == ({}, None)


def test_it_is_ready_once_a_number_was_known_and_stays_so(bed: Bed) -> None:
    assert bed.get("/health/ready")[0] == 503
    bed.publish(Result(HELD))
    status, body = bed.get("/health/ready")
    assert (status, json.loads(body)) == (503, {"ready": False, "holds": "no gateway answers"})
    bed.publish(Result(DECIDED))
    assert bed.get("/health/ready")[0] == 200
    bed.publish(Result(HELD))
    assert bed.get("/health/ready")[0] == 200


def test_it_is_alive_as_long_as_it_looks(bed: Bed) -> None:
    assert bed.get("/health/live")[0] == 200  # it has not begun
    bed.publish(Result(replace(HELD, at=NOW - STUCK_S)))
    assert bed.get("/health/live")[0] == 200
    bed.publish(Result(replace(HELD, at=NOW - STUCK_S - 1)))
    assert bed.get("/health/live")[0] == 503


def test_other_paths_are_not_there_and_head_has_no_body(bed: Bed) -> None:
    assert bed.get("/")[0] == 404
    assert bed.get("/metrics?name=x")[0] == 200
    assert bed.get("/metrics", "HEAD") == (200, "")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert bed.get("/metrics", method)[0] == 405


def test_a_taken_port_is_named() -> None:
    with serving() as (url, told, _):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(UserError, match=rf"{port}.*127\.0\.0\.1.*choose.*--port"):
            HttpServer(told, "127.0.0.1", port)
