"""Which silences of gateways are worth a line? One that begins, and its end. Pure; the time is an argument.

Rule: a gateway that misses every other look has a line a minute, not one a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

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


QUIET_S = 60.0  # between two silences of one gateway that are told; a guess


class Silences:
    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}  # when a silence of it was last told
        self._is_told: set[str] = set()  # of those that are silent now

    def lines(self, now: float, heard: Collection[str], silent: Mapping[str, str]) -> Iterator[str]:
        """`silent`: why, by address."""
        for address in sorted(self._is_told & set(heard)):
            yield f"gateway {address} is heard again"
        self._is_told &= set(silent)
        for address, why in silent.items():
            if address not in self._is_told and now - self._told_at.get(address, -QUIET_S) >= QUIET_S:
                self._is_told.add(address)
                self._told_at[address] = now
                yield f"gateway {address} is not heard: {why}"
        self._told_at = {it: at for it, at in self._told_at.items() if it in heard or it in silent}
