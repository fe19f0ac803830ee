"""Which requests are refused because servers died under them? One that every server survives must never be."""

from __future__ import annotations

import asyncio
import threading
from math import inf
from time import perf_counter

import pytest

from serving.errors import UpstreamLost
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Target
from serving.gateway.metrics import Series
from serving.gateway.request import query_of_death
from serving.gateway.request.dispatch import InferRequest, Lease
from serving.gateway.request.query_of_death import HASHED_HERE_BYTES, SAME_DEATH_S, QueriesOfDeath
from serving.gateway.request.route import Destination, Route
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket
from serving.scheduling.routing import Decision, Variant

ROUTE = Route("m", "m", False, False, [], [], {}, 1, inf, True)
CANDIDATE = Candidate(PoolQueue("cpu"), Service(Curve(((1, 0.01),))), 1.0)
VARIANT = Variant("m-fp32", "m", "fp32", "cpu", "00", "cpu")
DESTINATION = Destination(
    Decision("cpu", VARIANT, "only_pool"), "cpu", "m-fp32", b"", CANDIDATE, [], b"", Series(("m", "fp32", "cpu")), None
)
SERVICE = Service(Curve(((1, 0.01),)))


def request(body: bytes) -> InferRequest:
    return InferRequest(ROUTE, body, [body], None, b"", 1, 3, inf, inf, 0.0, DESTINATION.series)


@pytest.fixture
def servers() -> list[Server]:
    loop = asyncio.new_event_loop()
    made = [Server(Target(f"http://127.0.0.1:{port}", loop), Replica(str(port))) for port in (1, 2)]
    loop.close()
    return made


def sent(asked: InferRequest, server: Server, later_s: float = 0.0) -> Lease:
    ticket = Ticket(asked, SERVICE, 1, inf, inf, 0.01, 3)
    ticket.sent = perf_counter() + later_s
    lease = Lease()
    lease.destination, lease.ticket, lease.server = DESTINATION, ticket, server
    return lease


def is_refused(suspects: QueriesOfDeath, asked: InferRequest) -> bool:
    try:
        asyncio.run(suspects.require_innocent(asked))
    except UpstreamLost as error:
        return 55 < (error.retry_after_s or 0.0) <= 60
    return False


def test_two_servers_that_die_under_one_request_are_enough(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"deadly")
    for server in servers:
        assert not is_refused(suspects, asked)
        suspects.died(asked, sent(asked, server))
    assert is_refused(suspects, asked)
    assert not is_refused(suspects, request(b"harmless"))


def test_many_equal_requests_that_die_with_one_server_died_once(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"popular")
    for _ in range(8):
        suspects.died(asked, sent(asked, servers[0]))
    suspects.died(asked, sent(asked, servers[0], SAME_DEATH_S / 2))
    assert not is_refused(suspects, asked)


def test_the_next_death_of_the_same_server_is_another_one(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"deadly")
    suspects.died(asked, sent(asked, servers[0]))
    suspects.died(asked, sent(asked, servers[0], SAME_DEATH_S + 1))
    assert is_refused(suspects, asked)


def test_a_server_that_was_back_and_died_again_died_twice_however_soon(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"deadly")
    suspects.died(asked, sent(asked, servers[0]))
    servers[0].back["other"] = perf_counter()
    suspects.died(asked, sent(asked, servers[0]))
    assert not is_refused(suspects, asked)
    servers[0].back["m-fp32"] = perf_counter()
    suspects.died(asked, sent(asked, servers[0], -1.0))  # sent before, lost after
    assert not is_refused(suspects, asked)
    suspects.died(asked, sent(asked, servers[0]))
    assert is_refused(suspects, asked)


def test_what_was_answered_in_between_is_no_suspect(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"popular")
    suspects.died(asked, sent(asked, servers[0]))
    suspects.answered(request(b"popular"))
    suspects.died(asked, sent(asked, servers[1]))
    assert not is_refused(suspects, asked)


def test_a_death_that_was_told_when_the_model_was_back_already_is_another_than_the_next(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"deadly")
    servers[0].back["m-fp32"] = perf_counter()
    suspects.died(asked, sent(asked, servers[0], -1.0))  # it waited for a dead process for a second
    assert not is_refused(suspects, asked)
    suspects.died(asked, sent(asked, servers[0]))
    assert is_refused(suspects, asked)


def only_pool(suspects: QueriesOfDeath, body: bytes) -> str | None:
    """The one that it may go to; None: any."""
    asked = request(body)
    asyncio.run(suspects.require_innocent(asked))
    return asked.only_pool


def test_what_a_stuck_server_left_unanswered_goes_to_no_other_pool_until_it_is_answered(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"stuck")
    suspects.unanswered(asked, sent(asked, servers[0]))
    assert only_pool(suspects, b"stuck") == "cpu"
    assert only_pool(suspects, b"harmless") is None
    suspects.answered(asked)
    assert only_pool(suspects, b"stuck") is None


def test_two_restarts_for_what_was_left_unanswered_are_enough(servers: list[Server]) -> None:
    suspects, asked = QueriesOfDeath(), request(b"stuck")
    for num_restarts in (1, 2):
        assert not is_refused(suspects, asked)
        suspects.unanswered(asked, sent(asked, servers[0]))
        servers[0].num_restarts = num_restarts
    assert is_refused(suspects, asked)
    assert not is_refused(suspects, request(b"harmless"))


def test_a_large_body_is_read_on_a_thread_and_only_where_one_of_its_length_is_remembered(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    digest_of = query_of_death.digest_of

    def noted(asked: InferRequest) -> bytes:
        readers.append(threading.current_thread())
        return digest_of(asked)

    async def story() -> None:
        suspects, body = QueriesOfDeath(), bytes(HASHED_HERE_BYTES + 1)
        asked = request(body)
        for server in servers:
            await suspects.require_innocent(asked)
            suspects.died(asked, sent(asked, server))
        assert asked.hashing is not None
        await asked.hashing
        with pytest.raises(UpstreamLost):
            await suspects.require_innocent(request(body))
        await suspects.require_innocent(request(body[:-1] + b"?"))
        assert len(readers) == 3
        await suspects.require_innocent(request(body + b"?"))
        suspects.answered(request(body + b"?"))
        assert len(readers) == 3
        suspects.answered(asked)
        await asyncio.sleep(0)
        await suspects.require_innocent(request(body))

    monkeypatch.setattr(query_of_death, "digest_of", noted)
    asyncio.run(story())
    assert threading.main_thread() not in readers
