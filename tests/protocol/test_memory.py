"""One budget for all requests, of which no tenant that holds much gets the last part."""

from __future__ import annotations

import pytest

from serving.errors import Overloaded, TooLarge
from serving.protocol.memory import Memory

MOST = 1000


def test_bodies_of_one_tenant_leave_room_for_anothers() -> None:
    memory = Memory(MOST)
    flood = [memory.claim("flood") for _ in range(20)]
    num_taken = 0
    for claim in flood:
        try:
            claim.take(100)
            num_taken += 1
        except Overloaded:
            pass
    assert num_taken == 7
    small = memory.claim("small")
    small.take(200)
    other = memory.claim()
    other.take(100)  # of nobody that is known: as far as there is memory
    with pytest.raises(Overloaded):
        memory.claim("small").take(100)
    for claim in flood:
        claim.release()
    assert memory.held_by == {"small": 200}
    for claim in (small, other):
        claim.release()
    assert (memory.held, memory.held_by) == (0, {})


def test_a_tenants_only_request_may_have_all_of_it_and_what_is_handed_on_stays_counted_once() -> None:
    memory = Memory(MOST)
    first, second = memory.claim("a"), memory.claim("a")
    first.take(600)
    first.take(400)
    second.take_over(first)
    assert (memory.held, memory.held_by, second.held) == (MOST, {"a": MOST}, MOST)
    with pytest.raises(TooLarge):
        second.take(1)
    second.give_back(400)
    assert memory.held_by == {"a": 600}
    second.release()
    first.release()
    assert (memory.held, memory.held_by) == (0, {})
