"""Which silences of gateways are worth a line? One that begins, and its end. Pure; the time is an argument.

Rule: a gateway that misses every other look has a line a minute, not one a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

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
