"""Which gateways have started anew at the address that they had? Pure.

A container that ends is started again in its pod, with the address and without its memory: what it tells of its traffic begins at nothing
and is right after half a minute. So it counts as another gateway, and what it was as one that has left. Rule: it is told by what it has
answered well, which it counts: a count never goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Good = Mapping[str, float]  # by pool: requests answered well since it began

AGAIN = " (again)"  # two names take turns, so that labels stay as few


class Starts:
    def __init__(self) -> None:
        self._good: dict[str, Good] = {}
        self._again: set[str] = set()

    def see(self, addresses: Collection[str], good: Mapping[str, Good]) -> tuple[str, ...]:
        """At every look: who is named, and what those who answered have counted. Those that have started anew since their last answer."""
        anew = tuple(it for it, now in good.items() if it in self._good and _is_less(now, self._good[it]))
        self._again ^= set(anew)
        self._again &= set(addresses)
        self._good = {it: now for it, now in {**self._good, **good}.items() if it in addresses}
        return anew

    def name(self, address: str) -> str:
        return address + AGAIN if address in self._again else address


def _is_less(now: Good, before: Good) -> bool:
    return any(now.get(pool, 0.0) < count for pool, count in before.items())
