"""How long does a burst last, and how long until the next? When waking and keeping a server pay, by the bursts that were seen.

Renting skis never pays more than twice what knowing the future would have cost; whoever has seen how long others skied does better: of all
waits that a past burst suggests, the one that would have cost least over all of them. So bursts that are over before a server comes are
waited out, and those that last are woken for at once. Rule: values in, values out; with fewer than two bursts nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isfinite

import numpy as np

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
    without the server, in the mean of `looks`; `idle`: what a second of having it costs while it is not needed.
    """

    lengths: tuple[float, ...] = ()
    lulls: tuple[float, ...] = ()
    since: float | None = None
    last_at: float | None = None
    rate: float | None = None
    looks: int = 0
    idle: float | None = None

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
    return replace(
        it,
        lengths=(*it.lengths, it.last_at - it.since)[-most:] if most else (),
        lulls=(*it.lulls, now - it.last_at)[-most:] if most else (),
        since=now,
        last_at=now,
    )


MAX_LOOKS = 600  # over which the mean is taken: some ten bursts of a minute; a guess


def costing(it: Needs, rate: float) -> Needs:
    """It is missing at this look, which costs so much a second."""
    looks = min(it.looks + 1, MAX_LOOKS)
    before = it.rate or 0.0
    return replace(it, rate=before + (rate - before) / looks, looks=looks)


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


MAX_NOTE_BYTES = 64_000  # a quarter of what Kubernetes takes as annotations of one object
NOTE_VERSION = 1


def note_of(needs: Mapping[str, tuple[Needs, ...]], now: float, wall: float) -> str:
    """For the next scaler, in seconds of 1970. `now` and `wall`: the same moment by the clock of `needs`, and by the calendar.

    The servers of each pool that are needed first go before others where not all have room.
    """
    most = max((len(it) for it in needs.values()), default=0)
    while True:
        pools = {pool: [_noted(it, wall - now) for it in known[:most]] for pool, known in needs.items()}
        text = json.dumps({"version": NOTE_VERSION, "pools": pools}, separators=(",", ":"))
        if len(text) <= MAX_NOTE_BYTES or most == 0:
            return text
        most = most * 3 // 4


def _noted(it: Needs, ahead: float) -> list[object]:
    since, last_at = (None if at is None else round(at + ahead, 1) for at in (it.since, it.last_at))
    lengths, lulls = ([round(each, 1) for each in some] for some in (it.lengths, it.lulls))
    return [lengths, lulls, since, last_at, it.rate, it.looks, it.idle]


def noted(text: str, now: float, wall: float) -> dict[str, tuple[Needs, ...]]:
    """What `note_of` wrote, by the clock of `now`. Nothing where it is no such note, as of another version."""
    try:
        found = json.loads(text, parse_constant=float)
        if found["version"] != NOTE_VERSION:
            return {}
        return {
            str(pool): tuple(_need(*each, now=now, wall=wall) for each in known)
            for pool, known in found["pools"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}


def _need(
    lengths: list[float],
    lulls: list[float],
    since: float | None,
    last_at: float | None,
    rate: float | None,
    looks: int,
    idle: float | None,
    *,
    now: float,
    wall: float,
) -> Needs:
    """Raises ValueError, TypeError. A clock that was ahead has seen it last now."""
    if not all(
        isfinite(each)
        for each in (*lengths, *lulls, *(it for it in (since, last_at, rate, looks, idle) if it is not None))
    ):
        raise ValueError("no number")
    behind = now - wall
    last = None if last_at is None else min(now, last_at + behind)
    began = None if since is None or last is None else min(last, since + behind)
    return Needs(tuple(map(float, lengths)), tuple(map(float, lulls)), began, last, rate, int(looks), idle)


@dataclass(frozen=True, slots=True)
class Habit:
    """A server is woken when a burst has lasted `wait_s`, and kept for `keep_s` after it. `cold`: what a burst costs that finds it cold."""

    wait_s: float
    keep_s: float
    cold: float


def habit(of: Needs, least_s: float, cold_start_s: float, price: float, early: float = inf) -> Habit:
    """What would have cost least over the bursts and lulls that were seen, of which there are enough.

    `price`: of a wake; `early`: of one so early that a burst finds it warm, as `price_of_early` tells.
    """
    costs = (price, _rounded(of.rate or 0.0), _rounded(of.idle or 0.0), early)
    return _habit(of.lengths, of.lulls, least_s, cold_start_s, *costs)


@lru_cache(maxsize=4096)  # servers of a pool often have the same past, and it changes with a burst alone
def _habit(
    lengths: tuple[float, ...],
    lulls: tuple[float, ...],
    least_s: float,
    cold_start_s: float,
    price: float,
    rate: float,
    idle: float,
    early: float,
) -> Habit:
    waits = np.array(sorted({least_s, *(max(least_s, _beyond(it)) for it in lengths)}))[:, None]
    keeps = np.array(sorted({QUIET_S, *(_beyond(it) for it in lulls)}))[None, :]
    cost = np.zeros((waits.size, keeps.size))
    cold, is_warm = np.zeros_like(waits), np.zeros(cost.shape, bool)
    for length, lull in 2 * tuple(zip(lengths, lulls, strict=True)):  # as if all of it came twice more
        is_woken = length > waits
        each = np.where(is_woken, rate * np.minimum(length, waits + cold_start_s) + price, rate * length)
        cost += np.where(is_warm, 0.0, np.minimum(each, early))
        cold += each / (2 * len(lengths))
        is_warm |= is_woken | (early < each)
        cost += np.where(is_warm, idle * np.minimum(lull, keeps), 0.0)
        is_warm &= lull <= keeps
    wait, keep = np.unravel_index(int(cost.argmin()), cost.shape)
    return Habit(float(waits[wait, 0]), float(keeps[0, keep]), float(cold[wait, 0]))


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


def rhythm(of: Needs) -> tuple[float, float] | None:
    """The shortest and the longest lull, where the last ones were alike."""
    lulls = of.lulls[-NUM_ALIKE:]
    if len(lulls) < NUM_ALIKE or max(lulls) - min(lulls) > SPREAD_RATIO * min(lulls):
        return None
    return min(lulls), max(lulls)


def price_of_early(of: Needs, price: float) -> float:
    """Of waking so early that the next burst finds it warm; infinite where nobody knows when that comes."""
    lulls = rhythm(of)
    return inf if lulls is None else price + (of.idle or 0.0) * (lulls[1] - lulls[0] + WINDOW_S + SLACK_S)


def is_due(of: Needs, now: float, ahead_s: float) -> bool:
    """Whether the next burst may come within `ahead_s`, by the rhythm of the last ones; the meter of demand sees it a window late."""
    lulls = rhythm(of)
    if lulls is None or of.last_at is None or of.is_on(now):
        return False
    return lulls[0] - ahead_s - WINDOW_S - SLACK_S <= now - of.last_at <= lulls[1] + SLACK_S


def _beyond(seconds: float) -> float:
    return seconds * LONGER + SLACK_S
