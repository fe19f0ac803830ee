"""Who waits for an answer, as the queue sees it: somebody who may leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Client(Protocol):
    def listen(self, tell: Callable[[], None]) -> None:
        """From now on `tell` is called, on the event loop, once the client has gone; at once where it has gone already."""

    def ignore(self) -> None:
        """`tell` is called no more."""


class NobodyLeaves:
    """For work whose asker's leaving is seen elsewhere, or by nobody."""

    def listen(self, tell: Callable[[], None]) -> None:
        pass

    def ignore(self) -> None:
        pass


class Crowd:
    """Several inferences of one client: all hear of its leaving, and one that comes after it as well."""

    def __init__(self) -> None:
        self.has_left = False
        self._tells: dict[_Member, Callable[[], None]] = {}

    def member(self) -> Client:
        """What one of them sees."""
        return _Member(self._tells, lambda: self.has_left)

    def leave(self) -> None:
        self.has_left = True
        for tell in list(self._tells.values()):
            tell()


class _Member:
    def __init__(self, tells: dict[_Member, Callable[[], None]], has_left: Callable[[], bool]) -> None:
        self._tells = tells
        self._has_left = has_left

    def listen(self, tell: Callable[[], None]) -> None:
        if self._has_left():
            tell()
        else:
            self._tells[self] = tell

    def ignore(self) -> None:
        self._tells.pop(self, None)
