"""How long does a burst last, and how long until the next? When waking and keeping a server pay, by the bursts that were seen.

Renting skis never pays more than twice what knowing the future would have cost; whoever has seen how long others skied does better: of all
waits that a past burst suggests, the one that would have cost least over all of them. So bursts that are over before a server comes are
waited out, and those that last are woken for at once. Rule: values in, values out; with fewer than two bursts nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from serving.scheduling.bridge import WINDOW_S

MIN_KNOWN = 2  # bursts, before they say anything
QUIET_S = 3 * WINDOW_S  # a shorter lull is no end: the meter of demand itself fades so long
LONGER = 1.25  # times what was seen, before a burst counts as another kind; a guess, not measured
SLACK_S = 2.0  # the same for short ones: two looks
NUM_ALIKE, SPREAD_RATIO = 3, 0.2  # lulls in a row that differ by no more are a rhythm; a guess, not measured


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a pool's n-th server: how long it was needed each time, and how long not in between; newest last.

    `since`: when the need began that goes on, `last_at`: when it was last seen; None: there was none yet. `rate`: what a second of it costs
    without the server, in the mean.
    """

    lengths: tuple[float, ...] = ()
    lulls: tuple[float, ...] = ()
    since: float | None = None
    last_at: float | None = None
    rate: float | None = None

    def is_on(self, now: float) -> bool:
        return self.last_at is not None and now - self.last_at < QUIET_S

    @property
    def is_known(self) -> bool:
        return len(self.lengths) >= MIN_KNOWN


def seen(it: Needs, now: float, most: int) -> Needs:
    """It is needed at this look. `most`: bursts that are remembered."""
    if it.since is None or it.last_at is None:
        return replace(it, since=now, last_at=now)
    if it.is_on(now):
        return replace(it, last_at=now)
    return Needs(
        (*it.lengths, it.last_at - it.since)[-most:] if most else (),
        (*it.lulls, now - it.last_at)[-most:] if most else (),
        now,
        now,
        it.rate,
    )


def observe(
    old: Mapping[str, tuple[Needs, ...]], now: float, needed: Mapping[str, int], most: int
) -> Mapping[str, tuple[Needs, ...]]:
    """`needed`: servers by pool that the demand calls for at this look."""
    found = dict(old)
    for pool, number in needed.items():
        if number:
            known = found.get(pool, ())
            known += (Needs(),) * (number - len(known))
            found[pool] = (*(seen(it, now, most) for it in known[:number]), *known[number:])
    return found


def cost_of_bursts(wait_s: float, lengths: Iterable[float], cold_start_s: float, price: float, rate: float) -> float:
    """Of all of them with this wait, beyond having had the server. `rate`: a second without it; `price`: of a wake."""
    return sum(
        rate * min(length, wait_s + cold_start_s) + price if length > wait_s else rate * length for length in lengths
    )


def wait_s(of: Needs, least_s: float, cold_start_s: float, price: float, rate: float) -> float:
    """How long a burst lasts before waking pays, by those that were seen, of which there are enough."""
    waits = (least_s, *(max(least_s, _beyond(length)) for length in of.lengths))
    return min(waits, key=lambda it: (cost_of_bursts(it, of.lengths, cold_start_s, price, rate), it))


def keep_s(of: Needs, saving: float, price_of_cold: float) -> float:
    """How long a server that is not needed is kept, by the lulls that were seen.

    `saving`: a second without it; `price_of_cold`: what the next burst costs that finds it cold.
    """
    keeps = (QUIET_S, *(_beyond(lull) for lull in of.lulls))

    def cost(keep: float) -> float:
        return sum(saving * lull if lull <= keep else saving * keep + price_of_cold for lull in of.lulls)

    return min(keeps, key=lambda it: (cost(it), it))


def rhythm(of: Needs) -> tuple[float, float] | None:
    """The shortest and the longest lull, where the last ones were alike."""
    lulls = of.lulls[-NUM_ALIKE:]
    if len(lulls) < NUM_ALIKE or max(lulls) - min(lulls) > SPREAD_RATIO * min(lulls):
        return None
    return min(lulls), max(lulls)


def price_of_early(of: Needs, price: float, saving: float) -> float:
    """Of waking so early that the next burst finds it warm; infinite where nobody knows when that comes."""
    lulls = rhythm(of)
    return inf if lulls is None else price + saving * (lulls[1] - lulls[0] + SLACK_S)


def is_due(of: Needs, now: float, ahead_s: float) -> bool:
    """Whether the next burst may come within `ahead_s`, by the rhythm of the last ones."""
    lulls = rhythm(of)
    if lulls is None or of.last_at is None or of.is_on(now):
        return False
    return lulls[0] - ahead_s - SLACK_S <= now - of.last_at <= lulls[1] + SLACK_S


def _beyond(seconds: float) -> float:
    return seconds * LONGER + SLACK_S
