"""Of several scalers never two lead at once, one always does soon, and none waits for a holder that has gone."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import pytest

from serving.cluster.client import JSON, ApiError, Client, Query, Unreachable, WriteError
from serving.cluster.objects.fields import Object
from serving.cluster.scaler.leader import LEASE_S, NOTED_EVERY_S, RENEWED_S, Leader

ROUND_S = 1.0


class Store(Client):
    """What an API server does with one Lease: versions, and a refusal of an old one."""

    namespace, server = "serving", "https://here"

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.is_away = False

    def get(self, path: str, what: str, query: Query | None = None, *, accept: str = JSON) -> Object:  # noqa: ARG002
        self._answers()
        if self.lease is None:
            raise ApiError(self.server, 404, what)
        return self.lease

    def lines(self, path: str, what: str, query: Query) -> Generator[bytes]:
        raise NotImplementedError

    def write(self, method: str, path: str, what: str, body: Object, kind: str = JSON) -> Object:  # noqa: ARG002
        self._answers()
        now = "" if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if (method == "POST") != (self.lease is None) or body["metadata"].get("resourceVersion", "") != now:
            raise WriteError(what, 409, b"")
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def _answers(self) -> None:
        if self.is_away:
            raise Unreachable(self.server, "is away", "wait")


class Clock:
    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.mark.parametrize("seed", range(20))
def test_never_two_lead_and_soon_one_does(seed: int) -> None:
    """Rounds at any moments, processes that stop for any time and go on, an API server that goes away, clocks that differ."""
    chance = random.Random(seed)
    store, clocks = Store(), [Clock(chance.uniform(0, 1e6)) for _ in range(3)]
    leaders = [Leader("tandem-scaler", f"scaler-{number}", clock) for number, clock in enumerate(clocks)]
    pauses = [0.0] * len(leaders)
    alone_s = 0.0
    for _ in range(4000):
        step = chance.uniform(0.0, 0.4)
        for clock in clocks:
            clock.at += step
        if chance.random() < 0.01:
            store.is_away = not store.is_away
        for number, leader in enumerate(leaders):
            pauses[number] -= step
            if pauses[number] <= 0:
                leader.renew(store)
                pauses[number] = ROUND_S if chance.random() < 0.98 else chance.uniform(0, 20)
        leading = [it.identity for it in leaders if it.leads()]
        assert len(leading) <= 1
        is_possible = not store.is_away and any(pause <= ROUND_S for pause in pauses)
        alone_s = alone_s + step if is_possible and not leading else 0.0
        assert alone_s < 2 * (LEASE_S + ROUND_S), "somebody who could lead does not"


def led(leaders: list[Leader], clock: Clock, store: Store, for_s: float) -> float | None:
    """Seconds until one of them leads, at a round a second each."""
    for tenth in range(int(for_s * 10)):
        if tenth % 10 == 0:
            for it in leaders:
                it.renew(store)
        if any(it.leads() for it in leaders):
            return tenth / 10
        clock.at += 0.1
    return None


def test_a_holder_that_dies_is_followed_within_four_seconds_and_one_that_leaves_at_once() -> None:
    store, clock = Store(), Clock()
    first, second = (Leader("tandem-scaler", name, clock) for name in ("a", "b"))
    for _ in range(5):
        first.renew(store)
        second.renew(store)
        assert (first.leads(), second.leads(), second.holder) == (True, False, "a")
        clock.at += ROUND_S
    took_s = led([second], clock, store, 10)
    assert took_s is not None
    assert took_s <= LEASE_S + ROUND_S
    second.give_back(store)
    assert not second.leads()
    assert led([first], clock, store, 10) == 0.0
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 2


def test_whoever_cannot_renew_stops_before_another_may_begin_and_says_why() -> None:
    store, clock = Store(), Clock()
    leader = Leader("tandem-scaler", "a", clock)
    leader.renew(store)
    store.is_away = True
    clock.at += RENEWED_S
    leader.renew(store)
    assert not leader.leads()
    assert "away" in leader.problem
    assert RENEWED_S < LEASE_S
    store.is_away = False
    leader.renew(store)
    assert (leader.leads(), leader.problem) == (True, "")


def test_what_a_holder_has_noted_is_known_to_whoever_follows_and_stays_until_that_one_knows_more() -> None:
    store, clock = Store(), Clock()
    first, second = (Leader("tandem-scaler", name, clock) for name in ("a", "b"))
    notes = iter(["one", "two", "three"])
    for _ in range(int(2 * NOTED_EVERY_S)):
        first.renew(store, lambda: next(notes))
        second.renew(store, lambda: "of one that waits")
        clock.at += ROUND_S
    assert (second.leads(), second.note) == (False, "two"), "a note each time that it is due, and no more"
    led([second], clock, store, 10)
    second.renew(store)
    assert (second.leads(), second.note) == (True, "two")
    second.give_back(store)
    first.renew(store, lambda: "three")
    second.renew(store)
    assert (second.note, second.holder) == ("three", "a")
