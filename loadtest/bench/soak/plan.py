"""What happens when in a soak: kills, reloads, a flooding client, slow clients, and when requests are due. Pure.

A period is a minute unless somebody asks for less. In each something is killed and slow clients come; in every fifth a model is loaded in
another version, and a client floods from just before the kill. Requests come in a surge around each kill, so that what dies has work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    KILL = auto()
    RELOAD = auto()
    FLOOD = auto()
    SLOW = auto()


class Victim(Enum):
    """Two servers of one pool: the one of `tandem up`, and one beside it that is another `tandem triton`'s."""

    SERVER = "tritonserver"
    MODEL = "a model's process"
    GATEWAY = "the gateway"
    POOL = "the pool's supervisor"
    OTHER_SERVER = "tritonserver, the other"
    OTHER_MODEL = "a model's process, the other"


BUT_GATEWAY = tuple(victim for victim in Victim if victim is not Victim.GATEWAY)
EVERY = 5  # periods from one reload, and from one flood, to the next
# The gateway is killed in the third period and in every thirtieth after it: between two kills it lives long enough to be seen to grow.
FIRST_OF_GATEWAY, EVERY_OF_GATEWAY = 3, 30
FLOOD_LASTS = 1 / 6  # of a period: ten seconds of a minute
SLOW_AT = 1 / 4  # of a period, after the kill
RELOAD_AT = 1 / 2
SURGE_S = 0.5  # around a kill


@dataclass(frozen=True, slots=True)
class Event:
    """`at_s` counts from the start of the load."""

    at_s: float
    kind: Kind
    victim: Victim | None = None


def events(duration_s: float, period_s: float) -> list[Event]:
    """In their order in time; the last kill has three quarters of a period for what it does."""
    found, others = list[Event](), 0
    for number in range(1, int(duration_s / period_s + 0.25)):
        at_s = number * period_s
        if number % EVERY_OF_GATEWAY == FIRST_OF_GATEWAY:
            victim = Victim.GATEWAY
        else:
            victim = BUT_GATEWAY[others % len(BUT_GATEWAY)]
            others += 1
        if number % EVERY == 2:
            found.append(Event(at_s - FLOOD_LASTS * period_s / 2, Kind.FLOOD))
        found += [Event(at_s, Kind.KILL, victim), Event(at_s + SLOW_AT * period_s, Kind.SLOW)]
        if number % EVERY == 4:
            found.append(Event(at_s + RELOAD_AT * period_s, Kind.RELOAD))
    return sorted(found, key=lambda event: event.at_s)


def arrivals(
    duration_s: float, rate_rps: float, surge_rps: float, kills_s: Sequence[float], seed: int
) -> Iterator[float]:
    """Poisson, at `surge_rps` for SURGE_S around each kill."""
    chance, at_s = random.Random(seed), 0.0
    while True:
        is_surge = any(abs(at_s - kill_s) <= SURGE_S / 2 for kill_s in kills_s)
        at_s += chance.expovariate(surge_rps if is_surge else rate_rps)
        if at_s >= duration_s:
            return
        yield at_s
