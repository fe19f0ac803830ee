"""Which servers are left out for a while, and which requests are refused because servers died under them?

A server that fails several times in a row, takes many times as long as the others, or stands still, is left out for a time that doubles;
then it must prove itself on one request at a time. A request under which two servers died is refused for a minute. Rules: never more
than half of a pool is left out by comparing its servers, because then the fault is elsewhere; one that answers nothing at all is left out
where others, of whatever pool, serve all that it does; everything here forgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import TypeVar

MAX_FAILURES = 3  # in a row: one is an accident, and a dead process fails several at once; a guess, not measured
SLOW_TIMES = 5.0  # the median of the others: beyond that a server is ill, not busy; a guess, not measured
MIN_TIMED = 5  # answers until a server is compared with others: the first are slow on any; a guess, not measured
STALLED_S = 1.0  # that nothing comes of a server beyond what its work takes: as long as a crash; a guess, not measured
ASK_AFTER_S = (
    0.75  # that nothing comes of a server: its polls are answered every half second, and looked for every quarter
)
SILENT_S = 1.75  # a second more, in which a Triton on two cores with 48 busy processes took 0.15 s at most
FIRST_EJECTION_S = 1.0  # embedded Triton is back about a second after a crash (`make prove`)
LONGEST_EJECTION_S = 30.0  # somebody may have mended it; a guess, not measured
MAX_DOUBLINGS = 5  # past these the longest is reached, and 2 to the 1024th is no float
NUM_TRIALS = 3  # answers, one at a time, until it is as good as the others; a guess, not measured
REFUSED_S = 60.0  # after the second death, by contract
MAX_REMEMBERED = 4096  # digests come from clients: past this many the oldest are forgotten


@dataclass(frozen=True, slots=True)
class Health:
    """Of one server. `num_trials_left` above 0: it is on trial and gets one request at a time."""

    num_failures: int = 0  # in a row
    num_ejections: int = 0  # in a row
    ejected_until: float = 0.0
    num_trials_left: int = 0


WELL = Health()


def succeeded(health: Health) -> Health:
    """After an answer that is no fault of the server's: it lives."""
    if health.num_trials_left > 1:
        return Health(0, health.num_ejections, health.ejected_until, health.num_trials_left - 1)
    return WELL


def failed(health: Health, now: float, *, may_eject: bool) -> Health:
    """After a request that was lost there, or that it failed on. On trial one is enough."""
    num_failures = health.num_failures + 1
    if may_eject and (num_failures >= MAX_FAILURES or health.num_trials_left):
        return ejected(health, now)
    return Health(num_failures, health.num_ejections, health.ejected_until, health.num_trials_left)


def ejected(health: Health, now: float) -> Health:
    pause_s = min(FIRST_EJECTION_S * 2 ** min(health.num_ejections, MAX_DOUBLINGS), LONGEST_EJECTION_S)
    return Health(0, health.num_ejections + 1, now + pause_s, NUM_TRIALS)


def may_eject(num_ejected: int, num_servers: int) -> bool:
    """One more of them, by half of the pool at most."""
    return num_ejected + 1 <= num_servers / 2


def condition(health: Health, now: float) -> str:
    """`well`, `left_out` or `on_trial`."""
    if health.ejected_until > now:
        return "left_out"
    return "on_trial" if health.num_trials_left else "well"


def stalled(overdue_s: dict[str, float], work_s: dict[str, float]) -> list[str]:
    """The servers that stand still, by how long the work in flight should have been done and how much it is, worst first.

    Where more than half seem to, it is this process that stood still.
    """
    out = [s for s, late_s in overdue_s.items() if late_s > STALLED_S + SLOW_TIMES * work_s[s]]
    return sorted(out, key=lambda s: -overdue_s[s]) if 2 * len(out) <= len(overdue_s) else []


Server = TypeVar("Server")


def silent(quiet_s: Mapping[Server, float], serves: Mapping[Server, Set[str]], up: Set[Server]) -> list[Server]:
    """The servers that answer nothing, by how long nothing came of each, what it serves, and which are up as far as anybody knows.

    Only those that can be done without: all that it serves others serve, of which something comes. Where nothing comes of anybody it is
    our network, or this process; and who waits for the only one there is loses nothing by waiting.
    """
    heard = set[str]().union(*(serves[server] for server in up if quiet_s[server] < ASK_AFTER_S))
    return [s for s, since_s in quiet_s.items() if since_s >= SILENT_S and serves[s] and serves[s] <= heard]


def slow(latencies_s: dict[str, float]) -> list[str]:
    """The servers whose latency (of the same work) is many times that of the others, worst first. Needs three to tell."""
    if len(latencies_s) < 3:
        return []
    usual_s = median(latencies_s.values())
    return sorted((s for s, t in latencies_s.items() if t > SLOW_TIMES * usual_s), key=lambda s: -latencies_s[s])


class Deaths:
    """Digests of requests under which servers died."""

    def __init__(self) -> None:
        self._died: dict[str, tuple[int, float]] = {}  # digest -> (deaths, when the last one was)
        self._known_until = -inf

    def knows_any(self, now: float) -> bool:
        """Whether there is a reason to look at a request's digest."""
        return now < self._known_until

    def died(self, digest: str, now: float) -> None:
        count, last = self._died.pop(digest, (0, now))
        self._died[digest] = (count + 1 if now - last <= REFUSED_S else 1, now)
        self._known_until = now + REFUSED_S
        if len(self._died) > MAX_REMEMBERED:
            del self._died[next(iter(self._died))]

    def answered(self, digest: str) -> None:
        """A server lived through it: it was not the cause."""
        self._died.pop(digest, None)

    def refused_for_s(self, digest: str, now: float) -> float | None:
        """How long this request is still refused; None if it is not."""
        count, last = self._died.get(digest, (0, now))
        left_s = last + REFUSED_S - now
        return left_s if count >= 2 and left_s > 0 else None
