"""Which gateways have restarted at the address that they had, and which silences are worth a line? Pure; the time is an argument."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

Good = Mapping[str, float]  # by pool: requests answered well since it began

AGAIN = " (again)"  # two names take turns, so that labels stay as few


class RestartDetector:
    """Knows a gateway that restarted by its count of good answers, because a count never goes back.

    A container that ends is started again in its pod, with the address and without its memory: what it publishes of its traffic begins at
    nothing and is right after half a minute. So it counts as another gateway, and what it was as one that has left.
    """

    def __init__(self) -> None:
        self._good: dict[str, Good] = {}
        self._again: set[str] = set()

    def observe(self, addresses: Collection[str], good: Mapping[str, Good]) -> tuple[str, ...]:
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


QUIET_S = 60.0  # between two silences of one gateway that are logged; a guess


class SilenceLog:
    """One that begins, and its end. A gateway that misses every other look has a line a minute, not one a second."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}  # when a silence of it was last logged
        self._is_logged: set[str] = set()  # of those that are silent now

    def lines(self, now: float, heard: Collection[str], silent: Mapping[str, str]) -> Iterator[str]:
        """`silent`: why, by address."""
        for address in sorted(self._is_logged & set(heard)):
            yield f"gateway {address} is heard again"
        self._is_logged &= set(silent)
        for address, why in silent.items():
            if address not in self._is_logged and now - self._logged_at.get(address, -QUIET_S) >= QUIET_S:
                self._is_logged.add(address)
                self._logged_at[address] = now
                yield f"gateway {address} is not heard: {why}"
        self._logged_at = {it: at for it, at in self._logged_at.items() if it in heard or it in silent}
