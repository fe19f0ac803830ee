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


class Shared:
    """One client of several inferences, which all hear of its leaving."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tells: list[Callable[[], None]] = []

    def share(self) -> Client:
        return _Share(self)

    def add(self, tell: Callable[[], None]) -> None:
        self._tells.append(tell)
        if len(self._tells) == 1:
            self._client.listen(self._gone)

    def remove(self, tell: Callable[[], None]) -> None:
        if tell in self._tells:
            self._tells.remove(tell)
            if not self._tells:
                self._client.ignore()

    def _gone(self) -> None:
        for tell in list(self._tells):
            tell()


class _Share:
    """What one of these inferences sees."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._tell: Callable[[], None] | None = None

    def listen(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._shared.add(tell)

    def ignore(self) -> None:
        if self._tell is not None:
            self._shared.remove(self._tell)
            self._tell = None
